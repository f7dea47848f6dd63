"""What commands on schemas and databases do, refuse and leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.catalog.commands import (
    AlterDatabase,
    AlterDefaultPrivileges,
    AlterSchema,
    CommentOn,
    CreateDatabase,
    CreateFunction,
    CreateIndex,
    CreateSchema,
    DropDatabase,
    DropSchema,
    DropTable,
    RenameDatabase,
    RenameSchema,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
)
from strandline.model.descriptors import PrincipalType, properties
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Run,
    Scenario,
    arguments,
    create_table,
    create_view,
    names,
    table_of,
)

TABLE = create_table("s.t")
FULL: list[Run] = [
    SCHEMA,
    TABLE,
    create_view("s.v"),
    CreateIndex(schema="s", index="i", table="t", columns=("a",)),
    CreateFunction(schema="s", name="f", class_name="a.B"),
]
BEFORE = ["default", "system"]
LAKE = CreateDatabase(name="lake")
DEFAULTS_ANYWHERE = AlterDefaultPrivileges(
    kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="public"
)
DEFAULTS_IN_SCHEMA = replace(DEFAULTS_ANYWHERE, schema="s")
DEFAULTS_IN_LAKE = replace(DEFAULTS_ANYWHERE, database="lake")


def default_privileges(result: Result) -> list[str]:
    return [default.name for default in result.after.contents.objects("default_privilege")]


def schema(name: str, attribute: str) -> Callable[[Result], object]:
    return lambda result: getattr(result.after.schema(name), attribute)


def schema_names(result: Result) -> list[str]:
    listed: list[str] = [schema.name for schema in result.after.schemas()]
    return listed


def keeps_id(old: str, new: str) -> Callable[[Result], bool]:
    """Whether the schema ``old`` before has the id of the schema ``new`` after."""

    def read(result: Result) -> bool:
        before, after = result.before.schema(old), result.after.schema(new)
        return before is not None and after is not None and before.id == after.id

    return read


def reserved(name: str) -> list[Scenario]:
    return [
        Scenario(
            f"the schema {name} cannot be created",
            cases=[75],
            run=CreateSchema(name=name, if_not_exists=True),
            expect=Refused(InvalidName, f"schema {name} cannot be created: the name is reserved"),
        ),
        Scenario(
            f"the schema {name} cannot be dropped",
            cases=[75],
            run=DropSchema(name=name, if_exists=True, cascade=True),
            expect=Refused(IllegalChange, f"system schema {name} cannot be dropped"),
        ),
        Scenario(
            f"no schema is renamed to {name}",
            setup=[SCHEMA],
            run=RenameSchema(name="s", new_name=name),
            expect=Refused(InvalidName, "reserved"),
        ),
    ]


SCENARIOS = [
    Scenario(
        "a schema is created once",
        setup=[SCHEMA],
        run=CreateSchema(name="S"),
        expect=Refused(AlreadyExists, "schema S already exists"),
    ),
    Scenario(
        "IF NOT EXISTS leaves a schema alone",
        setup=[SCHEMA],
        run=CreateSchema(name="S", comment="x", if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "an empty schema is dropped and its name is free",
        cases=[75],
        setup=[SCHEMA],
        run=[DropSchema(name="s"), SCHEMA],
        expect=Made(["drop_schema", "create_schema"]),
        checks=[(keeps_id("s", "s"), False)],
    ),
    Scenario(
        "the default schema cannot be dropped",
        cases=[75],
        run=DropSchema(name="Default", cascade=True),
        expect=Refused(IllegalChange, "Can not drop default database"),
        note="Spark and Hive cannot start a session without it.",
    ),
    *reserved("system"),
    *reserved("SYSTEM"),
    *reserved("Information_Schema"),
    Scenario(
        "the system schema cannot be altered",
        run=AlterSchema(name="system", comment="mine"),
        expect=Refused(IllegalChange, "system schema system cannot be altered"),
    ),
    Scenario(
        "the system schema cannot be renamed",
        run=RenameSchema(name="system", new_name="s"),
        expect=Refused(IllegalChange, "system schema system cannot be renamed"),
    ),
    Scenario(
        "a missing schema is not dropped",
        run=DropSchema(name="s"),
        expect=Refused(ObjectNotFound, "'s'"),
    ),
    Scenario(
        "IF EXISTS covers a missing schema",
        run=[
            DropSchema(name="s", if_exists=True),
            AlterSchema(name="s", owner="x", if_exists=True),
            RenameSchema(name="s", new_name="r", if_exists=True),
        ],
        expect=Nothing(),
    ),
    Scenario(
        "a schema with a table in it is not dropped",
        cases=[76],
        setup=[SCHEMA, TABLE],
        run=DropSchema(name="s"),
        expect=Refused(IllegalChange, "One or more tables exist"),
    ),
    Scenario(
        "a schema with a view in it is not dropped",
        cases=[76],
        setup=[SCHEMA, create_view("s.v")],
        run=DropSchema(name="s"),
        expect=Refused(IllegalChange, "One or more tables exist"),
        note="a client of Hive knows this message, also for views",
    ),
    Scenario(
        "a schema with a function in it is not dropped",
        cases=[76],
        setup=[SCHEMA, FULL[-1]],
        run=DropSchema(name="s"),
        expect=Refused(IllegalChange, "One or more functions exist"),
    ),
    Scenario(
        "CASCADE drops all that is in a schema in one version",
        cases=[76],
        setup=FULL,
        run=DropSchema(name="s", cascade=True),
        expect=Made(["index_removed", "drop_table", "drop_view", "drop_function", "drop_schema"]),
        checks=[
            (schema_names, ["default", "system"]),
            (
                lambda r: [r.after.contents.count(k) for k in ("table", "view", "index")],
                [0, 0, 0],
            ),
            (lambda r: r.after.contents.count("function"), 0),
        ],
    ),
    Scenario(
        "tables and indexes of two schemas have the same names",
        cases=[77],
        setup=FULL,
        run=[
            CreateSchema(name="r"),
            create_table("r.t"),
            CreateIndex(schema="r", index="i", table="t", columns=("a",)),
        ],
        expect=Made(["create_schema", "create_table", "create_index"]),
        checks=[
            (names("r"), ["t"]),
            (lambda r: table_of(r.after, "r.t").id != table_of(r.after, "s.t").id, True),
        ],
    ),
    Scenario(
        "what is not told of a schema stays",
        setup=[CreateSchema(name="s", comment="c", properties=properties({"a": "b"}))],
        run=AlterSchema(name="s", owner="eve"),
        expect=Made(["alter_schema"]),
        checks=[
            (schema("s", "owner"), "eve"),
            (schema("s", "comment"), "c"),
            (schema("s", "properties"), (("a", "b"),)),
            (arguments("alter_schema"), [{"schema": "s", "changed": ["owner"]}]),
        ],
    ),
    Scenario(
        "the history shows which parts of a schema were changed",
        setup=[CreateSchema(name="s", owner="eve", properties=properties({"a": "b", "c": "d"}))],
        run=AlterSchema(
            name="s",
            owner="eve",
            owner_type=PrincipalType.ROLE,
            comment="c",
            properties=properties({"a": "e", "c": "d"}),
        ),
        expect=Made(["alter_schema"]),
        checks=[
            (
                arguments("alter_schema"),
                [{"schema": "s", "changed": ["owner_type", "comment", "property a"]}],
            ),
        ],
    ),
    Scenario(
        "a new schema has no comment longer than COMMENT ON sets",
        run=CreateSchema(name="s", comment="c" * 65_537),
        expect=Refused(InvalidInput, "a comment may have at most 65536 characters, found 65537"),
    ),
    Scenario(
        "an alter of a schema sets no comment longer than COMMENT ON does",
        setup=[SCHEMA],
        run=AlterSchema(name="s", comment="c" * 65_537),
        expect=Refused(InvalidInput, "a comment may have at most 65536 characters, found 65537"),
    ),
    Scenario(
        "an alter of a schema without a difference makes no version",
        setup=[CreateSchema(name="s", comment="c")],
        run=AlterSchema(name="s", comment="c"),
        expect=Nothing(),
    ),
    Scenario(
        "a new schema does not get the place of one that an older release stored as a URI",
        setup=[CreateSchema(name="r", location="file:/warehouse/s.db/")],
        run=SCHEMA,
        expect=Made(["create_schema"]),
        checks=[(schema("s", "location"), "s~2.db")],
    ),
    Scenario(
        "a renamed schema keeps its id, its tables and its location",
        setup=[CreateSchema(name="s", location="file:/s"), TABLE],
        run=RenameSchema(name="s", new_name="r"),
        expect=Made(["rename_schema"]),
        checks=[
            (keeps_id("s", "r"), True),
            (names("r"), ["t"]),
            (names("s"), []),
            (schema("r", "location"), "file:/s"),
        ],
    ),
    Scenario(
        "a schema does not take another's name",
        setup=[SCHEMA],
        run=RenameSchema(name="s", new_name="DEFAULT"),
        expect=Refused(AlreadyExists, "schema default already exists"),
    ),
    Scenario(
        "the default schema keeps its name",
        run=RenameSchema(name="default", new_name="main"),
        expect=Refused(IllegalChange, "is the default schema"),
    ),
    Scenario(
        "the default schema is altered",
        run=AlterSchema(name="default", comment="home"),
        expect=Made(["alter_schema"]),
        checks=[(schema("default", "comment"), "home")],
    ),
    # -- databases
    Scenario(
        "a database is created, altered and renamed",
        run=[
            LAKE,
            AlterDatabase(name="lake", owner="eve"),
            RenameDatabase(name="lake", new_name="sea"),
        ],
        expect=Made(["create_database", "alter_database", "rename_database"]),
        checks=[
            (lambda r: [(d.name, d.owner) for d in r.after.databases()][-1], ("sea", "eve")),
        ],
    ),
    Scenario(
        "a database belongs to its maker unless it names another",
        run=[LAKE, CreateDatabase(name="sea", owner="eve")],
        expect=Made(["create_database", "create_database"]),
        checks=[(lambda r: [d.owner for d in r.after.databases()], ["system", "ann", "eve"])],
    ),
    Scenario(
        "a database is created once",
        setup=[LAKE],
        run=CreateDatabase(name="LAKE"),
        expect=Refused(AlreadyExists, "database lake already exists"),
    ),
    Scenario(
        "schemas of two databases have the same names",
        setup=[SCHEMA, TABLE, LAKE],
        run=CreateSchema(name="s", database="lake"),
        expect=Made(["create_schema"]),
        checks=[
            (lambda r: len(r.after.all_schemas()) - len(r.after.schemas()), 1),
            (lambda r: [s.name for s in r.after.schemas(database="lake")], ["s"]),
            (names("s"), ["t"]),
        ],
    ),
    Scenario(
        "a schema of another database is dropped there",
        setup=[SCHEMA, TABLE, LAKE, CreateSchema(name="s", database="lake")],
        run=DropSchema(name="s", database="lake"),
        expect=Made(["drop_schema"]),
        checks=[
            (schema_names, ["default", "s", "system"]),
            (names("s"), ["t"]),
            (arguments("drop_schema"), [{"schema": "s", "location": "s~2.db", "database": "lake"}]),
        ],
    ),
    Scenario(
        "a schema named default is like any other in another database",
        setup=[LAKE, CreateSchema(name="default", database="lake")],
        run=[
            RenameSchema(name="default", new_name="x", database="lake"),
            RenameSchema(name="x", new_name="default", database="lake"),
            DropSchema(name="default", database="lake"),
        ],
        expect=Made(["rename_schema", "rename_schema", "drop_schema"]),
        checks=[(lambda r: r.after.schemas(database="lake"), []), (schema_names, BEFORE)],
    ),
    Scenario(
        "functions of a schema are in nobody's way in another database",
        setup=[SCHEMA, FULL[-1], LAKE, CreateSchema(name="s", database="lake")],
        run=DropSchema(name="s", database="lake"),
        expect=Made(["drop_schema"]),
        checks=[(lambda r: r.after.contents.count("function"), 1)],
    ),
    Scenario(
        "a schema is not created in a missing database",
        run=CreateSchema(name="s", database="lake"),
        expect=Refused(ObjectNotFound, "database 'lake'"),
    ),
    Scenario(
        "a database with a schema in it is not dropped",
        setup=[LAKE, CreateSchema(name="s", database="lake")],
        run=DropDatabase(name="lake"),
        expect=Refused(IllegalChange, "schema s is in it"),
    ),
    Scenario(
        "an empty database is dropped with the comment on it",
        setup=[LAKE, CommentOn(kind=ObjectKind.DATABASE, name="lake", text="x")],
        run=DropDatabase(name="lake"),
        expect=Made(["drop_database"]),
        checks=[(lambda r: r.after.contents.count("comment"), 0)],
    ),
    Scenario(
        "the default database stays",
        run=DropDatabase(name="hive"),
        expect=Refused(IllegalChange, "is the default database"),
    ),
    Scenario(
        "the default database keeps its name",
        run=RenameDatabase(name="HIVE", new_name="lake"),
        expect=Refused(IllegalChange, "is the default database"),
    ),
    Scenario(
        "a database does not take another's name",
        setup=[LAKE],
        run=RenameDatabase(name="lake", new_name="Hive"),
        expect=Refused(AlreadyExists, "database hive already exists"),
    ),
    Scenario(
        "a missing database is not dropped",
        run=DropDatabase(name="lake"),
        expect=Refused(ObjectNotFound, "'lake'"),
    ),
    Scenario(
        "IF EXISTS covers a missing database",
        run=[
            DropDatabase(name="lake", if_exists=True),
            AlterDatabase(name="lake", owner="x", if_exists=True),
            RenameDatabase(name="lake", new_name="x", if_exists=True),
        ],
        expect=Nothing(),
    ),
    Scenario(
        "a schema with a table that is dropped in the same batch is dropped",
        setup=[SCHEMA, TABLE],
        run=[DropTable(schema="s", table="t"), DropSchema(name="s")],
        expect=Made(["drop_table", "drop_schema"]),
    ),
    Scenario(
        "a schema with tables is not empty, however its database is spelled",
        setup=[SCHEMA, TABLE],
        run=DropSchema(name="s", database="HIVE"),
        expect=Refused(IllegalChange, "not empty. One or more tables exist"),
    ),
    Scenario(
        "CASCADE takes the tables, however the database is spelled",
        setup=[SCHEMA, TABLE],
        run=DropSchema(name="s", database="Hive", cascade=True),
        expect=Made(["drop_table", "drop_schema"]),
        checks=[(lambda result: result.after.table_count(), 0)],
    ),
    Scenario(
        "the default schema cannot be dropped, however its database is spelled",
        run=DropSchema(name="default", database="HIVE"),
        expect=Refused(IllegalChange, "Can not drop default database"),
    ),
    Scenario(
        "the default schema cannot be renamed, however its database is spelled",
        run=RenameSchema(name="default", new_name="x", database="HIVE"),
        expect=Refused(IllegalChange, "is the default schema and cannot be renamed"),
    ),
    Scenario(
        "default privileges go with their schema",
        setup=[SCHEMA, DEFAULTS_IN_SCHEMA, DEFAULTS_ANYWHERE],
        run=DropSchema(name="s"),
        expect=Made(["drop_schema"]),
        checks=[(default_privileges, ["0/0/0/table/0"])],
    ),
    Scenario(
        "default privileges go with their database",
        setup=[LAKE, DEFAULTS_IN_LAKE, DEFAULTS_ANYWHERE],
        run=DropDatabase(name="lake"),
        expect=Made(["drop_database"]),
        checks=[(default_privileges, ["0/0/0/table/0"])],
    ),
]
