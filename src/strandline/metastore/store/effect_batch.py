"""A batch of effects: those on folders that one SQL transaction carries out.

The problem: a rollback moves no folder back. So an effect may be done and its SQL transaction lost.
The effect is then repeated together with others, some of which were done too. It must find the
folders as it found them the first time, or as it left them.

What must stay true for that: no effect of a batch touches a folder that another effect of the batch
made, moved or removed. (After "rename a to b, create a" there are folders at a and b, as if nothing
had been moved yet.) So an effect waits for the next batch if one of its folders was touched in this
batch, or is above or below a folder that is moved or removed. Then it does not matter which of the
other effects were done, and which of them a power cut undid. Before the transaction commits, every
folder with changed entries is synced, once.

Rejected: one effect for each transaction (dropping 10,000 tables would take 10,000 commits), and a
list of effects that are harmless together (each pair of effects would need its own proof).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.metastore.store.table_places import TablePlaces
from strandline.metastore.store.warehouse import Unsynced
from strandline.model.places import Place

MAX_EFFECTS = 512
"""The maximum number of effects of one SQL transaction: other writers wait for it."""

DefaultPlaces = dict[tuple[int, int], Place | None]
"""The place that its name gives to each new table, by version and table id."""


class EffectBatch:
    """The effects of one SQL transaction on folders, which do not touch each other's folders.

    ``catalogs`` are those of the versions that the transaction appends; this node has not applied
    them yet. Up to the version ``done_up_to``, the folders are done, and stay as they are.
    """

    def __init__(
        self,
        connection: Connection,
        catalogs: Sequence[Catalog] = (),
        *,
        default_places: DefaultPlaces | None = None,
        done_up_to: int = 0,
    ) -> None:
        self.catalogs = {catalog.version: catalog for catalog in catalogs}
        self.places = TablePlaces(connection)
        self.default_places: DefaultPlaces = {} if default_places is None else default_places
        self.done_up_to = done_up_to
        self.unsynced = Unsynced()
        self.free_of_links: set[str] = set()
        """Folders above those of the effects that the batch found to be no symbolic links."""
        self.effects_left = MAX_EFFECTS
        """How many more effects the batch can take."""
        self._touched: set[str] = set()
        self._above_touched: set[str] = set()
        self._moved_paths: set[str] = set()
        self._above_moved_paths: set[str] = set()
        self._real: dict[str, str] = {}

    @property
    def appends(self) -> bool:
        """Whether the same SQL transaction appends the versions; then the batch only makes."""
        return bool(self.catalogs)

    @property
    def untouched(self) -> bool:
        return self.effects_left == MAX_EFFECTS

    def add(self, makes: Iterable[str], moves: Iterable[str]) -> bool:
        """Add an effect that makes some folders and moves or removes others.

        Return False if it must wait for the next batch. Only while there are `effects_left`.
        """
        if not self.appends:  # else it only makes folders, which can be repeated
            making, moving = self._names(makes), self._names(moves)
            if not self._free(making, moving):
                return False
            for paths in (making, moving):
                self._touched |= paths
                _add_above(self._above_touched, paths)
            self._moved_paths |= moving
            _add_above(self._above_moved_paths, moving)
        self.effects_left -= 1
        return True

    def _free(self, making: set[str], moving: set[str]) -> bool:
        """Whether these folders do not conflict with those of earlier effects; see the module."""
        if not (self._touched.isdisjoint(making) and self._touched.isdisjoint(moving)):
            return False
        if moving and not (
            self._touched.isdisjoint(_add_above(set(), moving))
            and self._above_touched.isdisjoint(moving)
        ):
            return False
        return not self._moved_paths or (
            self._moved_paths.isdisjoint(_add_above(set(), making))
            and self._above_moved_paths.isdisjoint(making)
        )

    def _names(self, paths: Iterable[str]) -> set[str]:
        """The paths as given, and with the symbolic links above them resolved."""
        names = set()
        for path in paths:
            parent, _, name = path.rpartition("/")
            real = self._real.get(parent)
            if real is None:
                real = self._real[parent] = os.path.realpath(parent)
            names |= {path, f"{real}/{name}"}
        return names


def _add_above(above: set[str], names: Iterable[str]) -> set[str]:
    """Add the paths above these, except the root, which is never moved; return the set."""
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in above:
            above.add(name)
    return above
