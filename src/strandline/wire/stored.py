"""An object as the bytes it is stored as, decoded at the first touch.

A catalog of 100,000 tables that decodes each at start takes ten times the time and five times the
memory of one that keeps the bytes; a snapshot or a dump of it is then a concatenation. So an object
in memory *is* its record. Only what finds it (id, parent, name, group) is read out at once;
`Stored.value` decodes the rest and keeps it. The bytes are those that were read or written, and
stay so: the object is removed by naming exactly these bytes.

The same record is met several times within a short while: the commit that wrote a table encodes it,
the log delivers these bytes back, and each older version that is kept may hold them too. Values are
immutable and equal bytes are equal objects, so bytes that were decoded lately give the same object
again (`RecentValues`).

What must stay true: the memory of recent values is bounded by the bytes of their records (a decoded
table is some ten times its record), and a look-up takes no lock. So there are two generations. New
values go to the younger one; when it is full, it becomes the older one, and the previous older one
is forgotten. A hit in the older one moves to the younger. Rejected: an exact order of use, which
would write at every read; and weak references, which would give every descriptor a slot for them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from strandline.clock import Timestamp
from strandline.wire.codecs import TEXT
from strandline.wire.registry import decode, encode, is_newest, open_record

NEVER_UPDATED = Timestamp(0)
MAX_GENERATION_BYTES = 1 << 20
MAX_RECORD_BYTES = MAX_GENERATION_BYTES // 16
"""A larger record is not remembered: it would drive out too many others."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecentStatistics:
    """How many values are remembered, and the bytes of their records."""

    values: int
    bytes: int


class RecentValues:
    """The values of records that were decoded lately, by their bytes. Safe for threads."""

    def __init__(self, *, generation_bytes: int = MAX_GENERATION_BYTES) -> None:
        self._limit = generation_bytes
        self._young: dict[bytes, Any] = {}  # Any: values of every registered class
        self._old: dict[bytes, Any] = {}
        self._young_bytes = 0
        self._old_bytes = 0
        self._lock = threading.Lock()

    def get(self, data: bytes) -> Any:  # Any: the class is named in the bytes
        """The value of the record ``data``, or None where it is not remembered."""
        value = self._young.get(data)
        if value is None:
            value = self._old.get(data)
            if value is not None:
                self.add(data, value)
        return value

    def add(self, data: bytes, value: object) -> None:
        """Remember that the record ``data`` is ``value``."""
        if len(data) > MAX_RECORD_BYTES:
            return
        with self._lock:
            if data in self._young:
                return
            if self._young_bytes + len(data) > self._limit:
                self._old, self._old_bytes = self._young, self._young_bytes
                self._young, self._young_bytes = {}, 0
            self._young[data] = value
            self._young_bytes += len(data)

    def forget(self) -> None:
        """Forget everything, so that the next touch of each record decodes it."""
        with self._lock:
            self._young, self._young_bytes = {}, 0
            self._old, self._old_bytes = {}, 0

    def statistics(self) -> RecentStatistics:
        """What is remembered now; a value in both generations counts twice."""
        with self._lock:
            return RecentStatistics(
                len(self._young) + len(self._old), self._young_bytes + self._old_bytes
            )


RECENT = RecentValues()
"""Those of this process."""


class Stored(Generic[T]):
    """One object of a kind whose class is ``of``. Equal bytes are equal objects.

    ``group`` is the id behind the name, in kinds that are looked up by it; 0 in all others.
    ``updated`` is the time of the update that wrote the object, 0 as long as no log has given one.
    It stands beside the bytes, so equal objects may differ in it.
    """

    __slots__ = ("_of", "_value", "data", "group", "id", "name", "parent", "updated")

    def __init__(self, data: bytes, of: type[T], *, has_id: bool, has_group: bool = False) -> None:
        layout, reader = open_record(data)
        if layout.of is not of:
            raise reader.corrupt(f"a {layout.of.__name__} record where a {of.__name__} belongs")
        self.data = data
        self.id = reader.uint() if has_id else 0
        self.parent = reader.uint() if has_id else 0
        self.name = TEXT.read(reader)
        self.group = reader.uint() if has_group else 0
        self.updated = NEVER_UPDATED
        self._of = of
        self._value: T | None = None

    @classmethod
    def of_value(
        cls, value: T, *, has_id: bool, has_group: bool = False, record: bytes | None = None
    ) -> Stored[T]:
        """The stored form of ``value``, in the newest format.

        It is ``record``, which ``value`` was decoded from, if that has this format.
        """
        data = record if record is not None and is_newest(record) else encode(value)
        stored = cls(data, type(value), has_id=has_id, has_group=has_group)
        stored._value = value
        RECENT.add(data, value)
        return stored

    @property
    def value(self) -> T:
        """The decoded object."""
        value = self._value
        if value is None:
            value = RECENT.get(self.data)
            if value is None:
                value = decode(self.data, self._of)
                RECENT.add(self.data, value)
            self._value = value
        return value

    def forget(self) -> None:
        """Keep the bytes alone; the next touch decodes them again."""
        self._value = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<stored {self._of.__name__} {self.name!r} id={self.id} {len(self.data)} bytes>"


AnyStored = Stored[Any]  # Any: a collection of several kinds holds them side by side
