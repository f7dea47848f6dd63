"""Schemas named ``sales@42``: past versions, read-only, for clients unaware of time travel."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from hive_metastore.ttypes import Database, FieldSchema, Partition

from tests.metastore.hive.hive_node import HiveNode, plain, refusal, storage, table
from tests.times import exact_text

STORES = ("folder", "postgresql")


def version(hive: HiveNode) -> int:
    return hive.node.metastore.catalogs.present().version


def partition(*values: str) -> Any:
    return Partition(list(values), "d1", "t1", sd=storage())


def files(stub: Any, schema: str, name: str) -> Any:
    """The hidden table that is read by the view that stands for a plain table."""
    view = stub.get_table(schema, name)
    assert view.tableType == "VIRTUAL_VIEW"
    match = re.fullmatch(r"SELECT .* FROM `(.*)`\.`(.*)`", view.viewExpandedText)
    assert match is not None
    assert match[1] == schema
    return stub.get_table(schema, match[2])


def parted(stub: Any, *values: str) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partitions([partition(value) for value in values])


def test_a_table_as_of_a_version_is_shown_under_the_requested_schema_name(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1"))
    before = version(hive)
    new = stub.get_table("d1", "t1")
    new.sd.cols.append(FieldSchema("c", "int", None))
    stub.alter_table("d1", "t1", new)
    old = stub.get_table(f"D1@{before}", "t1")
    assert [column.name for column in old.sd.cols] == ["a", "b"]
    assert (old.dbName, old.tableName) == (f"d1@{before}", "t1")
    assert [c.name for c in stub.get_table("d1", "t1").sd.cols] == ["a", "b", "c"]


def test_a_schema_and_its_tables_are_listed_as_of_a_time(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1"))
    moment = exact_text(hive.node.metastore.catalogs.complete_now()).lower()
    stub.drop_table("d1", "t1", True)
    stub.create_table(table("t2"))
    assert stub.get_tables(f"d1@{moment}", "*") == ["t1"]
    assert stub.get_all_tables("d1") == ["t2"]
    database = stub.get_database(f"d1@{moment}")
    # The location is unusable: Spark writes the rows of a new table before it creates the table.
    assert (database.name, database.locationUri) == (
        f"d1@{moment}",
        "can-be-read-and-not-changed:/d1",
    )
    assert "/.dropped/" in files(stub, f"d1@{moment}", "t1").sd.location


def test_partitions_are_read_as_of_a_time_and_as_of_a_version(hive: HiveNode, stub: Any) -> None:
    parted(stub, "a", "b")
    catalogs = hive.node.metastore.catalogs
    before = exact_text(catalogs.complete_now())
    stub.drop_partition("d1", "t1", ["a"], False)
    stub.add_partition(partition("c"))
    stub.create_table(table("later"))
    last = version(hive) - 1
    assert stub.get_partition_names(f"d1@{before}", "t1", -1) == ["p=a", "p=b"]
    assert stub.get_partition_names("d1", "t1", -1) == ["p=b", "p=c"]
    # A version is read at the last moment at which it was active.
    assert stub.get_partition_names(f"d1@{last}", "t1", -1) == ["p=b", "p=c"]
    past = stub.get_partition(f"d1@{before}", "t1", ["a"])
    assert (past.dbName, past.sd.location) == (
        f"d1@{before.lower()}",
        f"{hive.warehouse}/d1.db/t1/p=a",
    )
    chosen = stub.get_partitions_by_filter(f"d1@{before}", "t1", 'p > "a"', -1)
    assert [part.values for part in chosen] == [["b"]]


def test_old_versions_show_the_new_location_of_a_folder_that_a_rename_moved(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1"))
    before = version(hive)
    new = stub.get_table("d1", "t1")
    new.tableName = "t2"
    stub.alter_table("d1", "t1", new)
    assert files(stub, f"d1@{before}", "t1").sd.location == f"{hive.warehouse}/d1.db/t2"


def test_a_past_plain_table_is_a_view_over_a_hidden_table_that_equals_it(
    hive: HiveNode, stub: Any
) -> None:
    parted(stub, "a", "b")
    now = plain(stub.get_table("d1", "t1"))
    name = f"d1@{version(hive)}"
    view = stub.get_table(name, "t1")
    assert (view.tableType, view.sd.location, view.partitionKeys) == ("VIRTUAL_VIEW", None, [])
    assert [column.name for column in view.sd.cols] == ["a", "b", "p"]
    assert [column.name for column in stub.get_schema(name, "t1")] == ["a", "b", "p"]
    hidden = files(stub, name, "t1")
    assert plain(hidden) == now | {"dbName": name, "tableName": hidden.tableName}
    assert stub.get_partition_names(name, hidden.tableName, -1) == ["p=a", "p=b"]
    chosen = stub.get_partitions_by_filter(name, hidden.tableName, 'p = "b"', -1)
    assert [(c.dbName, c.tableName, c.values) for c in chosen] == [(name, hidden.tableName, ["b"])]
    both = stub.get_table_objects_by_name(name, ["t1", hidden.tableName])
    assert [entry.tableType for entry in both] == ["VIRTUAL_VIEW", "MANAGED_TABLE"]


def test_a_hidden_name_is_never_listed_and_does_not_exist_in_other_schemas(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1"))
    name = f"d1@{version(hive)}"
    hidden = files(stub, name, "t1").tableName
    assert stub.get_all_tables(name) == stub.get_tables(name, "*") == ["t1"]
    assert stub.get_tables_by_type(name, "*", "VIRTUAL_VIEW") == ["t1"]
    assert stub.get_tables_by_type(name, "*", "MANAGED_TABLE") == []
    for schema in ("d1", f"d1@{version(hive) - 1}"):
        kind, _ = refusal(lambda schema=schema: stub.get_table(schema, hidden))
        assert kind == "NoSuchObjectException"
    assert refusal(lambda: stub.create_table(table(hidden)))[0] == "InvalidObjectException"
    forged = f"t1@files_{'9' * 5000}_00000000"
    assert refusal(lambda: stub.get_table(name, forged))[0] == "NoSuchObjectException"


def test_a_hidden_name_changes_with_the_version_and_with_the_location_of_the_files(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1"))
    first = version(hive)
    stub.create_table(table("t2"))
    second = version(hive)
    names = {files(stub, f"d1@{v}", "t1").tableName for v in (first, second)}
    stub.drop_table("d1", "t1", True)
    names |= {files(stub, f"d1@{v}", "t1").tableName for v in (first, second)}
    assert len(names) == 4


def test_clients_that_list_tables_with_their_types_list_those_of_the_past(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1", parameters={"comment": "then"}))
    iceberg = {"table_type": "ICEBERG", "metadata_location": "file:/m.json"}
    stub.create_table(table("ice", parameters=iceberg))
    past = f"d1@{version(hive)}"
    for name in ("t1", "ice"):
        stub.drop_table("d1", name, True)

    def listed(schema: str, names: str, types: list[str]) -> list[tuple[str | None, ...]]:
        metas = stub.get_table_meta(schema, names, types)
        return [(meta.dbName, meta.tableName, meta.tableType, meta.comments) for meta in metas]

    ice, t1 = (past, "ice", "MANAGED_TABLE", None), (past, "t1", "VIRTUAL_VIEW", "then")
    assert listed(past, "*", []) == listed(f"@hive#{past}", "*", []) == [ice, t1]
    assert listed(past, "t*", []) == listed(past, "*", ["VIRTUAL_VIEW"]) == [t1]
    assert listed("d*", "*", []) == listed(f"no_such@{version(hive)}", "*", []) == []
    assert refusal(lambda: listed("d1@999999", "*", []))[0] == "MetaException"


def test_a_past_iceberg_table_is_shown_as_a_table_and_not_as_a_view(
    hive: HiveNode, stub: Any
) -> None:
    parameters = {"table_type": "ICEBERG", "metadata_location": "file:/m.json"}
    stub.create_table(table("t1", parameters=parameters))
    past = stub.get_table(f"d1@{version(hive)}", "t1")
    assert (past.tableType, past.parameters["metadata_location"]) == (
        "MANAGED_TABLE",
        "file:/m.json",
    )


def test_a_past_view_resolves_names_without_a_schema_in_the_past_schema(
    hive: HiveNode, stub: Any
) -> None:
    parameters = {"view.catalogAndNamespace.part.1": "d1", "view.query.out.numCols": "1"}
    view = table("v1", tableType="VIRTUAL_VIEW", viewOriginalText="select 1", parameters=parameters)
    stub.create_table(view)
    name = f"d1@{version(hive)}"
    view_parameters = stub.get_table(name, "v1").parameters
    assert view_parameters["view.catalogAndNamespace.part.1"] == name
    assert stub.get_table("d1", "v1").parameters["view.catalogAndNamespace.part.1"] == "d1"


def test_a_past_view_of_another_schema_resolves_names_in_the_present(
    hive: HiveNode, stub: Any
) -> None:
    parameters = {"view.catalogAndNamespace.part.1": "default", "view.query.out.numCols": "1"}
    text = "select a from d1.t1"
    view = table("v1", tableType="VIRTUAL_VIEW", viewOriginalText=text, parameters=parameters)
    stub.create_table(view)
    shown = stub.get_table(f"d1@{version(hive)}", "v1")
    assert shown.parameters["view.catalogAndNamespace.part.1"] == "default"
    assert shown.viewOriginalText == text


@pytest.mark.parametrize("mode", ["EVOLUTION", "TYPE EVOLUTION"])
def test_a_past_view_that_follows_its_tables_keeps_its_columns(
    hive: HiveNode, stub: Any, mode: str
) -> None:
    parameters = {"view.schemaMode": mode}
    view = table("v1", tableType="VIRTUAL_VIEW", viewOriginalText="select 1", parameters=parameters)
    stub.create_table(view)
    past = stub.get_table(f"d1@{version(hive)}", "v1")
    assert past.parameters["view.schemaMode"] == "COMPENSATION"
    assert stub.get_table("d1", "v1").parameters["view.schemaMode"] == mode


def test_the_error_for_a_missing_version_names_it(hive: HiveNode, stub: Any) -> None:
    kind, text = refusal(lambda: stub.get_table("d1@999", "t1"))
    assert kind == "NoSuchObjectException"
    assert "version 999 does not exist" in text
    assert refusal(lambda: stub.get_database("d1@0"))[0] == "NoSuchObjectException"


def test_the_log_says_what_a_past_version_or_time_lacks(
    hive: HiveNode, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark only shows that it found nothing. It asks for present names before it creates them."""
    caplog.set_level(logging.INFO, "strandline.calls")
    before = version(hive)
    stub.create_table(table("t1"))
    for schema in (f"d1@{before}", "d1@1999-01-01", "d1@0", "nosuch@1"):
        assert refusal(lambda name=schema: stub.get_table(name, "t1"))[0] == "NoSuchObjectException"
    for schema in ("d1", "nosuch"):
        assert refusal(lambda name=schema: stub.get_table(name, "t9"))[0] == "NoSuchObjectException"
    missing, empty = "schema d1 does not exist in version 0 of the catalog", "which is empty: the"
    assert [message.removesuffix(" store was created later") for message in caplog.messages] == [
        f"table d1.t1 does not exist in version {before} of the catalog",
        f"{missing}, the one of 1999-01-01T00:00:00.000Z, {empty}",
        f"{missing}, {empty}",
        "schema nosuch does not exist in version 1 of the catalog",
    ]


def test_the_error_for_a_trimmed_version_names_the_earliest_one(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1"))
    stub.create_table(table("t2"))
    hive.node.metastore.catalogs.compact(version(hive))
    kind, text = refusal(lambda: stub.get_tables("d1@1", "*"))
    assert kind == "MetaException"
    assert f"the earliest is version {version(hive)}" in text


WRITES = {
    "create_table": lambda c, db, t: c.create_table(table("t9", schema=db)),
    "drop_table": lambda c, db, t: c.drop_table(db, t, True),
    "alter_table": lambda c, db, t: c.alter_table(db, t, table(t, schema=db)),
    "alter_database": lambda c, db, t: c.alter_database(db, Database(name=db)),
    "drop_database": lambda c, db, t: c.drop_database(db, True, True),
    "add_partition": lambda c, db, t: c.add_partition(Partition(["z"], db, t, sd=storage())),
    "append_partition": lambda c, db, t: c.append_partition(db, t, ["z"]),
    "alter_partition": lambda c, db, t: c.alter_partition(
        db, t, Partition(["a"], db, t, sd=storage())
    ),
    "rename_partition": lambda c, db, t: c.rename_partition(
        db, t, ["a"], Partition(["z"], db, t, sd=storage())
    ),
    "drop_partition": lambda c, db, t: c.drop_partition(db, t, ["a"], True),
}


def test_every_write_to_a_past_schema_is_refused_and_changes_nothing(
    hive: HiveNode, stub: Any
) -> None:
    parted(stub, "a")
    past_version = version(hive)

    def state() -> tuple[int, Any, Any]:
        names = stub.get_partition_names("d1", "t1", -1)
        return version(hive), plain(stub.get_table("d1", "t1")), names

    before = state()
    hidden = files(stub, f"d1@{past_version}", "t1").tableName
    for table_name in ("t1", hidden):
        for name, write in WRITES.items():
            kind, text = refusal(lambda w=write, t=table_name: w(stub, f"d1@{past_version}", t))
            assert kind in ("InvalidOperationException", "MetaException"), name
            assert "can be read and not changed" in text, name
    assert state() == before


@pytest.mark.parametrize("name", ["d1@2x", "`d1@2`"])
def test_a_schema_name_with_an_invalid_version_does_not_exist(
    hive: HiveNode, stub: Any, name: str
) -> None:
    assert refusal(lambda: stub.get_database(name))[0] == "NoSuchObjectException"
