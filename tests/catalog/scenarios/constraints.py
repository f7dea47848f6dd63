"""Constraints: declared, dropped, and not shown while an object that they name is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.catalog.commands import (
    AddConstraints,
    ConstraintDefinition,
    DropColumns,
    DropConstraint,
    DropTable,
    RenameColumn,
    RenameTable,
)
from strandline.catalog.commands.constraints import (
    MAX_COLUMNS,
    MAX_CONSTRAINTS,
    MAX_TEXT,
    ParentKeys,
    valid_constraints,
)
from strandline.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidName,
    LimitExceeded,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.model.descriptors import ConstraintKind
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
    table_of,
)

PARENT = create_table("s.p", "id int", "v string", transactional=False)
CHILD = create_table("s.c", "x int", "y string", transactional=False)
KEYED = create_table("s.k", "id int not null", "v string", primary_key=("id",))

KEY = ConstraintDefinition(kind=ConstraintKind.PRIMARY_KEY, name="Key", columns=("ID",))
FOREIGN = ConstraintDefinition(
    kind=ConstraintKind.FOREIGN_KEY,
    name="to_p",
    columns=("x",),
    parent="s.p",
    parent_columns=("id",),
)
UNIQUE = ConstraintDefinition(kind=ConstraintKind.UNIQUE, name="u", columns=("v",))
TO_UNIQUE = replace(FOREIGN, columns=("y",), parent="s.k", parent_columns=("v",))
DEFAULT = ConstraintDefinition(kind=ConstraintKind.DEFAULT, columns=("v",), text="'a'")
CHECK = ConstraintDefinition(kind=ConstraintKind.CHECK, columns=(), text="id > 0")


def add(*constraints: ConstraintDefinition, table: str = "p") -> AddConstraints:
    return AddConstraints(schema="s", table=table, constraints=constraints)


ADDED: list[Run] = [SCHEMA, PARENT, CHILD, add(KEY), add(FOREIGN, table="c")]


def shown(name: str) -> Callable[[Result], list[str]]:
    """The names of the constraints of a table that are shown."""
    return lambda result: [
        constraint.name
        for constraint in valid_constraints(table_of(result.after, name), ParentKeys(result.after))
    ]


def refused(definition: ConstraintDefinition, error: type[StrandlineError], says: str) -> Scenario:
    return Scenario(
        f"refused: {says}",
        setup=[SCHEMA, PARENT, CHILD, add(KEY)],
        run=add(definition, table="c" if definition.kind is FOREIGN.kind else "p"),
        expect=Refused(error, says),
    )


SCENARIOS = [
    Scenario(
        "constraints are a version, and those without a name are given one",
        setup=[SCHEMA, PARENT],
        run=add(KEY, DEFAULT, CHECK),
        expect=Made(["add_constraints"]),
        checks=[
            (lambda result: len(shown("s.p")(result)), 3),
            (
                lambda result: [entry["added"] for entry in arguments("add_constraints")(result)],
                [["Key", "p_default_1", "p_check_1"]],
            ),
        ],
    ),
    Scenario(
        "the name that a constraint is given has a length that is allowed",
        setup=[SCHEMA, create_table(f"s.{'İ' * 200}", "id int", transactional=False)],
        run=add(replace(KEY, name=""), table="İ" * 200),
        expect=Made(["add_constraints"]),
        note="in lower case, this letter is two characters",
    ),
    Scenario(
        "a foreign key refers to a key of another table",
        setup=[SCHEMA, PARENT, CHILD],
        run=[add(KEY), add(FOREIGN, table="c")],
        expect=Made(["add_constraints", "add_constraints"]),
        checks=[(shown("s.p"), ["Key"]), (shown("s.c"), ["to_p"])],
    ),
    Scenario(
        "a foreign key refers to the key of a transactional table, or to its own table",
        setup=[SCHEMA, KEYED, CHILD],
        run=[
            add(replace(FOREIGN, parent="s.k"), table="c"),
            add(replace(KEY, columns=("x",)), table="c"),
            add(replace(FOREIGN, name="own", parent="s.c", parent_columns=("x",)), table="c"),
        ],
        expect=Made(),
        checks=[(shown("s.c"), ["to_p", "Key", "own"])],
    ),
    Scenario(
        "a foreign key refers to a key that comes with it",
        setup=[SCHEMA, CHILD],
        run=add(
            replace(FOREIGN, parent="s.c", parent_columns=("y",)),
            replace(UNIQUE, columns=("Y",)),
            table="c",
        ),
        expect=Made(["add_constraints"]),
        checks=[(shown("s.c"), ["u", "to_p"])],
    ),
    Scenario(
        "constraints follow renames",
        setup=[SCHEMA, KEYED, CHILD, add(UNIQUE, table="k"), add(TO_UNIQUE, table="c")],
        run=[
            RenameColumn(schema="s", table="k", column="v", new_name="value"),
            RenameTable(schema="s", table="k", new_name="parent"),
        ],
        expect=Made(),
        checks=[(shown("s.parent"), ["u"]), (shown("s.c"), ["to_p"])],
    ),
    Scenario(
        "a dropped column takes its constraints along, and the keys that refer to it",
        setup=ADDED,
        run=DropColumns(schema="s", table="p", names=("id",)),
        expect=Made(["drop_columns"]),
        checks=[(shown("s.p"), []), (shown("s.c"), [])],
    ),
    Scenario(
        "a dropped table takes the keys along that refer to it",
        setup=ADDED,
        run=DropTable(schema="s", table="p"),
        expect=Made(),
        checks=[(shown("s.c"), [])],
    ),
    Scenario(
        "a dropped key takes the foreign keys along that refer to it",
        setup=ADDED,
        run=DropConstraint(schema="s", table="p", constraint="KEY"),
        expect=Made(["drop_constraint"]),
        checks=[(shown("s.p"), []), (shown("s.c"), [])],
    ),
    Scenario(
        "the key of a dropped column makes room for another one",
        setup=[*ADDED, DropColumns(schema="s", table="p", names=("id",))],
        run=add(replace(KEY, name="other", columns=("v",))),
        expect=Made(),
        checks=[(shown("s.p"), ["other"])],
    ),
    Scenario(
        "a constraint that does not exist",
        setup=ADDED,
        run=DropConstraint(schema="s", table="p", constraint="to_p"),
        expect=Refused(ObjectNotFound, "constraint to_p of table s.p does not exist"),
    ),
    Scenario(
        "a constraint that does not exist, IF EXISTS",
        setup=ADDED,
        run=DropConstraint(schema="s", table="p", constraint="to_p", if_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a view has no constraints",
        setup=[SCHEMA, create_view("s.v")],
        run=add(KEY, table="v"),
        expect=Refused(UnsupportedOperation, "s.v is a view"),
    ),
    Scenario(
        "a transactional table has one primary key",
        setup=[SCHEMA, KEYED],
        run=add(KEY, table="k"),
        expect=Refused(AlreadyExists, "the primary key of table k already exists"),
    ),
    Scenario(
        "too many constraints",
        setup=[SCHEMA, PARENT],
        run=add(*[replace(CHECK, name=f"c{n}") for n in range(MAX_CONSTRAINTS + 1)]),
        expect=Refused(LimitExceeded, f"at most {MAX_CONSTRAINTS} are allowed"),
    ),
    Scenario(
        "two primary keys at once",
        setup=[SCHEMA, PARENT],
        run=add(KEY, replace(KEY, name="k2")),
        expect=Refused(AlreadyExists, "the primary key of table p already exists"),
    ),
    refused(
        replace(UNIQUE, columns=tuple(f"c{n}" for n in range(MAX_COLUMNS + 1))),
        LimitExceeded,
        f"at most {MAX_COLUMNS} are allowed",
    ),
    refused(replace(KEY, name="key"), AlreadyExists, "constraint key of table p already exists"),
    refused(replace(KEY, name="k2"), AlreadyExists, "the primary key of table p already exists"),
    refused(replace(CHECK, name="a\n"), InvalidName, "constraint"),
    refused(replace(DEFAULT, columns=("no",)), ObjectNotFound, "column no of table p"),
    refused(replace(DEFAULT, columns=("id", "v")), InvalidInput, "names 2 columns; name one"),
    refused(replace(DEFAULT, columns=()), InvalidInput, "names 0 columns"),
    refused(
        replace(DEFAULT, text="x" * (MAX_TEXT + 1)), InvalidInput, f"at most {MAX_TEXT} are allowed"
    ),
    refused(replace(FOREIGN, parent="s.no"), ObjectNotFound, "table s.no does not exist"),
    refused(replace(FOREIGN, parent_columns=("v",)), ObjectNotFound, "primary or unique key of"),
    refused(replace(FOREIGN, parent_columns=()), InvalidInput, "has 1 columns and refers to 0"),
    refused(replace(FOREIGN, update_rule=-1), InvalidInput, "-1 is not a rule"),
    Scenario(
        "no constraints",
        setup=[SCHEMA, PARENT],
        run=add(),
        expect=Refused(InvalidInput, "no constraints were given"),
    ),
]
