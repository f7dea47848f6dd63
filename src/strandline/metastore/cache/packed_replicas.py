"""Packed replicas: replicas as bytes, so that they are written and read in bulk.

A row as an object takes more memory than its bytes, and takes longer to make than the bytes take to
copy. Most tables in a node's memory are not read in its first minutes. So a replica is stored as
one byte string. A `PackedReplica` keeps the string until the first use of the table, when a
`Replica` is made from it. A packed replica that was never used is written again unchanged.

::

    packed = head (one line) text (more lines) bodies of all rows

The lines are JSON. The head has what is known of a packed replica, and the length of the text. The
text has the rest of the replica, its removals, and the columns of all rows, a line for `_STEP`
rows. They are not one line: no other thread runs while a line is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, repeat

from strandline.clock import Timestamp
from strandline.metastore.cache.replica_set import HeldReplica
from strandline.metastore.cache.replicas import Replica
from strandline.metastore.store.rows import Row, RowKind
from strandline.metastore.store.table_contents import LeftOut, TableContents
from strandline.transactions import ValidWriteIdList

_STEP = 500
_KINDS = {kind.value: kind for kind in RowKind}
_TABLE_BYTES = 300
"""The size of a packed replica without its bytes."""

_line = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, eq=False)
class PackedReplica:
    """See the module. ``left_out_up_to`` is the time in `Replica.left_out`.

    The text begins at ``text`` in ``data``, and the bodies begin at ``bodies``.
    """

    table_id: int
    rows: int
    left_out_up_to: Timestamp | None
    data: bytes = field(repr=False)
    text: int
    bodies: int

    @classmethod
    def read(cls, data: bytes) -> PackedReplica:
        """The replica that `pack` packed as ``data``. Raises `ValueError`."""
        text = data.index(b"\n") + 1
        table_id, rows, up_to, length = json.loads(data[:text])
        left_out_up_to = None if up_to is None else Timestamp(up_to)
        return cls(table_id, rows, left_out_up_to, data, text, text + length)

    @property
    def size(self) -> int:
        return _TABLE_BYTES + len(self.data)

    def unpacked(self) -> Replica:
        """The unpacked replica. Raises an error of any kind if the data is invalid."""
        rest, removals, *columns = self.data[self.text : self.bodies].split(b"\n")
        event_id, committed, left_out_list = json.loads(rest)
        left_out = None
        if self.left_out_up_to is not None:
            left_out = LeftOut(self.left_out_up_to, ValidWriteIdList.parse(left_out_list))
        contents = TableContents(
            rows=tuple(self._rows(columns)),
            removals=tuple(map(tuple, json.loads(removals))),
            committed=ValidWriteIdList.parse(committed),
            event_id=event_id,
            left_out=left_out,
        )
        return Replica.of(contents, table_id=self.table_id)

    def _rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        at = self.bodies
        for line in lines:
            row_ids, kind_numbers, buckets, names, write_ids, sizes = json.loads(line)
            ends = list(accumulate(sizes, initial=at))
            at = ends[-1]
            bodies = [self.data[begin:end] for begin, end in pairwise(ends)]
            kinds = map(_KINDS.__getitem__, kind_numbers)
            table_ids = repeat(self.table_id)
            yield from map(Row, row_ids, table_ids, kinds, buckets, names, write_ids, bodies)


def pack(replicas: Iterable[HeldReplica]) -> Iterator[bytes]:
    """Yield the bytes of each replica, in order, without those that lack some zone partitions.

    `PackedReplica.read` reads them.
    """
    for replica in replicas:
        if isinstance(replica, PackedReplica):
            yield replica.data
        elif isinstance(replica, Replica) and replica.zone_partitions is None:
            yield _packed(replica)


def _packed(replica: Replica) -> bytes:
    rows = [row for write in replica.writes.values() for row in write.rows]
    removals = [
        (row_id, write_id) for write_id, write in replica.writes.items() for row_id in write.removed
    ]
    up_to, left_out_list = None, None
    if replica.left_out is not None:
        up_to, left_out_list = replica.left_out.up_to, str(replica.left_out.write_ids)
    lines = [_line((replica.event_id, str(replica.committed), left_out_list)), _line(removals)]
    for start in range(0, len(rows), _STEP):
        row_ids, _, kinds, buckets, names, write_ids, bodies = zip(
            *rows[start : start + _STEP], strict=True
        )
        kind_numbers = [kind.value for kind in kinds]
        sizes = list(map(len, bodies))
        lines.append(_line((row_ids, kind_numbers, buckets, names, write_ids, sizes)))
    text = "\n".join(lines).encode()
    head = _line((replica.table_id, replica.rows, up_to, len(text)))
    return b"".join((head.encode(), b"\n", text, *(row.body for row in rows)))
