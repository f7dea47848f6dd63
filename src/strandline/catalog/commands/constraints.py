"""Commands on the constraints of a table, which clients declare and which are not enforced.

A constraint refers to columns by id, so it follows renames. A column of a constraint, or the key
that a foreign key refers to, may be dropped. The constraint is then hidden until the object comes
back (`valid_constraints`). So undoing the drop restores the declared constraint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.column_definition import check_distinct
from strandline.catalog.planning import Planning, must_exist
from strandline.errors import AlreadyExists, InvalidInput, LimitExceeded, ObjectNotFound
from strandline.model.descriptors import Constraint, ConstraintKind, TableDescriptor
from strandline.model.identifiers import QualifiedName, check_name

MAX_CONSTRAINTS = 1_000
"""The maximum number of constraints of a table, including hidden ones."""
MAX_COLUMNS = 100
"""The maximum number of columns of a constraint."""
MAX_TEXT = 4_000
"""The maximum number of characters of a default or a check."""
MAX_RULE = 4
"""The largest number that JDBC defines for a rule of a foreign key."""

_COLUMNS_PER_UNIT = 20
_KEYS = (ConstraintKind.PRIMARY_KEY, ConstraintKind.UNIQUE)
_ON_ONE_COLUMN = (ConstraintKind.NOT_NULL, ConstraintKind.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintDefinition:
    """A constraint as a client defines it; see `Constraint`. Without a ``name``, one is generated.

    ``parent`` is the ``schema.table`` that a foreign key refers to.
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
            raise InvalidInput(
                f"no constraints were given for table {self.table}; give at least one"
            )
        before = planning.table(self.schema, self.table)
        shown = planning.catalog.qualified_name(before)
        size = len(before.constraints) + len(self.constraints)
        if size > MAX_CONSTRAINTS:
            raise LimitExceeded(
                f"table {shown} would have {size} constraints; at most {MAX_CONSTRAINTS} are "
                "allowed"
            )
        table = _with_constraints(planning.catalog, before, self.constraints)
        with planning.entry(
            "add_constraints",
            table=shown,
            id=table.id,
            added=[added.name for added in table.constraints[len(before.constraints) :]],
        ) as transaction:
            transaction.put(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConstraint:
    """ALTER TABLE … DROP CONSTRAINT. Names of constraints are not case-sensitive."""

    schema: str
    table: str
    constraint: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        table = planning.table(self.schema, self.table)
        shown = planning.catalog.qualified_name(table)
        dropped_name = self.constraint.lower()
        kept_constraints = tuple(
            known for known in table.constraints if known.name.lower() != dropped_name
        )
        if kept_constraints == table.constraints:
            if self.if_exists:
                return
            raise ObjectNotFound(f"constraint {self.constraint} of table {shown} does not exist")
        with planning.entry(
            "drop_constraint", table=shown, id=table.id, constraint=self.constraint
        ) as transaction:
            transaction.put(replace(table, constraints=kept_constraints))


class ParentKeys:
    """The keys that foreign keys may refer to, in ``catalog``.

    ``newer`` replaces the table of its id. The keys of a table are collected once.
    """

    def __init__(self, catalog: Catalog, *, newer: TableDescriptor | None = None) -> None:
        self._catalog = catalog
        self._by_table = {} if newer is None else {newer.id: _keys_of(newer)}

    def name_of(self, table_id: int, columns: Iterable[int]) -> str | None:
        """The name of the key on these columns, "" for a key without a name, or None."""
        keys = self._by_table.get(table_id)
        if keys is None:
            table = self._catalog.table_by_id(table_id)
            keys = self._by_table[table_id] = {} if table is None else _keys_of(table)
        return keys.get(frozenset(columns))


def _keys_of(table: TableDescriptor) -> dict[frozenset[int], str]:
    work.spend(len(table.columns) // _COLUMNS_PER_UNIT + len(table.constraints))
    keys = {frozenset(table.primary_key): ""} if table.primary_key else {}
    for constraint in reversed(list(_with_columns(table))):
        if constraint.kind in _KEYS:
            keys[frozenset(constraint.columns)] = constraint.name  # the first one of its columns
    return keys


def _with_columns(table: TableDescriptor) -> Iterator[Constraint]:
    """The constraints whose own columns exist."""
    column_ids = {column.id for column in table.columns}
    return (known for known in table.constraints if column_ids.issuperset(known.columns))


def valid_constraints(table: TableDescriptor, parents: ParentKeys) -> Iterator[Constraint]:
    """The constraints of a table whose columns and, for foreign keys, the parent's key exist."""
    work.spend(len(table.constraints))
    for constraint in _with_columns(table):
        is_foreign = constraint.kind is ConstraintKind.FOREIGN_KEY
        parent = constraint.parent_id, constraint.parent_columns
        if not is_foreign or parents.name_of(*parent) is not None:
            yield constraint


def _with_constraints(
    catalog: Catalog, table: TableDescriptor, definitions: Sequence[ConstraintDefinition]
) -> TableDescriptor:
    """Return the table with these constraints added. A foreign key may refer to an added key."""
    foreign = [d for d in definitions if d.kind is ConstraintKind.FOREIGN_KEY]
    others = [d for d in definitions if d.kind is not ConstraintKind.FOREIGN_KEY]
    taken_names = {constraint.name.lower() for constraint in table.constraints}
    columns = _ColumnsByName()
    added = [_constraint(table, definition, taken_names, columns) for definition in others]
    primary = ConstraintKind.PRIMARY_KEY
    has_key = table.primary_key or any(known.kind is primary for known in _with_columns(table))
    new_keys = sum(constraint.kind is primary for constraint in added)
    if new_keys > (0 if has_key else 1):
        raise AlreadyExists(f"the primary key of table {table.name} already exists")
    keyed = replace(table, constraints=(*table.constraints, *added))
    parents = ParentKeys(catalog, newer=keyed)
    for definition in foreign:
        constraint = _constraint(table, definition, taken_names, columns)
        added.append(_referring(constraint, definition, catalog, parents, columns))
    return replace(table, constraints=(*table.constraints, *added))


class _ColumnsByName:
    """The ids of the columns of tables by name; those of a table are collected once."""

    def __init__(self) -> None:
        self._by_table: dict[int, dict[str, int]] = {}

    def ids(self, table: TableDescriptor, names: Sequence[str]) -> tuple[int, ...]:
        """Raises `ObjectNotFound`."""
        if table.id not in self._by_table:
            self._by_table[table.id] = {c.name.casefold(): c.id for c in table.columns}
        by_name = self._by_table[table.id]
        for name in names:
            if name.casefold() not in by_name:
                raise ObjectNotFound(f"column {name} of table {table.name} does not exist")
        return tuple(by_name[name.casefold()] for name in names)


def _constraint(
    table: TableDescriptor,
    definition: ConstraintDefinition,
    taken_names: set[str],
    columns: _ColumnsByName,
) -> Constraint:
    """Return the constraint of a definition, and add its name to ``taken_names``."""
    kind = definition.kind
    name = definition.name or _generated_name(table, kind, taken_names)
    check_name(name, "constraint")
    _check(table, definition, name=name)
    if name.lower() in taken_names:
        raise AlreadyExists(f"constraint {name} of table {table.name} already exists")
    taken_names.add(name.lower())
    return Constraint(
        name=name,
        kind=kind,
        columns=columns.ids(table, definition.columns),
        text=definition.text,
        update_rule=definition.update_rule,
        delete_rule=definition.delete_rule,
        enabled=definition.enabled,
        validated=definition.validated,
        rely=definition.rely,
    )


def _referring(
    constraint: Constraint,
    definition: ConstraintDefinition,
    catalog: Catalog,
    parents: ParentKeys,
    columns: _ColumnsByName,
) -> Constraint:
    """Return a foreign key with its parent table and columns."""
    qualified = QualifiedName.parse(definition.parent)
    table = catalog.table(qualified.schema, qualified.name)
    parent = must_exist(table, f"table {definition.parent}")
    referred = columns.ids(parent, definition.parent_columns)
    if parents.name_of(parent.id, referred) is None:
        raise ObjectNotFound(
            f"a primary or unique key of table {parent.name} on"
            f" {', '.join(definition.parent_columns)} does not exist; declare it first"
        )
    return replace(constraint, parent_id=parent.id, parent_columns=referred)


def _check(table: TableDescriptor, definition: ConstraintDefinition, *, name: str) -> None:
    size = len(definition.columns)
    if size > MAX_COLUMNS:
        raise LimitExceeded(
            f"constraint {name} of table {table.name} names {size} columns; at most {MAX_COLUMNS} "
            "are allowed"
        )
    check_distinct(definition.columns, what=f"constraint {name}")
    is_of_one = definition.kind in _ON_ONE_COLUMN
    if (is_of_one and size != 1) or (not size and definition.kind is not ConstraintKind.CHECK):
        raise InvalidInput(
            f"constraint {name} of table {table.name} names {size} columns; name"
            f" {'one' if is_of_one else 'its columns'}"
        )
    if len(definition.text) > MAX_TEXT:
        raise InvalidInput(
            f"the text of constraint {name} has {len(definition.text)} characters; at most "
            f"{MAX_TEXT} are allowed"
        )
    is_foreign = definition.kind is ConstraintKind.FOREIGN_KEY
    if is_foreign and len(definition.parent_columns) != size:
        raise InvalidInput(
            f"foreign key {name} has {size} columns and refers to "
            f"{len(definition.parent_columns)}; name the same number of columns on both sides"
        )
    for rule in (definition.update_rule, definition.delete_rule):
        if not 0 <= rule <= MAX_RULE:
            raise InvalidInput(
                f"{rule} is not a rule of foreign key {name}; rules are 0 to {MAX_RULE}"
            )


def _generated_name(
    table: TableDescriptor, kind: ConstraintKind, taken_names: Collection[str]
) -> str:
    """For example ``orders_check_2``: the name of the table and kind, and a free number."""
    start = f"{table.name.lower()[:200]}_{kind.name.lower()}_"  # lower case may be longer
    return next(name for number in count(1) if (name := f"{start}{number}") not in taken_names)
