"""Answers that are kept encoded, for as long as they are right.

A kept answer belongs to the bytes of its request and to a *mark*: a number of the store that stays
the same as long as nothing is committed, neither DDL nor DML. The mark is taken before the answer
is made. So while the mark is unchanged, the answer would be the same again; and reading the mark
takes microseconds. Each commit, by any client, makes every kept answer useless, and the next
request for one makes it anew. That is the price of not keeping a list of what an answer depends on.

The memory is bounded in bytes; the answers that were unused longest go first. For the event loop
alone.
"""

from __future__ import annotations

from collections import OrderedDict
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
        self._answers: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._size = self._hits = self._misses = self._evictions = 0

    def find(self, request: bytes, mark: int) -> bytes | None:
        """The answer that was kept for the request at this mark."""
        kept = self._answers.get(request)
        if kept is None or kept[0] != mark:
            self._misses += 1
            return None
        self._answers.move_to_end(request)
        self._hits += 1
        return kept[1]

    def keep(self, request: bytes, mark: int, answer: bytes) -> None:
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
