"""The fence token: who may still write.

Opening a store as its one owner raises the epoch; installing a newer release over it raises the
generation. Tokens are ordered, generation first. Both halves of a store (the catalog's log and the
object store) keep the highest token they were told of and refuse every write that comes with
another one, so that a holder which slept through its own replacement changes nothing when it wakes.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.errors import InvalidInput

_LIMIT = 1 << 63


@dataclass(frozen=True, order=True, slots=True)
class FenceToken:
    """``deploy_generation`` and ``epoch``, each 0 or more and below 2⁶³."""

    deploy_generation: int
    epoch: int

    def __post_init__(self) -> None:
        if not (0 <= self.deploy_generation < _LIMIT and 0 <= self.epoch < _LIMIT):
            raise InvalidInput(f"a fence token is made of numbers from 0 on, not {self}")

    @property
    def is_sealed(self) -> bool:
        """Whether it is the token of a log that takes no writer: see `sealed`."""
        return self.deploy_generation == _LIMIT - 1

    def sealed(self) -> FenceToken:
        """The token, above all others of this epoch, that no writer ever holds.

        Its generation is the last one, so a writer that knows nothing of it takes itself for
        replaced.
        """
        return FenceToken(_LIMIT - 1, self.epoch)

    def __str__(self) -> str:
        return f"generation {self.deploy_generation}, epoch {self.epoch}"
