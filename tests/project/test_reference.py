"""The tables of the reference agree with the program."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hive_metastore import ThriftHiveMetastore

# Importing these registers formats and methods.
import strandline.durable.persist.shard_state
import strandline.metastore.hive.service
import strandline.node
from strandline import errors
from strandline.catalog import initial, manager, node_filter
from strandline.catalog.commands import column_definition, constraints, objects, views, zones
from strandline.catalog.undo import reading
from strandline.cli.main import COMMANDS, IO_ERROR, main
from strandline.cli.status import status_of
from strandline.config import Settings
from strandline.errors import StrandlineError
from strandline.metastorage.store import MAX_VALUE_BYTES
from strandline.metastore import request_memory
from strandline.metastore.cache import replica_set
from strandline.metastore.hive import (
    event_methods,
    partition_filter,
    patterns,
    statistics_changes,
    statistics_values,
    transactions,
)
from strandline.metastore.hive.registry import METHODS
from strandline.metastore.session import bodies, local_session
from strandline.metastore.session.calls import CALLS
from strandline.metastore.session.json_forms import snake_case
from strandline.metastore.store import file_counts, warehouse
from strandline.metastore.thrift import ServerSettings, connection, scanner
from strandline.metastore.thrift.field_table import HIVE_METASTORE
from strandline.metastore.thrift.messages import MAX_MESSAGE_BYTES
from strandline.model import identifiers, partitioning, type_parser, types
from strandline.node import http_connections, users
from strandline.node.metrics import METRICS, Count
from strandline.node.monitoring import Monitoring
from strandline.node.node import Node
from strandline.node.settings import REGISTRY
from strandline.node.store_database import PARTS
from strandline.spark.transaction import MAX_FILES
from strandline.transactions import locks
from strandline.transactions.transaction import MAX_CLIENT_TEXT
from strandline.wire import formats
from strandline.work import children
from tests.project.checkout import ROOT

REFERENCE = ROOT / "docs" / "reference"
CODE = re.compile(r"`([^`]+)`")
ARGUMENTS_CLASS = re.compile(
    r"org/apache/hadoop/hive/metastore/api/ThriftHiveMetastore\$(\w+)_args\.class"
)


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = title.split(" ")[0]
    _, _, rest = text.partition(f"\n{title}\n")
    assert rest, f"no heading {title!r}"
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of all table rows, without headers and rules, and without code marks."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("| ") and not line.startswith("| ---") and "| ---" not in following:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield [cell.strip() for cell in cells]


def names(text: str) -> list[str]:
    """The code in the first cells of all table rows."""
    return [name for row in rows(text) for name in CODE.findall(row[0])]


def leaves(kind: type[StrandlineError]) -> Iterator[type[StrandlineError]]:
    yield kind
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield from leaves(sub)


def test_every_error_is_listed_with_its_surfaces() -> None:
    listed = [
        tuple(cell.strip("`") for cell in row) for row in rows(page("errors")) if len(row) == 5
    ]
    expected = []
    for kind in leaves(StrandlineError):
        surface = errors.surface_of(kind(""))
        shown = (surface.thrift, str(surface.http), str(surface.exit))
        expected.append((kind.code, kind.__name__, *shown))
    assert sorted(listed) == sorted(expected)


def test_every_error_is_explained() -> None:
    explained = names(section(page("errors"), "## What they mean, and what to do"))
    assert explained == [kind.code for kind in leaves(StrandlineError)]


def test_every_exit_status_is_listed() -> None:
    listed = {int(row[0]) for row in rows(section(page("commands"), "## Exit status"))}
    assert listed == {surface.exit for surface in errors.SURFACES.values()} | {IO_ERROR}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_listed(name: str) -> None:
    text = page("commands")
    title = re.search(rf"^## `strandline {name}\b.*$", text, re.MULTILINE)
    assert title is not None
    command = main.get_command(click.Context(main), name)
    assert command is not None
    parts = [*command.commands.values()] if isinstance(command, click.Group) else [command]
    options = [
        parameter
        for part in parts
        for parameter in part.params
        if isinstance(parameter, click.Option)
    ]
    of_settings = {setting.option for setting in REGISTRY.values()}  # the page of limits has them
    listed = {option.split(" ")[0] for option in names(section(text, title[0]))}
    assert (
        listed - of_settings
        == {opt for parameter in options for opt in parameter.opts} - of_settings
    )


def test_the_fields_of_the_status_are_listed(tmp_path: Path) -> None:
    listed = section(page("commands"), "## `strandline status STORE`")
    Node.open(tmp_path).close()
    assert ", ".join(f"`{name}`" for name in status_of(tmp_path)) in listed


def test_every_type_on_disk_is_listed() -> None:
    listed = [
        (int(row[0]), row[1].strip("`"), int(row[2]), row[3])
        for row in rows(section(page("wire-format"), "## Types"))
    ]
    assert listed == [
        (layout.type_id, layout.of.__name__, layout.version, layout.since) for layout in formats()
    ]


def test_the_fields_of_every_type_on_disk_are_listed() -> None:
    listed = set(names(section(page("wire-format"), "## Fields")))
    assert listed == {layout.of.__name__ for layout in formats()} - {"TypeTree"}


def test_every_table_of_the_database_is_listed() -> None:
    listed = {
        (name, row[1])
        for row in rows(section(page("storage-layout"), "## The database"))
        for name in CODE.findall(row[0])
    }
    parts = PARTS.values()
    assert listed == {(name, part.name) for part in parts for name in part.metadata.tables}


def test_every_route_is_listed() -> None:
    listed = names(section(page("http"), "## Routes"))
    calls = [f"POST {call.path}" for call in CALLS.values()]
    assert sorted(listed) == sorted([*(f"GET {path}" for path in Monitoring.PAGES), *calls])


def test_every_metric_is_listed() -> None:
    listed = names(section(page("http"), "## Metrics"))
    shown = [
        f"{metric.name}_total" if isinstance(metric, Count) else metric.name
        for metrics in METRICS.values()
        for metric in metrics
    ]
    of_calls = ["node_info", "part_readable", "call_seconds", "call_errors_total"]
    assert listed == [*of_calls, *shown]


def test_alert_rules_use_listed_metrics() -> None:
    text = (ROOT / "docs" / "how-to" / "run-a-node.md").read_text(encoding="utf-8")
    used = set(re.findall(r"\bstrandline_(\w+)", section(text, "## Watch it")))
    assert used
    assert used <= set(names(section(page("http"), "## Metrics")))


def test_every_check_of_health_is_explained(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "find-what-is-wrong.md").read_text(encoding="utf-8")
    listed = names(section(text, "## What the checks of health mean"))
    with Node.open(tmp_path, settings=Settings(catalog_log="persist")) as node:
        in_folder = set(node.health._checks)
    assert set(listed) == in_folder | {"warehouse in its place", "deadline"}


def test_every_command_that_can_be_sent_is_listed() -> None:
    text = section(page("http"), "## Values")
    listed = text.partition("\nCommands: ")[2].partition(". Their")[0]
    commands = strandline.catalog.commands
    sent = [name for name in commands.__all__ if hasattr(getattr(commands, name), "plan")]
    assert sorted(CODE.findall(listed)) == sorted(map(snake_case, sent))


BASE = {
    *(
        "set_ugi",
        "shutdown",
        "reinitialize",
        "aliveSince",
        "getCpuProfile",
        "getName",
        "getVersion",
    ),
    *("getStatus", "getStatusDetails", "getCounter", "getCounters"),
    *("getOption", "getOptions", "setOption"),
}
"""The methods of fb303, and the method by which a client identifies itself."""


def methods_of_hive_2() -> set[str]:
    """The methods of Hive 2.3.10: its jar in PySpark has a class for the arguments of each."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = (Path(spec.origin).parent / "jars").glob("hive-metastore-2.3*.jar")
    with zipfile.ZipFile(jar) as opened:
        listed = opened.namelist()
    return {match[1] for name in listed if (match := ARGUMENTS_CLASS.fullmatch(name))}


ADDED_BY_HIVE_4_1 = {
    *("create_database_req", "alter_database_req", "drop_table_req", "append_partition_req"),
    *("drop_partition_req", "fetch_partition_names_req", "get_partitions_by_filter_req"),
    *("create_dataconnector_req", "alter_dataconnector_req", "drop_dataconnector_req"),
    *("get_properties", "set_properties", "submit_for_cleanup", "abort_Compactions"),
    "add_write_ids_to_min_history",
}
"""Most of them are called by its client instead of older ones."""


def methods_of_hive_4() -> set[str]:
    """The methods of Hive 4: those that the client of PyIceberg lists, and later ones."""
    listed = {name for name in dir(ThriftHiveMetastore.Iface) if not name.startswith("_")}
    return listed | ADDED_BY_HIVE_4_1


def test_every_method_of_hive_is_listed_as_served_or_unknown() -> None:
    text = page("hive-protocol")
    columns = {"## Methods": 1, "## Methods that store nothing": 0}
    answered = [
        name
        for title, column in columns.items()
        for row in rows(section(text, title))
        for name in CODE.findall(row[column])
    ]
    assert sorted(set(answered) - BASE) == sorted(METHODS)
    assert len(answered) == len(set(answered))
    unknown_rows = list(rows(section(text, "## Unknown methods")))
    of_2, of_4 = ([name for row in unknown_rows for name in CODE.findall(row[n])] for n in (1, 2))
    hive_2, hive_4 = methods_of_hive_2(), methods_of_hive_4()
    assert METHODS.keys() | HIVE_METASTORE.methods.keys() <= hive_2 | hive_4 | BASE
    assert sorted(of_2) == sorted(hive_2 - METHODS.keys() - BASE)
    assert sorted(of_4) == sorted(hive_4 - hive_2 - METHODS.keys() - BASE)


LIMITS: dict[str, int | tuple[int, ...]] = {
    "characters of a name": identifiers.MAX_NAME_LENGTH,
    "characters of the name of a column or field": identifiers.MAX_COLUMN_NAME_LENGTH,
    "columns of a table": column_definition.MAX_COLUMNS,
    "characters of a comment that `comment_on` sets, and of the comment of a schema": (
        objects.MAX_COMMENT_LENGTH
    ),
    "fields by which a transactional table is partitioned": partitioning.MAX_FIELDS,
    "bytes of one value of such a field": partitioning.MAX_VALUE_BYTES,
    "files and archives of a function": views.MAX_RESOURCES,
    "storage profiles of a zone": zones.MAX_STORAGE_PROFILES,
    "characters of a node filter of a zone": (node_filter.MAX_FILTER_LENGTH, node_filter.MAX_DEPTH),
    "bytes of the path of a local location": (warehouse.MAX_PATH_BYTES, warehouse.MAX_PART_BYTES),
    "characters of a type's text": type_parser.MAX_TEXT_LENGTH,
    "constraints of a table; columns of one; characters of a default or a check": (
        constraints.MAX_CONSTRAINTS,
        constraints.MAX_COLUMNS,
        constraints.MAX_TEXT,
    ),
    "components of a lock request of a Hive client; of all requests in a store": (
        locks.MAX_COMPONENTS,
        locks.MAX_STORED,
    ),
    "tables of one `get_valid_write_ids`; ids that it processes: those of the `validTxnList` for"
    " each table, and those of the answer": (transactions.MAX_TABLES, transactions.MAX_IDS),
    "bytes of the statistics of one column that a Hive client stores; of all columns of a table or"
    " partition": (statistics_values.MAX_COLUMN_BYTES, statistics_changes.MAX_ROW_BYTES),
    "files and folders that are counted for `numFiles` and `totalSize` in one request": (
        file_counts.MAX_ENTRIES,
        int(file_counts.MAX_SECONDS),
    ),
    "time from a version to its activation, set when a catalog is created (`delay_ms`)": (
        initial.MAX_DELAY_MS // 86_400_000
    ),
    "difference of the nodes' clocks that a catalog allows, set when it is created"
    " (`clock_skew_ms`)": initial.MAX_SKEW_MS // 86_400_000,
    "characters of the user, host and agent that a Hive client names with a transaction or a"
    " lock": MAX_CLIENT_TEXT,
    "versions that are undone as one": reading.MAX_VERSIONS,
    "data files that one transaction adds to one table": MAX_FILES,
    "partitions and files of one table in the memory of a node, with those removed in the last ten"
    " minutes": replica_set.MAX_ROWS,
    "bytes of a users file": users.MAX_FILE_BYTES,
    "levels of nesting in a type": types.MAX_DEPTH,
    "precision of a decimal": types.MAX_DECIMAL_PRECISION,
    "commands in one batch (one version)": manager.MAX_COMMANDS,
    "bytes of a value in a metastorage, so of one update in the log `metastorage`, also as a part"
    " of a shadow": MAX_VALUE_BYTES,
    "bytes of an HTTP request": bodies.MAX_BODY_BYTES,
    "headers of an HTTP request; bytes of an incomplete head": (
        http_connections.MAX_HEADERS,
        http_connections.MAX_HEAD_BYTES,
    ),
    "HTTP connections of a node": http_connections.MAX_CONNECTIONS,
    "seconds to receive the head of an HTTP request; seconds that a connection may be idle": int(
        http_connections.HEAD_SECONDS
    ),
    "seconds that a client may leave its HTTP answer unread": int(http_connections.READ_SECONDS),
    "seconds to receive the body of an HTTP request": int(bodies.BODY_SECONDS),
    "memory for the bodies of all HTTP requests together, whole or not": (bodies.BODY_MEMORY_BYTES),
    "tables of one snapshot": local_session.MAX_SNAPSHOT_TABLES,
    "characters of a user's name": identifiers.MAX_USER_LENGTH,
    "bytes of a Thrift message": MAX_MESSAGE_BYTES,
    "values of one Thrift message": scanner.MAX_VALUES,
    "bytes of one text in a Thrift message": scanner.MAX_TEXT_BYTES,
    "memory for large Thrift requests, of all connections together": (
        ServerSettings().request_memory_bytes,
        connection._BYTES_OF_A_VALUE,
        request_memory.ALLOWANCE,
    ),
    "long answers that are not yet sent, of all clients of a protocol": request_memory.ANSWER_BYTES,
    "memory of one large request in a child process": children.MEMORY_BYTES,
    "seconds that a client may take to send one Thrift message, or pause while it reads an"
    " answer": int(ServerSettings().message_timeout),
    "Thrift connections of a node": ServerSettings().max_connections,
    "notifications in one Thrift answer": (
        event_methods.MAX_EVENTS,
        event_methods.MAX_EVENT_BYTES,
    ),
    "characters of a pattern of names": patterns.MAX_PATTERN_LENGTH,
    "characters of a pattern of `like` in a partition filter": patterns.MAX_LIKE_LENGTH,
    "characters of a partition filter": (
        partition_filter.MAX_FILTER_LENGTH,
        partition_filter.MAX_FILTER_DEPTH,
    ),
    "words, values, operators and marks of a partition filter": partition_filter.MAX_FILTER_TOKENS,
    "conditions of a partition filter": partition_filter.MAX_CONDITIONS,
}


NUMBER = re.compile(r"([0-9][0-9,]*)(?: ([KMG])i)?")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@pytest.mark.parametrize(("what", "limits"), LIMITS.items())
def test_the_first_numbers_of_a_limit_equal_those_on_the_page(
    what: str, limits: int | tuple[int, ...]
) -> None:
    listed = {row[0]: row[1] for row in rows(page("limits"))}[what]
    assert NUMBER.match(listed)
    numbers = [int(n.replace(",", "")) * UNITS[unit] for n, unit in NUMBER.findall(listed)]
    expected = limits if isinstance(limits, tuple) else (limits,)
    assert tuple(numbers[: len(expected)]) == expected


def test_every_setting_is_listed_with_its_default() -> None:
    listed: dict[str, str] = {}
    for row in rows(section(page("limits"), "## Settings of a node")):
        defaults = [text.strip().replace(",", "") for text in row[1].split(", ")]
        listed |= dict(zip(CODE.findall(row[0]), defaults, strict=True))
    defaults_of_settings = {name: getattr(Settings(), name) for name in Settings.__slots__}
    assert listed == {
        name: "not set" if default in (None, "", ()) else str(default)
        for name, default in defaults_of_settings.items()
    }
