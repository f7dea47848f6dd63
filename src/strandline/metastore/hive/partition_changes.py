"""Methods that add and drop the partitions of plain tables.

Each call is one transaction on the table. It changes all of its partitions or none, and has a
commit time, so that the list of partitions can be read as of a time. Folders follow Hive's habits:
the folder of a partition is created before the partition. When the partition is dropped with its
data, the folder is moved aside, where the cleaner finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strandline.errors import (
    AlreadyExists,
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
from strandline.metastore.requested_places import require_places
from strandline.metastore.store.partition_moves import name_of
from strandline.metastore.store.rows import NewRow, PartitionRow, RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import Unsynced, relative_location
from strandline.metastore.store.zone_partitions import ZonePartitions
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.privileges import Privilege

logger = logging.getLogger(__name__)


async def plain_table(
    call: Call,
    schema: str,
    table: str,
    *,
    need: Privilege,
    missing: Exception | None = None,
    what: str = "partitions",
) -> Partitioned:
    """Return the table whose ``what`` is to be changed.

    The user needs one of the privileges in ``need``. If the table does not exist, ``missing`` is
    raised, by default `ObjectNotFound`.
    """
    present_schema(schema)
    try:
        scope, relation = await call.reader.relation(schema, table, need=need)
    except ObjectNotFound as error:
        raise missing or error from None
    if not isinstance(relation, TableDescriptor):
        raise meta_exception(f"{schema}.{table} is a view and has no {what} of its own")
    if relation.transactional:
        raise refuse_content_change(f"{scope.name}.{relation.name}", what)
    return Partitioned(
        relation,
        schema=scope.name,
        location=await call.reader.shown_location(relation),
        folders=call.folders,
        readable=call.reader.may_read(scope, relation),
    )


async def named_table(
    call: Call, *, need: Privilege, missing: Exception | None = None, what: str = "partitions"
) -> Partitioned:
    """Do `plain_table` for the table that the arguments name."""
    schema, table = call.text("db_name"), call.text("tbl_name")
    return await plain_table(call, schema, table, need=need, missing=missing, what=what)


def stored_rows(
    call: Call, partitioned: Partitioned, partitions: Mapping[str, PartitionRow], change: Staging
) -> list[NewRow]:
    """Return the rows of these partitions (by name), each assigned to its zone partition.

    Raises what `PartitionPlaces.require_kind` raises.
    """
    partitioned.places.require_kind(change, call.metastore.catalogs)
    zone = ZonePartitions.of(partitioned.table, call.reader.catalog)
    return [
        NewRow.of(row, name=name, bucket=zone.of_values(row.values))
        for name, row in partitions.items()
    ]


def refuse_locations(
    call: Call, partitioned: Partitioned, partitions: Iterable[tuple[Struct, PartitionRow]]
) -> None:
    """Raise `InvalidInput` or `PermissionDenied` for a location whose files may belong to others.

    Each of the ``partitions`` is what the client sent, and what is stored for it.
    """
    outside = []
    for partition, row in partitions:
        call.folders.refuse_former((partition.get("sd") or {}).get("location"))
        call.folders.refuse_dropped(row.location)
        place = partitioned.place(row)
        if relative_location(partitioned.location, place) == place:
            outside.append(place)
    require_places(call.reader.access, call.folders, outside)


# -- add


_NO_TABLE = "Unable to add partition because table or database do not exist"


async def table_to_add_all_to(call: Call, schema: str, table: str) -> Partitioned:
    missing = f"Unable to add partitions because database or table {schema}.{table} does not exist"
    need = Privilege.INSERT
    return await plain_table(call, schema, table, need=need, missing=invalid_object(missing))


def add_all(
    call: Call,
    partitioned: Partitioned,
    partitions: Sequence[Struct],
    *,
    if_not_exists: bool = False,
) -> list[PartitionRow]:
    """Add partitions. Return the rows of those that did not exist before."""
    rows: dict[str, PartitionRow] = {}
    repeated: dict[str, PartitionRow] = {}
    sent: list[tuple[Struct, PartitionRow]] = []
    for partition in partitions:
        _check_home(partitioned, partition)
        name, row = partitioned.read(partition)
        sent.append((partition, row))
        if name in rows:
            repeated[name] = row
        else:
            rows[name] = row
    refuse_locations(call, partitioned, sent)
    quick = QuickStatistics(call.folders, call.args.get("environment_context"))
    for name, row in rows.items():
        counted = quick.of_new(row.parameters, partitioned.place(row), is_made=False)
        rows[name] = replace(row, parameters=counted)
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        existing_rows = change.visible(RowKind.PARTITION, rows.keys())
        new_rows = {name: row for name, row in rows.items() if name not in existing_rows}
        if existing_rows and not if_not_exists:
            first = next(row for name, row in rows.items() if name in existing_rows)
            raise AlreadyExists(f"Partition already exists: {partitioned.described(first.values)}")
        for name, row in repeated.items():
            # As in Hive, a partition that exists may be named twice: it is not added.
            if name in new_rows:
                raise meta_exception(
                    f"Duplicate partitions in the list: {partitioned.described(row.values)}"
                )
        if new_rows:
            _stage_new(call, partitioned, new_rows, change)
    return list(new_rows.values())


def _stage_new(
    call: Call, partitioned: Partitioned, rows: Mapping[str, PartitionRow], change: Staging
) -> None:
    places = partitioned.places
    places.require_present(change)
    places.refuse_unfinished(change, {row.location for row in rows.values()})
    unsynced = Unsynced()
    for name, row in rows.items():
        _make_folder(call, partitioned, row, name=name, unsynced=unsynced)
    unsynced.sync()
    change.stage(add=stored_rows(call, partitioned, rows, change))


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

    The parent folder is added to ``unsynced``: thousands of partitions are in one folder, which is
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
    """Whether the partition is in the folder of its name, which the store chose."""
    managed = partitioned.table.kind is TableKind.MANAGED
    is_named = name_of(row.location) == name
    return managed and is_named and call.folders.is_own_table(partitioned.location)


@changes("add_partition", "add_partition_with_environment_context")
async def add_partition(call: Call) -> Struct:
    partition = call.struct("new_part")
    partitioned = await _home_of(call, partition)
    return _answered(partitioned, add_all(call, partitioned, [partition])[0], partition)


async def _home_of(call: Call, partition: Struct) -> Partitioned:
    """Return the table that a new partition names."""
    schema, table = partition.get("dbName", ""), partition.get("tableName", "")
    missing = invalid_object(_NO_TABLE)
    return await plain_table(call, schema, table, need=Privilege.INSERT, missing=missing)


def _answered(partitioned: Partitioned, row: PartitionRow, sent: Struct) -> Struct:
    """The answer to the addition of ``row``. As in Hive, it repeats what the client sent."""
    if not partitioned.readable:
        return sent
    struct = partitioned.struct(row)
    for name in ("skewedInfo", "storedAsSubDirectories"):
        if name not in (sent.get("sd") or {}):
            del struct["sd"][name]
    return struct | {name: sent[name] for name in ("dbName", "tableName")}


@changes(
    "append_partition",
    "append_partition_with_environment_context",
    "append_partition_by_name",
    "append_partition_by_name_with_environment_context",
    "append_partition_req",
)
async def append_partition(call: Call) -> Struct:
    missing = invalid_object(_NO_TABLE)
    partitioned = await named_table(call, need=Privilege.INSERT, missing=missing)
    home = {"dbName": partitioned.schema, "tableName": partitioned.table.name}
    partition = {"values": _sent_values(call, partitioned), **home}
    return partitioned.struct(add_all(call, partitioned, [partition])[0])


def _sent_values(call: Call, partitioned: Partitioned) -> list[str]:
    """The values of the partition that the arguments name, by its values or by its name."""
    if call.args.get("part_vals") is not None:
        return call.texts("part_vals")
    name = call.text("name" if "name" in call.args else "part_name")
    return list(partition_values(name, partitioned.key_names))


@changes("add_partitions")
async def add_partitions(call: Call) -> int:
    partitions = call.structs("new_parts")
    if not partitions:
        return 0
    return len(add_all(call, await _home_of(call, partitions[0]), partitions))


@changes("add_partitions_req")
async def add_partitions_req(call: Call) -> Struct:
    partitions = call.structs("parts")
    if not partitions:
        return {}
    give_shared_columns(call, partitions)
    partitioned = await table_to_add_all_to(call, call.text("db_name"), call.text("tbl_name"))
    if_not_exists = bool(call.args.get("ifNotExists"))
    added = add_all(call, partitioned, partitions, if_not_exists=if_not_exists)
    if not _wants_result(call):
        return {}
    sent = {tuple(partition["values"]): partition for partition in partitions}
    return {
        "partitions": [_answered(partitioned, row, sent[row.values]) for row in added],
        "partitionColSchema": call.args.get("partitionColSchema"),
    }


def give_shared_columns(call: Call, partitions: Sequence[Struct]) -> None:
    """Give the columns that a request names once to its partitions that have none of their own."""
    shared = call.args.get("partitionColSchema")
    if shared is not None:
        for partition in partitions:
            if partition.get("sd") is not None:
                partition["sd"].setdefault("cols", shared)


def _wants_result(request: Call) -> bool:
    return bool(request.args.get("needResult", True))


# -- drop


def _drop(
    call: Call,
    partitioned: Partitioned,
    names: Collection[str],
    *,
    missing: StrandlineError | None,
) -> list[PartitionRow]:
    """Drop the partitions with these names. Raises ``missing``, if given, unless all exist.

    The arguments of the call say whether the files go too, and whether at once (``PURGE``).
    """
    delete_data = bool(call.args.get("deleteData"))
    purge = if_purge(call.args.get("environment_context"))
    places = partitioned.places
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        places.require_present(change)
        rows = list(change.visible(RowKind.PARTITION, names).values())
        if missing is not None and len(rows) < len(names):
            raise missing
        places.return_folders(change, rows)
        moves = places.drop(rows, purge=purge) if delete_data else []
        change.record_moves(*moves)
        if rows:
            statistics = change.visible(RowKind.STATISTICS, names).values()
            change.stage(remove=[row.row_id for row in (*rows, *statistics)])
    if moves:
        try:
            places.finish_moves(call.metastore.store.sql_store, moves)
        except StrandlineError:
            # The drop is committed: its client must not take it for refused. A node finishes it.
            logger.warning(
                "folders of dropped partitions of %s.%s could not be moved away yet",
                partitioned.schema,
                partitioned.table.name,
                exc_info=True,
            )
    return [row.as_(PartitionRow) for row in rows]


@changes(
    "drop_partition",
    "drop_partition_with_environment_context",
    "drop_partition_by_name",
    "drop_partition_by_name_with_environment_context",
    "drop_partition_req",
)
async def drop_partition(call: Call) -> bool:
    partitioned = await named_table(call, need=Privilege.DELETE)
    try:
        values = _sent_values(call, partitioned)
    except InvalidInput as error:
        raise ObjectNotFound(error.message) from None
    missing = ObjectNotFound(f"partition values=[{', '.join(values)}]")
    _drop(call, partitioned, [partitioned.name_of(values)], missing=missing)
    return True


@changes("drop_partitions_req")
async def drop_partitions_req(call: Call) -> Struct:
    names = call.struct("parts").get("names")
    if names is None:
        raise UnsupportedOperation(
            "partitions can be dropped only by name, not by a Hive expression"
        )
    partitioned = await named_table(call, need=Privilege.DELETE)
    missing = ObjectNotFound("Some partitions to drop are missing")
    if_exists = call.args.get("ifExists")
    dropped = _drop(call, partitioned, names, missing=None if if_exists else missing)
    if not _wants_result(call):
        return {}
    return {"partitions": [partitioned.struct(row) for row in dropped]}
