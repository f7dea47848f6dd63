"""The values that were decoded lately, by their bytes.

The same record is met several times within a short while: the commit that wrote a table encodes it,
the log delivers these bytes back, and each older version that is kept may hold them too. Values are
immutable and equal bytes are equal objects, so the value of bytes that were decoded before is the
same object, without decoding them again.

What must stay true: the memory is bounded by the bytes of the records in it (a decoded table is
some ten times its record), and a look-up takes no lock. So there are two generations: what is new
goes to the younger; when that is full it becomes the older, and what was the older is forgotten; a
hit in the older moves to the younger. Rejected: an exact order of use, which would write at every
read; and weak references, which would give every descriptor a slot for them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

MAX_GENERATION_BYTES = 1 << 20
MAX_RECORD_BYTES = MAX_GENERATION_BYTES // 16
"""A larger record is not remembered: it would drive out too many others."""


@dataclass(frozen=True, slots=True)
class RecentStatistics:
    """How many values are remembered, and the bytes of their records."""

    values: int
    bytes: int


class RecentValues:
    """See the module. For any number of threads."""

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
