"""A state machine that compares three answers: the cache's, the store's and a model's.

Transactions stage, commit and abort through another node or through the cache's own node. The cache
applies the log at random points. It may hold only some zone partitions, and the node may restart
with the state that it held. Readers have lists of any age: of the present, of open transactions,
and older ones. Every read of the cache must equal what the store answers for the same list, and
what the model answers, which knows only the write ids that were committed when the list was taken.

The machine also checks how memory is used: once the log is applied, a present list of a held table
is a hit, and no row of an aborted transaction is left.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.errors import WriteConflict
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.state_file import PackedReplica, pack
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.rows import TABLE_LEVEL, DataFile, NewRow, Row, RowKind, new_file
from strandline.model.partitioning import PartitionValue
from strandline.transactions import ValidWriteIdList
from tests.metastore.dml import Dml, names
from tests.transactions.catalogs import new_table

FILES = RowKind.DATA_FILE
TABLE_COUNT = 3
SUBSETS = st.lists(st.integers(0, TABLE_COUNT - 1), min_size=1, unique=True)
_numbers = itertools.count(1_000)


@dataclass
class Txn:
    """What the model knows of an open transaction."""

    began_with: dict[int, frozenset[int]]
    began_at: int
    writes: dict[int, int] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Reader:
    """A list that a reader took, and the write ids that were committed then."""

    table_id: int
    write_ids: ValidWriteIdList
    committed: frozenset[int]


class CacheMachine(RuleBasedStateMachine):
    """Runs on ``dml``, in its own tables; subclasses choose other kinds of store and cache."""

    dml: Dml
    cache_kind: type[CachedStore] = CachedStore

    @initialize(
        memory=st.sampled_from([64 << 20, 64 << 20, 9_000]),
        partitions=st.sampled_from([None, None, frozenset({0, 2})]),
    )
    def open(self, memory: int, partitions: frozenset[int] | None = None) -> None:
        self.tables = [next(_numbers) for _ in range(TABLE_COUNT)]
        self.dml.catalogs.publish(*(new_table(i, f"t{i}") for i in self.tables))
        self.memory = memory
        self.partitions = partitions
        self.cache = self.new_cache()
        self.open_txns: dict[int, Txn] = {}
        self.readers: list[Reader] = []
        self.rows: dict[int, Row] = {}
        self.removals: set[tuple[int, int]] = set()
        self.committed: dict[int, frozenset[int]] = dict.fromkeys(self.tables, frozenset())
        self.aborted: set[tuple[int, int]] = set()
        self.ended: list[Txn] = []
        self.touched: set[int] = set()

    def new_cache(self) -> CachedStore:
        return self.dml.cached(
            kind=self.cache_kind,
            memory_bytes=self.memory,
            zone_partitions=lambda table_id: self.partitions,
        )

    def teardown(self) -> None:
        for txn_id in getattr(self, "open_txns", ()):
            self.dml.transactions.abort(txn_id)

    # -- the model

    def visible(self, table_id: int, committed: frozenset[int]) -> list[Row]:
        gone = {row_id for row_id, write_id in self.removals if write_id in committed}
        shown = [
            row
            for row in self.rows.values()
            if row.table_id == table_id and row.write_id in committed and row.row_id not in gone
        ]
        return sorted(shown, key=lambda row: row.name)

    def seen_by(self, txn: Txn, table_id: int) -> frozenset[int]:
        own = {txn.writes[table_id]} if table_id in txn.writes else set()
        return txn.began_with[table_id] | own

    # -- writers

    @precondition(lambda self: len(self.open_txns) < 4)
    @rule()
    def begin(self) -> None:
        self._begin()

    def _begin(self) -> int:
        txn_id = self.dml.begin()
        self.open_txns[txn_id] = Txn(dict(self.committed), began_at=len(self.ended))
        return txn_id

    @precondition(lambda self: self.open_txns)
    @rule(data=st.data(), adds=st.integers(0, 3), tables=SUBSETS)
    def stage(self, data: st.DataObject, adds: int, tables: list[int]) -> None:
        txn_id = data.draw(st.sampled_from(sorted(self.open_txns)))
        for position in tables:
            table_id = self.tables[position]
            seen = self.visible(table_id, self.seen_by(self.open_txns[txn_id], table_id))
            some = st.lists(st.sampled_from(seen), max_size=2, unique=True) if seen else st.just([])
            self._stage(txn_id, table_id, adds=adds, removed=data.draw(some))

    @rule(adds=st.integers(1, 3), tables=SUBSETS)
    def write_and_commit(self, adds: int, tables: list[int]) -> None:
        """Run a whole transaction that cannot conflict."""
        txn_id = self._begin()
        for position in tables:
            self._stage(txn_id, self.tables[position], adds=adds, removed=[])
        self._commit(txn_id)

    @rule(
        applies=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        commits=st.tuples(st.booleans(), st.booleans()),
        removing=st.booleans(),
        by_list=st.booleans(),
    )
    def overlap(
        self,
        applies: tuple[bool, bool, bool],
        commits: tuple[bool, bool],
        removing: bool,
        by_list: bool,
    ) -> None:
        """Run two transactions on two tables that end in reverse order, with readers in between.

        The node may restart before they end.
        """
        here, there = self.tables[:2]
        removed = self.visible(here, self.committed[here])[: 1 if removing else 0]
        first, second = self._begin(), self._begin()
        self._stage(first, here, adds=1, removed=removed)
        self._stage(second, here, adds=1, removed=[])
        for txn_id in (first, second):
            self._stage(txn_id, there, adds=1, removed=[])
        if by_list:
            self.restart([])
        ends = (None, *zip((second, first), commits, strict=True))
        for apply, end in zip(applies, ends, strict=True):
            if end is not None:
                self._stage(end[0], here, adds=1, removed=[])
                (self._commit if end[1] else self._abort)(end[0])
            if apply:
                self.cache.log_applier.catch_up()
            for table_id in (here, there):
                self._take_list(table_id, None)
                if not by_list:
                    self._read_the_present(table_id)
                self.read(self.readers[-1])
        for reader in self.readers[-6:]:
            self.read(reader)

    def _stage(self, txn_id: int, table_id: int, *, adds: int, removed: list[Row]) -> None:
        txn = self.open_txns[txn_id]
        with self.dml.store.staging(txn_id, table_id) as staging:
            new_ids = staging.stage(
                add=[_new_file() for _ in range(adds)],
                remove=[row.row_id for row in removed],
            )
        write_id = txn.writes[table_id] = staging.write_id
        rows, _ = self.dml.rows_of_write(table_id, write_id)
        assert {row.row_id for row in rows} >= set(new_ids)
        self.rows |= {row.row_id: row for row in rows}
        self.removals |= {(row.row_id, write_id) for row in removed}
        txn.removed |= {row.row_id for row in removed}

    @precondition(lambda self: self.open_txns)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self._commit(data.draw(st.sampled_from(sorted(self.open_txns))))

    def _commit(self, txn_id: int) -> None:
        txn = self.open_txns.pop(txn_id)
        later = self.ended[txn.began_at :]
        expected = any(txn.removed & other.removed for other in later)
        try:
            self.dml.transactions.commit(txn_id)
        except WriteConflict:
            assert expected
            self._forget(txn)
            return
        assert not expected
        self.ended.append(txn)
        for table_id, write_id in txn.writes.items():
            self.committed[table_id] |= {write_id}

    @precondition(lambda self: self.open_txns)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort(data.draw(st.sampled_from(sorted(self.open_txns))))

    def _abort(self, txn_id: int) -> None:
        self.dml.transactions.abort(txn_id)
        self._forget(self.open_txns.pop(txn_id))

    def _forget(self, txn: Txn) -> None:
        self.aborted |= set(txn.writes.items())

    @rule(data=st.data(), own=st.booleans())
    def change(self, data: st.DataObject, own: bool) -> None:
        """Change a table as a plain client does: add one file, and perhaps remove one."""
        table_id = data.draw(st.sampled_from(self.tables))
        through: ObjectStore = self.cache if own else self.dml.store
        txn = Txn(dict(self.committed), began_at=len(self.ended))
        with through.change(table_id, author="ann") as change:
            there = list(change.visible(FILES).values())
            assert there == self.visible(table_id, self.committed[table_id])
            change.stage(add=[_new_file()])
            if there:
                gone = data.draw(st.sampled_from(there))
                change.stage(remove=[gone.row_id])
                txn.removed.add(gone.row_id)
        rows, removed_ids = self.dml.rows_of_write(table_id, change.write_id)
        self.rows |= {row.row_id: row for row in rows}
        self.removals |= {(row_id, change.write_id) for row_id in removed_ids}
        self.ended.append(txn)
        self.committed[table_id] |= {change.write_id}

    # -- the cache

    @rule(limit=st.integers(1, 3))
    def apply(self, limit: int) -> None:
        before = self.cache.statistics().applied_event
        applied = self.cache.log_applier.apply(limit)
        assert self.cache.statistics().applied_event == before + applied

    @rule()
    def catch_up(self) -> None:
        self.cache.log_applier.catch_up()
        assert self.cache.statistics().applied_event == self.dml.log.head()
        if self.memory < 1 << 20:
            return
        kept = [
            row
            for row in self.rows.values()
            if (row.table_id, row.write_id) not in self.aborted
            and (self.partitions is None or row.bucket in {TABLE_LEVEL, *self.partitions})
        ]
        expected = sum(row.table_id in self.touched for row in kept)
        assert self.cache.statistics().rows == expected
        if self.partitions is not None:
            return
        for table_id in self.touched:
            misses = self.cache.statistics().misses
            self.read(Reader(table_id, self.present(table_id), self.committed[table_id]))
            assert self.cache.statistics().misses == misses

    @rule(used=SUBSETS)
    def restart(self, used: list[int]) -> None:
        """Restart the node with the state that it held, and read the tables ``used``."""
        packed = list(pack(self.cache.snapshot()[1]))
        applied, known = self.cache.statistics().applied_event, self.cache.statistics().replicas
        self.cache = self.new_cache()
        self.cache.log_applier.restore(applied, map(PackedReplica.read, packed))
        assert self.cache.statistics().applied_event == self.dml.log.head()
        if self.partitions is None and self.memory >= 1 << 20:
            assert self.cache.statistics().replicas == known
        else:
            self.touched = set()
        self.read_with_lists_of_now(used)

    # -- readers

    def present(self, table_id: int) -> ValidWriteIdList:
        return self.dml.transactions.write_ids(table_id)

    @rule(data=st.data())
    def take_lists(self, data: st.DataObject) -> None:
        """Take a list of each table, of the present or of an open transaction."""
        txn_id = data.draw(st.sampled_from([None, *sorted(self.open_txns)]))
        for table_id in self.tables:
            self._take_list(table_id, txn_id)

    def _take_list(self, table_id: int, txn_id: int | None) -> None:
        if txn_id is None:
            taken = Reader(table_id, self.present(table_id), self.committed[table_id])
        else:
            write_ids = self.dml.transactions.write_ids(table_id, txn_id=txn_id)
            taken = Reader(table_id, write_ids, self.seen_by(self.open_txns[txn_id], table_id))
        self.readers.append(taken)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read_with_a_list(self, data: st.DataObject) -> None:
        self.read(data.draw(st.sampled_from(self.readers)))

    @rule(tables=SUBSETS)
    def read_with_lists_of_now(self, tables: list[int]) -> None:
        """Read as a query that begins now, whatever the cache has applied."""
        for position in tables:
            table_id = self.tables[position]
            self.read(Reader(table_id, self.present(table_id), self.committed[table_id]))

    def read(self, reader: Reader) -> None:
        # A transaction's own write shows even if it was staged after the list was taken.
        expected = self.visible(reader.table_id, reader.committed)
        stored = self.dml.store.rows(reader.table_id, FILES, write_ids=reader.write_ids)
        cached = self.cache.rows(reader.table_id, FILES, write_ids=reader.write_ids)
        self.touched.add(reader.table_id)
        assert stored == expected, (names(stored), names(expected))
        assert cached == expected, (names(cached), names(expected))
        known = self.cache.known_rows(reader.table_id, FILES, write_ids=reader.write_ids)
        assert known is None or known == expected
        for of in (self.cache.rows, self.cache.known_rows):
            asked = [*(row.name for row in expected[:3]), "none"]
            some = of(reader.table_id, FILES, write_ids=reader.write_ids, names=asked)
            assert some is None or some == expected[:3]
        of_parts = {(PartitionValue(1_000, 0),), (PartitionValue(1_000, 2),)}
        assert self.cache.data_files(
            reader.table_id, write_ids=reader.write_ids, partitions=of_parts
        ) == [row for row in expected if row.as_(DataFile).partition in of_parts]

    @rule(data=st.data())
    def read_the_present(self, data: st.DataObject) -> None:
        self._read_the_present(data.draw(st.sampled_from(self.tables)))

    def _read_the_present(self, table_id: int) -> None:
        expected = self.visible(table_id, self.committed[table_id])
        assert self.dml.store.rows(table_id, FILES, write_ids=None) == expected
        assert self.cache.rows(table_id, FILES, write_ids=None) == expected
        self.touched.add(table_id)

    @invariant()
    def nothing_is_poisoned(self) -> None:
        if hasattr(self, "cache"):
            statistics = self.cache.statistics()
            assert statistics.poisoned == 0
            assert statistics.size <= self.memory


def _new_file() -> NewRow:
    number = next(_numbers)
    file = DataFile(
        file_id=1,
        path=f"f{number:06d}",
        rows=1,
        bytes=10,
        partition=(PartitionValue(1_000, number % 3),),
    )
    return new_file(file, bucket=number % 5 - 1)


def check_small_histories(machine: type[CacheMachine], *, every: int = 1) -> int:
    """Check each ``every``-th history of two overlapping transactions; return how many ran."""
    flags = (False, True)
    count = 0
    for values in itertools.islice(itertools.product(flags, repeat=7), 0, None, every):
        model = machine()
        model.open(64 << 20)
        try:
            model.write_and_commit(adds=1, tables=[0, 1])
            if values[5]:  # held in memory before the first of the two writes
                model.read_with_lists_of_now([0, 1])
            model.overlap(
                applies=(values[0], values[1], values[2]),
                commits=(values[3], values[4]),
                removing=True,
                by_list=values[6],
            )
            model.catch_up()
            model.nothing_is_poisoned()
        finally:
            model.teardown()
        count += 1
    return count
