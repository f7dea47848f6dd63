"""Methods on settings, and on the names of partitions, which need nothing from the store."""

from __future__ import annotations

import re

from strandline.metastore.hive.exceptions import config_forbidden, meta_exception
from strandline.metastore.hive.locations import hadoop_location
from strandline.metastore.hive.partition_names import parse_partition_name
from strandline.metastore.hive.registry import Request, answers

_READABLE = re.compile(r"(hive|hdfs|mapred).*")
_WAREHOUSE = "hive.metastore.warehouse.dir"


@answers("get_config_value")
def get_config_value(request: Request) -> str:
    """The default that the client brings: it knows its own settings better than this server."""
    name, default = request.args.get("name"), request.args.get("defaultValue", "")
    if name is not None and not _READABLE.fullmatch(name):
        raise config_forbidden(name)
    return hadoop_location(request.metastore.warehouse) if name == _WAREHOUSE else str(default)


@answers("getMetaConf", "setMetaConf")
def meta_conf(request: Request) -> None:
    raise meta_exception(f"Invalid configuration key {request.args.get('key')}")


@answers("partition_name_to_vals")
def partition_name_to_vals(request: Request) -> list[str]:
    name = request.text("part_name")
    return [value for _, value in parse_partition_name(name)] if name else []


@answers("partition_name_to_spec")
def partition_name_to_spec(request: Request) -> dict[str, str]:
    name = request.text("part_name")
    return dict(parse_partition_name(name)) if name else {}


@answers("partition_name_has_valid_characters")
def partition_name_has_valid_characters(request: Request) -> bool:
    """Every value can name a partition: what cannot stand in a path is escaped."""
    return True


@answers("flushCache")
def flush_cache(request: Request) -> None:
    """Nothing: what is kept here is right by construction."""
