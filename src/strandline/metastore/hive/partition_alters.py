"""Methods that alter and rename the partitions of plain tables.

Each call is one transaction, as in `strandline.metastore.hive.partition_changes`. In a managed
table the folder of a partition moves when the partition is renamed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from strandline import work
from strandline.catalog.privileges.rules import WRITING
from strandline.errors import IllegalChange
from strandline.metastore.hive.accuracy import without_accurate
from strandline.metastore.hive.parameters import QuickStatistics, split_parameters
from strandline.metastore.hive.partition_changes import (
    give_shared_columns,
    named_table,
    refuse_locations,
    stored_rows,
)
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.registry import Call, changes, meta_exception
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import NewRow, PartitionRow, Row, RowKind
from strandline.metastore.store.warehouse import FolderMoves, FolderRefused, Moved
from strandline.model.descriptors import TableDescriptor, TableKind, properties
from strandline.model.privileges import Privilege

_PIECE = 1_000
"""The partitions that a cascading alter changes, and whose rows it frees, in one step."""


def _no_table(what: str = "partition") -> IllegalChange:
    return IllegalChange(f"Unable to alter {what} because table or database does not exist.")


def _alter(
    call: Call, partitioned: Partitioned, partitions: Sequence[Struct], context: Struct | None
) -> None:
    # Decoded before the block: while it runs, all other writers wait.
    new_partitions = [(*partitioned.read(partition), partition) for partition in partitions]
    names = {name for name, _, _ in new_partitions}
    present = _present(call, partitioned, names)
    quick = QuickStatistics(call.folders, context)

    def counted(name: str, row: PartitionRow, sent: Struct) -> PartitionRow:
        known = present.get(name)
        old = replace(row, parameters=()) if known is None else known.as_(PartitionRow)
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
            altered[name] = _with_unsent(new, partition, old)
        access = call.reader.access
        if not access.free and any(
            _redefines(partitioned, rows[name], row) for name, row in altered.items()
        ):
            access.require(Privilege.UPDATE, partitioned.table)
        relocated = {
            name: row.location
            for name, row in altered.items()
            if row.location != rows[name].as_(PartitionRow).location
        }
        places = partitioned.places
        if relocated:
            places.require_present(change)
            sent = [
                (partition, row) for name, row, partition in new_partitions if name in relocated
            ]
            refuse_locations(call, partitioned, sent)
            places.return_folders(change, [rows[name] for name in relocated])
        new_rows = zip(altered, stored_rows(call, partitioned, altered, change), strict=True)
        new_ids = change.replace({rows[name].row_id: new_row for name, new_row in new_rows})
        for name, new_id in zip(altered, new_ids, strict=True):
            if name in relocated and places.was_moved(rows[name], relocated[name]):
                old_location = rows[name].as_(PartitionRow).location
                change.record_moves(
                    PartitionMove(old_location, rows[name].row_id, relocated[name], new_id)
                )


def _redefines(partitioned: Partitioned, row: Row, altered: PartitionRow) -> bool:
    """Whether ``altered`` changes more than what counts or dates the content of the partition.

    Hive's client changes only that when it has inserted rows into a partition that exists.
    """

    def defining(partition: PartitionRow) -> PartitionRow:
        kept, _ = split_parameters(dict(partition.parameters))
        place = partitioned.place(partition)
        return replace(partition, location=place, parameters=properties(kept), last_access=0)

    return defining(row.as_(PartitionRow)) != defining(altered)


def _has_location(partition: Struct) -> bool:
    """Whether the client sent a location; without one, a partition stays where it is."""
    return bool((partition.get("sd") or {}).get("location"))


def _with_unsent(new: PartitionRow, sent: Struct, old: PartitionRow) -> PartitionRow:
    """``new``, which was read from ``sent``, with what its client left out as it is in ``old``."""
    new = replace(new, created=old.created)
    if not _has_location(sent):
        new = replace(new, location=old.location)
    sd = sent.get("sd")
    if sd is None:
        new = replace(new, storage=old.storage)
    if sd is None or sd.get("cols") is None:
        new = replace(new, columns=old.columns)
    return new


def _present(call: Call, partitioned: Partitioned, names: Collection[str]) -> dict[str, Row]:
    """The partitions of these names. Not from memory, where they may be a second old."""
    rows = call.metastore.store.sql_store.rows(
        partitioned.table.id, RowKind.PARTITION, write_ids=None, names=names
    )
    return {row.name: row for row in rows}


@changes("alter_partition", "alter_partition_with_environment_context")
async def alter_partition(call: Call) -> None:
    partitioned = await named_table(call, need=WRITING, missing=_no_table())
    _alter(call, partitioned, [call.struct("new_part")], call.args.get("environment_context"))


@changes("alter_partitions", "alter_partitions_with_environment_context")
async def alter_partitions(call: Call) -> None:
    partitions = call.structs("new_parts")
    partitioned = await named_table(call, need=WRITING, missing=_no_table("partitions"))
    if partitions:
        _alter(call, partitioned, partitions, call.args.get("environment_context"))


@changes("alter_partitions_req")
async def alter_partitions_req(call: Call) -> Struct:
    partitioned = await named_table(call, need=WRITING, missing=_no_table())
    if call.args.get("partitions"):
        give_shared_columns(call, call.args["partitions"])
        _alter(call, partitioned, call.args["partitions"], call.args.get("environment_context"))
    return {}


async def give_table_columns(
    call: Call, table: TableDescriptor, *, changed: Collection[str]
) -> None:
    """Give every partition the columns of its table, as a cascading alter requires.

    The statistics of the ``changed`` columns are not accurate any more.
    """

    def altered(row: Row) -> NewRow | None:
        """The partition as it must be; None if it is so already."""
        partition = row.as_(PartitionRow)
        parameters = partition.parameters
        if changed:
            parameters = without_accurate(parameters, changed)
        if partition.columns is None and parameters == partition.parameters:
            return None
        return row.replaced_by(replace(partition, columns=None, parameters=parameters))

    # Read and made before the block: while it runs, all other writers wait.
    rows = await call.reader.rows(call.reader.present, table, RowKind.PARTITION)
    new_rows = {row.row_id: new for row in rows if (new := altered(row)) is not None}
    work.free_slowly(rows)
    if not new_rows:
        return
    names = [new.name for new in new_rows.values()]
    with call.metastore.store.change(table.id, author=call.user) as change:
        for first in range(0, len(names), _PIECE):
            present = change.visible(RowKind.PARTITION, names[first : first + _PIECE]).values()
            # One that another node has changed since is another row.
            replacements = (
                (row.row_id, new_rows.pop(row.row_id, None) or altered(row)) for row in present
            )
            change.replace({row_id: new for row_id, new in replacements if new is not None})


@changes("rename_partition", "rename_partition_req")
async def rename_partition(call: Call) -> None:
    partitioned = await named_table(call, need=Privilege.UPDATE, missing=_no_table())
    _rename(call, partitioned, call.texts("part_vals"), call.struct("new_part"))


def _rename(call: Call, partitioned: Partitioned, values: Sequence[str], partition: Struct) -> None:
    old_name = partitioned.name_of(values)
    new_name, new = partitioned.read(partition)
    if "" in new.values:
        spec = ", ".join(map("=".join, zip(partitioned.key_names, new.values, strict=True)))
        raise meta_exception(f"Partition spec is incorrect. {{{spec}}}")
    store, table_id = call.metastore.store, partitioned.table.id
    names = [old_name, new_name]
    present = _present(call, partitioned, names)
    places = partitioned.places
    begun: list[PartitionMove] = []
    if old_name in present and partitioned.table.kind is TableKind.MANAGED:
        # Where the files are before they move.
        old = present[old_name].as_(PartitionRow)
        quick, place = QuickStatistics(call.folders, None), partitioned.place(old)
        counted = quick.of_altered(new.parameters, place, old=old.parameters)
        new = replace(new, parameters=counted)
        if new_name not in present and places.is_own(present[old_name]):
            begun.append(PartitionMove(new_name, present[old_name].row_id, old.location))
    changing = store.change(table_id, author=call.user)
    with places.undone_by(store.sql_store, begun), changing as change:
        places.require_present(change)
        rows = change.visible(RowKind.PARTITION, names)
        if old_name not in rows:
            raise IllegalChange("Unable to rename partition because old partition does not exist")
        if new_name in rows:
            table_name = f"{partitioned.schema}.{partitioned.table.name.lower()}"
            shown = f"{table_name}.[{', '.join(new.values)}]"
            raise IllegalChange(f"Partition already exists:{shown}")
        places.return_folders(change, [rows[old_name]], except_for=new_name)
        old = rows[old_name].as_(PartitionRow)
        renamed_row = replace(_with_unsent(new, partition, old), location=old.location)
        if places.is_own(rows[old_name]):
            undo = PartitionMove(new_name, rows[old_name].row_id, old.location)
            places.require_begun(change, [undo])
            renamed_row = replace(renamed_row, location=new_name)
        before = [rows[old_name], *change.visible(RowKind.STATISTICS, [old_name]).values()]
        after = [NewRow.of(row.content, name=new_name) for row in before[1:]]
        renamed = [*stored_rows(call, partitioned, {new_name: renamed_row}, change), *after]
        row_id, *_ = change.stage_each([(renamed, [row.row_id for row in before])])
        if renamed_row.location != old.location:
            change.record_moves(
                PartitionMove(old.location, rows[old_name].row_id, renamed_row.location, row_id)
            )
            moves = FolderMoves(call.folders, change.if_undone)
            _move_folder(call, partitioned, old, renamed_row, moves)
            moves.sync()


def _move_folder(
    call: Call,
    partitioned: Partitioned,
    before: PartitionRow,
    after: PartitionRow,
    moves: FolderMoves,
) -> None:
    """Move the folder of a partition, or make it if none existed."""
    old, new = partitioned.place(before), partitioned.place(after)
    try:
        call.folders.verify_below(old, table=partitioned.location)
        call.folders.verify_below(new, table=partitioned.location)
        outcome = moves.move(old, new)
    except FolderRefused as refused:
        raise IllegalChange(f"the partition cannot be renamed: {refused.message}") from refused
    if outcome is Moved.MISSING:
        moves.make(new)
