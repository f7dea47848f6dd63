"""The whole life cycle of indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.catalog import Catalog, Command
from strandline.catalog.commands import (
    CreateIndex,
    CreateSchema,
    DropIndex,
    DropTable,
    MakeIndexAvailable,
    RemoveIndex,
    RenameIndex,
    StartBuildingIndex,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    IndexStatusConflict,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.model.descriptors import Collation, IndexColumn, IndexKind
from strandline.model.identifiers import MAX_COLUMN_NAME_LENGTH
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    Step,
    arguments,
    create_table,
    create_view,
    index_id,
    indexes,
    names,
    same,
    table_of,
)

TABLE = create_table("s.t", "a int", "b string", "m map<int, int>", "v array<variant>")
KEYED = create_table("s.k", "id int not null", "v int", primary_key=("id",))
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))
DROP = DropIndex(schema="s", index="i")
LONGEST_NAME = "x" * MAX_COLUMN_NAME_LENGTH
SORTED = replace(INDEX, kind=IndexKind.SORTED, collations=(Collation.ASC_NULLS_LAST,))


def by_id(of: Callable[..., Command], name: str = "s.i") -> Callable[[Catalog], Command]:
    """A command on the index that has this name at that moment."""
    return lambda catalog: of(index_id=index_id(catalog, name))


START, AVAILABLE = by_id(StartBuildingIndex), by_id(MakeIndexAvailable)


def only_index(of: Callable[..., Command]) -> Callable[[Catalog], Command]:
    """A command on the only index of s.t, which may have lost its name."""
    return lambda catalog: of(index_id=catalog.indexes(table_of(catalog, "s.t").id)[0].id)


NEW: list[Step] = [SCHEMA, TABLE, INDEX]
REACHED: dict[str, list[Step]] = {
    "REGISTERED": NEW,
    "BUILDING": [*NEW, START],
    "AVAILABLE": [*NEW, START, AVAILABLE],
    "STOPPING": [*NEW, START, AVAILABLE, DROP],
}
STEPS: dict[Callable[..., Command], tuple[str, str]] = {
    StartBuildingIndex: ("REGISTERED", "start building"),
    MakeIndexAvailable: ("BUILDING", "become available"),
    RemoveIndex: ("STOPPING", "be removed"),
}


def told(verb: str, name: str) -> Callable[[Result], list[object]]:
    return lambda result: [said.get(name) for said in arguments(verb)(result)]


def ids_sorted(result: Result) -> bool:
    catalogs = [result.manager.catalog(v) for v in range(3, result.after.version + 1)]
    lists = [[i.id for i in c.indexes(table_of(result.after, "s.t").id)] for c in catalogs]
    return all(ids == sorted(ids) for ids in lists) and max(map(len, lists)) == 4


SCENARIOS = [
    # -- create ------------------------------------------------------------------------------
    Scenario(
        "an index on a table that is there begins its life",
        cases=[58],
        setup=[SCHEMA, TABLE],
        run=INDEX,
        expect=Made(["create_index"]),
        checks=[
            (indexes("s.t"), ["i REGISTERED"]),
            (told("create_index", "index"), ["s.i"]),
            (told("create_index", "table"), ["s.t"]),
            (same("s.t", "schema_versions"), True),
        ],
    ),
    Scenario(
        "an index on a column with the longest name",
        setup=[SCHEMA, create_table("s.t", f"{LONGEST_NAME} int")],
        run=replace(INDEX, columns=(LONGEST_NAME,)),
        expect=Made(["create_index"]),
    ),
    Scenario(
        "an index in the batch of its table is available at once",
        cases=[58],
        setup=[SCHEMA],
        run=[TABLE, SORTED],
        expect=Made(["create_table", "create_index"]),
        checks=[
            (indexes("s.t"), ["i AVAILABLE+"]),
            (
                lambda r: r.after.alive_index("s", "I").columns,
                (IndexColumn(1, Collation.ASC_NULLS_LAST),),
            ),
        ],
    ),
    Scenario(
        "an index in the batch that drops and creates its table again",
        cases=[58],
        setup=[SCHEMA, TABLE],
        run=[DropTable(schema="s", table="t"), TABLE, INDEX],
        expect=Made(["drop_table", "create_table", "create_index"]),
        checks=[(indexes("s.t"), ["i AVAILABLE+"])],
    ),
    Scenario(
        "an index that exists",
        setup=NEW,
        run=replace(INDEX, index="I"),
        expect=Refused(AlreadyExists, "index s.i already exists"),
    ),
    Scenario(
        "an index that exists, if it does not, is left alone whatever is asked for",
        setup=NEW,
        run=replace(INDEX, index="I", table="none", columns=("z",), if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "an index of a table that exists, if it does not, and has the name of a view",
        setup=[SCHEMA, TABLE, create_view("s.i")],
        run=replace(INDEX, if_not_exists=True),
        expect=Refused(AlreadyExists, "view s.i already exists"),
    ),
    Scenario(
        "an index in a missing schema, even if it does not exist",
        run=replace(INDEX, schema="none", if_not_exists=True),
        expect=Refused(ObjectNotFound, "schema 'none' does not exist"),
    ),
    Scenario(
        "an index in the catalog's own schema",
        run=replace(INDEX, schema="System"),
        expect=Refused(IllegalChange, "system schema System"),
    ),
    Scenario(
        "an index of a missing table",
        setup=[SCHEMA],
        run=INDEX,
        expect=Refused(ObjectNotFound, "s.t"),
    ),
    Scenario(
        "an index of a view",
        setup=[SCHEMA, create_view("s.t")],
        run=INDEX,
        expect=Refused(UnsupportedOperation, "is a view"),
    ),
    Scenario(
        "an index has its table's owner unless it is told another",
        setup=[SCHEMA, create_table("s.t", owner="bob")],
        run=[INDEX, replace(INDEX, index="j", owner="eve")],
        expect=Made(),
        checks=[
            (lambda r: [r.after.alive_index("s", n).owner for n in "ij"], ["bob", "eve"]),
        ],
    ),
    # -- columns -----------------------------------------------------------------------------
    Scenario(
        "unique without all colocation columns",
        cases=[65],
        setup=[
            SCHEMA,
            create_table(
                "s.t",
                "a int not null",
                "b int not null",
                primary_key=("a", "b"),
                colocation=("a", "b"),
            ),
        ],
        run=replace(INDEX, unique=True),
        expect=Refused(InvalidInput, "must contain all colocation columns of t; b is missing"),
    ),
    Scenario(
        "unique with all colocation columns, and without others",
        cases=[65],
        setup=[SCHEMA, create_table("s.t", "a int", "b int", "c int", colocation=("a",))],
        run=[
            replace(INDEX, unique=True, columns=("B", "A")),
            replace(INDEX, index="j", columns=("b",)),
        ],
        expect=Made(),
        checks=[
            (lambda r: [r.after.alive_index("s", n).unique for n in "ij"], [True, False]),
            (indexes("s.t"), ["i REGISTERED", "j REGISTERED"]),
        ],
    ),
    *(
        Scenario(
            name,
            cases=[66],
            setup=[SCHEMA, TABLE],
            run=command,
            expect=Refused(error, says),
        )
        for name, command, error, says in (
            ("an unknown column", replace(INDEX, columns=("z",)), ObjectNotFound, "'z'"),
            (
                "a column twice",
                replace(INDEX, columns=("a", "A")),
                InvalidInput,
                "duplicate column 'A' in index i",
            ),
            ("a blank column", replace(INDEX, columns=(" ",)), InvalidName, "column"),
            ("no columns", replace(INDEX, columns=()), InvalidInput, "no columns were given"),
            ("a blank name", replace(INDEX, index=""), InvalidName, "name of a index"),
            (
                "too few collations",
                replace(SORTED, columns=("a", "b")),
                InvalidInput,
                "2 columns and 1 collations",
            ),
            ("no collations", replace(SORTED, collations=()), InvalidInput, "0 collations"),
            (
                "collations of a hash index",
                replace(SORTED, kind=IndexKind.HASH),
                InvalidInput,
                "takes no collations",
            ),
            ("a map", replace(INDEX, columns=("m",)), InvalidInput, "cannot be compared"),
            ("variants", replace(INDEX, columns=("v",)), InvalidInput, "cannot be compared"),
        )
    ),
    # -- from status to status ---------------------------------------------------------------
    *(
        Scenario(
            f"{before} becomes {after}",
            cases=[59],
            setup=REACHED[before],
            run=step,
            expect=Made([verb]),
            checks=[
                (indexes("s.t"), [f"i {after}"]),
                (told(verb, "index"), ["s.i"]),
                (told(verb, "table"), ["s.t"]),
            ],
        )
        for before, step, verb, after in (
            ("REGISTERED", START, "index_building", "BUILDING"),
            ("BUILDING", AVAILABLE, "index_available", "AVAILABLE"),
        )
    ),
    *(
        Scenario(
            f"{of.__name__} of an index that is {status}",
            cases=[60 if of is RemoveIndex else 59],
            setup=setup,
            run=only_index(of),
            expect=Refused(
                IndexStatusConflict,
                f"cannot {what}: its status is {status}, and {wanted} was expected",
            ),
        )
        for of, (wanted, what) in STEPS.items()
        for status, setup in REACHED.items()
        if status != wanted
    ),
    *(
        Scenario(
            f"{of.__name__} of index {unknown}",
            cases=[59],
            setup=NEW,
            run=of(index_id=unknown),
            expect=Refused(ObjectNotFound, f"index with id {unknown} does not exist"),
        )
        for of in STEPS
        for unknown in (999, 0, -1, 1 << 70)
    ),
    Scenario(
        "a stopping index is removed",
        cases=[60],
        setup=REACHED["STOPPING"],
        run=only_index(RemoveIndex),
        expect=Made(["index_removed"]),
        checks=[(indexes("s.t"), []), (told("index_removed", "status"), ["STOPPING"])],
    ),
    # -- drop --------------------------------------------------------------------------------
    Scenario(
        "a dropped index that was available stops; it has lost its name, and is still there",
        cases=[61],
        setup=REACHED["AVAILABLE"],
        run=DROP,
        expect=Made(["index_stopping"]),
        checks=[
            (lambda r: r.after.alive_index("s", "i"), None),
            (indexes("s.t"), ["i STOPPING"]),
            (lambda r: r.after.index(index_id(r.before, "s.i")).name, "i"),
        ],
    ),
    *(
        Scenario(
            f"a dropped index that was {status} is gone",
            cases=[61],
            setup=REACHED[status],
            run=DROP,
            expect=Made(["index_removed"]),
            checks=[(indexes("s.t"), []), (told("index_removed", "status"), [status])],
        )
        for status in ("REGISTERED", "BUILDING")
    ),
    Scenario(
        "the name of a stopping index is free",
        cases=[62],
        setup=REACHED["STOPPING"],
        run=INDEX,
        expect=Made(["create_index"]),
        checks=[(indexes("s.t"), ["i STOPPING", "i REGISTERED"])],
    ),
    Scenario(
        "a stopping index cannot be dropped by its name",
        cases=[62],
        setup=REACHED["STOPPING"],
        run=DROP,
        expect=Refused(ObjectNotFound, "index s.i does not exist"),
    ),
    Scenario(
        "two stopping indexes of one name, and their table is dropped",
        cases=[62],
        setup=[
            SCHEMA,
            [TABLE, INDEX],
            [DROP, INDEX],
            START,
            AVAILABLE,
            DROP,
        ],
        run=DropTable(schema="s", table="t"),
        expect=Made(["index_removed", "index_removed", "drop_table"]),
    ),
    Scenario(
        "the index of a key",
        cases=[63],
        setup=[SCHEMA, KEYED],
        run=DropIndex(schema="s", index="K_PK"),
        expect=Refused(IllegalChange, "k_pk is the index of the primary key of k"),
    ),
    Scenario(
        "the index of a key, renamed",
        cases=[63],
        setup=[SCHEMA, KEYED, RenameIndex(schema="s", index="k_pk", new_name="x")],
        run=DropIndex(schema="s", index="x", if_exists=True),
        expect=Refused(IllegalChange, "x is the index of the primary key of k"),
    ),
    Scenario(
        "a missing index",
        cases=[64],
        setup=[SCHEMA],
        run=DROP,
        expect=Refused(ObjectNotFound, "index s.i does not exist"),
    ),
    *(
        Scenario(
            f"a missing index {where}, if it exists",
            cases=[64],
            setup=setup,
            run=[
                replace(DROP, if_exists=True),
                RenameIndex(schema="s", index="i", new_name="j", if_exists=True),
            ],
            expect=Nothing(),
        )
        for where, setup in (("of a schema", [SCHEMA]), ("of no schema", []))
    ),
    Scenario(
        "a table is no index",
        cases=[64],
        setup=[SCHEMA, create_table("s.i")],
        run=DROP,
        expect=Refused(ObjectNotFound, "index s.i does not exist"),
    ),
    # -- rename ------------------------------------------------------------------------------
    Scenario(
        "a renamed index keeps its id and status, and there is an event for it",
        cases=[67],
        setup=REACHED["BUILDING"],
        run=RenameIndex(schema="s", index="I", new_name="j"),
        expect=Made(["rename_index"]),
        checks=[
            (indexes("s.t"), ["j BUILDING"]),
            (lambda r: index_id(r.after, "s.j") == index_id(r.before, "s.i"), True),
            (told("rename_index", "to"), ["s.j"]),
        ],
        note="without an event, whoever follows the catalog would keep the old name",
    ),
    *(
        Scenario(
            f"an index renamed to the name of a {what}",
            cases=[67],
            setup=[SCHEMA, TABLE, INDEX, create_view("s.v"), replace(INDEX, index="j")],
            run=RenameIndex(schema="s", index="i", new_name=name),
            expect=Refused(AlreadyExists, f"{what} s.{name.lower()} already exists"),
        )
        for what, name in (("table", "T"), ("view", "v"), ("index", "J"))
    ),
    Scenario(
        "the index of a key is renamed",
        cases=[67],
        setup=[SCHEMA, KEYED],
        run=RenameIndex(schema="s", index="k_pk", new_name="mine"),
        expect=Made(["rename_index"]),
        checks=[(indexes("s.k"), ["mine AVAILABLE+"])],
    ),
    Scenario(
        "an index renamed to its own name, and to that in another case",
        cases=[67],
        setup=NEW,
        run=[
            RenameIndex(schema="s", index="i", new_name="i"),
            RenameIndex(schema="s", index="i", new_name="I"),
        ],
        expect=Made(["rename_index"], applied=[False, True]),
        checks=[(indexes("s.t"), ["I REGISTERED"])],
    ),
    Scenario(
        "a missing index renamed",
        cases=[67],
        setup=[SCHEMA],
        run=RenameIndex(schema="s", index="i", new_name="j"),
        expect=Refused(ObjectNotFound, "index s.i does not exist"),
    ),
    # -- of a table --------------------------------------------------------------------------
    Scenario(
        "the indexes of a table are in the order of their ids, in every version",
        cases=[68],
        setup=[
            SCHEMA,
            TABLE,
            replace(INDEX, index="z"),
            replace(INDEX, index="a"),
            replace(INDEX, index="m"),
            RenameIndex(schema="s", index="m", new_name="b"),
            replace(INDEX, index="c"),
        ],
        run=DropIndex(schema="s", index="a"),
        expect=Made(),
        checks=[
            (indexes("s.t"), ["z REGISTERED", "b REGISTERED", "c REGISTERED"]),
            (ids_sorted, True),
        ],
    ),
    Scenario(
        "an index of the same name in another schema",
        cases=[77],
        setup=[SCHEMA, CreateSchema(name="u"), TABLE, INDEX],
        run=[
            create_table("u.t"),
            CreateIndex(schema="u", index="i", table="t", columns=("a",)),
        ],
        expect=Made(),
        checks=[(indexes("u.t"), ["i AVAILABLE+"]), (names("s"), ["t"])],
    ),
]
