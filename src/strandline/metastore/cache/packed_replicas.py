"""Packed replicas: replicas as columns, so that they are written and read in bulk.

A row as an object takes more memory than its bytes, and takes longer to make than the bytes take to
copy. Most tables in a node's memory are not read in its first minutes. So a state is a sequence of
*groups*, each with the Arrow columns of some hundred tables. A table in a group is a
`PackedReplica`: a range of the group's rows, from which a `Replica` is made at its first use. A
packed replica that was never used is written again by copying its range.

A group is three record batches of fixed schemas, as consecutive IPC messages: tables (with their
numbers of rows and removals), rows, and removals. Its memory is freed when the last of its tables
is unpacked or evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, starmap

import pyarrow as pa

from strandline.clock import Timestamp
from strandline.errors import CorruptData
from strandline.metastore.cache.replica_set import HeldReplica
from strandline.metastore.cache.replicas import Replica
from strandline.metastore.store.file_columns import binaries, numbers, texts
from strandline.metastore.store.rows import Removal, Row, RowKind
from strandline.metastore.store.table_contents import LeftOut, TableContents
from strandline.transactions import ValidWriteIdList

GROUP_ROWS, GROUP_TABLES = 2_000, 2_000
"""A group ends with the table that brings it to this many rows or tables."""

_INT, _TEXT = pa.int64(), pa.string()
TABLES = pa.schema(
    {
        "table_id": _INT,
        "event_id": _INT,
        "rows": _INT,
        "removals": _INT,
        "committed": _TEXT,
        "left_out_up_to": _INT,
        "left_out": _TEXT,
    }
)
ROWS = pa.schema(
    {
        "row_id": _INT,
        "kind": _INT,
        "bucket": _INT,
        "name": _TEXT,
        "write_id": _INT,
        "body": pa.binary(),
    }
)
REMOVALS = pa.schema({"row_id": _INT, "write_id": _INT})
_KINDS = {kind.value: kind for kind in RowKind}
_TABLE_BYTES = 500
"""The size of a packed replica without its rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The tables of a group, and their rows and removals, concatenated in the same order."""

    tables: pa.RecordBatch
    rows: pa.RecordBatch
    removals: pa.RecordBatch

    @classmethod
    def read(cls, data: bytes) -> Group:
        """The group that `write` wrote as ``data``. Raises `CorruptData`."""
        source = pa.BufferReader(data)
        try:
            batches = [
                pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
                for schema in (TABLES, ROWS, REMOVALS)
            ]
        except (pa.ArrowException, EOFError, OSError) as error:
            raise CorruptData(f"a group in it cannot be read: {error}") from error
        return cls(*batches)

    def write(self) -> bytes:
        """The bytes of the group, for `read`."""
        return b"".join(
            bytes(batch.serialize()) for batch in (self.tables, self.rows, self.removals)
        )

    def replicas(self) -> Iterator[PackedReplica]:
        """The tables of the group. Raises `CorruptData`."""
        row = removal = 0
        bytes_per_row = self.rows.nbytes // max(1, self.rows.num_rows)
        columns = (self.tables.column(name).to_pylist() for name in _OF_REPLICA)
        for place, (table_id, rows, removals, up_to) in enumerate(zip(*columns, strict=True)):
            size = _TABLE_BYTES + rows * bytes_per_row + removals * 16
            left_out_up_to = None if up_to is None else Timestamp(up_to)
            yield PackedReplica(
                table_id, rows, size, left_out_up_to, self, place, row, removal, removals
            )
            row, removal = row + rows, removal + removals
        if (row, removal) != (self.rows.num_rows, self.removals.num_rows):
            raise CorruptData("the rows of a group in it do not match the counts of its tables")


_OF_REPLICA = ("table_id", "rows", "removals", "left_out_up_to")


@dataclass(frozen=True, slots=True, eq=False)
class PackedReplica:
    """See the module. ``left_out_up_to`` is the time in `Replica.left_out`."""

    table_id: int
    rows: int
    size: int
    left_out_up_to: Timestamp | None
    group: Group = field(repr=False)
    place: int
    first_row: int
    first_removal: int
    removals: int

    def unpacked(self) -> Replica:
        """The unpacked replica. Raises `CorruptData`, `InvalidInput`."""
        tables = self.group.tables
        of_table = tables.slice(self.place, 1).to_pylist()[0]
        left_out = None
        if self.left_out_up_to is not None:
            left_out = LeftOut(self.left_out_up_to, ValidWriteIdList.parse(of_table["left_out"]))
        contents = TableContents(
            rows=tuple(self._rows()),
            removals=tuple(self._removals()),
            committed=ValidWriteIdList.parse(of_table["committed"]),
            event_id=of_table["event_id"],
            left_out=left_out,
        )
        return Replica.of(contents, table_id=self.table_id)

    def _rows(self) -> Iterator[Row]:
        rows = self.group.rows.slice(self.first_row, self.rows)
        columns = (column.to_pylist() for column in rows.columns)
        for row_id, kind, bucket, name, write_id, body in zip(*columns, strict=True):
            if kind not in _KINDS:
                raise CorruptData(f"row {row_id} of table {self.table_id} has the kind {kind}")
            yield Row(row_id, self.table_id, _KINDS[kind], bucket, name, write_id, body)

    def _removals(self) -> Iterator[Removal]:
        removals = self.group.removals.slice(self.first_removal, self.removals)
        row_ids, write_ids = (column.to_pylist() for column in removals.columns)
        for row_id, write_id in zip(row_ids, write_ids, strict=True):
            yield Removal(row_id, self.table_id, write_id)


def pack(replicas: Iterable[HeldReplica]) -> Iterator[Group]:
    """Yield the replicas in groups, in order, without those that lack some zone partitions.

    Each step of the iteration packs one group.
    """
    run: list[HeldReplica] = []
    rows = 0
    for replica in replicas:
        if isinstance(replica, Replica) and replica.zone_partitions is not None:
            continue
        run.append(replica)
        rows += replica.rows
        if rows >= GROUP_ROWS or len(run) >= GROUP_TABLES:
            yield _group(run)
            run, rows = [], 0
    if run:
        yield _group(run)


def _group(replicas: Sequence[HeldReplica]) -> Group:
    parts = list(starmap(_part, _runs(replicas)))
    return Group(*(_joined(batches) for batches in zip(*parts, strict=True)))


def _runs(replicas: Sequence[HeldReplica]) -> Iterator[tuple[HeldReplica, list[HeldReplica]]]:
    """Yield runs of replicas that are consecutive in one group, or not packed, with the first."""
    run: list[HeldReplica] = []
    for replica in replicas:
        if run and not _continues_run(run[-1], replica):
            yield run[0], run
            run = []
        run.append(replica)
    yield run[0], run


def _continues_run(before: HeldReplica, replica: HeldReplica) -> bool:
    if isinstance(before, PackedReplica) and isinstance(replica, PackedReplica):
        return replica.group is before.group and replica.place == before.place + 1
    return isinstance(before, Replica) and isinstance(replica, Replica)


def _part(first: HeldReplica, run: Sequence[HeldReplica]) -> tuple[pa.RecordBatch, ...]:
    if isinstance(first, PackedReplica):
        group, rows = first.group, sum(replica.rows for replica in run)
        removals = sum(of.removals for of in run if isinstance(of, PackedReplica))
        return (
            group.tables.slice(first.place, len(run)),
            group.rows.slice(first.first_row, rows),
            group.removals.slice(first.first_removal, removals),
        )
    return _columns([replica for replica in run if isinstance(replica, Replica)])


def _columns(replicas: Sequence[Replica]) -> tuple[pa.RecordBatch, ...]:
    """The batches of replicas that are not packed."""
    writes = [list(replica.writes.items()) for replica in replicas]
    rows = [row for of_table in writes for _, write in of_table for row in write.rows]
    removals = [
        [(row_id, write_id) for write_id, write in of_table for row_id in write.removed]
        for of_table in writes
    ]
    row_ids, _, kinds, buckets, names, write_ids, bodies = (
        zip(*rows, strict=True) if rows else ((),) * 7
    )
    left_out = [replica.left_out for replica in replicas]
    tables = [
        numbers([replica.table_id for replica in replicas]),
        numbers([replica.event_id for replica in replicas]),
        numbers([replica.rows for replica in replicas]),
        numbers(list(map(len, removals))),
        texts([str(replica.committed) for replica in replicas]),
        numbers([None if of is None else of.up_to for of in left_out]),
        texts([None if of is None else str(of.write_ids) for of in left_out]),
    ]
    of_rows = [
        numbers(row_ids),
        numbers([kind.value for kind in kinds]),
        numbers(buckets),
        texts(names),
        numbers(write_ids),
        binaries(bodies),
    ]
    flat = list(chain.from_iterable(removals))
    of_removals = [
        numbers([row_id for row_id, _ in flat]),
        numbers([write_id for _, write_id in flat]),
    ]
    return (
        pa.RecordBatch.from_arrays(tables, schema=TABLES),
        pa.RecordBatch.from_arrays(of_rows, schema=ROWS),
        pa.RecordBatch.from_arrays(of_removals, schema=REMOVALS),
    )


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    whole = table.to_batches()
    return whole[0] if whole else batches[0]
