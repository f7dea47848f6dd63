"""The events that Hive's clients get for each change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    AddCheckConstraintRequest,
    AddDefaultConstraintRequest,
    AddForeignKeyRequest,
    AddNotNullConstraintRequest,
    AddPrimaryKeyRequest,
    AddUniqueConstraintRequest,
    ColumnStatistics,
    ColumnStatisticsData,
    ColumnStatisticsDesc,
    ColumnStatisticsObj,
    Database,
    DropConstraintRequest,
    EnvironmentContext,
    FieldSchema,
    LongColumnStatsData,
    NotificationEventRequest,
    Partition,
    SQLCheckConstraint,
    SQLDefaultConstraint,
    SQLForeignKey,
    SQLNotNullConstraint,
    SQLPrimaryKey,
    SQLUniqueConstraint,
    StringColumnStatsData,
)

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddConstraints,
    AlterDefaultPrivileges,
    ColumnDefinition,
    CommentOn,
    ConstraintDefinition,
    CreateCluster,
    CreateDatabase,
    CreateFunction,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropDatabase,
    DropIndex,
    DropRole,
    DropSchema,
    GrantPrivileges,
    GrantRole,
    RenameColumn,
    RenameFunction,
    RenameIndex,
    RenameRole,
    RenameSchema,
    RenameTable,
    RenameZone,
    RevokePrivileges,
    SetConfiguration,
    SetDefaultZone,
    TableDefinition,
)
from strandline.config import Settings
from strandline.metastore.hive.event_texts import relation_struct
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import ConstraintKind, StorageFormat
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from tests.metastore.hive.hive_node import HiveNode, hive_node, storage, table
from tests.metastore.hive.listed_events import events, kinds, message

STORES = ("folder", "postgresql")

MAX_INT = (1 << 31) - 1
PARAMETERS = 9
"""The number of the field of a ``Table``."""


def name_in(text: str) -> str:
    """The name of the table, partition or database in the text of an embedded object."""
    own_name: str = json.loads(text)["1"]["str"]
    return own_name


def test_ddl_on_schemas_is_reported_as_database_events(stub: Any, since: int) -> None:
    database = stub.get_database("d1")
    database.parameters = {"k": "v"}
    stub.alter_database("d1", database)
    stub.drop_database("d1", True, True)
    altered, dropped = events(stub, since)
    assert kinds([altered, dropped]) == ["ALTER_DATABASE", "DROP_DATABASE"]
    assert (altered.dbName, dropped.dbName) == ("d1", "d1")
    after = json.loads(message(altered)["dbObjAfterJson"])
    assert after["4"] == {"map": ["str", "str", 1, {"k": "v"}]}


def test_the_event_of_a_renamed_schema_is_listed_under_the_old_name(
    hive: HiveNode, stub: Any, since: int
) -> None:
    hive.node.session(user="ann").execute(RenameSchema(name="d1", new_name="d2"))
    (renamed,) = events(stub, since)
    body = message(renamed)
    assert renamed.dbName == body["db"] == "d1"
    names = [name_in(body[key]) for key in ("dbObjBeforeJson", "dbObjAfterJson")]
    assert names == ["d1", "d2"]


def test_ddl_on_tables_is_reported_as_table_events(stub: Any, since: int) -> None:
    stub.create_table(table("t1"))
    new = stub.get_table("d1", "t1")
    new.sd.cols.append(FieldSchema("c", "int", None))
    uncounted = EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
    stub.alter_table_with_environment_context("d1", "t1", new, uncounted)
    stub.drop_table("d1", "t1", True)
    listed = events(stub, since)
    assert kinds(listed) == ["CREATE_TABLE", "ALTER_TABLE", "DROP_TABLE"]
    assert {(event.dbName, event.tableName) for event in listed} == {("d1", "t1")}
    created, altered, dropped = map(message, listed)
    assert (created["tableType"], created["files"]) == ("MANAGED_TABLE", [])
    columns = [
        json.loads(altered[key])["7"]["rec"]["1"]["lst"][1]
        for key in ("tableObjBeforeJson", "tableObjAfterJson")
    ]
    assert columns == [2, 3]
    assert altered["isTruncateOp"] == "false"
    assert name_in(dropped["tableObjJson"]) == "t1"


def test_a_rename_event_is_listed_under_the_new_name_and_contains_the_old_one(
    stub: Any, since: int
) -> None:
    stub.create_table(table("t1"))
    new = stub.get_table("d1", "t1")
    new.tableName = "t2"
    stub.alter_table("d1", "t1", new)
    _, renamed = events(stub, since)
    assert (renamed.eventType, renamed.tableName) == ("ALTER_TABLE", "t2")
    body = message(renamed)
    assert body["table"] == "t1"
    assert name_in(body["tableObjBeforeJson"]) == "t1"
    assert name_in(body["tableObjAfterJson"]) == "t2"


def test_ddl_on_views_is_reported_as_table_events_of_type_virtual_view(
    stub: Any, since: int
) -> None:
    view = table("v", tableType="VIRTUAL_VIEW", viewOriginalText="q", viewExpandedText="q")
    stub.create_table(view)
    stub.drop_table("d1", "v", True)
    listed = events(stub, since)
    assert kinds(listed) == ["CREATE_TABLE", "DROP_TABLE"]
    assert {message(event)["tableType"] for event in listed} == {"VIRTUAL_VIEW"}


def test_changes_of_partitions_are_reported_as_partition_events(stub: Any, since: int) -> None:
    def partition(value: str, **fields: Any) -> Any:
        return Partition([value], "d1", "t1", sd=storage(), **fields)

    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partitions([partition("a"), partition("b")])
    stub.alter_partition("d1", "t1", partition("a", parameters={"k": "v"}))
    stub.rename_partition("d1", "t1", ["a"], partition("z"))
    stub.drop_partition("d1", "t1", ["b"], True)
    listed = [event for event in events(stub, since) if event.eventType != "COMMIT_TXN"]
    assert kinds(listed) == [
        "CREATE_TABLE",
        "ADD_PARTITION",
        "ALTER_PARTITION",
        "ALTER_PARTITION",
        "DROP_PARTITION",
    ]
    _, added, altered, renamed, dropped = map(message, listed)
    assert added["partitions"] == [{"p": "a"}, {"p": "b"}]
    values = [json.loads(text)["1"]["lst"] for text in added["partitionListJson"]]
    assert values == [["str", 1, "a"], ["str", 1, "b"]]
    assert (altered["keyValues"], altered["isTruncateOp"]) == ({"p": "a"}, "false")
    assert '"k":"v"' in altered["partitionObjAfterJson"]
    assert '"k":"v"' not in altered["partitionObjBeforeJson"]
    before, after = renamed["partitionObjBeforeJson"], renamed["partitionObjAfterJson"]
    assert [json.loads(text)["1"]["lst"][2] for text in (before, after)] == ["a", "z"]
    assert renamed["keyValues"] == {"p": "a"}
    assert dropped["partitions"] == [{"p": "b"}]
    assert name_in(dropped["tableObjJson"]) == "t1"


def test_changes_of_partitions_whose_rows_were_cleaned_are_reported_as_alters(
    tmp_path: Path,
) -> None:
    """Not as an ACID_WRITE, which a client would take for a write to a transactional table."""
    settings = Settings(history_retention_ms=1, snapshot_hold_ms=0, clean_interval_ms=0)
    with hive_node(tmp_path / "store", settings=settings) as node, node.stub() as client:
        client.create_database(Database("d1"))
        client.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
        since: int = client.get_current_notificationEventId().eventId
        for value in "ab":
            client.add_partition(Partition([value], "d1", "t1", sd=storage()))
        altered = client.get_partition("d1", "t1", ["a"])
        client.alter_partition("d1", "t1", altered)
        client.drop_partition("d1", "t1", ["b"], True)
        request = NotificationEventRequest(since, 100)
        types = [event.eventType for event in client.get_next_notification(request).events][::2]
        assert types == ["ADD_PARTITION", "ADD_PARTITION", "ALTER_PARTITION", "DROP_PARTITION"]
        assert sum(cleaned.rows for cleaned in node.node.cleaner.clean().parts) == 2
        events = client.get_next_notification(request).events[::2]
        assert [event.eventType for event in events] == ["ALTER_TABLE"] * 4
        assert {event.tableName for event in events} == {"t1"}


def test_the_writes_and_the_end_of_a_transaction_are_reported_as_events(
    hive: HiveNode, stub: Any, since: int
) -> None:
    flights = hive.create_transactional("d1", "flights", id="bigint")
    session = hive.node.session(user="ann")
    committed, aborted = session.begin().txn_id, session.begin().txn_id
    file = DataFile(file_id=1, path="a.parquet", rows=1, bytes=9)
    session.stage(committed, flights.id, add=[file])
    session.commit(committed)
    session.stage(aborted, flights.id)
    session.abort(aborted)
    listed = events(stub, since)
    assert kinds(listed) == ["CREATE_TABLE", "ACID_WRITE", "COMMIT_TXN", "ABORT_TXN"]
    write, commit, abort = map(message, listed[1:])
    assert (write["txnid"], write["writeId"], write["table"]) == (committed, 1, "flights")
    assert write["files"] == ["a.parquet"]
    assert (commit["txnid"], abort["txnid"]) == (committed, aborted)


def test_a_change_of_table_statistics_is_reported_as_an_alter(stub: Any, since: int) -> None:
    stub.create_table(table("t1"))
    new = stub.get_table("d1", "t1")
    new.parameters["numRows"] = "5"
    stub.alter_table("d1", "t1", new)
    listed = events(stub, since)
    assert kinds(listed) == ["CREATE_TABLE", "ALTER_TABLE", "COMMIT_TXN"]
    body = message(listed[1])
    assert body["isTruncateOp"] == "false"
    # Impala skips an event with two equal texts.
    before, after = (
        record(json.loads(body[key]))[PARAMETERS][3]
        for key in ("tableObjBeforeJson", "tableObjAfterJson")
    )
    assert ("numRows" in before, after["numRows"]) == (False, "5")


def test_a_table_is_rendered_once_for_all_events_that_change_its_counted_parameters(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes such an event at each INSERT; to build the struct takes longest."""
    stub.create_table(table("t1"))
    since: int = stub.get_current_notificationEventId().eventId
    for rows in "123":
        new = stub.get_table("d1", "t1")
        new.parameters["numRows"] = rows
        stub.alter_table("d1", "t1", new)
    rendered = []

    def noted(*of: Any, **options: Any) -> dict[str, Any]:
        rendered.append(of)
        return relation_struct(*of, **options)

    monkeypatch.setattr("strandline.metastore.hive.events.relation_struct", noted)
    shown = [
        record(json.loads(message(event)["tableObjAfterJson"]))[PARAMETERS][3]["numRows"]
        for event in events(stub, since)
        if event.eventType == "ALTER_TABLE"
    ]
    assert (shown, len(rendered)) == (["1", "2", "3"], 1)


def test_changes_of_rows_of_a_table_that_was_trimmed_are_reported_without_a_table(
    tmp_path: Path,
) -> None:
    """Not as an ACID_WRITE, which a client would take for a write to a transactional table."""
    with hive_node(tmp_path / "store") as node, node.stub() as client:
        client.create_database(Database("d1"))
        client.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
        since: int = client.get_current_notificationEventId().eventId
        client.add_partition(Partition(["a"], "d1", "t1", sd=storage()))
        client.drop_table("d1", "t1", True)
        node.node.session(user="ann").compact(node.node.metastore.catalogs.latest_catalog().version)
        listed = events(client, since)
        assert kinds(listed) == ["WRITE", "COMMIT_TXN", "DROP_TABLE"]
        assert [event.tableName for event in listed] == [None, None, "t1"]


def test_an_event_about_a_schema_names_its_catalog(stub: Any, since: int) -> None:
    """As in Hive 3 and later: Impala leaves out the events of other catalogs."""
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partition(Partition(["a"], "d1", "t1", sd=storage()))
    stub.drop_database("d1", True, True)
    catalogs = [(event.eventType, event.catName) for event in events(stub, since)]
    assert catalogs == [
        ("CREATE_TABLE", "hive"),
        ("ADD_PARTITION", "hive"),
        ("COMMIT_TXN", None),
        ("DROP_TABLE", "hive"),
        ("DROP_DATABASE", "hive"),
    ]


def record(struct: dict[str, Any]) -> dict[int, Any]:
    """The fields of a struct in Thrift's JSON, by their numbers."""
    return {int(number): next(iter(value.values())) for number, value in struct.items()}


def test_constraints_are_reported_as_events_of_their_kinds(stub: Any, since: int) -> None:
    at = {"table_db": "d1", "table_name": "t1"}
    stub.create_table(table("t1"))
    stub.create_table(table("t2"))
    stub.add_primary_key(AddPrimaryKeyRequest([SQLPrimaryKey(**at, column_name="a", pk_name="pk")]))
    foreign = SQLForeignKey("d1", "t1", "a", "d1", "t2", "a", 1, 0, 0, "fk", "pk")
    stub.add_foreign_key(AddForeignKeyRequest([foreign]))
    unique = SQLUniqueConstraint(None, "d1", "t1", "b", 1, "uk")
    stub.add_unique_constraint(AddUniqueConstraintRequest([unique]))
    constraint = {**at, "column_name": "b"}
    not_null = SQLNotNullConstraint(**constraint, nn_name="nn")
    stub.add_not_null_constraint(AddNotNullConstraintRequest([not_null]))
    default = SQLDefaultConstraint(**constraint, default_value="7", dc_name="df")
    stub.add_default_constraint(AddDefaultConstraintRequest([default]))
    check = SQLCheckConstraint(**constraint, check_expression="b > 0", dc_name="ck")
    stub.add_check_constraint(AddCheckConstraintRequest([check]))
    stub.drop_constraint(DropConstraintRequest("d1", "t1", "UK"))
    listed = events(stub, since)[2:]
    kinds_of_keys = {
        "ADD_PRIMARYKEY": ("primaryKeyListJson", "pk"),
        "ADD_FOREIGNKEY": ("foreignKeyListJson", "fk"),
        "ADD_UNIQUECONSTRAINT": ("uniqueConstraintListJson", "uk"),
        "ADD_NOTNULLCONSTRAINT": ("notNullConstraintListJson", "nn"),
        "ADD_DEFAULTCONSTRAINT": ("defaultConstraintListJson", "df"),
        "ADD_CHECKCONSTRAINT": ("checkConstraintListJson", "ck"),
    }
    assert kinds(listed) == [*kinds_of_keys, "DROP_CONSTRAINT"]
    assert [event.tableName for event in listed] == ["t1", "t2", *["t1"] * 5]
    assert {event.dbName for event in listed} == {"d1"}
    for event, (field, name) in zip(listed, kinds_of_keys.values(), strict=False):
        (struct,) = message(event)[field]
        assert name in record(json.loads(struct)).values()
    (foreign_key,) = message(listed[1])["foreignKeyListJson"]
    fields = record(json.loads(foreign_key))
    assert [fields[n] for n in (1, 2, 3, 4, 5, 6)] == ["d1", "t1", "a", "d1", "t2", "a"]
    dropped = message(listed[-1])
    assert [dropped[key] for key in ("dbName", "tableName", "constraintName")] == [
        "d1",
        "t1",
        "UK",
    ]


def test_constraints_of_several_kinds_in_one_change_are_reported_as_an_alter(
    hive: HiveNode, stub: Any, since: int
) -> None:
    stub.create_table(table("t1"))
    of_two_kinds = tuple(
        ConstraintDefinition(kind=kind, columns=("a",))
        for kind in (ConstraintKind.NOT_NULL, ConstraintKind.UNIQUE)
    )
    command = AddConstraints(schema="d1", table="t1", constraints=of_two_kinds)
    hive.node.session(user="ann").execute(command)
    assert kinds(events(stub, since)) == ["CREATE_TABLE", "ALTER_TABLE"]


def statistics(*columns: str, part: str | None = None, nulls: int = 1) -> ColumnStatistics:
    described = ColumnStatisticsDesc(part is None, "d1", "t1", partName=part)
    data = {
        "a": ColumnStatisticsData(longStats=LongColumnStatsData(1, 9, nulls, 3)),
        "b": ColumnStatisticsData(stringStats=StringColumnStatsData(9, 4.5, nulls, 3)),
    }
    return ColumnStatistics(described, [ColumnStatisticsObj(c, "", data[c]) for c in columns])


def test_statistics_of_columns_are_reported_as_statistics_events(stub: Any, since: int) -> None:
    stub.create_table(table("t1"))
    stub.update_table_column_statistics(statistics("a", "b"))
    stub.update_table_column_statistics(statistics("b", nulls=2))
    stub.delete_table_column_statistics("d1", "t1", "a", "hive")
    stub.update_table_column_statistics(statistics("a"))
    stub.delete_table_column_statistics("d1", "t1", None, "hive")
    reported = [event for event in events(stub, since) if event.eventType != "COMMIT_TXN"][1:]
    update, delete = "UPDATE_TBL_COL_STAT_EVENT", "DELETE_TBL_COL_STAT_EVENT"
    assert kinds(reported) == [update, update, delete, update, delete]
    assert {(event.dbName, event.tableName) for event in reported} == {("d1", "t1")}
    stored, changed, deleted, _, emptied = map(message, reported)
    assert (stored["database"], stored["writeId"]) == ("d1", -1)
    assert name_in(stored["tableObjJson"]) == "t1"
    assert '"a":"true"' in stored["parameters"]["COLUMN_STATS_ACCURATE"]
    objects = [json.loads(body["colStatsJson"])["2"]["lst"][2:] for body in (stored, changed)]
    assert [[column["1"]["str"] for column in listed] for listed in objects] == [["a", "b"], ["b"]]
    assert (deleted["colName"], emptied["colName"]) == ("a", None)


def test_statistics_of_partitions_are_reported_as_statistics_events(
    hive: HiveNode, stub: Any, since: int
) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partitions([Partition(["x"], "d1", "t1", sd=storage())])
    stub.update_partition_column_statistics(statistics("a", part="p=x"))
    stub.rename_partition("d1", "t1", ["x"], Partition(["y"], "d1", "t1", sd=storage()))
    stub.delete_partition_column_statistics("d1", "t1", "p=y", "a", "hive")
    stub.update_partition_column_statistics(statistics("a", part="p=y"))
    stub.drop_partition("d1", "t1", ["y"], False)
    hive.node.session(user="ann").undrop_partitions("d1.t1")
    listed = [event for event in events(stub, since) if event.eventType != "COMMIT_TXN"][2:]
    assert kinds(listed) == [
        "UPDATE_PART_COL_STAT_EVENT",
        "ALTER_PARTITION",
        "DELETE_PART_COL_STAT_EVENT",
        "UPDATE_PART_COL_STAT_EVENT",
        "DROP_PARTITION",
        "ADD_PARTITION",
    ]
    stored, deleted = message(listed[0]), message(listed[2])
    assert stored["partVals"] == ["x"]
    assert json.loads(stored["colStatsJson"])["1"]["rec"]["4"]["str"] == "p=x"
    assert (deleted["colName"], deleted["partName"], deleted["partValues"]) == ("a", "p=y", ["y"])


def test_changes_that_hive_has_no_message_for_do_not_stop_readers_of_events(
    hive: HiveNode, stub: Any, since: int
) -> None:
    session = hive.node.session(user="ann")
    several: list[Command] = [
        CreateRole(name="bob"),
        CreateRole(name="group"),
        GrantRole(role="group", member="bob"),
        CreateZone(name="z"),
        SetDefaultZone(name="z"),
        RenameZone(name="z", new_name="y"),
        CreateDatabase(name="lake"),
        CreateSchema(name="deep", database="lake", owner="bob"),
        CreateSchema(name="s", owner="bob"),
        CreateTable(
            schema="s",
            definition=TableDefinition(
                name="t",
                owner="bob",
                transactional=True,
                columns=(ColumnDefinition("a", INT, nullable=False), ColumnDefinition("b", INT)),
                primary_key=("a",),
            ),
        ),
        CreateFunction(schema="s", name="f", class_name="a.B", owner="bob"),
        CreateIndex(schema="s", index="i", table="t", columns=("b",)),
        RenameIndex(schema="s", index="i", new_name="j"),
        CreateCluster(name="c", size="small", owner="bob"),
        GrantPrivileges(
            kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="group"
        ),
        AlterDefaultPrivileges(
            kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="group", schema="s"
        ),
        CommentOn(kind=ObjectKind.INDEX, name="s.j", text="x"),
        SetConfiguration(name="max_tables", value="99"),
        RenameRole(name="bob", new_name="bill"),
        DropRole(name="bill", reassign_to="ann"),
        DropIndex(schema="s", index="j"),
    ]
    for command in several:
        session.execute(command)
    session.execute(DropSchema(name="s", cascade=True))
    session.execute([DropSchema(name="deep", database="lake"), DropDatabase(name="lake")])
    listed = events(stub, since)
    assert [event.eventId for event in listed] == list(range(since + 1, since + 1 + len(listed)))
    assert all(message(event) for event in listed)
    types = kinds(listed)
    assert {"CREATE_TABLE", "DROP_TABLE", "CREATE_FUNCTION", "DROP_FUNCTION"} <= set(types)
    databases = {event.dbName for event in listed if event.eventType.endswith("_DATABASE")}
    assert "s" in databases
    assert "deep" not in databases, "Hive's clients do not see other databases"
    assert {"CREATE_ZONE", "RENAME_INDEX", "GRANT_ROLE", "SET_CONFIGURATION"} <= set(types)


def test_a_number_that_a_field_cannot_carry_does_not_hide_the_object(tmp_path: Path) -> None:
    in_2100 = 4_102_444_800_000
    stored = StorageFormat(buckets=-1 << 40, sort_columns=(("a", 1 << 40),))
    definition = TableDefinition(name="t", columns=(ColumnDefinition("a", INT),), storage=stored)
    with hive_node(tmp_path, wall=lambda: in_2100) as late, late.client() as client:
        late.node.session(user="ann").execute(
            [
                CreateSchema(name="d1"),
                CreateTable(schema="d1", definition=definition),
                CreateRole(name="r"),
                CreateRole(name="ann"),
                GrantRole(role="r", member="ann"),
                CreateFunction(schema="d1", name="f", class_name="c", owner="ann"),
            ]
        )
        shown = client.call("get_table", dbname="d1", tbl_name="t")
        (order,) = shown["sd"]["sortCols"]
        assert shown["createTime"] == order["order"] == MAX_INT
        assert shown["sd"]["numBuckets"] == -MAX_INT - 1
        assert client.call("get_function", dbName="d1", funcName="f")["createTime"] == MAX_INT
        role, _ = client.call("list_roles", principal_name="ann", principal_type=1)
        assert role["createTime"] == MAX_INT
        asked = {"principal_name": "ann", "principal_type": 1}
        granted = client.call("get_role_grants_for_principal", request=asked)["principalGrants"]
        assert granted[0]["grantTime"] == MAX_INT
        events = client.call("get_next_notification", rqst={"lastEvent": 0})["events"]
        assert {event["eventTime"] for event in events} == {MAX_INT}


@pytest.mark.parametrize("schema", ["d1", "with.dots"])
def test_events_name_the_table_of_a_grant_and_of_a_schema_with_dots(
    hive: HiveNode, stub: Any, since: int, schema: str
) -> None:
    session = hive.node.session(user="ann")
    if schema != "d1":
        session.execute(CreateSchema(name=schema))
        since = hive.node.notifications.head()
    definition = TableDefinition(name="T.a", columns=(ColumnDefinition("a", INT),))
    granted = {
        "kind": ObjectKind.TABLE,
        "name": f"`{schema}`.`T.a`",
        "privileges": Privilege.SELECT,
        "grantee": "public",
    }
    commands: list[Command] = [
        CreateTable(schema=schema, definition=definition),
        GrantPrivileges(**granted),  # type: ignore[arg-type]  # its own fields
        RevokePrivileges(**granted),  # type: ignore[arg-type]  # its own fields
        RenameTable(schema=schema, table="T.a", new_name="T.b"),
    ]
    for command in commands:
        session.execute(command)
    listed = events(stub, since)
    assert kinds(listed) == ["CREATE_TABLE", *["ALTER_TABLE"] * 3]
    assert {event.dbName for event in listed} == {schema}
    assert [event.tableName for event in listed] == ["t.a", "t.a", "t.a", "t.b"]
    named = [(message(event)["db"], message(event)["table"]) for event in listed]
    assert set(named) == {(schema, "t.a")}


def test_events_name_the_database_of_what_a_command_changes_without_naming_it(
    hive: HiveNode, stub: Any, since: int
) -> None:
    session = hive.node.session(user="ann")
    columns = ColumnDefinition("a", INT), ColumnDefinition("b", INT)
    definition = TableDefinition(name="t", owner="bob", transactional=True, columns=columns)
    execute = {"kind": ObjectKind.FUNCTION, "name": "d1.f", "privileges": Privilege.EXECUTE}
    commands: list[Command] = [
        CreateRole(name="bob"),
        CreateTable(schema="d1", definition=definition),
        RenameColumn(schema="d1", table="t", column="a", new_name="c"),
        RenameRole(name="bob", new_name="bill"),
        DropRole(name="bill", reassign_to="ann"),
        CreateFunction(schema="d1", name="f", class_name="c"),
        GrantPrivileges(**execute, grantee="public"),  # type: ignore[arg-type]  # its own fields
        CreateFunction(schema="d1", name="f", class_name="d", or_replace=True),
        RenameFunction(schema="d1", function="f", new_name="g"),
    ]
    for command in commands:
        session.execute(command)
    listed = [event for event in events(stub, since) if event.eventType != "CREATE_ROLE"]
    assert kinds(listed) == [
        *("CREATE_TABLE", *["ALTER_TABLE"] * 3),
        *("CREATE_FUNCTION", *["ALTER_FUNCTION"] * 3),
    ]
    assert {(event.dbName, message(event)["db"]) for event in listed} == {("d1", "d1")}
    assert {event.tableName for event in listed} == {"t", None}


def test_the_event_of_a_function_that_was_moved_names_its_new_database(
    hive: HiveNode, stub: Any, since: int
) -> None:
    commands: list[Command] = [
        CreateSchema(name="d2"),
        CreateFunction(schema="d1", name="f", class_name="c"),
        RenameFunction(schema="d1", function="f", new_name="g", new_schema="d2"),
    ]
    hive.node.session(user="ann").execute(commands)
    *_, moved = events(stub, since)
    assert moved.dbName == message(moved)["db"] == "d2"
    function = record(json.loads(message(moved)["functionObjJson"]))
    assert (function[1], function[2]) == ("g", "d2")
