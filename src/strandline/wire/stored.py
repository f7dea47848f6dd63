"""An object as the bytes it is stored as, decoded at the first touch.

A catalog of 100,000 tables that decodes each at start takes ten times the time and five times the
memory of one that keeps the bytes; a snapshot or a dump of it is then a concatenation. So an object
in memory *is* its record. Only what finds it (id, parent, name) is read out at once; `value`
decodes the rest and keeps it. The bytes are those that were read or written, and stay so: the
object is removed by naming exactly these bytes.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from strandline.wire.codecs import TEXT
from strandline.wire.registry import decode, encode, open_record

T = TypeVar("T")


class Stored(Generic[T]):
    """One object of a kind whose class is ``of``. Equal bytes are equal objects."""

    __slots__ = ("_of", "_value", "data", "id", "name", "parent")

    def __init__(self, data: bytes, of: type[T], *, has_id: bool) -> None:
        found, reader = open_record(data)
        if found.of is not of:
            raise reader.corrupt(f"a {found.of.__name__} record where a {of.__name__} belongs")
        self.data = data
        self.id = reader.uint() if has_id else 0
        self.parent = reader.uint() if has_id else 0
        self.name = TEXT.read(reader)
        self._of = of
        self._value: T | None = None

    @classmethod
    def of_value(cls, value: T, *, has_id: bool) -> Stored[T]:
        """The stored form of ``value``, in the newest format."""
        stored = cls(encode(value), type(value), has_id=has_id)
        stored._value = value
        return stored

    @property
    def value(self) -> T:
        """The decoded object."""
        if self._value is None:
            self._value = decode(self.data, self._of)
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<stored {self._of.__name__} {self.name!r} id={self.id} {len(self.data)} bytes>"


AnyStored = Stored[Any]  # Any: a collection of several kinds holds them side by side
