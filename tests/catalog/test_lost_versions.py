"""Nodes whose log was set back to an earlier state, or lost what they have applied."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Behind, Catalog, CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.catalog.history import History
from strandline.catalog.set_back import SetBackCheck
from strandline.durable import Frontier, MetastorageLog, SetBack, durable_state
from strandline.errors import Unavailable, UnknownOutcome
from strandline.model.descriptors import ConfigEntry
from tests.catalog.lagging_nodes import Nodes


def test_a_log_that_was_set_back_is_an_error(new_node: Nodes) -> None:
    manager = new_node().manager
    version = manager.latest_catalog().version
    with pytest.raises(Unavailable, match=f"had version {version + 4} .* ends at {version}: its"):
        manager.sync(up_to=Frontier(0, version + 5))
    manager.sync()


def created(manager: CatalogManager, name: str) -> None:
    manager.execute(CreateSchema(name=name), author="ann", timeout=60)


@contextmanager
def set_back(folder: Path) -> Iterator[None]:
    """At the end of the block, the log of the catalog is again as it was before."""
    tables = "metastorage", "metastorage_head"
    with closing(sqlite3.connect(folder / "strandline.db", isolation_level=None)) as database:
        rows = {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        yield
        for table in tables:
            database.execute(f"DELETE FROM {table}")
            values = ", ".join("?" * len(rows[table][0]))
            database.executemany(f"INSERT INTO {table} VALUES ({values})", rows[table])


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.look(),
        lambda manager: created(manager, "later"),
        lambda manager: manager.catalog_at(
            manager.now(), upper=manager.latest_catalog().version + 1
        ),
        lambda manager: manager.check_head(),
    ],
    ids=["read", "change", "transaction", "health"],
)
def test_a_node_that_slept_while_its_log_lost_a_version_does_not_go_on(
    new_node: Nodes, tmp_path: Path, call: Callable[[CatalogManager], object], others: int
) -> None:
    """The log is shorter by one version, or as long as before or longer, with other versions."""
    sleeper, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(sleeper.manager, "kept")
    with set_back(tmp_path):
        created(sleeper.manager, "lost")
    for number in range(others):
        created(writer.manager, f"other{number}")
    sleeper.passes(60_000)
    with pytest.raises((SetBack, Behind)):  # `Behind`: the caller syncs, and tries again
        call(sleeper.manager)
    differs = r"has another version \1" if others else "ends at version"
    lost = rf"has read version (\d+) .* {differs}.*: a standby .* start the node again"
    with pytest.raises(SetBack, match=lost):
        sleeper.manager.sync()
    with pytest.raises(SetBack, match=lost):
        created(sleeper.manager, "later")
    assert re.search(lost, sleeper.manager.set_back.result(timeout=0))
    assert [writer.has(name) for name in ("kept", "lost", "other0", "later")] == [
        1,
        0,
        others > 0,
        0,
    ]


@pytest.mark.parametrize("read", [CatalogManager.sync, CatalogManager.check_head])
def test_a_node_that_reads_a_shorter_log_does_not_go_on_once_others_have_appended(
    tmp_path: Path, new_node: Nodes, read: Callable[[CatalogManager], None]
) -> None:
    node, other = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(node.manager, "lost")
    with pytest.raises(SetBack, match="ends at version"):
        read(node.manager)
    created(other.manager, "other")
    with pytest.raises(SetBack):
        node.manager.sync()
    with pytest.raises(SetBack):
        created(node.manager, "later")
    assert [other.has(name) for name in ("lost", "other", "later")] == [False, True, False]


def test_a_node_that_began_with_a_version_that_its_log_lost_does_not_go_on(
    new_node: Nodes, tmp_path: Path
) -> None:
    writer = new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(writer.manager, "lost")
        sleeper = new_node(delay=0, skew=0)
    created(new_node(delay=0, skew=0).manager, "other")
    sleeper.passes(60_000)
    with pytest.raises(SetBack, match="has another version"):
        sleeper.manager.sync()


def test_a_node_whose_look_at_the_log_failed_compares_its_last_version(
    new_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log did not answer, another database may have taken over."""
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(reader.manager, "lost")
    created(writer.manager, "other")

    def away() -> Frontier:
        raise Unavailable("the log is away")

    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(reader.manager.state.log, "frontier", away)
        reader.manager.sync()
    with pytest.raises(SetBack, match="has another version"):
        reader.manager.sync()


def test_a_node_that_lost_a_connection_compares_its_last_version(
    new_node: Nodes, tmp_path: Path
) -> None:
    """Another server took over so fast that no look at the log failed."""
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(reader.manager, "lost")
    created(writer.manager, "other")
    reader.manager.connection_lost()
    with pytest.raises(SetBack, match="has another version"):
        reader.manager.sync()


def test_a_look_that_began_before_a_connection_was_lost_proves_nothing() -> None:
    now = 5
    check = SetBackCheck(lambda: now)
    check.look_failed()
    check.looked(now - 1)
    assert check.was_away
    check.looked(now)
    assert not check.was_away


def test_a_change_validated_against_a_lost_version_is_not_applied(
    new_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is found lost by the append itself, which goes to the other database."""
    node, other = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    append = node.manager.state.log.append

    def take_over_and_append(*arguments: Any, **named: Any) -> Any:
        created(other.manager, "other")
        node.manager.connection_lost()
        return append(*arguments, **named)

    with set_back(tmp_path):
        created(node.manager, "lost")
    monkeypatch.setattr(node.manager.state.log, "append", take_over_and_append)
    with pytest.raises(UnknownOutcome, match="has another version"):
        created(node.manager, "later")
    assert node.manager.latest_catalog().schema("later") is None


def test_a_node_whose_wait_for_the_log_failed_compares_its_last_version(
    new_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(reader.manager, "lost")
    created(writer.manager, "other")
    waits, has_failed = count(1), threading.Event()

    def away(seen: Frontier, *, timeout: float) -> bool:
        if next(waits) > 1:
            has_failed.set()
        raise Unavailable("the log is away")

    monkeypatch.setattr(reader.manager.state.log, "listen", away)
    reader.manager.start()
    assert has_failed.wait(60)
    with pytest.raises(SetBack, match="has another version"):
        reader.manager.sync()


def test_the_thread_of_a_node_that_slept_compares_its_last_version(
    new_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log ends where it ended before the node slept."""
    sleeper, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    is_asleep, is_awake = threading.Event(), threading.Event()

    def listen(seen: Frontier, *, timeout: float) -> bool:
        is_asleep.set()
        assert is_awake.wait(60)
        return False

    monkeypatch.setattr(sleeper.manager.state.log, "listen", listen)
    sleeper.manager.start()
    assert is_asleep.wait(60)
    with set_back(tmp_path):
        created(sleeper.manager, "lost")
    created(writer.manager, "other")
    sleeper.passes(60_000)
    is_awake.set()
    assert "has another version" in sleeper.manager.set_back.result(timeout=60)


def test_a_transaction_of_a_node_that_slept_goes_on_after_a_look_at_the_log(
    new_node: Nodes,
) -> None:
    node = new_node(delay=0, skew=0)
    manager = node.manager
    latest = manager.latest_catalog()
    node.passes(60_000)
    with pytest.raises(Behind):
        manager.catalog_at(manager.now(), upper=latest.version + 1)
    manager.sync()
    assert manager.catalog_at(manager.now(), upper=latest.version + 1) is latest


def test_a_transaction_does_not_use_a_version_that_the_log_lacks(new_node: Nodes) -> None:
    manager = new_node(delay=0, skew=0).manager
    with pytest.raises(Behind):
        manager.catalog_at(manager.now(), upper=manager.latest_catalog().version)


def test_a_version_is_seen_although_the_log_has_lost_a_trim(
    new_node: Nodes, tmp_path: Path
) -> None:
    """The revision of the store after the version is the one that it had after the trim."""
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(writer.manager, "kept")
    with set_back(tmp_path):
        reader.manager.sync()
        assert writer.manager.state.compact(writer.manager.latest_catalog().version)
        reader.manager.sync()
        later = new_node(delay=0, skew=0)  # which has read the snapshot, without the id
    reader.manager.sync()
    later.passes(60_000)
    later.manager.sync()
    created(writer.manager, "other")
    assert reader.has("other")


def test_a_node_that_slept_while_its_latest_version_was_trimmed_goes_on(new_node: Nodes) -> None:
    """The log has no id of that version any more, because it was silent."""
    sleeper, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(writer.manager, "kept")
    state = durable_state(MetastorageLog(writer.store)).join(member="silent")
    measuring = state.transaction(state.recovered[-1], author="system")
    with measuring.entry("configure", {"name": "measured"}):
        measuring.put(ConfigEntry("measured", "1"))
    silent = state.commit_transaction(measuring)
    sleeper.manager.sync()
    assert sleeper.manager.latest_catalog().version == silent.version
    assert state.compact(silent.version)
    sleeper.passes(60_000)
    created(writer.manager, "other")
    assert sleeper.has("other")


def test_an_interrupt_does_not_make_a_version_look_lost(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the version was applied, and before anything else was noted about it."""
    node = new_node(delay=0, skew=0)
    append = History.append

    def interrupted(history: History, catalog: Catalog) -> None:
        append(history, catalog)
        raise KeyboardInterrupt

    new_node(delay=0, skew=0).manager.execute(CreateSchema(name="a"), author="ann", timeout=60)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(History, "append", interrupted)
        node.manager.sync()
    node.passes(60_000)
    node.manager.sync()
    assert node.has("a")
