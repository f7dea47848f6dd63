"""Which effects on folders one SQL transaction carries out: its turn.

The problem: a rollback moves no folder back. So an effect may be done and its SQL transaction lost;
then it is met again beside the others, of which some were done too, and must find what it found the
first time, or what it did itself.

What must stay true for that: no effect of a turn touches what another one of it made, moved or
removed. After "rename a to b, create a" there are folders at a and b, as if nothing had been moved
yet. So an effect waits for the next turn if one of its folders is a folder that was touched before,
or lies above or below one that is moved or removed. Then it does not matter which of the others
were done, and which of them a power cut took back. All are put on disk before the transaction
commits: every folder in which something changed is synced, once.

Rejected: one effect a transaction (10,000 tables dropped are 10,000 commits), and a list of effects
that are harmless together (it has to be proved again for each pair of them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.metastore.store.table_places import TablePlaces
from strandline.metastore.store.warehouse import Unsynced
from strandline.model.places import Place

MOST_EFFECTS = 512
"""Effects that one SQL transaction carries out; others wait for the database meanwhile."""

PathPair = tuple[Sequence[str], Sequence[str]]
Paths = Callable[[], PathPair]
"""The folders that an effect makes, and those that it moves or removes.

It refers to no turn, which keeps it: circles live until the interpreter looks for them.
"""


AskedPlaces = dict[tuple[int, int], Place | None]
"""Where each new table would lie by its name, by version and table id."""


class Turn:
    """What one SQL transaction does with folders: effects that do not touch one another.

    ``catalogs`` are those of versions that it appends, which this node has not applied yet.
    """

    def __init__(
        self,
        connection: Connection,
        catalogs: Sequence[Catalog] = (),
        *,
        asked: AskedPlaces | None = None,
    ) -> None:
        self.catalogs = {catalog.version: catalog for catalog in catalogs}
        self.places = TablePlaces(connection)
        self.asked: AskedPlaces = {} if asked is None else asked
        self.unsynced = Unsynced()
        self.moves = False
        """Whether it moves or removes a folder."""
        self.left = MOST_EFFECTS
        """How many effects can still be taken."""
        self._first: Paths | None = None
        self._touched: set[str] = set()
        self._above_touched: set[str] = set()
        self._moved: set[str] = set()
        self._above_moved: set[str] = set()
        self._real: dict[str, str] = {}

    @property
    def appends(self) -> bool:
        """Whether its versions are appended in the same SQL transaction; then it only makes."""
        return bool(self.catalogs)

    @property
    def untouched(self) -> bool:
        """Whether nothing was taken yet."""
        return self.left == MOST_EFFECTS

    def take(self, paths: Paths) -> bool:
        """Take an effect on these folders; False where it has to wait."""
        if not self.left:
            return False
        if self.appends:
            pass  # it only makes, and what is made twice is found
        elif self.untouched:
            self._first = paths  # compared with others if there are any
        else:
            if self._first is not None:
                self._touch(*map(self._names, self._first()))
                self._first = None
            making, moving = map(self._names, paths())
            if not self._free(making, moving):
                return False
            self._touch(making, moving)
        self.left -= 1
        return True

    def _touch(self, making: set[str], moving: set[str]) -> None:
        for paths in (making, moving) if moving else (making,):
            self._touched |= paths
            _add_above(self._above_touched, paths)
        self._moved |= moving
        _add_above(self._above_moved, moving)

    def _free(self, making: set[str], moving: set[str]) -> bool:
        """Whether none was touched, and none that is moved lies above or below one that was."""
        if not (self._touched.isdisjoint(making) and self._touched.isdisjoint(moving)):
            return False
        if moving and not (
            self._touched.isdisjoint(_add_above(set(), moving))
            and self._above_touched.isdisjoint(moving)
        ):
            return False
        return not self._moved or (
            self._moved.isdisjoint(_add_above(set(), making))
            and self._above_moved.isdisjoint(making)
        )

    def _names(self, paths: Iterable[str]) -> set[str]:
        """The paths as they are written, and as they are without symbolic links above them."""
        names = set()
        for path in paths:
            parent, _, name = path.rpartition("/")
            real = self._real.get(parent)
            if real is None:
                real = self._real[parent] = os.path.realpath(parent)
            names |= {path, f"{real}/{name}"}
        return names


def _add_above(above: set[str], names: Iterable[str]) -> set[str]:
    """Add the paths above these, but for the root, which is never moved; the set."""
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in above:
            above.add(name)
    return above
