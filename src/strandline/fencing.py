"""The fence token: which holder of a store may still write.

Opening a store as its only owner raises the epoch. Installing a newer release on it raises the
generation. Tokens are ordered by generation, then by epoch. Both parts of a store (the catalog's
log and the object store) keep the highest token that they have received and refuse every write with
a different token. So a holder that was replaced while it was suspended cannot change anything when
it resumes.

The numbers do not distinguish a catalog from one that was recreated or restored in its place: both
may have reached the same epoch. So each new token has a random nonce, and a log only accepts writes
with exactly its token. The row of the object store has no nonce; it contains the environment id.
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

    Only the first two order tokens. The nonce is 0 in tokens created before release 0.5.0, and
    where it is not known.
    """

    deploy_generation: int
    epoch: int
    nonce: int = 0

    def __post_init__(self) -> None:
        numbers = self.deploy_generation, self.epoch, self.nonce
        if not all(0 <= number < _LIMIT for number in numbers):
            raise InvalidInput(
                f"the numbers of a fence token must be from 0 to 2^63 - 1, found {self}"
            )

    @property
    def rank(self) -> tuple[int, int]:
        """The key by which tokens are ordered."""
        return self.deploy_generation, self.epoch

    def __lt__(self, other: FenceToken) -> bool:
        return self.rank < other.rank

    def next(self, deploy_generation: int) -> FenceToken:
        """Return a token of the next epoch, different from that of every other call."""
        return FenceToken(deploy_generation, self.epoch + 1, secrets.randbits(_BITS))

    @property
    def is_sealed(self) -> bool:
        """Whether it is the token of a log that accepts no writer; see `sealed`."""
        return self.deploy_generation == _LIMIT - 1

    def sealed(self) -> FenceToken:
        """Return the token above all others of this epoch that no writer ever holds.

        Its generation is the highest possible. So a writer that does not know about sealing
        concludes that it was replaced.
        """
        return FenceToken(_LIMIT - 1, self.epoch)

    def beside(self, other: FenceToken | None) -> str:
        """Return this token as text, for a message that has already named the token ``other``.

        The text mentions the nonce if the two tokens differ in nothing else.
        """
        if other is None or self.rank != other.rank:
            return str(self)
        return f"{self} with a different nonce (the catalog was recreated or restored)"

    def __str__(self) -> str:
        return f"generation {self.deploy_generation}, epoch {self.epoch}"
