"""The state file: the contents of a node's cache, kept for its next start.

The model. A state is a `CachedStore.snapshot`: the last applied event of the notification log, and
replicas that reflect the log up to it. A node that starts loads them, applies the events since, and
only then answers. From then on they are replicas like all others. So the node never returns older
data than if it had kept running.

The file only saves time. The node uses it if all of the following holds; otherwise it logs one line
with the reason, and starts with an empty cache:

* its version, and the release that wrote it, are those of this program: no release reads the file
  of another;
* it belongs to this store: environment, fence token, and the whole last event are equal, and the
  log still has that event. A store that was restored from an older backup has another event under
  that number, or none. If the log was cleaned beyond the event, the events since are unknown;
* every checksum is right, the end is there, and it is not much larger than the node's memory;
* there were at most `MAX_EVENTS` events since: applying more takes longer than loading the tables
  that are read.

A table that was cleaned since is left out.

::

    file     = magic (7 bytes) version (1 byte) frame(head as JSON) frame(replica) … frame(nothing)
    frame    = length (4 bytes) CRC-32 (4 bytes) content
    replica  = head (one line) text (more lines) bodies of all rows

The lines of a replica are JSON. Its head has what is known of a packed replica, and the length of
the text. The text has the rest of the replica, its removals, and the columns of all rows, a line
for `_STEP` rows. They are not one line: no other thread runs while a line is read or written.

A new file is written beside the old one, and renamed when complete. It is not synced: if a power
cut damages it, a checksum is wrong. Several nodes of one folder share the file, and any of them may
write it: they would all write the same. If a node dies while it writes, a later writer deletes its
file after an hour.

**Packed replicas.** A row as an object takes more memory than its bytes, and takes longer to make
than the bytes take to copy. Most tables in a node's memory are not read in its first minutes. So a
`PackedReplica` keeps its bytes until the first use of the table, when a `Replica` is made from it.
One that was never used is written again unchanged.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO
from zlib import crc32

from strandline import __version__
from strandline.clock import Timestamp, system_wall_clock
from strandline.errors import CorruptData, StrandlineError
from strandline.fencing import FenceToken
from strandline.files import give_to_owner
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.replica_set import HeldReplica
from strandline.metastore.cache.replicas import Replica
from strandline.metastore.store.notifications import Notification
from strandline.metastore.store.rows import Row, RowKind
from strandline.metastore.store.table_contents import LeftOut, TableContents
from strandline.transactions import ValidWriteIdList

logger = logging.getLogger(__name__)

MAGIC, VERSION = b"strcach", 3
MAX_EVENTS = 10_000
TIMES_MEMORY = 2
"""The largest file that is read, in multiples of the node's memory."""
LEFTOVER_SECONDS = 3_600
PART_BYTES = 100_000
"""A part of the file, for `StateFile.write`, ends with the replica that brings it to this size."""
_STEP = 500
_KINDS = {kind.value: kind for kind in RowKind}
_TABLE_BYTES = 300
"""The size of a packed replica without its bytes."""
_FRAME = struct.Struct("<II")
_SUFFIX = ".new"

Head = Mapping[str, object]


class _Ignored(Exception):
    """The file is not used; the message is the reason."""


class StateFile:
    """The state of ``cache`` in the file ``path``, which is made with the permission bits ``mode``.

    ``token`` returns the present fence token of this node.
    """

    def __init__(
        self,
        path: Path,
        cache: CachedStore,
        *,
        environment: str,
        token: Callable[[], FenceToken],
        memory_bytes: int,
        mode: int = 0o600,
    ) -> None:
        self.path = path
        self._cache = cache
        self._notifications = cache.sql_store.notifications
        self._environment = environment
        self._token = token
        self._memory_bytes = memory_bytes
        self._mode = mode
        self._written: tuple[int, int] | None = None

    def load(self) -> bool:
        """Load the file and apply the events since; return False if the file is not used.

        Only for a node that does not answer yet. Raises `Unavailable` if the log cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                event_id, replicas = self._read(file)
        except FileNotFoundError:
            return False
        except (_Ignored, CorruptData, OSError, ValueError) as reason:
            logger.warning("the cache file %s is ignored: %s", self.path, reason)
            return False
        self._cache.log_applier.restore(event_id, replicas)
        self._written = event_id, self._cache.statistics().loads
        logger.info("loaded %d tables from the cache file %s", len(replicas), self.path)
        return True

    def write(self, *, between: Callable[[], object] = lambda: None) -> bool:
        """Write the state if it has changed; return whether it was written.

        A part of the file takes some milliseconds; ``between`` is called after each.
        """
        loads = self._cache.statistics().loads  # before, so that a load meanwhile counts as new
        event_id, replicas = self._cache.snapshot()
        now = event_id, loads
        if now == self._written or not replicas:
            return False
        try:
            event = self._event(event_id)
            if event is None:
                return False  # the log was cleaned up to here: a start could not continue after it
            head = json.dumps(self._head(event)).encode()
            self._replace(chain((head,), _packed_in_parts(replicas, between)))
        except (StrandlineError, OSError):
            logger.warning("the cache file %s cannot be written", self.path, exc_info=True)
            return False
        self._written = now
        return True

    # -- reading

    def _read(self, file: BinaryIO) -> tuple[int, list[PackedReplica]]:
        if os.fstat(file.fileno()).st_size > TIMES_MEMORY * self._memory_bytes:
            raise _Ignored("it is larger than the memory of this node")
        begin = file.read(len(MAGIC) + 1)
        if begin != _BEGIN:
            raise _Ignored(f"it begins with {begin[:16]!r}, but this release writes {_BEGIN!r}")
        frames = _frames(file)
        event_id = self._accepted(next(frames, b""))
        replicas = list(map(PackedReplica.read, frames))
        cleaned = self._cache.sql_store.cleaned_tables()
        return event_id, [
            replica
            for replica in replicas
            if cleaned.get(replica.table_id, 0) <= (replica.left_out_up_to or 0)
        ]

    def _accepted(self, data: bytes) -> int:
        """The last event of the head in ``data``. Raises `_Ignored` if the head is not accepted."""
        if not data:
            raise _Ignored("it is empty")
        head = json.loads(data)
        release = head.get("release")
        if release != __version__:
            raise _Ignored(f"release {release} wrote it, but this is release {__version__}")
        described = head.get("event") or [0]
        event = self._event(described[0])
        if event is None or self._head(event) != head:
            raise _Ignored(
                "it belongs to another store, is older than the notification log, or was written "
                "before another node took the store over or before the store was restored"
            )
        behind = self._notifications.head() - event.event_id
        if behind > MAX_EVENTS:
            raise _Ignored(f"{behind} events were written since, more than {MAX_EVENTS}")
        return event.event_id

    def _event(self, event_id: int) -> Notification | None:
        events = self._notifications.read(event_id - 1, limit=1)
        return events[0] if events and events[0].event_id == event_id else None

    def _head(self, event: Notification) -> Head:
        token = self._token()
        return {
            "release": __version__,
            "environment": self._environment,
            "token": [token.deploy_generation, token.epoch],
            "event": [*event[:-1], crc32(event.body)],
        }

    # -- writing

    def _replace(self, frames: Iterable[bytes]) -> None:
        self._delete_leftovers()
        new = self.path.with_name(f"{self.path.name}.{token_hex(4)}{_SUFFIX}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        try:
            with open(descriptor, "wb") as file:
                give_to_owner(descriptor, of=self.path.parent)
                file.write(_BEGIN)
                for frame in frames:
                    file.write(_FRAME.pack(len(frame), crc32(frame)))
                    file.write(frame)
                file.write(_END)
            new.replace(self.path)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise

    def _delete_leftovers(self) -> None:
        for leftover_file in self.path.parent.glob(f"{self.path.name}.*{_SUFFIX}"):
            with suppress(OSError):  # its writer may finish meanwhile
                if system_wall_clock() / 1000 - leftover_file.stat().st_mtime > LEFTOVER_SECONDS:
                    leftover_file.unlink()


_BEGIN = MAGIC + bytes([VERSION])
_END = _FRAME.pack(0, 0)


def _packed_in_parts(
    replicas: Iterable[HeldReplica], between: Callable[[], object]
) -> Iterator[bytes]:
    size = 0
    for packed in pack(replicas):
        yield packed
        size += len(packed)
        if size >= PART_BYTES:
            between()
            size = 0
    between()


def _frames(file: BinaryIO) -> Iterator[bytes]:
    """The contents of all frames except the empty last one. Raises `_Ignored`."""
    file_bytes = os.fstat(file.fileno()).st_size
    while True:
        sizes = file.read(_FRAME.size)
        if len(sizes) < _FRAME.size:
            raise _Ignored("it was cut short")
        length, checksum = _FRAME.unpack(sizes)
        content = file.read(min(length, file_bytes))
        if len(content) < length or crc32(content) != checksum:
            raise _Ignored("a checksum in it does not match")
        if not length:
            break
        yield content
    if file.read(1):
        raise _Ignored("there are bytes after its end")


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
