"""An answer is the same whether it is derived from an earlier answer or from all writes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

import pytest

from strandline import work
from strandline.metastore.cache import replicas
from strandline.metastore.cache.replicas import Answers, Replica, Shown, VisibleRows
from strandline.metastore.store.rows import TABLE_LEVEL, Row, RowKind
from strandline.metastore.store.table_contents import TableContents
from strandline.model.partitioning import Partition, PartitionValue
from strandline.transactions import ValidWriteIdList

TABLE = 1
KINDS = (RowKind.DATA_FILE, RowKind.TABLE_PARAMETERS)


def row(row_id: int, kind: RowKind, name: str, write_id: int) -> Row:
    return Row(row_id, TABLE, kind, TABLE_LEVEL, name, write_id, b"")


def empty() -> Replica:
    contents = TableContents((), (), ValidWriteIdList.of(0), 0)
    return Replica.of(contents, table_id=TABLE)


class Counted(str):
    """A name that counts how often any name is compared or hashed."""

    uses = 0

    def __lt__(self, other: object) -> bool:
        Counted.uses += 1
        return str.__lt__(self, str(other))

    def __hash__(self) -> int:
        Counted.uses += 1
        return str.__hash__(self)


def test_the_answer_for_the_next_list_costs_the_difference() -> None:
    many = 5_000
    old = [row(n, RowKind.DATA_FILE, Counted(f"f{n:05d}"), 1) for n in range(1, many + 1)]
    replica = empty().staged(1, 1, old, ()).with_commit(1, 1)
    first = replica.visible(RowKind.DATA_FILE, replica.committed)
    assert len(list(first)) == many
    new = row(many + 1, RowKind.DATA_FILE, Counted("new"), 2)
    replica = replica.staged(2, 2, [new], (7,)).with_commit(2, 2)
    Counted.uses = 0
    shown = replica.visible(RowKind.DATA_FILE, replica.committed)
    assert shown.get("new") is new
    assert shown.get("f00007") is None
    assert shown.get("f00008") is old[7]
    assert 0 < Counted.uses < 50
    assert list(shown) == [*old[:6], *old[7:], new]
    assert list(first) == old


def test_of_two_rows_of_one_name_the_one_with_the_larger_id_counts() -> None:
    """The transaction that began later may have staged its row first."""
    rows = [row(2, RowKind.TABLE_PARAMETERS, "", 1), row(1, RowKind.TABLE_PARAMETERS, "", 2)]
    replica = empty()
    assert not list(replica.visible(RowKind.TABLE_PARAMETERS, replica.committed))
    for new in rows:
        replica = replica.staged(2 * new.write_id, new.write_id, [new], ())
        replica = replica.with_commit(2 * new.write_id + 1, new.write_id)
    assert list(replica.visible(RowKind.TABLE_PARAMETERS, replica.committed)) == rows[:1]


def test_a_row_that_an_older_list_does_not_see_is_in_the_answer_for_the_next_list() -> None:
    """Readers do not read in the order of their lists, and some read only the row of one name."""
    rows = [row(n, RowKind.DATA_FILE, f"f{n}", n) for n in (1, 2, 3)]
    replica, lists = empty(), []
    for number, new in enumerate(rows, start=1):
        replica = replica.staged(2 * number, number, [new], ()).with_commit(2 * number, number)
        lists.append(replica.committed)
    assert list(replica.visible(RowKind.DATA_FILE, lists[1])) == rows[:2]
    assert replica.visible(RowKind.DATA_FILE, lists[0]).get("f2") is None
    assert list(replica.visible(RowKind.DATA_FILE, lists[2])) == rows


def test_rows_that_another_thread_puts_in_order_meanwhile_are_all_in_the_next_answer() -> None:
    first, second, third = (row(n, RowKind.DATA_FILE, f"f{n}", n) for n in (1, 2, 3))
    shown = VisibleRows.of({first.name: first}).with_rows([second])
    order = shown._order

    class Interrupted:
        """The order; another thread reads all rows while this one reads the first part of it."""

        added, gone, settled = order.added, order.gone, order.settled

        @property
        def rows(self) -> list[Row]:
            list(shown)
            return order.rows

    shown._order = Interrupted()  # type: ignore[assignment]  # stands in for an order
    assert list(shown.with_rows([third])) == [first, second, third]


def test_rows_are_in_the_order_of_names_after_many_changes() -> None:
    shown = VisibleRows.of({})
    rng, expected = random.Random(1), dict[str, Row]()
    for row_id in range(1, 3 * replicas.MAX_DIFFERENT):
        if expected and rng.random() < 0.4:
            gone = rng.choice(list(expected.values()))
            del expected[gone.name]
            shown = shown.without([gone.row_id, 10**9])
        else:
            coming = row(row_id, RowKind.DATA_FILE, f"n{rng.randrange(500)}", row_id)
            expected[coming.name] = coming
            shown = shown.with_rows([coming])
        if rng.random() < 0.01:
            assert list(shown) == [expected[name] for name in sorted(expected)]
    assert list(shown) == [expected[name] for name in sorted(expected)]


def test_an_answer_that_nobody_reads_in_order_keeps_few_changes_beside_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition that is altered every second would else take more memory each time."""
    monkeypatch.setattr(replicas, "MAX_DIFFERENT", 4)
    shown = VisibleRows.of({})
    for row_id in range(1, 20):
        coming = row(row_id, RowKind.PARTITION, "p=1", row_id)
        shown = shown.with_rows([coming])
        assert len(shown._order.added) + len(shown._order.gone) <= 4
    assert list(shown) == [coming]


def test_the_next_list_has_the_files_of_each_partition_without_the_removed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def partitioned(rows: Iterable[Row]) -> dict[Partition, list[Row]]:
        by_partition = defaultdict[Partition, list[Row]](list)
        for file in rows:
            by_partition[(PartitionValue(1, file.row_id % 3),)].append(file)
        return by_partition

    monkeypatch.setattr(replicas, "_partitioned", partitioned)
    files = [row(row_id, RowKind.DATA_FILE, f"f{row_id}", 1) for row_id in range(1, 8)]
    shown = VisibleRows.of({file.name: file for file in files[:6]})
    assert len(shown.by_partition) == 3
    after = shown.without([3, 4, 6]).with_rows(files[6:])
    assert after.is_partitioned
    assert {key: list(rows) for key, rows in after.by_partition.items()} == partitioned(after)


@pytest.mark.parametrize("seed", range(30))
def test_an_answer_derived_from_another_equals_the_answer_from_all_writes(seed: int) -> None:
    rng = random.Random(seed)
    replica, row_id, open_ids = empty(), 0, list[int]()
    stored: list[Row] = []
    for write_id in range(1, 60):
        added = []
        for _ in range(rng.randrange(3)):
            row_id += 1
            kind = rng.choice(KINDS)
            name = f"n{rng.randrange(20)}" if kind is RowKind.TABLE_PARAMETERS else f"f{row_id}"
            added.append(row(row_id, kind, name, write_id))
        removable = [old.row_id for old in stored if rng.random() < 0.05]
        replica = replica.staged(write_id, write_id, added, tuple(removable))
        stored += added
        open_ids.append(write_id)
        while open_ids and rng.random() < 0.6:
            ended = open_ids.pop(rng.randrange(len(open_ids)))
            if rng.random() < 0.8:
                replica = replica.with_commit(write_id, ended)
            else:
                replica = replica.with_abort(write_id, ended)
        reader = replica.committed
        if reader.exceptions and rng.random() < 0.3:  # any list, even one that no snapshot has
            reader = reader.open(reader.hwm).up_to(rng.randrange(reader.hwm + 1))
        elif rng.random() < 0.4:  # the list of a late reader
            reader = reader.up_to(max(reader.hwm - rng.randrange(4), 0))
        for kind in KINDS:
            answer = replica.visible(kind, reader)
            alone = replica._show(kind, reader.canonical())
            if rng.random() < 0.5:
                assert list(answer) == list(alone.rows)
            else:  # a reader of one name does not put the rows in order
                name = f"f{rng.randrange(row_id + 1)}"
                assert answer.get(name) == alone.rows.get(name)


def shown_with_files(count: int) -> Replica:
    """Return a replica with ``count`` writes of one file each, all of which it has shown."""
    replica = empty()
    for write_id in range(1, count + 1):
        file = row(write_id, RowKind.DATA_FILE, f"f{write_id:03}", write_id)
        replica = replica.staged(write_id, write_id, [file], ()).with_commit(write_id, write_id)
    replica.visible(RowKind.DATA_FILE, replica.committed)
    return replica


def test_a_newer_list_costs_only_its_new_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = shown_with_files(199)
    monkeypatch.delattr(replicas.Replica, "_show")
    late = row(200, RowKind.DATA_FILE, "f200", 200)
    replica = replica.staged(200, 200, [late], (7,)).with_commit(200, 200)
    shown = replica.visible(RowKind.DATA_FILE, replica.committed)
    assert len(shown) == 199
    assert "f007" not in shown
    assert list(shown)[-1] is late


def test_an_older_list_costs_only_the_writes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = shown_with_files(199)
    monkeypatch.delattr(replicas.Replica, "_show")
    shown = replica.visible(RowKind.DATA_FILE, replica.committed.up_to(190))
    assert [file.row_id for file in shown] == list(range(1, 191))


def test_answers_of_one_kind_do_not_displace_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = shown_with_files(199)
    for hwm in range(10, 100):
        replica.visible(RowKind.DELETE_FILE, replica.committed.up_to(hwm))
    monkeypatch.delattr(replicas.Replica, "_show")
    assert len(replica.visible(RowKind.DATA_FILE, replica.committed.up_to(198))) == 198


READERS = 8


class Queue:
    """A lock that notes each thread that asks for it."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("count", [0, 5, 6])
def test_the_rows_of_a_large_table_are_put_into_maps_in_steps(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_STEP", 5)
    replica = shown_with_files(count)
    rows = replica.visible(RowKind.DATA_FILE, replica.committed)
    assert len(rows) == count
    assert [rows.get(row.name) for row in rows] == list(rows)
    assert len(rows.without([row.row_id for row in rows])) == 0


def test_readers_that_come_together_make_one_answer_from_all_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = shown_with_files(400)
    replica = replace(replica, answers=Answers())
    queue, made, decoded = Queue(), list[ValidWriteIdList](), list[Row]()
    monkeypatch.setattr(replica.answers, "making", lambda kind: queue)
    show = Replica._show

    def show_when_all_have_come(self: Replica, kind: RowKind, reader: ValidWriteIdList) -> Shown:
        for _ in range(READERS):
            assert queue.asked.acquire(timeout=60)
        made.append(reader)
        return show(self, kind, reader)

    def partitioned(rows: Iterable[Row]) -> dict[Partition, list[Row]]:
        files = list(rows)
        decoded.extend(files)
        return {(): files} if files else {}

    monkeypatch.setattr(Replica, "_show", show_when_all_have_come)
    monkeypatch.setattr(replicas, "_partitioned", partitioned)

    def read(hwm: int) -> int:
        reader = replica.committed.up_to(hwm)
        answer = replica.visible(RowKind.DATA_FILE, reader, by_partition=True)
        assert [file.row_id for file in answer] == list(range(1, hwm + 1))
        return len(answer.by_partition[()])

    with ThreadPoolExecutor(READERS) as threads:
        hwms = range(400 - READERS, 400)
        assert list(threads.map(read, hwms)) == list(hwms)
    assert len(made) == 1
    assert len(decoded) < 400 + READERS * READERS


def test_a_call_gives_way_to_a_reader_that_makes_an_answer_of_the_same_kind() -> None:
    replica = replace(shown_with_files(work.AT_ONCE + 1), answers=Answers())

    def read() -> None:
        work.GIVES_WAY.set(True)
        with pytest.raises(work.NotYet):
            replica.visible(RowKind.DATA_FILE, replica.committed)

    with ThreadPoolExecutor(1) as threads, replica.answers.making(RowKind.DATA_FILE):
        threads.submit(copy_context().run, read).result(60)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [(work.AT_ONCE, RowKind.DATA_FILE), (work.AT_ONCE + 1, RowKind.TABLE_PARAMETERS)],
    ids=["of a small replica", "of another kind"],
)
def test_an_answer_does_not_wait_for_a_reader_that_makes_one_of_data_files(
    rows: int, kind: RowKind
) -> None:
    replica = replace(shown_with_files(rows), answers=Answers())
    with ThreadPoolExecutor(1) as threads, replica.answers.making(RowKind.DATA_FILE):
        answer = threads.submit(replica.visible, kind, replica.committed).result(timeout=60)
    assert len(answer) == (rows if kind is RowKind.DATA_FILE else 0)
