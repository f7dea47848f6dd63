"""Methods that change the partitions of plain tables.

Each call is one transaction on the table. It changes all of its partitions or none, and has a
commit time, so that the list of partitions can be read as of a time. Folders follow Hive's habits:
the folder of a partition is created before the partition. In a managed table the folder moves when
the partition is renamed. When the partition is dropped with its data, the folder is moved aside,
where the cleaner finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from strandline.clock import system_wall_clock
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.metastore.hive.names import present_schema
from strandline.metastore.hive.parameters import QuickStatistics, if_purge
from strandline.metastore.hive.partition_values import Partitioned, partition_values
from strandline.metastore.hive.registry import Call, changes, invalid_object, meta_exception
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.transactional_tables import refuse_content_change
from strandline.metastore.partition_places import partition_places
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import NewRow, PartitionRow, Row, RowKind
from strandline.metastore.store.warehouse import FolderRefused, Moved, Unsynced
from strandline.metastore.store.zone_partitions import ZonePartitions
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.privileges import Privilege


class _NothingToDo(Exception):
    """Raised to leave a change block that has nothing to change."""


def _now() -> int:
    return system_wall_clock() // 1000


async def plain_table(
    call: Call,
    schema: str,
    table: str,
    *,
    need: Privilege,
    missing: Callable[[str], Exception],
    what: str = "partitions",
) -> Partitioned:
    """Return the table whose ``what`` is to be changed.

    The user needs one of the privileges in ``need``. If the table does not exist, the error that
    ``missing`` makes is raised.
    """
    present_schema(schema)
    try:
        scope, relation = await call.reader.relation(schema, table, need=need)
    except ObjectNotFound as error:
        raise missing(error.message) from None
    if not isinstance(relation, TableDescriptor):
        raise meta_exception(f"{schema}.{table} is a view and has no {what}")
    if relation.transactional:
        raise refuse_content_change(f"{scope.name}.{relation.name}", what)
    location = await call.reader.shown_location(relation)
    shown = call.folders.shown
    return Partitioned(relation, schema=scope.name, location=location, shown=shown)


def _stored(
    call: Call, partitioned: Partitioned, partitions: Mapping[str, PartitionRow]
) -> list[NewRow]:
    """Return the rows of these partitions (by name), each assigned to its zone partition."""
    zone = ZonePartitions.of(partitioned.table, call.reader.catalog)
    return [
        NewRow.of(row, name=name, bucket=zone.of_values(row.values))
        for name, row in partitions.items()
    ]


# -- add


def _no_table_to_add_to(message: str) -> Exception:
    return invalid_object("Unable to add partition because table or database do not exist")


def no_table_to_add_all_to(schema: str, table: str) -> Callable[[str], Exception]:
    """The error of a request that adds partitions to a table that does not exist."""
    return lambda message: invalid_object(
        f"Unable to add partitions because database or table {schema}.{table} does not exist"
    )


def add_all(
    call: Call,
    partitioned: Partitioned,
    partitions: Sequence[Struct],
    *,
    if_not_exists: bool = False,
) -> list[PartitionRow]:
    """Add partitions. Return the rows of those that did not exist before."""
    rows: dict[str, PartitionRow] = {}
    for partition in partitions:
        _check_home(partitioned, partition)
        call.folders.refuse_former((partition.get("sd") or {}).get("location"))
        name, row = partitioned.read(partition, now=_now())
        if name in rows:
            raise meta_exception(
                f"Duplicate partitions in the list: {partitioned.described(row.values)}"
            )
        rows[name] = row
    quick = QuickStatistics(call.folders, call.args.get("environment_context"))
    for name, row in rows.items():
        counted = quick.of_new(row.parameters, partitioned.place(row), is_made=False)
        rows[name] = replace(row, parameters=counted)
    new_rows = rows
    with suppress(_NothingToDo), call.metastore.store.change(
        partitioned.table.id, author=call.user
    ) as change:  # fmt: skip
        existing_rows = change.visible(RowKind.PARTITION, rows.keys())
        new_rows = {name: row for name, row in rows.items() if name not in existing_rows}
        if existing_rows and not if_not_exists:
            first = next(row for name, row in rows.items() if name in existing_rows)
            raise AlreadyExists(f"Partition already exists: {partitioned.described(first.values)}")
        if not new_rows:
            raise _NothingToDo
        places = partition_places(call.metastore, partitioned.table, location=partitioned.location)
        places.refuse_unfinished(change, {row.location for row in new_rows.values()})
        unsynced = Unsynced()
        for name, row in new_rows.items():
            _make_folder(call, partitioned, row, name=name, unsynced=unsynced)
        unsynced.sync()
        change.stage(add=_stored(call, partitioned, new_rows))
    return list(new_rows.values())


def _check_home(partitioned: Partitioned, partition: Mapping[str, Any]) -> None:
    home = (partition.get("dbName", ""), partition.get("tableName", ""))
    if tuple(map(str.lower, home)) != (partitioned.schema, partitioned.table.name.lower()):
        raise meta_exception(
            "Partition does not belong to target table "
            f"{partitioned.schema}.{partitioned.table.name.lower()}: "
            f"Partition(values:[{', '.join(partition.get('values') or ())}], dbName:{home[0]}, "
            f"tableName:{home[1]})"
        )


def _make_folder(
    call: Call, partitioned: Partitioned, row: PartitionRow, *, name: str, unsynced: Unsynced
) -> None:
    """Create the folder of a partition, in the table's own folder or below a root.

    The parent folder is added to ``unsynced``: thousands of partitions lie in one folder, which is
    synced once.
    """
    place = partitioned.place(row)
    if _is_own(call, partitioned, row, name=name):
        call.folders.verify_below(place, table=partitioned.location)
    elif call.folders.is_inside(place) or not call.folders.may_make(place):
        return
    if not call.folders.exists(place):
        call.folders.make(place, unsynced=unsynced)


def _is_own(call: Call, partitioned: Partitioned, row: PartitionRow, *, name: str) -> bool:
    """Whether the partition lies in the folder of its name, which the store chose."""
    managed = partitioned.table.kind is TableKind.MANAGED
    return managed and row.location == name and call.folders.is_own_table(partitioned.location)


@changes("add_partition", "add_partition_with_environment_context")
async def add_partition(call: Call) -> Struct:
    partition = call.struct("new_part")
    schema, table = partition.get("dbName", ""), partition.get("tableName", "")
    partitioned = await plain_table(
        call, schema, table, need=Privilege.INSERT, missing=_no_table_to_add_to
    )
    return _answered(partitioned, add_all(call, partitioned, [partition])[0], partition)


def _answered(partitioned: Partitioned, row: PartitionRow, sent: Struct) -> Struct:
    """The answer to the addition of ``row``. As in Hive, it repeats what the client sent."""
    struct = partitioned.struct(row)
    for name in ("skewedInfo", "storedAsSubDirectories"):
        if name not in (sent.get("sd") or {}):
            del struct["sd"][name]
    return struct | {name: sent[name] for name in ("dbName", "tableName")}


@changes("append_partition", "append_partition_with_environment_context")
async def append_partition(call: Call) -> Struct:
    partitioned = await _named(call, need=Privilege.INSERT, missing=_no_table_to_add_to)
    return _append(call, partitioned, call.texts("part_vals"))


@changes("append_partition_by_name", "append_partition_by_name_with_environment_context")
async def append_partition_by_name(call: Call) -> Struct:
    partitioned = await _named(call, need=Privilege.INSERT, missing=_no_table_to_add_to)
    return _append(
        call, partitioned, partition_values(call.text("part_name"), partitioned.key_names)
    )


def _append(call: Call, partitioned: Partitioned, values: Sequence[str]) -> Struct:
    home = {"dbName": partitioned.schema, "tableName": partitioned.table.name}
    return partitioned.struct(add_all(call, partitioned, [{"values": list(values), **home}])[0])


@changes("add_partitions")
async def add_partitions(call: Call) -> int:
    partitions = call.structs("new_parts")
    if not partitions:
        return 0
    schema, table = partitions[0].get("dbName", ""), partitions[0].get("tableName", "")
    partitioned = await plain_table(
        call, schema, table, need=Privilege.INSERT, missing=_no_table_to_add_to
    )
    return len(add_all(call, partitioned, partitions))


@changes("add_partitions_req")
async def add_partitions_req(call: Call) -> Struct:
    request = call.of("request")
    schema, table = request.text("dbName"), request.text("tblName")
    missing = no_table_to_add_all_to(schema, table)
    partitions = request.structs("parts")
    if not partitions:
        return {}
    partitioned = await plain_table(request, schema, table, need=Privilege.INSERT, missing=missing)
    if_not_exists = bool(request.args.get("ifNotExists"))
    added = add_all(request, partitioned, partitions, if_not_exists=if_not_exists)
    if not _wants_result(request):
        return {}
    sent = {tuple(partition["values"]): partition for partition in partitions}
    return {"partitions": [_answered(partitioned, row, sent[row.values]) for row in added]}


def _wants_result(request: Call) -> bool:
    return bool(request.args.get("needResult", True))


# -- drop


async def _named(
    call: Call, *, need: Privilege, missing: Callable[[str], Exception] = ObjectNotFound
) -> Partitioned:
    return await plain_table(
        call, call.text("db_name"), call.text("tbl_name"), need=need, missing=missing
    )


def _drop(
    call: Call,
    partitioned: Partitioned,
    names: Collection[str],
    *,
    delete_data: bool,
    purge: bool,
    missing: StrandlineError | None,
) -> list[PartitionRow]:
    """Drop the partitions with these names. Raises ``missing``, if given, unless all exist."""
    rows: list[Row] = []
    places = partition_places(call.metastore, partitioned.table, location=partitioned.location)
    with suppress(_NothingToDo), call.metastore.store.change(
        partitioned.table.id, author=call.user
    ) as change:  # fmt: skip
        rows = list(change.visible(RowKind.PARTITION, names).values())
        if missing is not None and len(rows) < len(names):
            raise missing
        if not rows:
            raise _NothingToDo
        if delete_data:
            change.record_moves(*places.drop(rows, purge=purge))
        statistics = change.visible(RowKind.STATISTICS, names).values()
        change.stage(remove=[row.row_id for row in (*rows, *statistics)])
    if rows and delete_data:
        places.finish_moves(call.metastore.store)
    return [row.as_(PartitionRow) for row in rows]


def _purges(call: Call) -> bool:
    """Whether the client asks that files be deleted at once (``PURGE``)."""
    return if_purge(call.args.get("environment_context") or call.args.get("environmentContext"))


@changes("drop_partition", "drop_partition_with_environment_context")
async def drop_partition(call: Call) -> bool:
    partitioned = await _named(call, need=Privilege.DELETE)
    return _drop_one(call, partitioned, call.texts("part_vals"))


@changes("drop_partition_by_name", "drop_partition_by_name_with_environment_context")
async def drop_partition_by_name(call: Call) -> bool:
    partitioned = await _named(call, need=Privilege.DELETE)
    try:
        values = partition_values(call.text("part_name"), partitioned.key_names)
    except InvalidInput as error:
        raise ObjectNotFound(error.message) from None
    return _drop_one(call, partitioned, values)


def _drop_one(call: Call, partitioned: Partitioned, values: Sequence[str]) -> bool:
    missing = ObjectNotFound(f"partition values=[{', '.join(values)}]")
    delete_data = call.args.get("deleteData", False)
    _drop(
        call,
        partitioned,
        [partitioned.name_of(values)],
        delete_data=delete_data,
        purge=_purges(call),
        missing=missing,
    )
    return True


@changes("drop_partitions_req")
async def drop_partitions_req(call: Call) -> Struct:
    request = call.of("req")
    names = request.struct("parts").get("names")
    if names is None:
        raise UnsupportedOperation(
            "partitions can be dropped only by name, not by a Hive expression"
        )
    partitioned = await plain_table(
        request,
        request.text("dbName"),
        request.text("tblName"),
        need=Privilege.DELETE,
        missing=ObjectNotFound,
    )
    missing = ObjectNotFound("Some partitions to drop are missing")
    dropped = _drop(
        request,
        partitioned,
        names,
        delete_data=bool(request.args.get("deleteData")),
        purge=_purges(request),
        missing=None if request.args.get("ifExists") else missing,
    )
    return (
        {"partitions": [partitioned.struct(row) for row in dropped]}
        if _wants_result(request)
        else {}
    )


# -- alter


def _no_table_to_alter(message: str) -> Exception:
    return IllegalChange("Unable to alter partition because table or database does not exist.")


async def _altered(call: Call, schema: str, table: str) -> Partitioned:
    need = Privilege.UPDATE
    return await plain_table(call, schema, table, need=need, missing=_no_table_to_alter)


def _no_tables_to_alter(message: str) -> Exception:
    return IllegalChange("Unable to alter partitions because table or database does not exist.")


def _alter(
    call: Call, partitioned: Partitioned, partitions: Sequence[Struct], context: Struct | None
) -> None:
    # Decoded before the block: while it runs, all other writers wait.
    new_partitions = [
        (*partitioned.read(partition, now=_now()), partition) for partition in partitions
    ]
    names = {name for name, _, _ in new_partitions}
    present = _present(call, partitioned, names)
    quick = QuickStatistics(call.folders, context)

    def counted(name: str, row: PartitionRow, sent: Struct) -> PartitionRow:
        old = present.get(name, replace(row, parameters=()))
        place = partitioned.place(row if _has_location(sent) else old)
        parameters = quick.of_altered(row.parameters, place, old=old.parameters)
        return replace(row, parameters=parameters)

    new_partitions = [
        (name, counted(name, row, partition), partition) for name, row, partition in new_partitions
    ]
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        rows = change.visible(RowKind.PARTITION, names)
        if len(rows) < len(names):
            raise IllegalChange("alter is not possible")
        altered: dict[str, PartitionRow] = {}
        for name, new, partition in new_partitions:
            # If the request names a partition twice, the partition is altered twice.
            old = altered.get(name) or rows[name].as_(PartitionRow)
            kept = replace(new, created=old.created)
            if not _has_location(partition):
                kept = replace(kept, location=old.location)
            altered[name] = kept
        old_ids = [rows[name].row_id for name in altered]
        change.replace(dict(zip(old_ids, _stored(call, partitioned, altered), strict=True)))


def _has_location(partition: Struct) -> bool:
    """Whether the client sent a location; without one, a partition stays where it is."""
    return bool((partition.get("sd") or {}).get("location"))


def _present(
    call: Call, partitioned: Partitioned, names: Collection[str]
) -> dict[str, PartitionRow]:
    """Return those of the named partitions that exist now."""
    rows = call.metastore.store.rows(
        partitioned.table.id, RowKind.PARTITION, write_ids=None, names=names
    )
    return {row.name: row.as_(PartitionRow) for row in rows}


@changes("alter_partition", "alter_partition_with_environment_context")
async def alter_partition(call: Call) -> None:
    _alter(
        call,
        await _named(call, need=Privilege.UPDATE, missing=_no_table_to_alter),
        [call.struct("new_part")],
        call.args.get("environment_context"),
    )


@changes("alter_partitions", "alter_partitions_with_environment_context")
async def alter_partitions(call: Call) -> None:
    partitions = call.structs("new_parts")
    partitioned = await _named(call, need=Privilege.UPDATE, missing=_no_tables_to_alter)
    if partitions:
        _alter(call, partitioned, partitions, call.args.get("environment_context"))


@changes("alter_partitions_req")
async def alter_partitions_req(call: Call) -> Struct:
    request = call.of("req")
    schema, table = request.text("dbName"), request.text("tableName")
    partitioned = await _altered(request, schema, table)
    if request.args.get("partitions"):
        _alter(
            request, partitioned, request.args["partitions"], request.args.get("environmentContext")
        )
    return {}


def give_table_columns(call: Call, table: TableDescriptor) -> None:
    """Give every partition the columns of its table, as a cascading alter requires."""

    def without_own(rows: Iterable[Row]) -> dict[int, NewRow]:
        partitions = [(row, row.as_(PartitionRow)) for row in rows]
        return {
            row.row_id: row.replaced_by(replace(partition, columns=None))
            for row, partition in partitions
            if partition.columns is not None
        }

    # Read before the block: while it runs, all other writers wait.
    rows = call.metastore.store.rows(table.id, RowKind.PARTITION, write_ids=None)
    names = [row.name for row in rows if row.as_(PartitionRow).columns is not None]
    if names:
        with call.metastore.store.change(table.id, author=call.user) as change:
            change.replace(without_own(change.visible(RowKind.PARTITION, names).values()))


@changes("rename_partition")
async def rename_partition(call: Call) -> None:
    partitioned = await _named(call, need=Privilege.UPDATE, missing=_no_table_to_alter)
    _rename(call, partitioned, call.texts("part_vals"), call.struct("new_part"))


@changes("rename_partition_req")
async def rename_partition_req(call: Call) -> Struct:
    request = call.of("req")
    schema, table = request.text("dbName"), request.text("tableName")
    partitioned = await _altered(request, schema, table)
    _rename(request, partitioned, request.texts("partVals"), request.struct("newPart"))
    return {}


def _rename(call: Call, partitioned: Partitioned, values: Sequence[str], partition: Struct) -> None:
    old_name = partitioned.name_of(values)
    new_name, new = partitioned.read(partition, now=_now())
    present = _present(call, partitioned, [old_name]).get(old_name)
    if present is not None and partitioned.table.kind is TableKind.MANAGED:
        # Where the files are before they move.
        quick, place = QuickStatistics(call.folders, None), partitioned.place(present)
        counted = quick.of_altered(new.parameters, place, old=present.parameters)
        new = replace(new, parameters=counted)
    moved: tuple[str, str] | None = None
    places = partition_places(call.metastore, partitioned.table, location=partitioned.location)
    try:
        with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
            rows = change.visible(RowKind.PARTITION, [old_name, new_name])
            if old_name not in rows:
                raise IllegalChange(
                    "Unable to rename partition because old partition does not exist"
                )
            if new_name == old_name or new_name in rows:
                table_name = f"{partitioned.schema}.{partitioned.table.name.lower()}"
                shown = f"{table_name}.[{', '.join(new.values)}]"
                raise IllegalChange(f"Partition already exists:{shown}")
            old = rows[old_name].as_(PartitionRow)
            kept = replace(new, created=old.created, location=old.location)
            if places.is_own(rows[old_name]):
                kept = replace(kept, location=new_name)
            before = [rows[old_name], *change.visible(RowKind.STATISTICS, [old_name]).values()]
            after = [NewRow.of(row.content, name=new_name) for row in before[1:]]
            renamed = [*_stored(call, partitioned, {new_name: kept}), *after]
            row_id, *_ = change.stage_each([(renamed, [row.row_id for row in before])])
            if kept.location != old.location:
                change.record_moves(
                    PartitionMove(old.location, rows[old_name].row_id, kept.location, row_id)
                )
            if kept.location != old.location:
                moved = _move_folder(call, partitioned, old, kept)
    except BaseException:
        if moved is not None:
            with suppress(StrandlineError):
                call.folders.move(moved[1], moved[0])
        raise


def _move_folder(
    call: Call, partitioned: Partitioned, before: PartitionRow, after: PartitionRow
) -> tuple[str, str] | None:
    """Move the folder of a partition. Return its old and new place, or None if none existed."""
    old, new = partitioned.place(before), partitioned.place(after)
    try:
        call.folders.verify_below(old, table=partitioned.location)
        call.folders.verify_below(new, table=partitioned.location)
        outcome = call.folders.move(old, new)
    except FolderRefused as refused:
        raise IllegalChange(f"the partition cannot be renamed: {refused.message}") from refused
    if outcome is Moved.MISSING:
        call.folders.make(new)
    return (old, new) if outcome is Moved.MOVED else None
