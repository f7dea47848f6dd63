"""The model of `test_nodes_model`: a catalog as dictionaries, and the effect of each command on it.

A state holds, for each kind, the rows by their ids. A row refers to others by id, as in the
catalog. Ids are predicted too, because each new object takes the next one. States are never
changed: `after` returns a new one, or raises an error of the class that the catalog must raise.

The tables and alive indexes of a schema share one namespace. The grants of a dropped role remain,
without any effect, until the grants of that table are written again.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from strandline.catalog import Catalog, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterZone,
    CommentOn,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    GrantPrivileges,
    MakeIndexAvailable,
    RemoveIndex,
    RenameTable,
    RenameZone,
    RevokePrivileges,
    SetConfiguration,
    SetDefaultZone,
    StartBuildingIndex,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    IndexStatusConflict,
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
)

Row = dict[str, Any]  # Any: a name, an id, a tuple of names, …
State = dict[str, dict[Any, Any]]  # kind → id → row; "comment" and "setting" hold plain values

KINDS = ("schema", "table", "index", "zone", "role", "comment", "setting")


# -- looking up and changing -------------------------------------------------------------------


def find(state: State, kind: str, name: str, **where: int) -> int | None:
    """The id of the object with that name."""
    for key, row in state[kind].items():
        if row["name"] == name and all(row[field] == value for field, value in where.items()):
            return int(key)
    return None


def get(state: State, kind: str, name: str, **where: int) -> int:
    entry = find(state, kind, name, **where)
    if entry is None:
        raise ObjectNotFound(f"{kind} {name}")
    return entry


def get_table(state: State, schema: str, name: str) -> int:
    return get(state, "table", name, schema=get(state, "schema", schema))


def occupant(state: State, schema: int, name: str) -> tuple[str, int] | None:
    """The table or alive index of a schema that has that name."""
    for kind in ("table", "index"):
        for key, row in state[kind].items():
            if (row["schema"], row["name"]) == (schema, name) and row.get("status") != "STOPPING":
                return kind, key
    return None


def get_index(state: State, schema: str, name: str) -> int:
    parent = find(state, "schema", schema)
    occupied_by = None if parent is None else occupant(state, parent, name)
    if occupied_by is None or occupied_by[0] != "index":
        raise ObjectNotFound(f"index {name}")
    return occupied_by[1]


def refuse_taken(state: State, schema: int, name: str, *, by_itself: int = 0) -> None:
    occupied_by = occupant(state, schema, name)
    if occupied_by is not None and occupied_by[1] != by_itself:
        raise AlreadyExists(name)


def put(state: State, kind: str, key: Any, value: Any) -> State:
    return {**state, kind: {**state[kind], key: value}}


def change(state: State, kind: str, key: int, **fields: Any) -> State:
    return put(state, kind, key, {**state[kind][key], **fields})


def add(state: State, kind: str, **row: Any) -> State:
    """The state with a new object, which has the next id."""
    key = state["setting"]["next_id"]
    return put(put(state, kind, key, row), "setting", "next_id", key + 1)


def without(state: State, kind: str, key: Any) -> State:
    """The state without an object and the comment on it."""
    kept = {**state, kind: {k: row for k, row in state[kind].items() if k != key}}
    return without(kept, "comment", f"{kind}/{key}") if kind != "comment" else kept


def without_table(state: State, table: int) -> State:
    for key, row in state["index"].items():
        if row["table"] == table:
            state = without(state, "index", key)
    return without(state, "table", table)


# -- what each command does --------------------------------------------------------------------


def after(state: State, command: Command, *, base: State) -> State:
    """The state after ``command``, in a batch that began at ``base``; raises if it is refused."""
    return _after(command, state, base)


@singledispatch
def _after(command: Command, state: State, base: State) -> State:
    raise NotImplementedError(command)


@_after.register
def _(command: CreateSchema, state: State, base: State) -> State:
    if find(state, "schema", command.name) is None:
        return add(state, "schema", name=command.name, comment=None)
    if command.if_not_exists:
        return state
    raise AlreadyExists(command.name)


@_after.register
def _(command: DropSchema, state: State, base: State) -> State:
    schema = get(state, "schema", command.name)
    tables = [key for key, row in state["table"].items() if row["schema"] == schema]
    if tables and not command.cascade:
        raise IllegalChange(command.name)
    for table in tables:
        state = without_table(state, table)
    return without(state, "schema", schema)


@_after.register
def _(command: CreateTable, state: State, base: State) -> State:
    schema, new = get(state, "schema", command.schema), command.definition
    refuse_taken(state, schema, new.name)
    limit = state["setting"].get("max_tables")
    if limit is not None and len(state["table"]) >= int(limit):
        raise LimitExceeded(limit)
    zone = state["setting"]["default_zone"]
    if new.zone is not None:
        zone = get(state, "zone", new.zone)
    table = state["setting"]["next_id"]
    state = add(
        state,
        "table",
        schema=schema,
        name=new.name,
        columns=tuple(column.name for column in new.columns),
        zone=zone,
        comment=None,
        grants={},
        key=table + 1 if new.primary_key else 0,
    )
    if not new.primary_key:
        return state
    refuse_taken(state, schema, f"{new.name}_pk")
    return _with_index(state, table, f"{new.name}_pk", new.primary_key, "AVAILABLE")


@_after.register
def _(command: DropTable, state: State, base: State) -> State:
    return without_table(state, get_table(state, command.schema, command.table))


@_after.register
def _(command: RenameTable, state: State, base: State) -> State:
    table = get_table(state, command.schema, command.table)
    row, target = state["table"][table], get(state, "schema", command.new_schema or command.schema)
    refuse_taken(state, target, command.new_name, by_itself=table)
    state = change(state, "table", table, schema=target, name=command.new_name)
    for key, index in state["index"].items():
        if index["table"] == table:
            name = f"{command.new_name}_pk" if key == row["key"] else index["name"]
            if index["status"] != "STOPPING":
                refuse_taken(state, target, name, by_itself=key)
            state = change(state, "index", key, schema=target, name=name)
    return state


@_after.register
def _(command: AddColumns, state: State, base: State) -> State:
    table = get_table(state, command.schema, command.table)
    columns, added = state["table"][table]["columns"], tuple(c.name for c in command.columns)
    if set(added) & set(columns):
        raise AlreadyExists(added[0])
    return change(state, "table", table, columns=columns + added)


@_after.register
def _(command: CreateIndex, state: State, base: State) -> State:
    refuse_taken(state, get(state, "schema", command.schema), command.index)
    table = get_table(state, command.schema, command.table)
    if not set(command.columns) <= set(state["table"][table]["columns"]):
        raise ObjectNotFound("a column")
    status = "REGISTERED" if table in base["table"] else "AVAILABLE"
    return _with_index(state, table, command.index, command.columns, status)


def _with_index(
    state: State, table: int, name: str, columns: tuple[str, ...], status: str
) -> State:
    schema = state["table"][table]["schema"]
    return add(
        state, "index", schema=schema, name=name, table=table, columns=columns, status=status
    )


@_after.register
def _(command: DropIndex, state: State, base: State) -> State:
    index = get_index(state, command.schema, command.index)
    row = state["index"][index]
    if state["table"][row["table"]]["key"] == index:
        raise IllegalChange("the index of a primary key")
    if row["status"] == "AVAILABLE":
        return change(state, "index", index, status="STOPPING")
    return without(state, "index", index)


@_after.register
def _(command: StartBuildingIndex, state: State, base: State) -> State:
    _expect(state, command.index_id, "REGISTERED")
    return change(state, "index", command.index_id, status="BUILDING")


@_after.register
def _(command: MakeIndexAvailable, state: State, base: State) -> State:
    _expect(state, command.index_id, "BUILDING")
    return change(state, "index", command.index_id, status="AVAILABLE")


@_after.register
def _(command: RemoveIndex, state: State, base: State) -> State:
    _expect(state, command.index_id, "STOPPING")
    return without(state, "index", command.index_id)


def _expect(state: State, index: int, status: str) -> None:
    if index not in state["index"]:
        raise ObjectNotFound(f"index {index}")
    if state["index"][index]["status"] != status:
        raise IndexStatusConflict(status)


@_after.register
def _(command: CreateZone, state: State, base: State) -> State:
    if find(state, "zone", command.name) is not None:
        raise AlreadyExists(command.name)
    return add(state, "zone", name=command.name, replicas=command.replicas)


@_after.register
def _(command: AlterZone, state: State, base: State) -> State:
    return change(state, "zone", get(state, "zone", command.name), replicas=command.replicas)


@_after.register
def _(command: RenameZone, state: State, base: State) -> State:
    zone = get(state, "zone", command.name)
    if find(state, "zone", command.new_name) not in (None, zone):
        raise AlreadyExists(command.new_name)
    return change(state, "zone", zone, name=command.new_name)


@_after.register
def _(command: SetDefaultZone, state: State, base: State) -> State:
    return put(state, "setting", "default_zone", get(state, "zone", command.name))


@_after.register
def _(command: DropZone, state: State, base: State) -> State:
    zone = get(state, "zone", command.name)
    used = {state["setting"]["default_zone"]} | {row["zone"] for row in state["table"].values()}
    if zone in used:
        raise IllegalChange(command.name)
    return without(state, "zone", zone)


@_after.register
def _(command: CreateRole, state: State, base: State) -> State:
    if find(state, "role", command.name) is not None:
        raise AlreadyExists(command.name)
    return add(state, "role", name=command.name)


@_after.register
def _(command: DropRole, state: State, base: State) -> State:
    return without(state, "role", get(state, "role", command.name))


@_after.register(GrantPrivileges)
@_after.register(RevokePrivileges)
def _(command: GrantPrivileges | RevokePrivileges, state: State, base: State) -> State:
    table = get_table(state, *command.name.split("."))
    grantee = 0 if command.grantee == "public" else get(state, "role", command.grantee)
    granted: dict[int, int] = state["table"][table]["grants"]
    before, asked = granted.get(grantee, 0), int(command.privileges)
    wanted = before | asked if isinstance(command, GrantPrivileges) else before & ~asked
    if wanted == before:
        return state
    grants = {
        who: allowed
        for who, allowed in {**granted, grantee: wanted}.items()
        if allowed and (who == 0 or who in state["role"])
    }
    return change(state, "table", table, grants=grants)


@_after.register
def _(command: SetConfiguration, state: State, base: State) -> State:
    if command.value is None:
        return without(state, "setting", command.name)
    if not command.value.isdigit():
        raise InvalidInput(command.value)
    return put(state, "setting", command.name, command.value)


@_after.register
def _(command: CommentOn, state: State, base: State) -> State:
    kind, parts = command.kind.name.lower(), command.name.split(".")
    if kind == "index":
        key = get_index(state, *parts)
    elif kind == "table":
        key = get_table(state, *parts)
    else:
        key = get(state, kind, *parts)
    if "comment" in state[kind][key]:
        return change(state, kind, key, comment=command.text)
    name = f"{kind}/{key}"
    if command.text is None:
        return without(state, "comment", name)
    return put(state, "comment", name, command.text)


def undone(before: State, now: State) -> State:
    """The state after undoing the version that led from ``before`` to ``now``.

    Everything is as before, with these exceptions. No id is used twice. An index that was not kept
    up to date for a while begins anew, unless its table was dropped as well, so that there were no
    writes. An index that the version made available for a table that remains may be in use: it
    becomes STOPPING, in the schema of its table.
    """
    state = put(before, "setting", "next_id", now["setting"]["next_id"])
    for key, row in before["index"].items():
        status, later = row["status"], now["index"].get(key)
        if later is None and row["table"] not in now["table"]:
            status = "REGISTERED" if status == "BUILDING" else status
        elif later is None and status == "STOPPING":
            raise IllegalChange("removed for good")
        elif later is None or (later["status"] == "STOPPING") > (status == "STOPPING"):
            status = "REGISTERED"
        elif later["status"] != status:
            raise IllegalChange("which cannot be reversed")
        state = change(state, "index", key, status=status)
    for key, row in now["index"].items():
        table = before["table"].get(row["table"])
        if key not in before["index"] and table is not None and row["status"] == "AVAILABLE":
            left = tuple(name if name in table["columns"] else "?" for name in row["columns"])
            stops = {**row, "schema": table["schema"], "columns": left, "status": "STOPPING"}
            state = put(state, "index", key, stops)
    return state


def visible(state: State) -> State:
    """A state without the next id, which only the model has."""
    return without(state, "setting", "next_id")


# -- a catalog as the model sees it --------------------------------------------------------------


def shape(catalog: Catalog) -> State:
    """A catalog as a state of the model. Objects that have a name are looked up by that name."""
    seen: State = {kind: {} for kind in KINDS}
    for name in (schema.name for schema in catalog.schemas()):
        if name != "system":
            schema = catalog.schema(name)
            assert schema is not None
            seen["schema"][schema.id] = {"name": name, "comment": schema.comment}
            for relation in catalog.relation_names(name):
                _see_table(catalog, name, relation, seen)
    for stored in catalog.contents.objects("index"):
        _see_index(catalog, stored.value, seen)
    for zone in catalog.zones():
        assert catalog.zone_named(zone.name) == zone
        seen["zone"][zone.id] = {"name": zone.name, "replicas": zone.replicas}
    for role in catalog.roles():
        assert catalog.role(role.name) == role
        seen["role"][role.id] = {"name": role.name}
    for stored in catalog.contents.objects("comment"):
        seen["comment"][stored.name] = stored.value.text
    _see_settings(catalog, seen["setting"])
    return seen


def _see_table(catalog: Catalog, schema: str, name: str, seen: State) -> None:
    table = catalog.table(schema, name)
    assert table is not None
    granted = dict.fromkeys((grant.grantee for grant in table.privileges), 0)
    for grant in table.privileges:  # a grantee has one for each time
        granted[grant.grantee] |= int(grant.privileges)
    seen["table"][table.id] = {
        "schema": table.schema_id,
        "name": name,
        "columns": tuple(column.name for column in table.columns),
        "zone": table.zone_id,
        "comment": table.comment,
        "grants": granted,
        "key": table.primary_key_index,
    }


def _see_index(catalog: Catalog, index: Any, seen: State) -> None:  # Any: a descriptor
    table, schema = catalog.table_by_id(index.table_id), catalog.schema_by_id(index.schema_id)
    columns = {column.id: column.name for column in table.columns} if table else {}
    if schema is not None:
        named = catalog.alive_index(schema.name, index.name)
        assert (named == index) == index.alive, "an index is not found by its name"
    assert index in catalog.indexes(index.table_id), "an index is not found by its table"
    seen["index"][index.id] = {
        "schema": index.schema_id,
        "name": index.name,
        "table": index.table_id,
        "columns": tuple(columns.get(part.column_id, "?") for part in index.columns),
        "status": index.status.name,
    }


def _see_settings(catalog: Catalog, seen: dict[Any, Any]) -> None:
    default_zone, limit = catalog.default_zone(), catalog.configuration("max_tables")
    if default_zone is not None:
        seen["default_zone"] = default_zone.id
    if limit is not None:
        seen["max_tables"] = limit
