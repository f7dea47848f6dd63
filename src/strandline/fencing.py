"""The fence token: who may still write.

Opening a store as its one owner raises the epoch; installing a newer release over it raises the
generation. Tokens are ordered, generation first. Both halves of a store (the catalog's log and the
object store) keep the highest token they were told of and refuse every write that comes with
another one, so that a holder which slept through its own replacement changes nothing when it wakes.

Numbers alone do not tell a catalog from one that was made anew, or restored, in its place: both
may have come to the same epoch. So each new token has a random nonce, and a log takes writes of the
very same token only. The row of the object store has no nonce: it names the environment.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from strandline.errors import InvalidInput

_BITS = 63
_LIMIT = 1 << _BITS


@dataclass(frozen=True, slots=True)
class FenceToken:
    """``deploy_generation``, ``epoch`` and ``nonce``, each 0 or more and below 2⁶³.

    One token is above another by the first two alone. The nonce is 0 in tokens that a release
    before 0.5.0 made, and where it is not known.
    """

    deploy_generation: int
    epoch: int
    nonce: int = 0

    def __post_init__(self) -> None:
        numbers = self.deploy_generation, self.epoch, self.nonce
        if not all(0 <= number < _LIMIT for number in numbers):
            raise InvalidInput(f"a fence token is made of numbers from 0 on, not {self}")

    @property
    def rank(self) -> tuple[int, int]:
        """What tokens are ordered by."""
        return self.deploy_generation, self.epoch

    def __lt__(self, other: FenceToken) -> bool:
        return self.rank < other.rank

    def next(self, deploy_generation: int) -> FenceToken:
        """A token of the next epoch, which no other call gives."""
        return FenceToken(deploy_generation, self.epoch + 1, secrets.randbits(_BITS))

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

    def beside(self, held: FenceToken | None) -> str:
        """Itself, as the token of a catalog, in a sentence that has named ``held``."""
        if held is None or self.rank != held.rank:
            return str(self)
        return f"{self} with another nonce (it was made anew or restored)"

    def __str__(self) -> str:
        return f"generation {self.deploy_generation}, epoch {self.epoch}"
