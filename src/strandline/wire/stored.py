"""An object as the bytes it is stored as, decoded at the first touch.

A catalog of 100,000 tables that decodes each at start takes ten times the time and five times the
memory of one that keeps the bytes; a snapshot or a dump of it is then a concatenation. So an object
in memory *is* its record. Only what finds it (id, parent, name, group) is read out at once;
`value` decodes the rest and keeps it, and gives the same object for the same bytes while these are
remembered (`strandline.wire.recent`). The bytes are those that were read or written, and stay so:
the object is removed by naming exactly these bytes.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from strandline.clock import Timestamp
from strandline.wire.codecs import TEXT
from strandline.wire.recent import RECENT
from strandline.wire.registry import decode, encode, open_record

T = TypeVar("T")

NEVER_UPDATED = Timestamp(0)


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
    def of_value(cls, value: T, *, has_id: bool, has_group: bool = False) -> Stored[T]:
        """The stored form of ``value``, in the newest format."""
        stored = cls(encode(value), type(value), has_id=has_id, has_group=has_group)
        stored._value = value
        RECENT.add(stored.data, value)
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
