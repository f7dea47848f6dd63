"""Commands on the constraints of a table, which clients declare and nobody checks.

A constraint names columns by their ids, so it follows renames. What it names may be dropped, and
then it is not shown, as long as that is gone (`valid_constraints`): a foreign key without the key
that it refers to, too. So an undone drop brings back what was declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.definition import check_distinct
from strandline.catalog.planning import Planning
from strandline.errors import AlreadyExists, InvalidInput, LimitExceeded, ObjectNotFound
from strandline.model.descriptors import Constraint, ConstraintKind, TableDescriptor
from strandline.model.identifiers import QualifiedName, check_name

MAX_CONSTRAINTS = 1_000
"""Constraints of one table, those that are not shown included."""
MAX_TEXT = 4_000
"""Characters of a default or a check."""
MAX_RULE = 4
"""JDBC's largest number of a rule of a foreign key."""

_KEYS = (ConstraintKind.PRIMARY_KEY, ConstraintKind.UNIQUE)
_ON_ONE_COLUMN = (ConstraintKind.NOT_NULL, ConstraintKind.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintDefinition:
    """A constraint as its maker writes it; see `Constraint`. Without a ``name`` it is given one.

    ``parent`` is the name ``schema.table`` of what a foreign key refers to.
    """

    kind: ConstraintKind
    columns: tuple[str, ...]
    name: str = ""
    text: str = ""
    parent: str = ""
    parent_columns: tuple[str, ...] = ()
    update_rule: int = 0
    delete_rule: int = 0
    enabled: bool = True
    validated: bool = False
    rely: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraints:
    """ALTER TABLE … ADD CONSTRAINT."""

    schema: str
    table: str
    constraints: tuple[ConstraintDefinition, ...]

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`, `LimitExceeded`."""
        if not self.constraints:
            raise InvalidInput(f"no constraints were given for table {self.table}")
        table = planning.table(self.schema, self.table)
        shown = planning.catalog.qualified_name(table)
        before = table
        for definition in self.constraints:
            added = _constraint(planning.catalog, table, definition)
            table = replace(table, constraints=(*table.constraints, added))
        if len(table.constraints) > MAX_CONSTRAINTS:
            raise LimitExceeded(
                f"table {shown} would have {len(table.constraints)} constraints;"
                f" {MAX_CONSTRAINTS} is the most"
            )
        with planning.entry(
            "add_constraints",
            table=shown,
            id=table.id,
            added=[added.name for added in table.constraints[len(before.constraints) :]],
        ) as transaction:
            transaction.put(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConstraint:
    """ALTER TABLE … DROP CONSTRAINT. Names of constraints are compared without case."""

    schema: str
    table: str
    constraint: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        table = planning.table(self.schema, self.table)
        shown = planning.catalog.qualified_name(table)
        wanted = self.constraint.lower()
        kept = tuple(one for one in table.constraints if one.name.lower() != wanted)
        if kept == table.constraints:
            if self.if_exists:
                return
            raise ObjectNotFound(f"constraint {self.constraint} of table {shown} does not exist")
        with planning.entry(
            "drop_constraint", table=shown, id=table.id, constraint=self.constraint
        ) as transaction:
            transaction.put(replace(table, constraints=kept))


def valid_constraints(catalog: Catalog, table: TableDescriptor) -> Iterator[Constraint]:
    """The constraints of a table whose columns, and for foreign keys the parent's key, exist."""
    column_ids = {column.id for column in table.columns}
    for constraint in table.constraints:
        if column_ids.issuperset(constraint.columns) and _parent_is_there(catalog, constraint):
            yield constraint


def _parent_is_there(catalog: Catalog, constraint: Constraint) -> bool:
    if constraint.kind is not ConstraintKind.FOREIGN_KEY:
        return True
    parent = catalog.table_by_id(constraint.parent_id)
    return parent is not None and parent_key(parent, constraint.parent_columns) is not None


def parent_key(parent: TableDescriptor, columns: Sequence[int]) -> str | None:
    """The name of the key of these columns that a foreign key can refer to; None for none."""
    wanted, there = set(columns), {column.id for column in parent.columns}
    if not there.issuperset(wanted):
        return None
    for constraint in parent.constraints:
        if constraint.kind in _KEYS and set(constraint.columns) == wanted:
            return constraint.name
    return "" if wanted == set(parent.primary_key) else None


def _constraint(
    catalog: Catalog, table: TableDescriptor, definition: ConstraintDefinition
) -> Constraint:
    """The constraint that a definition adds to ``table``."""
    name, kind = definition.name or _made_up_name(table, definition.kind), definition.kind
    check_name(name, "constraint")
    _check(table, definition, name=name)
    for other in table.constraints:
        if other.name.lower() == name.lower():
            raise AlreadyExists(f"constraint {name} of table {table.name} already exists")
    has_key = table.primary_key or any(
        other.kind is ConstraintKind.PRIMARY_KEY for other in valid_constraints(catalog, table)
    )
    if kind is ConstraintKind.PRIMARY_KEY and has_key:
        raise AlreadyExists(f"the primary key of table {table.name} already exists")
    constraint = Constraint(
        name=name,
        kind=kind,
        columns=_column_ids(table, definition.columns),
        text=definition.text,
        update_rule=definition.update_rule,
        delete_rule=definition.delete_rule,
        enabled=definition.enabled,
        validated=definition.validated,
        rely=definition.rely,
    )
    if kind is not ConstraintKind.FOREIGN_KEY:
        return constraint
    parent = _parent(catalog, table, definition.parent)
    columns = _column_ids(parent, definition.parent_columns)
    if parent_key(parent, columns) is None:
        raise ObjectNotFound(
            f"a primary or unique key of table {parent.name} on"
            f" {', '.join(definition.parent_columns)} does not exist; declare it first"
        )
    return replace(constraint, parent_id=parent.id, parent_columns=columns)


def _check(table: TableDescriptor, definition: ConstraintDefinition, *, name: str) -> None:
    count = len(definition.columns)
    check_distinct(definition.columns, what=f"constraint {name}")
    one = definition.kind in _ON_ONE_COLUMN
    if (one and count != 1) or (not count and definition.kind is not ConstraintKind.CHECK):
        raise InvalidInput(
            f"constraint {name} of table {table.name} names {count} columns; name"
            f" {'one' if one else 'its columns'}"
        )
    if len(definition.text) > MAX_TEXT:
        raise InvalidInput(
            f"the text of constraint {name} has {len(definition.text)} characters; {MAX_TEXT} is"
            " the most"
        )
    is_foreign = definition.kind is ConstraintKind.FOREIGN_KEY
    if is_foreign and len(definition.parent_columns) != count:
        raise InvalidInput(
            f"foreign key {name} refers to {len(definition.parent_columns)} columns with {count};"
            " name as many"
        )
    for rule in (definition.update_rule, definition.delete_rule):
        if not 0 <= rule <= MAX_RULE:
            raise InvalidInput(f"{rule} is no rule of foreign key {name}; send 0 to {MAX_RULE}")


def _parent(catalog: Catalog, table: TableDescriptor, name: str) -> TableDescriptor:
    """The table of that name, which may be the one that the key is added to."""
    qualified = QualifiedName.parse(name)
    parent = catalog.table(qualified.schema, qualified.name)
    if parent is None:
        raise ObjectNotFound(f"table {name} does not exist")
    return table if parent.id == table.id else parent


def _column_ids(table: TableDescriptor, names: Sequence[str]) -> tuple[int, ...]:
    ids = []
    for name in names:
        column = table.column(name)
        if column is None:
            raise ObjectNotFound(f"column {name} of table {table.name} does not exist")
        ids.append(column.id)
    return tuple(ids)


def _made_up_name(table: TableDescriptor, kind: ConstraintKind) -> str:
    """``orders_check_2``: the first free number behind the name of the table."""
    taken = {constraint.name.lower() for constraint in table.constraints}
    for number in range(1, len(taken) + 2):
        name = f"{table.name[:200].lower()}_{kind.name.lower()}_{number}"
        if name not in taken:
            return name
    raise AssertionError("there are more numbers than names")
