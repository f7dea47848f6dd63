"""Several nodes on one store, against a model of plain dictionaries.

The machine gives random commands to random nodes, lets nodes lag behind, restarts them, trims the
history, turns the wall clock, loses answers of the store, and lets another node commit between a
node's validation and its append. Every read of the present must agree with the model. What was
answered once for a version or a time must be answered in the same way forever, or be refused
because it was trimmed. At the end all nodes hold equal catalogs, version by version, and a replay
of every update equals a recovery from a snapshot.

`test_nodes_model_teeth` shows that it can fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from strandline.catalog import Catalog, CatalogManager, Command, initial_catalog
from strandline.catalog.commands import (
    CreateSchema,
    CreateTable,
    DropIndex,
    DropTable,
    GrantPrivileges,
    SetConfiguration,
)
from strandline.catalog.events import AppliedVersion
from strandline.catalog.undo.reading import read_undo
from strandline.clock import HybridClock, Timestamp
from strandline.durable import MetastorageLog, ReadOnlyState, Update, durable_state
from strandline.durable.contents import EMPTY
from strandline.errors import StrandlineError, Unavailable, VersionNotFound
from strandline.metastorage import Outcome, SqlMetastorage
from strandline.model.privileges import ObjectKind, Privilege
from strandline.sql import open_sqlite
from tests.catalog.nodes_commands import (
    CHOICES,
    JOBS,
    NOT_THERE,
    SCHEMAS,
    TABLES,
    Choices,
    any_batch,
    definition,
    fruitful,
)
from tests.catalog.nodes_model import State, after, find, occupant, put, shape, undone, visible
from tests.conftest import ManualWall

NODES = 3
MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory: these tests need nothing of the disk."""

# -- a node ------------------------------------------------------------------------------------


class Store:
    """A store whose next invoke may fail, or run after something else."""

    def __init__(self, store: SqlMetastorage) -> None:
        self._store = store
        self.before: Callable[[], object] | None = None
        self.lose_answer = False
        self.lose_request = False

    def invoke(self, *arguments: Sequence[object]) -> Outcome:
        before, self.before = self.before, None
        if before is not None:
            before()
        if self.lose_request:
            self.lose_request = False
            raise Unavailable("the request was lost")
        outcome = self._store.invoke(*arguments)  # type: ignore[arg-type]  # passed on as it came
        if self.lose_answer:
            self.lose_answer = False
            raise Unavailable("the answer was lost")
        return outcome

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        return getattr(self._store, name)


class Node:
    """The catalog manager of one process, and what its listener received."""

    def __init__(self, folder: Path, wall: ManualWall) -> None:
        self.database = open_sqlite(folder / "strandline.db")
        clock = HybridClock(wall)
        self.store = Store(SqlMetastorage(self.database, clock))
        self.log = MetastorageLog(self.store)  # type: ignore[arg-type]  # a wrapper
        openable = durable_state(self.log)
        initialize = initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/warehouse")
        state = (
            openable.join(member="joined")
            if openable.is_initialized()
            else openable.open(member="opener", initialize=initialize, raise_fence=lambda *_: None)
        )
        self.manager = CatalogManager(state, clock)
        self.wrong: list[str] = []
        self.told = self.manager.latest_catalog().version
        self.curious = self.interrupt = False
        self.manager.subscribe(self._listen)

    def _listen(self, applied: AppliedVersion) -> None:
        version = applied.update.version
        if self.manager.latest_catalog().version < version:
            self.wrong.append(f"told of version {version} before it can be read")
        expected = self.told + 1
        # After an interrupt, it is told late of a version that was applied before a trim.
        if version != expected:
            expected = max(expected, self.manager.earliest_catalog().version + 1)
        if version != expected or applied.before.version != version - 1:
            self.wrong.append(f"told of version {version} when {expected} was next")
        self.told = version
        if self.curious and self.manager.present().version < version:
            self.wrong.append(f"the present is older than version {version}, which is applied")
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt

    def close(self) -> None:
        self.manager.stop()
        self.store.close()
        self.database.close()


# -- the machine -------------------------------------------------------------------------------

WHO = st.integers(0, NODES - 1)
WHERE = st.integers(0, 1_000_000)
SCHEMA, TABLE = st.sampled_from(SCHEMAS), st.sampled_from(TABLES)


class Nodes(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None)
        self.wall = ManualWall()
        self.nodes = [self.join() for _ in range(NODES)]
        self.catalogs = [self.nodes[0].manager.catalog(version) for version in range(3)]
        next_id = max(ids(self.catalogs[-1])) + 1
        self.states = [
            put(shape(catalog), "setting", "next_id", next_id) for catalog in self.catalogs
        ]
        self.updates: list[Update] = list(self.nodes[0].manager.updates(1, 3))
        self.ids = ids(self.catalogs[-1])
        self.since = 0
        self.moments: list[tuple[Timestamp, int]] = []

    def join(self) -> Node:
        return Node(Path(self.folder.name), self.wall)

    @property
    def head(self) -> int:
        return len(self.states) - 1

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # otherwise a rule has failed, and that is to be reported
                self.finish()
        finally:
            for node in self.nodes:
                node.close()
            self.folder.cleanup()

    # -- changes

    def execute(
        self,
        who: int,
        commands: Sequence[Command],
        *,
        model: Callable[[State, Command], State] | None = None,
        again: Collection[int] = (),
    ) -> None:
        """Execute on a node, and compare with the model as it was when the node validated.

        ``model`` computes the effect of a command that `after` does not know; ``again`` are ids
        that may come back with it.
        """
        node = self.nodes[who]
        failure: StrandlineError | None = None
        executed = None
        try:
            executed = node.manager.execute(commands, author="ann")
        except StrandlineError as error:
            failure = error
        assert node.wrong == []
        state, applied, refusal = self.states[-1], [], None
        model = model or partial(after, base=state)
        try:
            for command in commands:
                following = model(state, command)
                applied.append(following != state)
                state = following
        except StrandlineError as error:
            refusal = error
        assert type(failure) is type(refusal), f"{failure!r}, not {refusal!r} from {commands}"
        if executed is None:
            return
        assert executed.applied == tuple(applied)
        if any(applied):
            self.states.append(state)
            self.learn(node, executed.catalog, again)
        assert executed.version == self.head
        self.agree(executed.catalog)

    def learn(self, node: Node, catalog: Catalog, again: Collection[int]) -> None:
        before = ids(self.catalogs[-1])
        new = (ids(catalog) - before).difference(again)
        assert not new & self.ids, f"ids handed out twice: {new & self.ids}"
        assert catalog.time > self.catalogs[-1].time
        self.ids |= new
        self.catalogs.append(catalog)
        self.updates += node.manager.updates(catalog.version, catalog.version + 1)

    @rule(who=WHO, reader=WHO, choices=CHOICES)
    def change(self, who: int, reader: int, choices: Choices) -> None:
        self.execute(who, any_batch(choices))
        self.read(reader)

    @rule(who=WHO, choices=CHOICES)
    def change_something(self, who: int, choices: Choices) -> None:
        self.execute(who, fruitful(self.states[-1], choices))

    @rule(who=WHO, where=WHERE, job=st.sampled_from(JOBS))
    def work_on_an_index(self, who: int, where: int, job: Callable[..., Command]) -> None:
        """Also on an index that does not exist, or is not in the right status."""
        there = [*self.states[-1]["index"], NOT_THERE]
        self.execute(who, [job(index_id=there[where % len(there)])])

    @rule(who=WHO)
    def undo(self, who: int) -> None:
        """Undo the last version."""
        if self.head <= 2 or self.head == self.since:
            return
        before = self.states[-2]
        undo = read_undo(self.nodes[who].manager, self.head)
        self.execute(
            who, [undo], model=lambda state, _: undone(before, state), again=ids(self.catalogs[-2])
        )

    def toggle(self, schema: str, name: str) -> list[Command]:
        """Commands that always change something: create a table, or drop what has its name."""
        state = self.states[-1]
        parent = find(state, "schema", schema)
        occupied_by = None if parent is None else occupant(state, parent, name)
        if occupied_by is not None:
            return [
                DropTable(schema=schema, table=name)
                if occupied_by[0] == "table"
                else DropIndex(schema=schema, index=name)
            ]
        return [
            CreateSchema(name=schema, if_not_exists=True),
            SetConfiguration(name="max_tables", value=None),
            CreateTable(schema=schema, definition=definition(name)),
        ]

    @rule(who=WHO, schema=SCHEMA, table=TABLE)
    def create_or_drop(self, who: int, schema: str, table: str) -> None:
        self.execute(who, self.toggle(schema, table))

    @rule(who=WHO, step=st.integers(1, NODES - 1), schema=SCHEMA, mine=TABLE, theirs=TABLE)
    def race(self, who: int, step: int, schema: str, mine: str, theirs: str) -> None:
        """Another node commits between this node's validation and its append."""
        first, second = self.toggle(schema, mine), self.toggle(schema, theirs)
        other = (who + step) % NODES
        self.nodes[who].store.before = lambda: self.execute(other, second)
        self.execute(who, first)
        assert self.nodes[who].store.before is None

    @rule(who=WHO, step=st.integers(1, NODES - 1), mine=CHOICES, theirs=CHOICES)
    def race_of_anything(self, who: int, step: int, mine: Choices, theirs: Choices) -> None:
        """The same, with two batches that each change something."""
        first, second = (fruitful(self.states[-1], choices) for choices in (mine, theirs))
        other = (who + step) % NODES
        self.nodes[who].store.before = lambda: self.execute(other, second)
        self.execute(who, first)
        assert self.nodes[who].store.before is None

    @rule(who=WHO, schema=SCHEMA, table=TABLE, request=st.booleans())
    def cut(self, who: int, schema: str, table: str, request: bool) -> None:
        """The store's answer is lost, or the request before it arrives; the node sends it again."""
        store = self.nodes[who].store
        store.lose_request, store.lose_answer = request, not request
        self.execute(who, self.toggle(schema, table))
        assert not store.lose_request
        assert not store.lose_answer

    @rule(by=st.sampled_from([-60_000, -1, 1, 60_000]))
    def turn_the_clock(self, by: int) -> None:
        self.wall.now += by

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.nodes[who].close()
        self.nodes[who] = self.join()

    @rule(who=WHO, where=WHERE)
    def trim(self, who: int, where: int) -> None:
        manager, version = self.nodes[who].manager, where % (self.head + 1)
        if version < self.since:
            with suppress(VersionNotFound):
                assert not manager.compact(version)
            return
        assert manager.compact(version) == (version > self.since)
        self.since = version
        assert manager.earliest_catalog().version == version

    @rule(who=WHO)
    def interrupt(self, who: int) -> None:
        """Ctrl-C while the node applies."""
        node = self.nodes[who]
        node.interrupt = True
        with suppress(KeyboardInterrupt):
            node.manager.sync()
        node.interrupt = False

    @rule(who=WHO, curious=st.booleans())
    def let_the_listener_read(self, who: int, curious: bool) -> None:
        self.nodes[who].curious = curious

    # -- reads

    def agree(self, catalog: Catalog) -> None:
        version = catalog.version
        assert shape(catalog) == visible(self.states[version]), f"version {version} is another one"
        assert catalog.time == self.catalogs[version].time, f"version {version} has another time"
        assert catalog.contents == self.catalogs[version].contents

    @rule(who=WHO)
    def read(self, who: int) -> None:
        present = self.nodes[who].manager.present()
        assert present.version == self.head, "an old catalog for the present"
        self.agree(present)

    @rule(who=WHO)
    def read_without_waiting(self, who: int) -> None:
        known = self.nodes[who].manager.known_present()
        assert known is None or known.version == self.head, "an old catalog for the present"

    @rule(who=WHO)
    def look_at_the_time(self, who: int) -> None:
        manager = self.nodes[who].manager
        moment = manager.complete_now()
        assert manager.active_catalog(moment).version == self.head
        self.moments.append((moment, self.head))

    @rule(who=WHO, where=WHERE)
    def read_as_of_a_time(self, who: int, where: int) -> None:
        if self.moments:
            self.ask_again(self.nodes[who], *self.moments[where % len(self.moments)])

    def ask_again(self, node: Node, moment: Timestamp, version: int) -> None:
        try:
            catalog = node.manager.catalog_as_of(moment)
        except VersionNotFound:
            assert version < self.since
        else:
            assert catalog.version == version, "one time, two answers"
            self.agree(catalog)

    @rule(who=WHO, where=WHERE)
    def read_as_of_a_version(self, who: int, where: int) -> None:
        manager, version = self.nodes[who].manager, where % (self.head + 1)
        try:
            self.agree(manager.catalog(version))
            last = manager.last_moment(version)
        except VersionNotFound:
            assert version < self.since
            return
        if last is not None:
            # Versions that were appended together have one time, and none ends before it.
            assert last == max(self.catalogs[version].time, self.catalogs[version + 1].time - 1)

    # -- the end

    def finish(self) -> None:
        self.nodes.append(self.join())
        for node in self.nodes:
            node.curious = False
            node.manager.sync()
            assert node.wrong == []
            assert node.manager.earliest_catalog().version == self.since
            for version in range(self.since, self.head + 1):
                self.agree(node.manager.catalog(version))
            for moment, version in self.moments:
                self.ask_again(node, moment, version)
        replayed = EMPTY
        for update in self.updates:
            replayed = replayed.apply(update.changes(), at=update.time)
        self.nodes[0].manager.compact(self.head)
        recovered = ReadOnlyState(self.nodes[1].log)
        (latest,) = recovered.recovered
        assert latest.version == self.head
        assert replayed == self.catalogs[-1].contents, "a replay gives another catalog"
        assert latest.contents == replayed, "a recovery differs from a replay"
        assert latest.time == self.catalogs[-1].time, "a snapshot has another time"


def ids(catalog: Catalog) -> set[int]:
    kinds = ("database", "schema", "table", "index", "view", "zone", "role", "system_view")
    return {stored.id for kind in kinds for stored in catalog.contents.objects(kind)}


def run(*, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Nodes,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_table_has_all_privileges_that_were_granted_at_different_times() -> None:
    nodes = Nodes()
    try:
        nodes.execute(0, nodes.toggle("a", "t"))
        for privilege in (Privilege.INSERT, Privilege.SELECT):
            grant = GrantPrivileges(
                kind=ObjectKind.TABLE, name="a.t", privileges=privilege, grantee="public"
            )
            nodes.execute(0, [grant])
            nodes.turn_the_clock(by=60_000)
    finally:
        nodes.teardown()


def test_a_listener_is_told_of_a_version_after_an_interrupt_and_a_trim() -> None:
    nodes = Nodes()
    try:
        for _ in range(2):
            nodes.execute(1, nodes.toggle("a", "t"))
        nodes.let_the_listener_read(who=0, curious=True)
        nodes.interrupt(who=0)
        assert nodes.nodes[0].told == nodes.head - 1
        nodes.execute(1, nodes.toggle("a", "t"))
        nodes.trim(who=1, where=nodes.head)
        nodes.read(who=0)
        assert nodes.nodes[0].told == nodes.head - 1
        assert nodes.nodes[0].wrong == []
    finally:
        nodes.teardown()


@pytest.mark.slow
def test_all_nodes_agree_with_the_model_whatever_happens() -> None:
    run(examples=12, steps=40)


@pytest.mark.soak
def test_all_nodes_agree_with_the_model_in_long_runs() -> None:
    run(examples=1000, steps=60)
