"""Encoded answers that are kept until the next commit; see `strandline.metastore.hive.service`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

_OVERHEAD = 200
"""Bytes that an entry takes in addition to its request and its answer, approximately."""


@dataclass(frozen=True, slots=True)
class KeptAnswersStatistics:
    """Counts since the start, and the number of kept answers; ``size`` is in bytes, about."""

    hits: int
    misses: int
    answers: int
    size: int
    evictions: int


class KeptAnswers:
    """Encoded answers, by the bytes of their requests. Use it on the event loop only.

    ``max_bytes`` bounds the memory. The least recently used answers are evicted first. 0 keeps
    nothing.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[bytes, tuple[Hashable, bytes]] = OrderedDict()
        self._size = self._hits = self._misses = self._evictions = 0

    def knows(self, request: bytes) -> bool:
        """Whether an answer to the request is kept, current or not. If not, count a miss."""
        is_kept = request in self._answers
        self._misses += not is_kept
        return is_kept

    def find(self, request: bytes, mark: Hashable) -> bytes | None:
        """Return the answer that was kept for the request at this mark, or None."""
        kept_answer = self._answers.get(request)
        if kept_answer is None or kept_answer[0] != mark:
            self._misses += 1
            return None
        self._answers.move_to_end(request)
        self._hits += 1
        return kept_answer[1]

    def keep(self, request: bytes, mark: Hashable, answer: bytes) -> None:
        """Keep the answer. ``mark`` was taken before the answer was made."""
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
        return KeptAnswersStatistics(
            self._hits, self._misses, len(self._answers), self._size, self._evictions
        )

    def _drop(self, request: bytes) -> None:
        replaced_answer = self._answers.pop(request, None)
        if replaced_answer is not None:
            self._size -= _size(request, replaced_answer[1])


def _size(request: bytes, answer: bytes) -> int:
    return len(request) + len(answer) + _OVERHEAD
