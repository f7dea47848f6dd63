"""Methods that need nothing from the store: settings, names of partitions, refusals."""

from __future__ import annotations

import re

from strandline.catalog import DEFAULT_DATABASE
from strandline.errors import UnsupportedOperation
from strandline.metastore.hive.names import hadoop_location
from strandline.metastore.hive.partition_values import parse_partition_name
from strandline.metastore.hive.registry import (
    Request,
    answers,
    config_forbidden,
    constantly,
    meta_exception,
)

_READABLE = re.compile(r"(hive|hdfs|mapred|metastore).*")
_WAREHOUSE = "hive.metastore.warehouse.dir"
_SETTINGS = {
    "hive.metastore.alter.notifications.basic": "false",
    "hive.metastore.dml.events": "true",
    "hive.metastore.notifications.add.thrift.objects": "true",
    "metastore.catalog.default": DEFAULT_DATABASE,
}
"""What Hive's settings would say about this node. Impala asks for them before it reads events."""
_META_CONF = {
    "hive.metastore.disallow.incompatible.col.type.changes",
    "hive.metastore.try.direct.sql",
    "hive.metastore.try.direct.sql.ddl",
}
"""Those of Hive's settings for a connection that no answer here depends on."""
_NO_DELTAS = (
    "the files of a transactional table are not Hive's deltas, so Hive clients cannot compact them"
)


@answers("get_config_value")
def get_config_value(request: Request) -> str:
    """Return the default that the client sends, unless the answers here depend on the setting."""
    name, default = request.args.get("name"), request.args.get("defaultValue", "")
    if name is not None and not _READABLE.fullmatch(name):
        raise config_forbidden(f"For security reasons, the config key {name} cannot be accessed")
    if name == _WAREHOUSE:
        return hadoop_location(request.metastore.warehouse)
    return _SETTINGS.get(str(name), str(default))


@answers("getMetaConf")
def get_meta_conf(request: Request) -> str:
    _require_meta_conf(request)
    return "true"


@answers("setMetaConf")
def set_meta_conf(request: Request) -> None:
    """Accept a value that changes nothing: clients set one before a call that works either way."""
    key = _require_meta_conf(request)
    value = request.args.get("value")
    if str(value).lower() not in ("true", "false"):
        raise meta_exception(f"Invalid configuration value {value} for key {key}")


def _require_meta_conf(request: Request) -> str:
    key = request.args.get("key")
    if key not in _META_CONF:
        raise meta_exception(f"Invalid configuration key {key}")
    return str(key)


@answers("partition_name_to_vals")
def partition_name_to_vals(request: Request) -> list[str]:
    name = request.text("part_name")
    return [value for _, value in parse_partition_name(name)] if name else []


@answers("partition_name_to_spec")
def partition_name_to_spec(request: Request) -> dict[str, str]:
    name = request.text("part_name")
    return dict(parse_partition_name(name)) if name else {}


@answers("get_delegation_token", "renew_delegation_token", "cancel_delegation_token")
def delegation_token(request: Request) -> None:
    raise meta_exception(
        "this metastore has no delegation tokens, because it does not use Kerberos; connect without"
        " SASL (hive.metastore.sasl.enabled=false)"
    )


@answers("exchange_partition", "exchange_partitions")
def exchange_partitions(request: Request) -> None:
    # The rows of two tables would change, and the folders of both are part of their histories.
    raise meta_exception(
        "partitions cannot be exchanged between two tables here; copy the files to the other table,"
        " add the partitions there, and drop them here"
    )


@answers("compact")
def compact(request: Request) -> None:
    raise UnsupportedOperation(_NO_DELTAS)


@answers("get_metastore_db_uuid")
def get_metastore_db_uuid(request: Request) -> str:
    """The environment id of the store, which no other store has."""
    return request.metastore.catalogs.state.environment or ""


# Every value can name a partition: characters that cannot be in a path are escaped.
constantly("partition_name_has_valid_characters", True)
constantly("flushCache", None)  # no cache here has outdated answers
constantly("show_compact", {"compacts": []})
constantly("get_latest_committed_compaction_info", {"compactions": []})
# Impala asks for the first when it starts, and for the second at each COMMIT_TXN event. To a client
# of this protocol, transactional tables are views.
constantly("get_dataconnectors", [])
constantly("get_all_write_event_info", [])
constantly("compact2", {"id": 0, "state": "refused", "accepted": False, "errormessage": _NO_DELTAS})
