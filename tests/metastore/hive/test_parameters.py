"""``numFiles`` and ``totalSize``: when a node counts the files of tables and partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import AlterTableRequest, EnvironmentContext, FieldSchema, Partition

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    SetTableProperties,
    TableDefinition,
)
from strandline.clock import system_wall_clock
from strandline.errors import InvalidInput
from strandline.metastore.table_parameters import (
    ACCURATE,
    COMMENT,
    EXTERNAL,
    PROVIDER,
    RETENTION,
    SCHEMA,
    TRANSACTIONAL,
)
from strandline.model.types import INT
from tests.metastore.hive.hive_node import HiveNode, hive_node, refusal, storage, table

KEYS = [FieldSchema("day", "string", None)]


def fill(location: str, *sizes: int) -> None:
    folder = Path(location.removeprefix("file:"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"f{number}").write_bytes(b"x" * size)


def counts(parameters: dict[str, str]) -> tuple[str | None, str | None]:
    return parameters.get("numFiles"), parameters.get("totalSize")


def of_table(stub: Any, name: str = "t") -> tuple[str | None, str | None]:
    return counts(stub.get_table("d1", name).parameters)


def alter(stub: Any, name: str = "t", **options: str) -> None:
    present = stub.get_table("d1", name)
    context = EnvironmentContext(options) if options else None
    stub.alter_table_with_environment_context("d1", name, present, context)


def test_the_files_of_a_table_are_counted_when_it_is_created_over_them(
    hive: HiveNode, stub: Any
) -> None:
    default = f"{hive.warehouse}/d1.db/t"
    fill(default, 3, 4)
    stub.create_table(table("t", sd=storage(location=default)))
    assert of_table(stub) == ("2", "7")


def test_the_files_of_an_external_table_are_counted_at_its_location(
    stub: Any, tmp_path: Path
) -> None:
    fill(f"file:{tmp_path}/here", 5)
    for name, place, expected in (
        ("t", "here", ("1", "5")),
        ("missing", "missing", (None, None)),
    ):
        sd = storage(location=f"file:{tmp_path}/{place}")
        stub.create_table(table(name, sd=sd, tableType="EXTERNAL_TABLE"))
        assert of_table(stub, name) == expected


def test_a_table_over_an_existing_empty_folder_has_counts_as_in_hive(
    hive: HiveNode, stub: Any, tmp_path: Path
) -> None:
    default = f"{hive.warehouse}/d1.db/t"
    for name, place, kind in (
        ("t", default, "MANAGED_TABLE"),
        ("ext", f"file:{tmp_path}/here", "EXTERNAL_TABLE"),
        ("no_place", None, "MANAGED_TABLE"),
    ):
        fill(place or f"{hive.warehouse}/d1.db/no_place")
        stub.create_table(table(name, sd=storage(location=place), tableType=kind))
        assert of_table(stub, name) == ("0", "0")


def test_an_empty_table_has_counts_from_its_first_alter_on(stub: Any) -> None:
    stub.create_table(table("t"))
    assert of_table(stub) == (None, None)
    alter(stub)
    assert of_table(stub) == ("0", "0")


def test_each_alter_counts_the_files_of_a_table_again_without_a_new_version(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t"))
    location = stub.get_table("d1", "t").sd.location
    version = hive.node.catalogs.present().version
    fill(location, 3, 4, 5)
    alter(stub)
    assert of_table(stub) == ("3", "12")
    Path(location.removeprefix("file:"), "f0").unlink()
    alter(stub)
    assert of_table(stub) == ("2", "9")
    assert hive.node.catalogs.present().version == version


@pytest.mark.parametrize("way", ["context", "parameter"])
def test_a_client_can_turn_off_counting_for_an_alter(stub: Any, way: str) -> None:
    stub.create_table(table("t"))
    present = stub.get_table("d1", "t")
    fill(present.sd.location, 3)
    if way == "context":
        alter(stub, DO_NOT_UPDATE_STATS="true")
    else:
        present.parameters["DO_NOT_UPDATE_STATS"] = "true"
        stub.alter_table("d1", "t", present)
    assert of_table(stub) == (None, None)
    assert "DO_NOT_UPDATE_STATS" not in stub.get_table("d1", "t").parameters


def test_statistics_are_marked_accurate_only_if_a_statistics_task_made_them(stub: Any) -> None:
    stub.create_table(table("t"))
    fill(stub.get_table("d1", "t").sd.location, 3)
    alter(stub, STATS_GENERATED="TASK")
    name = "COLUMN_STATS_ACCURATE"
    assert stub.get_table("d1", "t").parameters[name] == '{"BASIC_STATS":"true"}'
    alter(stub)
    assert name not in stub.get_table("d1", "t").parameters


def test_the_files_of_partitioned_tables_and_iceberg_tables_are_not_counted(stub: Any) -> None:
    stub.create_table(table("t", partitionKeys=KEYS))
    stub.create_table(table("ice", parameters={"metadata_location": "m0"}))
    for name in ("t", "ice"):
        fill(stub.get_table("d1", name).sd.location, 3)
        alter(stub, name)
        assert of_table(stub, name) == (None, None)


def partition(day: str, location: str | None = None, **parameters: str) -> Any:
    return Partition([day], "d1", "t", 0, 0, storage(location=location), parameters)


def of_partition(stub: Any, day: str) -> tuple[str | None, str | None]:
    return counts(stub.get_partition("d1", "t", [day]).parameters)


def test_the_files_of_partitions_are_counted_when_they_are_added_and_altered(stub: Any) -> None:
    stub.create_table(table("t", partitionKeys=KEYS))
    location = stub.get_table("d1", "t").sd.location
    fill(f"{location}/day=1", 3, 4)
    stub.add_partition(partition("1"))
    stub.add_partitions([partition("2"), partition("3", numFiles="8", totalSize="9")])
    days = ("1", "2", "3")
    assert [of_partition(stub, day) for day in days] == [("2", "7"), (None, None), ("8", "9")]
    fill(f"{location}/day=2", 5)
    stub.alter_partitions("d1", "t", [stub.get_partition("d1", "t", [day]) for day in days])
    assert [of_partition(stub, day) for day in days] == [("2", "7"), ("1", "5"), ("0", "0")]
    fill(f"{location}/day=2", 6, 7)
    present = stub.get_partition("d1", "t", ["2"])
    context = EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
    stub.alter_partition_with_environment_context("d1", "t", present, context)
    assert of_partition(stub, "2") == ("1", "5")


def test_an_altered_partition_is_counted_where_it_is_if_the_client_sends_no_location(
    stub: Any, tmp_path: Path
) -> None:
    stub.create_table(table("t", partitionKeys=KEYS))
    stub.add_partition(partition("1", f"file:{tmp_path}/elsewhere"))
    fill(f"file:{tmp_path}/elsewhere", 3, 4)
    stub.alter_partition("d1", "t", partition("1"))
    assert of_partition(stub, "1") == ("2", "7")
    assert stub.get_partition("d1", "t", ["1"]).sd.location == f"file:{tmp_path}/elsewhere"


def test_a_renamed_partition_has_the_counts_of_its_files(stub: Any) -> None:
    stub.create_table(table("t", partitionKeys=KEYS))
    stub.add_partition(partition("1"))
    fill(stub.get_partition("d1", "t", ["1"]).sd.location, 3, 4)
    stub.rename_partition("d1", "t", ["1"], partition("2"))
    assert of_partition(stub, "2") == ("2", "7")


@pytest.mark.parametrize("way", ["method", "context", "request"])
def test_a_cascading_alter_gives_the_partitions_the_columns_of_the_table(
    stub: Any, way: str
) -> None:
    stub.create_table(table("t", partitionKeys=KEYS))
    stub.add_partition(partition("1"))
    own = partition("2")
    own.sd.cols = [FieldSchema("a", "int", "another comment"), FieldSchema("z", "int", None)]
    stub.add_partition(own)
    present = stub.get_table("d1", "t")
    present.sd.cols.append(FieldSchema("c", "int", None))
    stub.alter_table("d1", "t", present)
    assert [c.name for c in stub.get_partition("d1", "t", ["2"]).sd.cols] == ["a", "z"]
    context = EnvironmentContext({"CASCADE": "true"})
    if way == "method":
        stub.alter_table_with_cascade("d1", "t", present, True)
    elif way == "request":
        missing = AlterTableRequest(dbName="d1", tableName="none", table=present)
        assert refusal(lambda: stub.alter_table_req(missing))[0] == "InvalidOperationException"
        request = AlterTableRequest(
            dbName="d1", tableName="t", table=present, environmentContext=context
        )
        stub.alter_table_req(request)
    else:
        stub.alter_table_with_environment_context("d1", "t", present, context)
    for day in ("1", "2"):
        assert [c.name for c in stub.get_partition("d1", "t", [day]).sd.cols] == ["a", "b", "c"]


def test_parameters_with_the_names_of_stored_fields_are_left_out(hive: HiveNode, stub: Any) -> None:
    sent = {"strandline.hive.retention": "x", "strandline.hive.lastAccessTime": "y", "k": "v"}
    stub.create_table(table("t1", parameters=sent, retention=7, lastAccessTime=8))
    stub.create_table(table("v1", tableType="VIRTUAL_VIEW", viewOriginalText="x", parameters=sent))
    for name, numbers in (("t1", (7, 8)), ("v1", (0, 0))):
        for _ in range(2):
            shown = stub.get_table("d1", name)
            assert (shown.retention, shown.lastAccessTime) == numbers
            assert shown.parameters.keys() & sent.keys() == {"k"}
            shown.parameters.update(sent)
            stub.alter_table("d1", name, shown)
    for stored in ("x", str(1 << 40)):  # by an older release
        written = (("strandline.hive.retention", stored),)
        old = SetTableProperties(schema="d1", table="t1", set=written)
        hive.node.metastore.execute(old, user="ann")
        assert stub.get_table("d1", "t1").retention == 0


def test_an_alter_that_counts_nothing_dates_the_table_or_view(tmp_path: Path) -> None:
    now_ms = [system_wall_clock()]
    with hive_node(tmp_path / "store", wall=lambda: now_ms[0]) as node, node.stub() as stub:
        stub.create_table(table("t", schema="default", partitionKeys=KEYS))
        view = {"tableType": "VIRTUAL_VIEW", "viewOriginalText": "SELECT 1"}
        stub.create_table(table("v", schema="default", **view))
        node.create_transactional("default", "tx", a="int")
        for name in ("t", "v", "tx"):
            created = stub.get_table("default", name)
            now_ms[0] += 10_000
            created.parameters["k"] = "v"
            stub.alter_table("default", name, created)
            altered = stub.get_table("default", name)
            assert altered.createTime == created.createTime
            assert int(altered.parameters["transient_lastDdlTime"]) == now_ms[0] // 1000
            expected = {
                "expected_parameter_key": "transient_lastDdlTime",
                "expected_parameter_value": altered.parameters["transient_lastDdlTime"],
            }
            context = EnvironmentContext(expected)
            stub.alter_table_with_environment_context("default", name, altered, context)


def test_what_a_client_sends_as_the_time_of_the_last_change_is_shown_if_it_is_later(
    stub: Any,
) -> None:
    in_2100 = "4102444800"
    for sent in (in_2100, "1", "soon", "9" * 5000):
        stub.create_table(table("t", parameters={"numRows": "1", "transient_lastDdlTime": sent}))
        shown = stub.get_table("d1", "t").parameters["transient_lastDdlTime"]
        assert (shown == in_2100) == (sent == in_2100)
        assert len(shown) == len(in_2100)
        stub.drop_table("d1", "t", True)


CONTRADICTIONS = {
    "EXTERNAL": "TRUE",
    "transactional": "true",
    "TRANSACTIONAL": "true",
    "comment": "another",
    "numRows": "7",
    "spark.sql.statistics.numRows": "7",
    "spark.sql.sources.provider": "strandline",
    "spark.sql.sources.schema": '{"type":"struct","fields":[]}',
    "spark.sql.sources.schema.numParts": "1",
    "spark.sql.sources.schema.part.0": "{}",
}


def test_parameters_of_an_older_release_that_contradict_the_table_are_not_shown(
    hive: HiveNode, stub: Any
) -> None:
    session = hive.node.session(user="ann")
    plain = TableDefinition(name="s1", columns=(ColumnDefinition("a", INT),), provider="parquet")
    session.execute(CreateTable(schema="d1", definition=plain))
    stub.create_table(table("h1"))
    hive.create_transactional("d1", "tx", a="int")
    for name in ("s1", "h1", "tx"):

        def shown(name: str = name) -> Any:
            """What clients are shown of the present, and will be shown of it later."""
            past = f"d1@{hive.node.catalogs.present().version}"
            structs = [stub.get_table(schema, name) for schema in ("d1", past)]
            for struct in structs:
                struct.parameters.pop("view.catalogAndNamespace.part.1", None)  # the schema's name
                struct.parameters.pop("transient_lastDdlTime")  # that of the last alter
            return [(struct.tableType, struct.parameters, struct.sd) for struct in structs]

        before = shown()
        old = SetTableProperties(schema="d1", table=name, set=tuple(CONTRADICTIONS.items()))
        hive.node.metastore.execute(old, user="ann")
        assert shown() == before
        kind = session.table(f"d1.{name}").descriptor.kind
        sent = stub.get_table("d1", name)
        sent.parameters["k"] = "v"
        stub.alter_table("d1", name, sent)
        altered = session.table(f"d1.{name}").descriptor
        assert (altered.kind, altered.comment) == (kind, None)


def test_a_session_sends_back_the_parameters_of_a_hive_client_and_sets_no_others(
    hive: HiveNode, stub: Any
) -> None:
    made = table("t1", parameters={"EXTERNAL": "FALSE", "comment": "c"}, retention=7)
    stub.create_table(made)
    session = hive.node.session(user="ann")
    stored = session.table("d1.t1").descriptor
    assert dict(stored.properties) == {"EXTERNAL": "FALSE", "strandline.hive.retention": "7"}
    sent = (*stored.properties, ("k", "v"))
    session.execute(SetTableProperties(schema="d1", table="t1", set=sent))
    shown = stub.get_table("d1", "t1")
    assert (shown.retention, shown.parameters["EXTERNAL"], shown.parameters["k"]) == (
        7,
        "FALSE",
        "v",
    )
    for name in (PROVIDER, SCHEMA, COMMENT, EXTERNAL, TRANSACTIONAL, RETENTION, ACCURATE):
        with pytest.raises(InvalidInput, match="cannot be set"):
            session.execute(SetTableProperties(schema="d1", table="t1", set=((name, "x"),)))
