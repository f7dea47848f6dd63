"""Limits for the memory of requests and answers, which the servers of both protocols share.

The problem: one message of the largest size is harmless, but a thousand messages of half that size
fill the machine. A limit for each connection that is safe for a thousand connections would be too
small for any of them.

The model: each owner (a connection, an HTTP request) has a small allowance of its own, which is
always available. Memory beyond the allowance comes from a pool that all owners share, and the owner
releases all of it at once. If the pool lacks memory, the request is refused at once with a typed
error. Requests never wait for memory, since a waiting request holds memory too. So small requests
are served, no matter how many large ones there are. And so are large ones of other users: the
owners of one user may have three quarters of the pool, or one of them the rest of the pool.

An answer can be refused only if its call may be repeated. The client of a call that changed
something would send the call again. So that answer is sent, even if the pool lacks its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from strandline.errors import Overloaded
from strandline.work.child_pool import USER_SHARE
from strandline.work.contents import Body, Content

ALLOWANCE = 256 * 1024
"""The bytes that each owner may use without the pool."""
ANSWER_BYTES = 512 * 1024 * 1024
"""The maximum number of bytes that all unsent answers of one protocol may use."""


class RequestMemory:
    """A pool of ``pool`` bytes for received requests. For the event loop only."""

    def __init__(self, pool: int, *, allowance: int = ALLOWANCE) -> None:
        self._pool = pool
        self._of_user_limit = int(pool * USER_SHARE)
        self._allowance = allowance
        self._taken: dict[object, tuple[str, int]] = {}  # the user and the bytes of each owner
        self._of_user = Counter[str]()
        self.taken = 0
        self.refused = 0

    def reserve(self, owner: object, amount: int, *, user: str) -> None:
        """Reserve ``amount`` bytes in all for ``owner``, of ``user``.

        Raises `Overloaded` if the pool, or the user's share of it, lacks them.
        """
        if self._lacks(owner, amount, user):
            self.refused += 1
            raise Overloaded(
                f"this node is full: a request needs {amount} bytes, and large requests already "
                f"use {self.taken} of {self._pool}, {self._of_user[user]} of them for this user; "
                "nothing was done, try again"
            )
        self._take(owner, amount, user)

    def _lacks(self, owner: object, amount: int, user: str) -> bool:
        wanted, (_, present) = self._wanted(amount), self._taken.get(owner, ("", 0))
        if wanted <= present:
            return False
        others = self._of_user[user] - present  # of the same user
        is_beyond_share = others > 0 and others + wanted > self._of_user_limit
        return is_beyond_share or self.taken - present + wanted > self._pool

    def _wanted(self, amount: int) -> int:
        return max(0, amount - self._allowance)

    def _take(self, owner: object, amount: int, user: str) -> None:
        RequestMemory.release(self, owner)
        needed_bytes = self._wanted(amount)
        if needed_bytes:
            self._taken[owner] = user, needed_bytes
            self._of_user[user] += needed_bytes
            self.taken += needed_bytes

    def release(self, owner: object) -> None:
        user, taken_bytes = self._taken.pop(owner, ("", 0))
        self.taken -= taken_bytes
        self._of_user[user] -= taken_bytes
        if not self._of_user[user]:
            del self._of_user[user]


class AnswerMemory(RequestMemory):
    """A pool for answers that are not sent yet.

    An answer may be larger than the whole pool if nothing else is taken. One that several clients
    share takes memory once, that of the user whose client was the first.
    """

    def __init__(self, pool: int, *, allowance: int = ALLOWANCE) -> None:
        super().__init__(pool, allowance=allowance)
        self._shared: dict[object, Hashable] = {}  # the answer that each owner holds
        self._owners = Counter[Hashable]()  # how many hold each answer

    def reserve_answer(self, owner: object, body: Body, *, user: str, only_reads: bool) -> None:
        """Reserve the memory of an answer for ``owner``, of ``user``, in place of its last one.

        Raises `Overloaded` if the pool lacks its memory and the call ``only_reads``, so that it may
        be repeated.
        """
        answer, amount = body.identity() if isinstance(body, Content) else id(body), len(body)
        if only_reads and self.taken and self._lacks(answer, amount, user):
            self.refused += 1
            raise Overloaded(
                "this node is full: its clients have not read the answers that it holds for them;"
                " nothing was changed, try again"
            )
        self.release(owner)
        self._shared[owner] = answer
        self._owners[answer] += 1
        if answer not in self._taken:
            self._take(answer, amount, user)

    def release(self, owner: object) -> None:
        answer = self._shared.pop(owner, None)
        if answer is None:
            return
        self._owners[answer] -= 1
        if not self._owners[answer]:
            del self._owners[answer]
            super().release(answer)
