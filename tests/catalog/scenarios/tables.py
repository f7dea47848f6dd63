"""CREATE, DROP and RENAME of tables, with their keys and zones."""

from __future__ import annotations

from dataclasses import replace

from strandline.catalog.commands import (
    CreateIndex,
    CreateSchema,
    DropIndex,
    DropTable,
    RenameIndex,
    RenameTable,
)
from strandline.catalog.commands.objects import SetConfiguration
from strandline.durable.transaction import OBJECT_IDS
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
)
from strandline.model.descriptors import Collation, IndexKind
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    arguments,
    columns,
    create_table,
    create_view,
    field,
    indexes,
    names,
    table_of,
)

TABLE = create_table("s.t")
KEYED = create_table("s.k", "id int not null", "v string", "w int", primary_key=("id",))
VIEW = create_view("s.v")
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))


def key_index_follows_table_id(result: Result) -> bool:
    table = table_of(result.after, "s.k")
    return bool(table.primary_key_index == table.id + 1)


def key_index(result: Result) -> tuple[object, ...]:
    table = table_of(result.after, "s.k")
    index = result.after.index(table.primary_key_index)
    assert index is not None
    return index.name, index.kind, index.unique, index.created_with_table, index.owner


def ids_used(result: Result) -> int:
    return int(result.after.next_number(OBJECT_IDS) - result.before.next_number(OBJECT_IDS))


def ids_grow(result: Result) -> bool:
    return bool(table_of(result.after, "s.t").id > table_of(result.before, "s.t").id)


SCENARIOS = [
    # -- create ------------------------------------------------------------------------------
    Scenario(
        "a table with a key comes with its index, and is in no version before its own",
        cases=[21],
        setup=[SCHEMA],
        run=KEYED,
        expect=Made(["create_table", "create_index"]),
        checks=[
            (columns("s.k"), ["1 id int not null", "2 v string", "3 w int"]),
            (field("s.k", "schema_version"), 1),
            (indexes("s.k"), ["k_pk AVAILABLE+"]),
            (key_index, ("k_pk", IndexKind.HASH, True, True, "ann")),
            (key_index_follows_table_id, True),
            (lambda r: r.before.relation_names("s"), []),
        ],
        note="names of generated indexes are <table>_pk in the case of the table's name",
    ),
    Scenario(
        "a table without a key has no index",
        cases=[21, 55],
        setup=[SCHEMA],
        run=TABLE,
        expect=Made(["create_table"]),
        checks=[(indexes("s.t"), []), (field("s.t", "primary_key_index"), 0)],
        note="a table of Spark needs no key, so a missing one is no error",
    ),
    Scenario(
        "a table without a key needs no name for one, and takes one id",
        cases=[21, 26],
        setup=[SCHEMA, create_table("s.t_pk")],
        run=[TABLE, create_table("s.u")],
        expect=Made(["create_table", "create_table"]),
        checks=[(lambda r: table_of(r.after, "s.u").id - table_of(r.after, "s.t").id, 1)],
    ),
    Scenario(
        "a key is named by its maker",
        cases=[22],
        setup=[SCHEMA],
        run=create_table(
            "s.k",
            "id int not null",
            primary_key=("id",),
            primary_key_name="Key",
            primary_key_collations=(Collation.DESC_NULLS_LAST,),
            owner="ann",
        ),
        expect=Made(),
        checks=[
            (key_index, ("Key", IndexKind.SORTED, True, True, "ann")),
            (lambda r: r.after.alive_index("s", "key").unique, True),
            (lambda r: r.after.alive_index("s", "k_pk"), None),
        ],
    ),
    Scenario(
        "a table twice",
        cases=[23],
        setup=[SCHEMA, TABLE],
        run=create_table("s.T"),
        expect=Refused(AlreadyExists, "table s.t already exists"),
        note="names are compared without regard to case, as Spark does",
    ),
    Scenario(
        "a table twice, if it does not exist",
        cases=[23],
        setup=[SCHEMA, TABLE],
        run=create_table("s.T", if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a table in a missing schema, even if it does not exist",
        cases=[24],
        run=create_table("none.t", if_not_exists=True),
        expect=Refused(ObjectNotFound, "schema 'none' does not exist"),
    ),
    Scenario(
        "a table with the name of an index",
        cases=[25],
        setup=[SCHEMA, TABLE, INDEX],
        run=create_table("s.I"),
        expect=Refused(AlreadyExists, "index s.i already exists"),
    ),
    Scenario(
        "a table with the name of an index, even if it does not exist",
        cases=[25],
        setup=[SCHEMA, TABLE, INDEX],
        run=create_table("s.i", if_not_exists=True),
        expect=Refused(AlreadyExists, "index s.i already exists"),
    ),
    Scenario(
        "a table with the name of a view",
        cases=[25],
        setup=[SCHEMA, VIEW],
        run=create_table("s.v"),
        expect=Refused(AlreadyExists, "view s.v already exists"),
    ),
    Scenario(
        "a table with the name of a stopping index",
        cases=[25],
        setup=[SCHEMA, [TABLE, INDEX], DropIndex(schema="s", index="i")],
        run=create_table("s.i"),
        expect=Made(["create_table"]),
        checks=[(names("s"), ["i", "t"]), (indexes("s.t"), ["i STOPPING+"])],
    ),
    Scenario(
        "the name of the key's index is taken by a table",
        cases=[26],
        setup=[SCHEMA, create_table("s.K_PK")],
        run=KEYED,
        expect=Refused(AlreadyExists, "table s.K_PK already exists"),
    ),
    Scenario(
        "the name of the key's index is taken by an index",
        cases=[26],
        setup=[SCHEMA, TABLE, replace(INDEX, index="k_pk")],
        run=KEYED,
        expect=Refused(AlreadyExists, "index s.k_pk already exists"),
    ),
    Scenario(
        "the key cannot have the name of its own table",
        cases=[26],
        setup=[SCHEMA],
        run=create_table("s.k", "id int not null", primary_key=("id",), primary_key_name="K"),
        expect=Refused(AlreadyExists, "this command would create two objects"),
        note="both names are free when the command is validated; they are compared with each other",
    ),
    Scenario(
        "a long name leaves room for the name of the key",
        setup=[SCHEMA],
        run=create_table("s." + "k" * 255, "id int not null", primary_key=("id",)),
        expect=Made(),
        checks=[(lambda r: len(r.after.alive_index("s", "k" * 252 + "_pk").name), 255)],
    ),
    Scenario(
        "an unknown zone",
        cases=[27],
        setup=[SCHEMA],
        run=create_table("s.t", zone="z"),
        expect=Refused(ObjectNotFound, "zone 'z' does not exist"),
    ),
    Scenario(
        "a storage profile that the zone does not have",
        cases=[27],
        setup=[SCHEMA],
        run=create_table("s.t", storage_profile="fast"),
        expect=Refused(InvalidInput, "storage profile 'fast' of table t; it has default"),
    ),
    Scenario(
        "a zone is named without regard to case, and a profile that it has is kept",
        cases=[27],
        setup=[SCHEMA],
        run=create_table("s.t", zone="DEFAULT", storage_profile="default"),
        expect=Made(),
        checks=[(field("s.t", "storage_profile"), "default")],
    ),
    Scenario(
        "a table without a zone goes to the default zone, which is there from the beginning",
        cases=[28],
        setup=[SCHEMA, TABLE],
        run=create_table("s.u"),
        expect=Made(["create_table"]),
        checks=[
            (lambda r: [zone.name for zone in r.after.zones()], ["default"]),
            (lambda r: table_of(r.after, "s.u").zone_id == r.after.default_zone().id, True),
        ],
        note="a new catalog has its default zone at once, so no CREATE TABLE ever makes one",
    ),
    Scenario(
        "a default zone cannot be missing, so a zone of its name is never in the way",
        cases=[29],
        setup=[SCHEMA],
        run=[TABLE, create_table("s.u")],
        expect=Made(["create_table", "create_table"]),
        checks=[(lambda r: len(r.after.zones()), 1)],
        note="see the case before: what it describes cannot happen here",
    ),
    Scenario(
        "more tables than are allowed",
        setup=[SCHEMA, TABLE, SetConfiguration(name="max_tables", value="2")],
        run=[create_table("s.u"), create_table("s.w")],
        expect=Refused(LimitExceeded, "there are 2 tables and max_tables allows 2"),
    ),
    Scenario(
        "as many tables as are allowed",
        setup=[SCHEMA, TABLE, SetConfiguration(name="max_tables", value="2")],
        run=[create_table("s.u"), create_table("s.u", if_not_exists=True)],
        expect=Made(applied=[True, False]),
    ),
    Scenario(
        "a table in the catalog's own schema",
        run=create_table("system.t"),
        expect=Refused(IllegalChange, "system"),
    ),
    # -- drop --------------------------------------------------------------------------------
    Scenario(
        "a dropped table takes its indexes along, and old versions keep both",
        cases=[30],
        setup=[
            SCHEMA,
            [KEYED, CreateIndex(schema="s", index="stops", table="k", columns=("v",))],
            DropIndex(schema="s", index="stops"),
            CreateIndex(schema="s", index="new", table="k", columns=("w",)),
        ],
        run=DropTable(schema="s", table="k"),
        expect=Made(["index_removed", "index_removed", "index_removed", "drop_table"]),
        checks=[
            (names("s"), []),
            (lambda r: r.after.contents.count("index"), 0),
            (lambda r: len(r.before.indexes(table_of(r.before, "s.k").id)), 3),
            (
                lambda r: [said["status"] for said in arguments("index_removed")(r)],
                ["AVAILABLE", "STOPPING", "REGISTERED"],
            ),
        ],
    ),
    Scenario(
        "a table dropped and created again is another one",
        cases=[31],
        setup=[SCHEMA, TABLE],
        run=[DropTable(schema="s", table="t"), TABLE],
        expect=Made(["drop_table", "create_table"]),
        checks=[(ids_grow, True)],
    ),
    Scenario(
        "a table with a key takes two ids, and one without takes one",
        cases=[21],
        setup=[SCHEMA],
        run=[KEYED, TABLE],
        expect=Made(),
        checks=[(ids_used, 3)],
    ),
    Scenario(
        "a dropped table whose files stay says so",
        setup=[SCHEMA, TABLE, VIEW],
        run=[DropTable(schema="s", table="t", keep_data=True), DropTable(schema="s", table="v")],
        expect=Made(["drop_table", "drop_view"]),
        checks=[
            (lambda r: [said.get("data") for _, said in r.actions], ["keep", None]),
        ],
    ),
    Scenario(
        "drop a table and both keep and purge its files",
        setup=[SCHEMA, TABLE],
        run=DropTable(schema="s", table="t", keep_data=True, purge=True),
        expect=Refused(InvalidInput, "files can be kept or purged, not both"),
    ),
    Scenario(
        "a dropped table whose files are deleted says so",
        setup=[SCHEMA, TABLE],
        run=DropTable(schema="s", table="t", purge=True),
        expect=Made(["drop_table"]),
        checks=[(lambda r: arguments("drop_table")(r)[0]["data"], "purge")],
    ),
    Scenario(
        "drop a missing table",
        cases=[32],
        setup=[SCHEMA],
        run=DropTable(schema="s", table="t"),
        expect=Refused(ObjectNotFound, "s.t"),
    ),
    Scenario(
        "drop a missing table, if it exists",
        cases=[32],
        setup=[SCHEMA],
        run=DropTable(schema="s", table="t", if_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "drop a table of a missing schema, if it exists",
        cases=[32],
        run=DropTable(schema="none", table="t", if_exists=True),
        expect=Nothing(),
    ),
    # -- rename ------------------------------------------------------------------------------
    Scenario(
        "a renamed table keeps its id and schema version; the generated name of its key follows",
        cases=[40],
        setup=[SCHEMA, KEYED],
        run=[RenameTable(schema="s", table="K", new_name="n"), KEYED],
        expect=Made(["rename_table", "rename_index", "create_table", "create_index"]),
        checks=[
            (names("s"), ["k", "n"]),
            (indexes("s.n"), ["n_pk AVAILABLE+"]),
            (field("s.n", "schema_version"), 1),
            (lambda r: table_of(r.after, "s.n").id == table_of(r.before, "s.k").id, True),
        ],
    ),
    Scenario(
        "a key that a user named keeps its name when the table is renamed",
        cases=[40],
        setup=[SCHEMA, KEYED, RenameIndex(schema="s", index="k_pk", new_name="mine")],
        run=RenameTable(schema="s", table="k", new_name="n"),
        expect=Made(["rename_table"]),
        checks=[(indexes("s.n"), ["mine AVAILABLE+"])],
        note="overwriting it would lose what a person chose",
    ),
    Scenario(
        "an index that has the generated name and is not the key's keeps it",
        cases=[40],
        setup=[
            SCHEMA,
            KEYED,
            RenameIndex(schema="s", index="k_pk", new_name="mine"),
            CreateIndex(schema="s", index="k_pk", table="k", columns=("v",)),
        ],
        run=RenameTable(schema="s", table="k", new_name="n"),
        expect=Made(["rename_table"]),
        checks=[(indexes("s.n"), ["mine AVAILABLE+", "k_pk REGISTERED"])],
    ),
    Scenario(
        "the new name of the key is taken",
        cases=[41],
        setup=[SCHEMA, KEYED, create_table("s.n_pk")],
        run=RenameTable(schema="s", table="k", new_name="n"),
        expect=Refused(AlreadyExists, "table s.n_pk already exists"),
    ),
    *(
        Scenario(
            f"rename onto {what}",
            cases=[41],
            setup=[SCHEMA, TABLE, create_table("s.u"), VIEW, INDEX],
            run=RenameTable(schema="s", table="t", new_name=name),
            expect=Refused(AlreadyExists, f"{what} s.{name} already exists"),
        )
        for what, name in (("table", "u"), ("view", "v"), ("index", "i"))
    ),
    Scenario(
        "rename a missing table onto a taken name, if it exists",
        cases=[41],
        setup=[SCHEMA, TABLE],
        run=RenameTable(schema="s", table="none", new_name="t", if_exists=True),
        expect=Nothing(),
        note="that the table is missing is found before the clash, which then is none",
    ),
    Scenario(
        "a view renamed as a table, for clients that have one call for both",
        setup=[SCHEMA, VIEW],
        run=RenameTable(schema="s", table="v", new_name="w", if_exists=True),
        expect=Made(["rename_view"]),
        checks=[(names("s"), ["w"])],
    ),
    Scenario(
        "rename a missing table",
        cases=[41],
        setup=[SCHEMA, TABLE],
        run=RenameTable(schema="s", table="none", new_name="t"),
        expect=Refused(ObjectNotFound, "s.none"),
    ),
    Scenario(
        "rename a table of a missing schema, if it exists",
        cases=[41],
        run=RenameTable(schema="none", table="t", new_name="u", if_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "rename to its own name",
        cases=[41],
        setup=[SCHEMA, KEYED],
        run=RenameTable(schema="s", table="k", new_name="k"),
        expect=Nothing(),
        note="the table has that name already: nothing to do, and nobody is in the way",
    ),
    Scenario(
        "rename to its own name in another case",
        setup=[SCHEMA, KEYED],
        run=RenameTable(schema="s", table="k", new_name="K"),
        expect=Made(["rename_table", "rename_index"]),
        checks=[(names("s"), ["K"]), (indexes("s.k"), ["K_pk AVAILABLE+"])],
    ),
    Scenario(
        "indexes follow their table into another schema",
        setup=[
            SCHEMA,
            CreateSchema(name="u"),
            [KEYED, CreateIndex(schema="s", index="i", table="k", columns=("v",))],
        ],
        run=RenameTable(schema="s", table="k", new_name="k", new_schema="u"),
        expect=Made(["rename_table"]),
        checks=[
            (indexes("u.k"), ["k_pk AVAILABLE+", "i AVAILABLE+"]),
            (lambda r: r.after.alive_index("u", "i") is not None, True),
            (lambda r: r.after.alive_index("s", "i"), None),
        ],
    ),
    Scenario(
        "a stopping index follows its table to where its name is taken",
        setup=[
            SCHEMA,
            CreateSchema(name="u"),
            create_table("u.i"),
            [TABLE, INDEX],
            DropIndex(schema="s", index="i"),
        ],
        run=RenameTable(schema="s", table="t", new_name="t", new_schema="u"),
        expect=Made(["rename_table"]),
        checks=[(indexes("u.t"), ["i STOPPING+"]), (names("u"), ["i", "t"])],
    ),
    Scenario(
        "an index's name is taken in the other schema",
        setup=[
            SCHEMA,
            CreateSchema(name="u"),
            create_table("u.i"),
            [TABLE, INDEX],
        ],
        run=RenameTable(schema="s", table="t", new_name="t", new_schema="u"),
        expect=Refused(AlreadyExists, "table u.i already exists"),
    ),
    Scenario(
        "a table cannot take the name of its own index in the other schema",
        setup=[SCHEMA, CreateSchema(name="u"), [TABLE, INDEX]],
        run=RenameTable(schema="s", table="t", new_name="I", new_schema="u"),
        expect=Refused(AlreadyExists, "this command would create two objects"),
    ),
    Scenario(
        "a table cannot move into the catalog's own schema",
        setup=[SCHEMA, TABLE],
        run=RenameTable(schema="s", table="t", new_name="t", new_schema="information_schema"),
        expect=Refused(IllegalChange, "information_schema"),
    ),
]
