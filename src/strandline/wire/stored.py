"""An object in its stored form, as bytes, decoded on first access.

A catalog of 100,000 tables that decodes every table at startup takes ten times the time and five
times the memory of one that keeps the bytes. With the bytes, a snapshot or a dump of the catalog is
a concatenation. So an object in memory *is* its record. Only the keys (id, parent, name, group) are
read at once; `Stored.value` decodes the rest and keeps the result. The bytes stay exactly as they
were read or written, because removing the object requires exactly these bytes.

The same record occurs several times within a short time: the commit that writes a table encodes it,
the log delivers the bytes back, and retained older versions may contain them too. Values are
immutable and equal bytes mean equal objects. So recently decoded bytes return the same object again
(`RecentValues`).

What must stay true: the cache of recent values is bounded by the bytes of their records (a decoded
table takes some ten times its record), and a lookup takes no lock. So the cache has two
generations. New values go to the younger generation. When that is full, it becomes the older one,
and the previous older one is discarded. A hit in the older generation moves the value to the
younger.

Rejected: exact LRU order, because every read would write; weak references, because every descriptor
would need a slot for them.
"""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

from strandline.clock import Timestamp
from strandline.wire.codecs import TEXT, uint_bytes
from strandline.wire.registry import decode, encode, is_newest, naming, open_record

NEVER_UPDATED = Timestamp(0)
MAX_GENERATION_BYTES = 1 << 20
MAX_RECORD_BYTES = MAX_GENERATION_BYTES // 16
"""A larger record is not cached, because it would evict too many others."""

T = TypeVar("T")


class RecentValues:
    """A cache of recently decoded values, by the bytes of their records. Thread-safe."""

    def __init__(self, *, generation_bytes: int = MAX_GENERATION_BYTES) -> None:
        self._limit = generation_bytes
        self._young: dict[bytes, Any] = {}  # Any: values of every registered class
        self._old: dict[bytes, Any] = {}
        self._young_bytes = 0
        self._lock = threading.Lock()

    def get(self, data: bytes) -> Any:  # Any: the class is named in the bytes
        """Return the value of the record ``data``, or None if it is not cached."""
        value = self._young.get(data)
        if value is None:
            value = self._old.get(data)
            if value is not None:
                self.add(data, value)
        return value

    def add(self, data: bytes, value: object) -> None:
        """Cache ``value`` for the record ``data``."""
        if len(data) > MAX_RECORD_BYTES:
            return
        with self._lock:
            if data in self._young:
                return
            if self._young_bytes + len(data) > self._limit:
                self._old, self._young, self._young_bytes = self._young, {}, 0
            self._young[data] = value
            self._young_bytes += len(data)

    def forget(self) -> None:
        """Clear the cache, so that the next access to each record decodes it."""
        with self._lock:
            self._old, self._young, self._young_bytes = {}, {}, 0


RECENT = RecentValues()
"""The cache of this process."""


class Stored(Generic[T]):
    """A stored object of the class ``of``. Objects with equal bytes are equal.

    ``group`` is the id after the name, in kinds that are looked up by it, and 0 in all others.
    ``updated`` is the time of the update that wrote the object, or 0 until a log sets it. It is not
    part of the bytes, so equal objects may differ in it.
    """

    __slots__ = ("_class", "_value", "data", "group", "id", "name", "parent", "updated")

    def __init__(self, data: bytes, of: type[T], *, has_id: bool, has_group: bool = False) -> None:
        layout, reader = open_record(data)
        if layout.of is not of:
            raise reader.corrupt(
                f"found a {layout.of.__name__} record where a {of.__name__} record was expected"
            )
        self.data = data
        self.id = reader.uint() if has_id else 0
        self.parent = reader.uint() if has_id else 0
        self.name = TEXT.read(reader)
        self.group = reader.uint() if has_group else 0
        self.updated = NEVER_UPDATED
        self._class = of
        self._value: T | None = None

    @classmethod
    def of_value(
        cls, value: T, *, has_id: bool, has_group: bool = False, record: bytes | None = None
    ) -> Stored[T]:
        """Return the stored form of ``value``, in the newest format.

        It reuses ``record``, from which ``value`` was decoded, if that has the newest format.
        """
        data = record if record is not None and is_newest(record) else encode(value)
        stored = cls(data, type(value), has_id=has_id, has_group=has_group)
        stored._value = value
        RECENT.add(data, value)
        return stored

    def may_have_id(self, number: int) -> bool:
        """Whether the record may have ``number`` among its ids. If not, that is certain.

        It looks for the bytes of the id and decodes nothing. (The position of an id is known only
        after the fields before it are decoded.) An id below 128 is a single byte, which many
        records contain by chance.
        """
        return uint_bytes(number) in self.data

    @property
    def value(self) -> T:
        value = self._value
        if value is None:
            value = RECENT.get(self.data)
            if value is None:
                with_id = f" with id {self.id}" if self.id else ""
                with naming(f"the {self._class.__name__} {self.name!r}{with_id}"):
                    value = decode(self.data, self._class)
                RECENT.add(self.data, value)
            self._value = value
        return value

    def forget(self) -> None:
        """Keep only the bytes. The next access decodes them again."""
        self._value = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<stored {self._class.__name__} {self.name!r} id={self.id} {len(self.data)} bytes>"


AnyStored = Stored[Any]  # Any: collections contain objects of several kinds
