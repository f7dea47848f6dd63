"""Methods on constraints. Clients declare them, the table keeps them, and nothing checks them.

Hive has a struct for each kind, and uses one such struct for each column of a key. The six kinds
differ only in the names of their fields. The primary key of a transactional table is shown too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from strandline import work
from strandline.catalog import Catalog
from strandline.catalog.commands import AddConstraints, ConstraintDefinition, DropConstraint
from strandline.catalog.commands.constraints import ParentKeys, valid_constraints
from strandline.catalog.privileges.access import Access
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.names import present_schema, split_schema
from strandline.metastore.hive.registry import Call, changes, reads
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.off_loop import off_loop, off_loop_for
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import Constraint, ConstraintKind, TableDescriptor


@dataclass(frozen=True, slots=True)
class _Form:
    """Hive's names for the parts of one kind of constraint. ``side`` begins those of its table."""

    word: str
    name: str
    text: str | None = None
    side: str = ""
    numbered: bool = False

    @property
    def listed(self) -> str:
        """The field of answers, and of requests that create a table."""
        return f"{self.word}s"

    @property
    def home(self) -> tuple[str, str]:
        """The fields of the schema and the table."""
        return f"{self.side}table_db", f"{self.side}table_name"

    @property
    def column(self) -> str:
        return f"{self.side}column_name"


_FORMS: Mapping[ConstraintKind, _Form] = {
    ConstraintKind.PRIMARY_KEY: _Form("primaryKey", "pk_name", numbered=True),
    ConstraintKind.FOREIGN_KEY: _Form("foreignKey", "fk_name", side="fk", numbered=True),
    ConstraintKind.UNIQUE: _Form("uniqueConstraint", "uk_name", numbered=True),
    ConstraintKind.NOT_NULL: _Form("notNullConstraint", "nn_name"),
    ConstraintKind.DEFAULT: _Form("defaultConstraint", "dc_name", "default_value"),
    ConstraintKind.CHECK: _Form("checkConstraint", "dc_name", "check_expression"),
}
_FOREIGN = _FORMS[ConstraintKind.FOREIGN_KEY].listed


# -- reading


def added_event(
    catalog: Catalog, table: TableDescriptor, names: Iterable[str], *, schema: str
) -> tuple[str, Struct] | None:
    """Return Hive's event for constraints that were added to a table: its type and its message.

    Return None if they are of several kinds, for which Hive has no event. ``catalog`` contains the
    parents of foreign keys.
    """
    added = set(names)
    constraints = [known for known in table.constraints if known.name in added]
    if len({constraint.kind for constraint in constraints}) != 1:
        return None
    word = _FORMS[constraints[0].kind].word
    struct_name = f"SQL{word[0].upper()}{word[1:]}"
    shown = _Shown(catalog)
    structs = [
        struct
        for constraint in constraints
        for struct in shown.structs(table, constraint, schema=schema)
    ]
    texts = [HIVE_CODEC.to_json_text(struct_name, struct) for struct in structs]
    return f"ADD_{word.upper()}", {f"{word}ListJson": texts}


class _Shown:
    """Renders constraints on tables of one catalog as structs. Looks up each table's names once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._parents = ParentKeys(catalog)
        self._names: dict[int, dict[int, str]] = {}

    def of(self, table: TableDescriptor, *, schema: str) -> dict[str, list[Struct]]:
        """Return the constraints on a table, by the field of answers that lists them."""
        listed: dict[str, list[Struct]] = {form.listed: [] for form in _FORMS.values()}
        for constraint in self._declared(table):
            structs = self.structs(table, constraint, schema=schema)
            listed[_FORMS[constraint.kind].listed] += structs
        return listed

    def structs(
        self, table: TableDescriptor, constraint: Constraint, *, schema: str
    ) -> Iterator[Struct]:
        """Yield a struct per column of a constraint, or one for a check without columns."""
        form = _FORMS[constraint.kind]
        home = dict(zip(form.home, (schema, table.name.lower()), strict=True))
        return (home | struct for struct in self._structs(form, table, constraint))

    def _declared(self, table: TableDescriptor) -> Iterator[Constraint]:
        yield from valid_constraints(table, self._parents)
        index = self._catalog.index(table.primary_key_index) if table.primary_key else None
        if index is not None:
            yield Constraint(
                index.name, ConstraintKind.PRIMARY_KEY, table.primary_key, enabled=False
            )

    def _structs(
        self, form: _Form, table: TableDescriptor, constraint: Constraint
    ) -> Iterator[Struct]:
        common: Struct = {
            form.name: constraint.name,
            "enable_cstr": constraint.enabled,
            "validate_cstr": constraint.validated,
            "rely_cstr": constraint.rely,
        }
        if form.text is not None:
            common[form.text] = constraint.text
        referred: Sequence[Struct] = ()
        if constraint.kind is ConstraintKind.FOREIGN_KEY:
            common |= {"update_rule": constraint.update_rule, "delete_rule": constraint.delete_rule}
            referred = self._referred(constraint)
        if not constraint.columns:
            yield common
        for number, column in enumerate(self._called(table, constraint.columns), start=1):
            numbered = {"key_seq": number} if form.numbered else {}
            parent = referred[number - 1] if referred else {}
            yield {**common, form.column: column, **numbered, **parent}

    def _referred(self, constraint: Constraint) -> list[Struct]:
        """Return what each column of a foreign key refers to."""
        parent = self._catalog.table_by_id(constraint.parent_id)
        schema = None if parent is None else self._catalog.schema_by_id(parent.schema_id)
        if parent is None or schema is None:
            return []
        key = self._parents.name_of(parent.id, constraint.parent_columns)
        home = {"pktable_db": schema.name.lower(), "pktable_name": parent.name.lower()}
        columns = self._called(parent, constraint.parent_columns)
        return [{**home, "pkcolumn_name": column, "pk_name": key or ""} for column in columns]

    def _called(self, table: TableDescriptor, column_ids: Sequence[int]) -> list[str]:
        if table.id not in self._names:
            self._names[table.id] = {column.id: column.name.lower() for column in table.columns}
        return [self._names[table.id][column_id] for column_id in column_ids]


async def _constraints(call: Call, schema: str, table: str) -> dict[str, list[Struct]]:
    """Return the constraints on a table. As in Hive, a table that does not exist has none.

    Foreign keys to tables in schemas that the user does not reach are left out.
    """
    with suppress(ObjectNotFound):
        scope, relation = await call.reader.relation(schema, table)
        if isinstance(relation, TableDescriptor):
            await off_loop_for(len(relation.columns) + len(relation.constraints))
            listed = _Shown(scope.catalog).of(relation, schema=scope.name)
            access = call.reader.access.at(scope.catalog)
            hidden = {
                constraint.name
                for constraint in relation.constraints
                if constraint.kind is ConstraintKind.FOREIGN_KEY
                and not _reaches_parent(access, scope.catalog, constraint)
            }
            listed[_FOREIGN] = [key for key in listed[_FOREIGN] if key["fk_name"] not in hidden]
            return listed
    return {form.listed: [] for form in _FORMS.values()}


def _reaches_parent(access: Access, catalog: Catalog, key: Constraint) -> bool:
    parent = catalog.table_by_id(key.parent_id)
    schema = None if parent is None else catalog.schema_by_id(parent.schema_id)
    return schema is not None and access.reaches(schema)


def _reading(method: str, kind: ConstraintKind) -> None:
    @reads(method)
    async def answer(call: Call) -> Struct:
        names = call.text("db_name"), call.text("tbl_name")
        listed = _FORMS[kind].listed
        return {listed: (await _constraints(call, *names))[listed]}


_reading("get_primary_keys", ConstraintKind.PRIMARY_KEY)
_reading("get_unique_constraints", ConstraintKind.UNIQUE)
_reading("get_not_null_constraints", ConstraintKind.NOT_NULL)
_reading("get_default_constraints", ConstraintKind.DEFAULT)
_reading("get_check_constraints", ConstraintKind.CHECK)


@reads("get_all_table_constraints")
async def get_all_table_constraints(call: Call) -> Struct:
    names = call.text("db_name"), call.text("tbl_name")
    return {"allTableConstraints": await _constraints(call, *names)}


@reads("get_foreign_keys")
async def get_foreign_keys(call: Call) -> Struct:
    """Return the foreign keys of one table, those to one table, or those between two."""
    args = call.args
    if args.get("foreign_tbl_name"):
        names = call.text("foreign_db_name"), call.text("foreign_tbl_name")
        keys = (await _constraints(call, *names))[_FOREIGN]
    else:
        names = call.text("parent_db_name"), call.text("parent_tbl_name")
        keys = await _keys_to(call, *names)
    parent_schema, _ = split_schema(args.get("parent_db_name") or "")  # keys name no version
    parent_table = (args.get("parent_tbl_name") or "").lower()
    for field, name in (("pktable_db", parent_schema), ("pktable_name", parent_table)):
        keys = [key for key in keys if not name or key[field] == name]
    return {_FOREIGN: keys}


async def _keys_to(request: Call, schema: str, table: str) -> list[Struct]:
    """Return the foreign keys to one table, from tables in any schema."""
    try:
        scope, parent = await request.reader.relation(schema, table)
    except ObjectNotFound:
        return []
    await off_loop()
    work.spend(scope.catalog.table_count())
    shown = _Shown(scope.catalog)
    keys: list[Struct] = []
    for child in scope.catalog.tables():
        if any(constraint.parent_id == parent.id for constraint in child.constraints):
            home = scope.catalog.schema_by_id(child.schema_id)
            if home is not None and request.reader.may_read(scope, child):
                keys += shown.of(child, schema=home.name.lower())[_FOREIGN]
    return keys


# -- changing


def read_constraints(args: Mapping[str, Any]) -> tuple[ConstraintDefinition, ...]:
    return tuple(
        definition
        for kind, form in _FORMS.items()
        for definition in _definitions(kind, args.get(form.listed) or ())
    )


async def require_parents(call: Call, constraints: Sequence[ConstraintDefinition]) -> None:
    """Raise `ObjectNotFound` or `PermissionDenied` unless the user may read the parent tables."""
    for constraint in constraints:
        if constraint.parent:
            schema, _, table = constraint.parent.partition(".")
            await call.reader.relation(schema, table)


def _definitions(kind: ConstraintKind, sent: Sequence[Struct]) -> Iterator[ConstraintDefinition]:
    """Yield the constraints of a kind. Structs with the same name are columns of one constraint.

    As in Hive, keys without a name follow each other, and each begins with ``key_seq`` 1.
    """
    form = _FORMS[kind]
    by_name: dict[object, list[Struct]] = {}
    unnamed = 0
    for number, struct in enumerate(sent):
        if not form.numbered or struct.get("key_seq") == 1:
            unnamed = number
        by_name.setdefault(struct.get(form.name) or unnamed, []).append(struct)
    for structs in by_name.values():
        first = structs[0]
        ordered = sorted(structs, key=lambda struct: int(struct.get("key_seq", 0)))
        columns = tuple(s[form.column] for s in ordered if s.get(form.column))
        definition = ConstraintDefinition(
            kind=kind,
            columns=columns,
            name=first.get(form.name) or "",
            text=str(first.get(form.text) or "") if form.text is not None else "",
            enabled=bool(first.get("enable_cstr", True)),
            validated=bool(first.get("validate_cstr", False)),
            rely=bool(first.get("rely_cstr", False)),
        )
        if kind is ConstraintKind.FOREIGN_KEY:
            definition = replace(
                definition,
                parent=f"{first.get('pktable_db', '')}.{first.get('pktable_name', '')}",
                parent_columns=tuple(struct.get("pkcolumn_name", "") for struct in ordered),
                update_rule=first.get("update_rule", 0),
                delete_rule=first.get("delete_rule", 0),
            )
        yield definition


def _adding(method: str, kind: ConstraintKind) -> None:
    form = _FORMS[kind]

    @changes(method)
    async def add(call: Call) -> None:
        sent = call.structs(f"{form.word}Cols")
        homes = {tuple(struct.get(field, "") for field in form.home) for struct in sent}
        if len(homes) != 1:
            raise InvalidInput(
                f"the constraints belong to {len(homes)} tables; send the constraints of one table"
            )
        (schema, table) = homes.pop()
        constraints = tuple(_definitions(kind, sent))
        await require_parents(call, constraints)
        call.execute(
            AddConstraints(schema=present_schema(schema), table=table, constraints=constraints)
        )


_adding("add_primary_key", ConstraintKind.PRIMARY_KEY)
_adding("add_foreign_key", ConstraintKind.FOREIGN_KEY)
_adding("add_unique_constraint", ConstraintKind.UNIQUE)
_adding("add_not_null_constraint", ConstraintKind.NOT_NULL)
_adding("add_default_constraint", ConstraintKind.DEFAULT)
_adding("add_check_constraint", ConstraintKind.CHECK)


@changes("drop_constraint")
async def drop_constraint(call: Call) -> None:
    call.execute(
        DropConstraint(
            schema=present_schema(call.text("db_name")),
            table=call.text("tbl_name"),
            constraint=call.text("constraintname"),
        )
    )
