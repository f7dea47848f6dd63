"""Answers that are kept encoded, for as long as they are right.

A kept answer belongs to the bytes of its request and to a *mark* (`Metastore.mark`): it stays the
same exactly while answers about the present do. The mark is taken before the answer is made. A
request that finds the mark unchanged would get the same answer again, and the mark costs
microseconds. A commit of anyone makes every kept answer useless, and the next request
for each makes it anew; that is the price of needing no list of what an answer depends on.

The memory is bounded in bytes; the answers that were unused longest go first. For the event loop
alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

_OVERHEAD = 200
"""Bytes that an entry takes beside its request and its answer, approximately."""


@dataclass(frozen=True, slots=True)
class KeptAnswersStatistics:
    """Counts since the start, and the answers that are kept; ``size`` is in bytes, about."""

    hits: int
    misses: int
    answers: int
    size: int
    evictions: int


class KeptAnswers:
    """See the module. ``max_bytes`` 0 keeps nothing."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[bytes, tuple[Hashable, bytes]] = OrderedDict()
        self._size = self._hits = self._misses = self._evictions = 0

    def find(self, request: bytes, mark: Hashable) -> bytes | None:
        """The answer that was kept for the request at this mark."""
        kept = self._answers.get(request)
        if kept is None or kept[0] != mark:
            self._misses += 1
            return None
        self._answers.move_to_end(request)
        self._hits += 1
        return kept[1]

    def keep(self, request: bytes, mark: Hashable, answer: bytes) -> None:
        """Keep the answer, which was made after ``mark`` was taken."""
        self._drop(request)
        size = _size(request, answer)
        if size > self._max_bytes // 8:
            return
        self._answers[request] = (mark, answer)
        self._size += size
        while self._size > self._max_bytes:
            self._drop(next(iter(self._answers)))
            self._evictions += 1

    def statistics(self) -> KeptAnswersStatistics:
        """How the answers were used, and how many are kept."""
        return KeptAnswersStatistics(
            self._hits, self._misses, len(self._answers), self._size, self._evictions
        )

    def _drop(self, request: bytes) -> None:
        kept = self._answers.pop(request, None)
        if kept is not None:
            self._size -= _size(request, kept[1])


def _size(request: bytes, answer: bytes) -> int:
    return len(request) + len(answer) + _OVERHEAD
