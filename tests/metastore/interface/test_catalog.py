"""What every `Session` changes in the catalog and reads from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterTable,
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateView,
    DropTable,
    GrantRole,
    RenameColumn,
    SetConfiguration,
    SetTableProperties,
    ViewDefinition,
)
from strandline.catalog.configuration import PARAMETERS
from strandline.catalog.differences import DifferenceKind, FieldDifference
from strandline.clock import Timestamp
from strandline.errors import AlreadyExists, Conflict, InvalidInput, ObjectNotFound, VersionNotFound
from strandline.metastore.interface import AsOf, ResolvedTable, Role, Session
from strandline.metastore.session.calls import CALLS
from strandline.model.types import BIGINT, INT, STRING, ArrayType, StructField, StructType
from tests.metastore.interface.calls import USER, Served, create, new_schema_name


def test_every_method_of_a_session_can_be_called_over_http() -> None:
    assert set(CALLS) == Session.__abstractmethods__ - {"close"}


def test_a_session_is_closed_at_the_end_of_its_block(served: Served, kind: str) -> None:
    with served.open(kind) as session:
        assert "default" in session.schemas()


def test_a_batch_of_ddl_makes_one_version_and_reports_which_commands_applied(
    session: Session,
) -> None:
    name = new_schema_name()
    again = CreateSchema(name=name, if_not_exists=True)
    executed = session.execute([CreateSchema(name=name, comment="Été"), again, create(name)])
    assert executed.applied == (True, False, True)
    table = session.table(f"{name}.t")
    assert table.catalog_version == executed.version
    assert session.history(start=executed.version)[0].time == executed.time


RESERVED = {
    "spark.sql.sources.schema": "{}",
    "spark.sql.sources.schema.part.0": "{}",
    "spark.sql.sources.schema.numParts": "1",
    "spark.sql.sources.provider": "csv",
    "EXTERNAL": "TRUE",
    "transactional": "true",
    "TRANSACTIONAL": "true",
    "comment": "by air",
    "strandline.hive.retention": "x",
    "numRows": "7",
    "spark.sql.statistics.numRows": "7",
    "transient_lastDdlTime": "5",
}


def test_a_parameter_that_repeats_another_fact_cannot_be_set(session: Session, schema: str) -> None:
    session.execute(create(schema))
    before = session.history()[-1].version
    columns = (ColumnDefinition("k", BIGINT),)
    view = ViewDefinition(name="v", columns=columns, original_text="x", expanded_text="x")
    table = create(schema).definition
    empty = [(name, "") for name in RESERVED if name != "spark.sql.sources.schema"]
    for name, value in (*RESERVED.items(), *empty):
        pairs = ((name, value),)
        for command in (
            SetTableProperties(schema=schema, table="t", set=pairs),
            AlterTable(schema=schema, table="t", definition=replace(table, properties=pairs)),
            CreateTable(schema=schema, definition=replace(table, name="o", properties=pairs)),
            CreateView(schema=schema, definition=replace(view, properties=pairs)),
        ):
            with pytest.raises(InvalidInput, match=f"the parameter '{name}' cannot be set"):
                session.execute(command)
    assert session.history()[-1].version == before


def test_a_single_command_can_be_passed_without_a_list(session: Session, schema: str) -> None:
    assert session.execute(create(schema)).applied == (True,)


def test_a_batch_without_commands_changes_nothing(session: Session) -> None:
    before = session.history()[-1].version
    executed = session.execute([])
    assert (executed.applied, session.history()[-1].version) == ((), before)


def test_the_state_of_the_catalog_is_counted(session: Session, schema: str) -> None:
    before = session.status()
    other = new_schema_name()
    session.execute([create(schema, "counted"), CreateRole(name=other), CreateSchema(name=other)])
    after = session.status()
    newest = session.history()[-1]
    assert (after.version, after.version_time) == (newest.version, newest.time)
    assert (after.environment, after.epoch) == (before.environment, before.epoch)
    assert (after.tables, after.roles) == (before.tables + 1, before.roles + 1)
    assert (after.schemas, after.views) == (before.schemas + 1, before.views)
    assert after.earliest_version <= before.version
    assert not after.privileges_enforced


def test_schemas_are_listed_as_of_a_version_without_that_of_the_system_views(
    session: Session, schema: str
) -> None:
    names = session.schemas()
    assert names == sorted(names)
    assert {"default", schema} <= set(names)
    assert "system" not in names
    created = session.execute(CreateSchema(name=new_schema_name()))
    assert session.schemas(at=AsOf(version=created.version - 1)) == names
    assert len(session.schemas(at=AsOf(version=created.version))) == len(names) + 1


def test_roles_are_listed_with_the_roles_of_which_they_are_members(session: Session) -> None:
    group, member = new_schema_name(), new_schema_name()
    session.execute(
        [
            CreateRole(name=group, superuser=True),
            CreateRole(name=member, inherit=False),
            GrantRole(role=group, member=member),
        ]
    )
    roles = {role.name: role for role in session.roles()}
    assert list(roles) == sorted(roles)
    assert roles[group] == Role(group, superuser=True, inherit=True, member_of=())
    assert roles[member] == Role(member, superuser=False, inherit=False, member_of=(group,))


def test_parameters_are_listed_with_their_values(session: Session) -> None:
    session.execute(SetConfiguration(name="max_tables", value="999"))
    try:
        values = {parameter.name: parameter.value for parameter in session.parameters()}
        assert values == dict.fromkeys(PARAMETERS) | {"max_tables": "999"}
    finally:
        session.execute(SetConfiguration(name="max_tables", value=None))


def test_a_refused_batch_changes_nothing(session: Session, schema: str) -> None:
    with pytest.raises(AlreadyExists):
        session.execute([create(schema, "a"), CreateSchema(name=schema)])
    assert session.tables(schema) == []


def test_a_table_is_the_same_through_every_session(
    served: Served, session: Session, schema: str
) -> None:
    nested = StructType(
        (
            StructField("x", ArrayType(StructType((StructField("y", INT, comment="tief"),)))),
            StructField("z", STRING, nullable=False, metadata='{"a":[1,"é"]}'),
        )
    )
    columns = (
        ColumnDefinition("k", BIGINT, nullable=False, comment="the key"),
        ColumnDefinition("s", nested, default="NULL", metadata='{"unit":"m"}'),
        ColumnDefinition("p", STRING),
    )
    command = create(schema, "t", *columns)
    definition = replace(
        command.definition,
        partitioned_by=("bucket(4, k)", "p"),
        primary_key=("k",),
        properties=(("a", "1"), ("b", "zwei")),
        comment="flights",
    )
    session.execute(replace(command, definition=definition))
    table = session.table(f"{schema}.t")
    assert table == served.node.session(user="bob").table(f"{schema}.t")
    stored = table.descriptor.columns[1].type
    assert isinstance(stored, StructType)
    assert [field.field_id for field in stored.fields] != [None, None]
    assert table.descriptor.owner == USER


def test_the_folder_of_a_managed_table_is_in_the_folder_of_its_schema(
    session: Session, schema: str
) -> None:
    session.execute(create(schema, "Flights"))
    location = session.table(f"{schema}.Flights").location
    assert location.endswith(f"/{schema}.db/flights")
    assert Path(location.removeprefix("file://")).is_dir()


def test_commands_on_columns_properties_and_views_are_executed_in_one_batch(
    session: Session, table: ResolvedTable
) -> None:
    name = f"{table.schema}.t"
    session.execute(
        [
            AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),)),
            AlterColumn(schema=table.schema, table="t", column="n", type=BIGINT, comment="wide"),
            RenameColumn(schema=table.schema, table="t", column="n", new_name="m"),
            SetTableProperties(schema=table.schema, table="t", set=(("a", "1"),)),
            CreateView(
                schema=table.schema,
                definition=ViewDefinition(
                    name="w",
                    columns=(ColumnDefinition("k", BIGINT),),
                    original_text="SELECT k FROM t",
                    expanded_text=f"SELECT k FROM {name}",
                ),
            ),
        ]
    )
    changed = session.table(name).descriptor
    assert [c.name for c in changed.columns] == ["k", "v", "m"]
    assert (changed.columns[2].type, changed.columns[2].comment) == (BIGINT, "wide")
    assert changed.properties == (("a", "1"),)
    assert session.tables(table.schema) == ["t", "w"]


def test_a_table_can_be_read_as_of_a_version_and_a_time(
    session: Session, table: ResolvedTable
) -> None:
    name, before = f"{table.schema}.t", table.catalog_version
    executed = session.execute(
        AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),))
    )
    assert session.table(name, at=AsOf(version=before)) == table
    assert session.table(name, at=AsOf(time=Timestamp(executed.time - 1))) == table
    assert len(session.table(name, at=AsOf(time=executed.time)).descriptor.columns) == 3
    assert session.tables(table.schema, at=AsOf(version=before)) == ["t"]


def test_a_version_is_undone_and_redone(session: Session, schema: str) -> None:
    session.execute(create(schema))
    before = session.table(f"{schema}.t")
    dropped = session.execute(DropTable(schema=schema, table="t"))
    undone = session.undo(dropped.version)
    assert undone.applied == (True,)
    restored = session.table(f"{schema}.t")
    assert (restored.descriptor, restored.location) == (before.descriptor, before.location)
    with pytest.raises(Conflict, match=f"came back in version {undone.version} by {USER}"):
        session.undo(dropped.version)
    session.undo(undone.version)
    assert session.tables(schema) == []
    session.undrop(f"{schema}.t")
    assert session.table(f"{schema}.t").descriptor == before.descriptor
    with pytest.raises(ObjectNotFound, match="no version from"):
        session.undrop(f"{schema}.never", kind="view")
    with pytest.raises(VersionNotFound):
        session.undo(10**9)
    with pytest.raises(InvalidInput, match="no partitions"):
        session.undrop_partitions(f"{schema}.t", partitions=["p=1"])


def test_versions_are_compared_by_object_and_field(session: Session, table: ResolvedTable) -> None:
    before = AsOf(version=table.catalog_version)
    executed = session.execute(
        [
            AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),)),
            SetTableProperties(schema=table.schema, table="t", set=(("a", "1"),)),
        ]
    )
    after = AsOf(version=executed.version)
    (difference,) = session.differences(before, after)
    assert (difference.kind, difference.id, difference.name) == (
        "table",
        table.descriptor.id,
        f"{table.schema}.t",
    )
    assert difference.change is DifferenceKind.ALTERED
    assert set(difference.fields) == {
        FieldDifference("columns[n]", None, "n int"),
        FieldDifference("properties[a]", None, "1"),
        FieldDifference("schema_version", 1, 2),
        FieldDifference("next_column_id", 3, 4),
    }
    assert difference in session.differences(before)
    assert session.differences(after, after) == ()


def test_the_history_names_the_author_and_the_actions_of_a_version(
    session: Session, schema: str
) -> None:
    executed = session.execute(create(schema))
    (version,) = session.history(start=executed.version, end=executed.version + 1)
    ((verb, arguments),) = version.actions
    assert (version.author, version.trimmed, verb) == (USER, False, "create_table")
    assert arguments["table"] == f"{schema}.t"
    assert arguments["columns"] == ["k bigint", "v string"]
    assert session.history(end=1) == []


def test_after_a_compaction_older_reads_are_refused_and_later_reads_still_work(
    own_node: Served, kind: str
) -> None:
    with_http = own_node.open(kind)
    with_http.execute(CreateSchema(name="s"))
    with_http.execute(create("s"))
    kept = with_http.table("s.t")
    version = kept.catalog_version
    assert with_http.compact(version) is True
    assert with_http.compact(version) is False
    assert with_http.table("s.t", at=AsOf(version=version)) == kept
    with pytest.raises(VersionNotFound, match=f"the earliest is version {version}"):
        with_http.table("s.t", at=AsOf(version=version - 1))
    assert [record.trimmed for record in with_http.history()] == [True, True, False]
    with_http.close()
