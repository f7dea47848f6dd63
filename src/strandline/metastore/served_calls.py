"""What the servers of both protocols share: the memory of requests, and their child.

**Memory.** One message of the largest size is harmless, a thousand half ones fill the machine. A
limit for each connection that is safe for a thousand of them would be too small for any.

The model: each owner (a connection, an HTTP request) has a small allowance of its own, which is
always there. What it needs beyond that, it takes from a pool that all share, and the whole of it is
given back at once. An empty pool refuses, at once and with a typed error; nothing waits for memory,
since what waits holds memory too. So small requests are served however many large ones there are.

An answer can be refused only if its call may be repeated. The client of a call that changed
something would send it again, so that answer is sent, and takes its memory beyond the pool.

**Child process.** A child writes to the store as another node would. But its call is this node's:
once it is answered, its client reads on any protocol what it wrote. News of a commit may come later
than the answer, so nothing is read from memory until this node has looked at the store again. That
holds after an error too: a child that ended in the middle may have committed.
"""

from __future__ import annotations

from strandline.errors import Overloaded
from strandline.metastore.metastore import Metastore
from strandline.work.child_pool import ChildPool, Data, Reply
from strandline.work.children import Fields

ALLOWANCE = 256 * 1024
"""Bytes that each owner has beside the pool."""
ANSWER_BYTES = 512 * 1024 * 1024
"""What the answers of one protocol take together that are not yet sent."""


class RequestMemory:
    """A pool of ``pool`` bytes for what has come. For the event loop only."""

    def __init__(self, pool: int, *, allowance: int = ALLOWANCE) -> None:
        self._pool = pool
        self._allowance = allowance
        self._taken: dict[object, int] = {}
        self.taken = 0
        self.refused = 0

    def hold(self, owner: object, amount: int) -> None:
        """``owner`` now needs ``amount`` bytes in all. `Overloaded` where the pool lacks them."""
        if self._lacks(owner, amount):
            self.refused += 1
            raise Overloaded(
                f"this node is full: a request needs {amount} bytes, and large requests hold "
                f"{self.taken} of {self._pool}; nothing was done, try again"
            )
        self._take(owner, amount)

    def _lacks(self, owner: object, amount: int) -> bool:
        more = self._wanted(amount) - self._taken.get(owner, 0)
        return more > 0 and self.taken + more > self._pool

    def _wanted(self, amount: int) -> int:
        return max(0, amount - self._allowance)

    def _take(self, owner: object, amount: int) -> None:
        wanted = self._wanted(amount)
        self.taken += wanted - self._taken.get(owner, 0)
        if wanted:
            self._taken[owner] = wanted
        else:
            self._taken.pop(owner, None)

    def release(self, owner: object) -> None:
        """``owner`` needs nothing any more."""
        self.taken -= self._taken.pop(owner, 0)


class AnswerMemory(RequestMemory):
    """A pool for what is answered and not sent yet.

    An answer may take more than the whole pool while nothing else is taken.
    """

    def hold_answer(self, owner: object, amount: int, *, only_reads: bool) -> None:
        """``owner`` holds an answer of ``amount`` bytes, of a call that ``only_reads`` or not.

        Raises `Overloaded` where the pool lacks them and the call may be repeated.
        """
        if only_reads and self.taken and self._lacks(owner, amount):
            self.refused += 1
            raise Overloaded(
                "this node is full: its clients have not read the answers that it holds for them;"
                " nothing was changed, try again"
            )
        self._take(owner, amount)


async def delegate(
    metastore: Metastore,
    children: ChildPool,
    name: str,
    fields: Fields,
    data: Data,
    *,
    only_reads: bool,
) -> Reply:
    """`ChildPool.run` for a call to ``metastore``."""
    if only_reads:
        return await children.run(name, fields, data, only_reads=True)
    with metastore.projector.delegated():
        try:
            return await children.run(name, fields, data, only_reads=False)
        finally:
            metastore.store.look_again()
