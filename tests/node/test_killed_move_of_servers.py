"""A move between PostgreSQL and etcd is killed at each point: the same command finishes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.config import Settings
from strandline.errors import InvalidInput
from strandline.node import Node
from strandline.node.address import StoreAddress
from strandline.node.catalog_log import LogPlace
from strandline.sql import open_database
from tests.node.test_catalog_log import fill, tables
from tests.node.test_killed_move import fill_and_trim, history_at, move
from tests.servers import stores


class Move:
    """A store on servers whose catalog moves from PostgreSQL to etcd, or back."""

    def __init__(self, folder: Path, leaving: str) -> None:
        folder.mkdir()
        self._output = folder / "output"
        in_etcd = stores.new_store("etcd", folder)
        self._settings = in_etcd.settings
        objects = in_etcd.settings.objects
        addresses = {"etcd": in_etcd.address, "postgresql": objects}
        self._source = addresses.pop(leaving)
        (self._target,) = addresses.values()
        with Node.open(self._source, settings=self._of(self._source)) as node:
            fill_and_trim(node)

    def _of(self, address: str) -> Settings:
        is_in_etcd = address.startswith("etcd")
        return self._settings if is_in_etcd else replace(self._settings, objects="")

    @contextmanager
    def _place(self, address: str) -> Iterator[LogPlace]:
        objects = self._settings.objects
        with closing(open_database(objects)) as database:
            yield LogPlace(database, StoreAddress(None, address, objects), HybridClock())

    def history(self, *, upper: int | None = None) -> tuple[int, list[object], str]:
        """The end of the log, what it contains below ``upper`` (else the end), and its address."""
        for address in (self._source, self._target):
            try:
                with self._place(address) as place:
                    return *history_at(place, upper=upper), address
            except InvalidInput as moved:
                if "name the store by" not in moved.message:
                    raise
        raise AssertionError("the catalog is at neither address")

    def run(self, *, at: int = 0) -> int:
        """The exit status of `move`."""
        self._output.write_text("")
        return move(self._output, self._source, self._target, self._settings.objects, at=at)[0]

    def survives(self, at: int) -> str | None:
        """Kill the command and run it again; returns where the catalog was after the kill.

        None if the command has fewer points.
        """
        upper, before, _ = self.history()
        status = self.run(at=at)
        if status == 0:
            return None
        assert status == -9
        _, between, address = self.history(upper=upper)
        assert between == before
        status = self.run()
        if status:
            assert address == self._target, self._output.read_text()
        _, after, moved_to = self.history(upper=upper)
        assert (after, moved_to) == (before, self._target)
        with Node.open(self._target, settings=self._of(self._target)) as node:
            fill(node, "v")
            assert tables(node) == ["t", "u", "v"]
        return address


@pytest.mark.slow
@pytest.mark.parametrize("leaving", ["postgresql", "etcd"])
def test_a_move_between_servers_survives_a_kill_at_each_point(leaving: str, tmp_path: Path) -> None:
    killed_in = []
    for at in count(1):
        address = Move(tmp_path / f"store {at}", leaving).survives(at)
        if address is None:
            break
        killed_in.append(address.partition(":")[0])
    assert len(killed_in) > 20
    assert killed_in[0] == leaving
    assert set(killed_in) == {"postgresql", "etcd"}
