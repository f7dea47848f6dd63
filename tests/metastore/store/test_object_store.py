"""The object store in SQL: staging, what each reader sees, conflicts, plain changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from strandline import work
from strandline.clock import Timestamp
from strandline.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    TransactionFinished,
    TransactionNotFound,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.metastore.store.notifications import COMMIT, WRITE
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import (
    DataFile,
    NewRow,
    PartitionRow,
    RowKind,
    TableParametersRow,
    new_parameters,
)
from strandline.metastore.store.upgrades import PART
from strandline.model.places import Place
from strandline.sql import CHUNK
from strandline.transactions import TransactionState, ValidWriteIdList
from tests.metastore.dml import (
    CANCELLATIONS,
    FLIGHTS,
    WEATHER,
    Dml,
    data_file,
    files,
    names,
    parameters,
    stage,
)
from tests.sql.statements import recorded

FILES = RowKind.DATA_FILE


def partition(name: str, location: str | None = None) -> PartitionRow:
    return PartitionRow(values=(name.partition("=")[2],), location=location or name)


def test_staged_rows_are_visible_only_to_their_transaction(dml: Dml) -> None:
    txn = dml.begin()
    staged = stage(dml.store, txn, FLIGHTS, add=[data_file("b"), data_file("a")])
    assert len(staged) == 2
    assert files(dml.store) == []
    own = dml.transactions.write_ids(FLIGHTS, txn_id=txn)
    assert files(dml.store, write_ids=own) == ["a", "b"]


def test_a_commit_makes_the_rows_of_all_its_tables_visible(dml: Dml) -> None:
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("f")])
    stage(dml.store, txn, CANCELLATIONS, add=[data_file("c")])
    dml.transactions.commit(txn)
    assert files(dml.store) == ["f"]
    assert files(dml.store, CANCELLATIONS) == ["c"]


def test_an_abort_leaves_nothing_visible_and_the_name_free(dml: Dml) -> None:
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("a")])
    dml.transactions.abort(txn)
    assert files(dml.store) == []
    dml.append("a")
    assert files(dml.store) == ["a"]


def test_an_old_list_shows_the_rows_of_its_time(dml: Dml) -> None:
    dml.append("jan", "feb")
    before = dml.transactions.write_ids(FLIGHTS)
    txn = dml.begin()
    old = dml.store.rows(FLIGHTS, FILES, write_ids=before)
    stage(dml.store, txn, FLIGHTS, add=[data_file("mar")], remove=[old[0].row_id])
    dml.transactions.commit(txn)
    assert files(dml.store, write_ids=before) == ["feb", "jan"]
    assert files(dml.store) == ["jan", "mar"]


def test_rows_as_of_a_time_are_those_committed_by_then(dml: Dml) -> None:
    times = []
    for month in ("jan", "feb", "mar"):
        txn = dml.append(month)
        commit_time = dml.transactions.get(txn).commit_time
        assert commit_time is not None
        times.append(commit_time)
    seen = [
        files(dml.store, write_ids=dml.transactions.write_ids(FLIGHTS, at=at))
        for at in (Timestamp(times[0] - 1), times[0], times[1], Timestamp(times[2] - 1))
    ]
    assert seen == [[], ["jan"], ["feb", "jan"], ["feb", "jan"]]


def test_a_read_by_names_returns_only_rows_of_its_table_and_kind(dml: Dml) -> None:
    dml.append("a", "b", "c")
    dml.append("a", table_id=CANCELLATIONS)
    rows = dml.store.rows(FLIGHTS, FILES, write_ids=None, names=["c", "x", "a", "c"])
    assert names(rows) == ["a", "c"]
    assert all(row.table_id == FLIGHTS for row in rows)
    assert dml.store.rows(FLIGHTS, RowKind.DELETE_FILE, write_ids=None) == []


def test_a_read_finds_more_names_than_one_statement_takes(dml: Dml) -> None:
    many = [f"{number:05d}" for number in range(1_203)]
    dml.append(*many)
    assert names(dml.store.rows(FLIGHTS, FILES, write_ids=None, names=many)) == many


def test_rows_beyond_a_budget_are_counted_and_not_read(dml: Dml) -> None:
    dml.append("a", "b", "c")
    with work.budget(3):
        assert len(dml.store.rows(FLIGHTS, FILES, write_ids=None)) == 3
    with recorded() as statements, work.budget(2), pytest.raises(work.TooLong):
        dml.store.rows(FLIGHTS, FILES, write_ids=None)
    assert not [text for text, _ in statements if "body" in text]


def test_the_first_rows_are_read_without_the_others(dml: Dml) -> None:
    many = [f"p={number:05d}" for number in range(2 * CHUNK + 1)]
    with dml.store.change(FLIGHTS, author="ann") as change:
        row_ids = change.stage(add=[NewRow.of(partition(name), name=name) for name in many])
    with work.budget(CHUNK + 50):
        first = dml.store.rows(FLIGHTS, RowKind.PARTITION, write_ids=None, limit=2)
    assert names(first)[:2] == many[:2]
    with dml.store.change(FLIGHTS, author="ann") as change:
        change.stage(remove=row_ids[:-1])
    last = dml.store.rows(FLIGHTS, RowKind.PARTITION, write_ids=None, limit=2)
    assert names(last) == many[-1:]


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("wanted", "range_of_names"),
    [
        ({}, ""),
        ({"names": ["a", "b"]}, ""),
        ({"like": "%b"}, ""),
        ({"like": "a%b"}, " AND name>? AND name<?)"),
        ({"like": "a!%b"}, " AND name>? AND name<?)"),
    ],
    ids=str,
)
def test_a_read_searches_an_index_for_its_own_table_only(
    dml: Dml, wanted: dict[str, Any], range_of_names: str
) -> None:
    dml.append("a", "b")
    with recorded() as statements:
        dml.store.rows(FLIGHTS, FILES, write_ids=None, **wanted)
    (read,) = [statement for statement in statements if "FROM store_row" in statement[0]]
    with dml.database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {read[0]}", read[1]).all()
    steps = [row[-1] for row in plan]
    assert f"store_row_by_name (table_id=? AND kind=?{range_of_names}" in steps[0]
    assert all(step.startswith("SEARCH") for step in steps), steps


def test_a_change_does_not_look_whether_the_name_of_a_row_that_it_replaces_is_taken(
    dml: Dml,
) -> None:
    name = "p=1"
    with dml.store.change(FLIGHTS, author="ann") as change:
        (row_id,) = change.stage(add=[NewRow.of(partition(name), name=name)])
    with dml.store.change(FLIGHTS, author="ann") as change, recorded() as statements:
        change.replace({row_id: NewRow.of(partition(name, "elsewhere"), name=name)})
    assert not [text for text, _ in statements if "store_removal AS removal" in text]
    with dml.store.change(FLIGHTS, author="ann") as change, pytest.raises(AlreadyExists):
        change.stage(add=[NewRow.of(partition(name), name=name)])


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_each_step_of_a_write_on_a_server_takes_two_round_trips(dml: Dml) -> None:
    dml.append("a")
    with recorded(of_this_thread=True) as begun:
        txn_id = dml.begin()
    with (
        recorded(of_this_thread=True) as staged,
        dml.store.staging(txn_id, FLIGHTS, paths=["b"]) as staging,
    ):
        staging.stage(add=[data_file("b")])
    with recorded(of_this_thread=True) as committed:
        dml.transactions.commit(txn_id)
    assert [len(texts) for texts in (begun, staged, committed)] == [2, 2, 2]
    assert files(dml.store) == ["a", "b"]
    assert [event.event_id for event in dml.events()] == [1, 2, 3, 4]


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_reads_whose_statements_are_known_take_one_or_two_round_trips_on_a_server(dml: Dml) -> None:
    dml.append("a")
    dml.append("b", table_id=CANCELLATIONS)
    transactions, now = dml.transactions, dml.transactions.latest_time()
    with recorded(of_this_thread=True) as of_one:
        assert transactions.write_ids_as_of([FLIGHTS], now)[FLIGHTS].hwm == 1
    with recorded(of_this_thread=True) as of_two:
        seen = transactions.write_ids_as_of([FLIGHTS, CANCELLATIONS], now)
    assert seen == {FLIGHTS: ValidWriteIdList(hwm=1), CANCELLATIONS: ValidWriteIdList(hwm=1)}
    with recorded(of_this_thread=True) as settled:
        assert transactions.settled(since=now) == now
    assert len(of_one) == 1
    assert [text.split()[0] for text, _ in of_two] == ["BEGIN"]  # and the COMMIT of the driver
    assert [text.split()[0] for text, _ in settled] == ["BEGIN"]


def test_the_first_to_commit_of_two_transactions_that_remove_one_file_wins(dml: Dml) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    first, second = dml.begin(), dml.begin()
    for txn in (first, second):
        stage(dml.store, txn, FLIGHTS, add=[data_file(f"of-{txn}")], remove=[row.row_id])
    dml.transactions.commit(second)
    with pytest.raises(WriteConflict, match=f"transaction {second}"):
        dml.transactions.commit(first)
    assert files(dml.store) == [f"of-{second}"]


@pytest.mark.parametrize("aborted", ["first", "second"])
def test_an_aborted_removal_does_not_affect_another_removal_of_the_file(
    dml: Dml, aborted: str
) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    first, second = dml.begin(), dml.begin()
    for txn in (first, second):
        stage(dml.store, txn, FLIGHTS, remove=[row.row_id])
    dml.transactions.abort(first if aborted == "first" else second)
    assert files(dml.store) == ["a"]
    dml.transactions.commit(second if aborted == "first" else first)
    assert files(dml.store) == []


def test_touching_a_file_conflicts_with_removing_it(dml: Dml) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    deleting, rewriting = dml.begin(), dml.begin()
    stage(dml.store, deleting, FLIGHTS, touch=[row.row_id])
    stage(dml.store, rewriting, FLIGHTS, add=[data_file("b")], remove=[row.row_id])
    dml.transactions.commit(deleting)
    with pytest.raises(WriteConflict):
        dml.transactions.commit(rewriting)


def test_two_transactions_that_add_the_same_name_conflict(dml: Dml) -> None:
    first, second = dml.begin(), dml.begin()
    for txn in (first, second):
        row = NewRow.of(partition("month=1"), name="month=1")
        stage(dml.store, txn, FLIGHTS, add=[row])
    dml.transactions.commit(first)
    with pytest.raises(WriteConflict):
        dml.transactions.commit(second)
    assert len(dml.store.rows(FLIGHTS, RowKind.PARTITION, write_ids=None)) == 1


def test_appends_of_different_names_do_not_conflict(dml: Dml) -> None:
    first, second = dml.begin(), dml.begin()
    for txn in (first, second):
        stage(dml.store, txn, FLIGHTS, add=[data_file(f"of-{txn}")])
    dml.transactions.commit(first)
    dml.transactions.commit(second)
    assert len(files(dml.store)) == 2


def test_invalid_stagings_are_refused_and_change_nothing(dml: Dml) -> None:
    dml.append("a")
    dml.append("c", table_id=CANCELLATIONS)
    (there,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    (other,) = dml.store.rows(CANCELLATIONS, FILES, write_ids=None)
    old = dml.begin()
    finished = dml.append("b")
    (later,) = dml.store.rows(FLIGHTS, FILES, write_ids=None, names=["b"])
    open_ = dml.begin()
    reading = dml.transactions.begin(user="ann", read_only=True).txn_id
    before = dml.contents()
    for error, txn, arguments in (
        (AlreadyExists, open_, {"add": [data_file("a")]}),
        (AlreadyExists, open_, {"add": [data_file("x"), data_file("x")]}),
        (WriteConflict, open_, {"add": [data_file("x")], "remove": [9_999]}),
        (WriteConflict, open_, {"remove": [there.row_id, other.row_id]}),
        (WriteConflict, open_, {"touch": [9_999]}),
        (WriteConflict, old, {"remove": [later.row_id]}),
        (TransactionFinished, finished, {"add": [data_file("x")]}),
        (TransactionNotFound, 9_999, {"add": [data_file("x")]}),
        (UnsupportedOperation, reading, {"add": [data_file("x")]}),
    ):
        with pytest.raises(error):
            stage(dml.store, txn, FLIGHTS, **arguments)
    assert dml.contents() == before


def test_a_transaction_can_replace_rows_that_it_staged(dml: Dml) -> None:
    txn = dml.begin()
    first = stage(dml.store, txn, FLIGHTS, add=[data_file("a", rows=1)])
    with pytest.raises(AlreadyExists, match=r"^data file 'a' is already in table"):
        stage(dml.store, txn, FLIGHTS, add=[data_file("a", rows=2)])
    stage(dml.store, txn, FLIGHTS, add=[data_file("a", rows=2)], remove=first)
    with pytest.raises(WriteConflict):
        stage(dml.store, txn, FLIGHTS, remove=first)
    dml.transactions.commit(txn)
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    assert row.as_(DataFile).rows == 2


def test_a_staging_is_one_event_with_its_rows(dml: Dml) -> None:
    dml.append("a", "b")
    (write, commit) = dml.events()
    assert (write.verb, commit.verb) == (WRITE, COMMIT)
    assert (write.table_id, write.write_id) == (FLIGHTS, 1)
    assert commit.end().writes == ((FLIGHTS, 1),)
    rows = dml.store.staged_rows(FLIGHTS, 1, write.write())
    assert names(rows) == ["a", "b"]
    assert [row.row_id for row in rows] == [1, 2]


def test_a_fenced_store_writes_nothing(dml: Dml) -> None:
    dml.append("a")
    txn = dml.begin()
    before = dml.contents()
    dml.fenced = True
    with pytest.raises(Fenced):
        stage(dml.store, txn, FLIGHTS, add=[data_file("b")])
    with pytest.raises(Fenced), dml.store.change(FLIGHTS, author="ann"):
        pytest.fail("the block of a fenced change ran")
    with pytest.raises(Fenced):
        dml.transactions.commit(txn)
    with pytest.raises(Fenced):
        dml.transactions.abort(txn)
    move = PartitionMove("month=1", 1, "aside")
    with pytest.raises(Fenced):
        dml.store.begin_moves(FLIGHTS, [move])
    with pytest.raises(Fenced):
        dml.store.finish_moves(FLIGHTS, {move}, lambda moves, *_: moves)
    assert dml.contents() == before
    assert files(dml.store) == ["a"]


def test_a_plain_change_is_its_own_transaction(dml: Dml) -> None:
    with dml.store.change(FLIGHTS, author="hive") as change:
        change.stage(add=[NewRow.of(partition("month=1"), name="month=1")])
        assert list(change.visible(RowKind.PARTITION)) == ["month=1"]
    before = dml.transactions.write_ids(FLIGHTS)
    with dml.store.change(FLIGHTS, author="hive") as change:
        (row,) = change.visible(RowKind.PARTITION).values()
        change.replace({row.row_id: NewRow.of(partition("month=1", "/else"), name="month=1")})
        change.stage(add=[NewRow.of(partition("month=2"), name="month=2")])
    now = dml.store.rows(FLIGHTS, RowKind.PARTITION, write_ids=None)
    assert [row.as_(PartitionRow).location for row in now] == ["/else", "month=2"]
    past_rows = dml.store.rows(FLIGHTS, RowKind.PARTITION, write_ids=before)
    assert [row.as_(PartitionRow).location for row in past_rows] == ["month=1"]
    assert dml.verbs().count(COMMIT) == 2


def test_a_plain_change_that_raises_leaves_nothing(dml: Dml) -> None:
    before = dml.contents()
    with pytest.raises(KeyError), dml.store.change(FLIGHTS, author="hive") as change:
        change.stage(add=[data_file("a")])
        raise KeyError("the caller's own")
    assert dml.contents() == before


def test_a_plain_change_that_stages_nothing_is_no_commit(dml: Dml) -> None:
    before = dml.contents()
    with dml.store.change(FLIGHTS, author="hive") as change:
        assert not change.visible(RowKind.PARTITION)
    assert dml.contents() == before


def test_a_plain_change_wins_over_a_transaction_that_began_before(dml: Dml) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, remove=[row.row_id])
    with dml.store.change(FLIGHTS, author="hive") as change:
        change.stage(remove=[row.row_id])
    with pytest.raises(WriteConflict):
        dml.transactions.commit(txn)
    assert dml.transactions.get(txn).state is TransactionState.ABORTED


def test_setting_parameters_replaces_them(dml: Dml) -> None:
    assert parameters(dml.store, FLIGHTS, write_ids=None) == ()
    dml.store.set_parameters(FLIGHTS, (("numRows", "1"),), author="ann")
    before = dml.transactions.write_ids(FLIGHTS)
    dml.store.set_parameters(FLIGHTS, (("numFiles", "2"),), author="ann")
    assert parameters(dml.store, FLIGHTS, write_ids=None) == (("numFiles", "2"),)
    assert parameters(dml.store, FLIGHTS, write_ids=before) == (("numRows", "1"),)
    dml.store.set_parameters(FLIGHTS, (), author="ann")
    assert parameters(dml.store, FLIGHTS, write_ids=None) == ()


def test_newer_parameters_are_charged_to_a_reader_of_the_past(dml: Dml) -> None:
    dml.store.set_parameters(FLIGHTS, (("numRows", "0"),), author="ann")
    before = dml.transactions.write_ids(FLIGHTS)
    for number in range(1, 40):
        dml.store.set_parameters(FLIGHTS, (("numRows", str(number)),), author="ann")
    with work.budget(30):
        assert parameters(dml.store, FLIGHTS, write_ids=None) == (("numRows", "39"),)
        with pytest.raises(work.TooLong):
            parameters(dml.store, FLIGHTS, write_ids=before)
    assert parameters(dml.store, FLIGHTS, write_ids=before) == (("numRows", "0"),)


def test_two_writers_can_set_parameters_and_the_newest_row_counts(dml: Dml) -> None:
    dml.store.set_parameters(FLIGHTS, (("numRows", "0"),), author="ann")
    (old,) = dml.store.rows(FLIGHTS, RowKind.TABLE_PARAMETERS, write_ids=None)
    first, second = dml.begin(), dml.begin()
    for number, txn in enumerate((first, second), start=1):
        row = new_parameters((("numRows", str(number)),))
        stage(dml.store, txn, FLIGHTS, add=[row], remove=[old.row_id])
    dml.transactions.commit(second)
    dml.transactions.commit(first)
    (shown,) = dml.store.rows(FLIGHTS, RowKind.TABLE_PARAMETERS, write_ids=None)
    assert shown.as_(TableParametersRow).parameters == (("numRows", "2"),)
    dml.store.set_parameters(FLIGHTS, (), author="ann")
    assert parameters(dml.store, FLIGHTS, write_ids=None) == ()


def test_each_table_has_one_place(dml: Dml) -> None:
    assert dml.store.location(FLIGHTS) is None
    for text in ("s.db/a", "s.db/b"):
        location = dml.put_place(FLIGHTS, text)
        assert dml.store.location(FLIGHTS) == location
    assert dml.store.places_by_id([FLIGHTS, WEATHER, -1, 1 << 70]) == {FLIGHTS: Place("s.db/b")}
    assert dml.store.tables_at([Place("s.db/a"), Place("s.db/b")]) == {Place("s.db/b"): {FLIGHTS}}


def test_only_the_moves_that_a_caller_names_are_finished(dml: Dml) -> None:
    own, of_another = (PartitionMove(f"month={n}", n, f"aside/{n}") for n in (1, 2))
    dml.store.begin_moves(FLIGHTS, [own, of_another])
    dml.store.finish_moves(FLIGHTS, {own}, lambda moves, *_: moves)
    assert dml.store.unfinished_moves() == {(FLIGHTS, of_another)}


def test_a_list_that_hides_everything_shows_nothing(dml: Dml) -> None:
    dml.append("a")
    assert files(dml.store, write_ids=ValidWriteIdList(hwm=0)) == []
    assert files(dml.store, write_ids=ValidWriteIdList.parse("t:1:1:1:")) == []


def test_the_tables_of_a_0_2_0_store_are_upgraded(dml: Dml) -> None:
    dml.put_place(FLIGHTS, "s.db/flights")
    partitions = [PartitionRow(values=(value,), location=f"p={value}") for value in "ab"]
    with dml.store.change(FLIGHTS, author="ann") as change:
        change.stage(add=[NewRow.of(row, name=row.location) for row in partitions])
    with dml.store.change(FLIGHTS, author="ann") as change:
        dropped = change.visible(RowKind.PARTITION)["p=b"].row_id
        change.stage(remove=[dropped])
    with dml.database.write() as connection:
        for name in ("partition_move", "unfinished_move", "cleaned_table"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql(
            "UPDATE strandline_schema SET version = 1 WHERE part = 'metastore'"
        )
    dml.database.ensure_schema(PART)
    moves = dml.store.partition_moves(FLIGHTS)
    assert moves.follow("p=a", 1) == ("p=a", None)
    (move,) = moves.follow("p=b", dropped)[1:]
    assert move is not None
    assert move.target == f"s.db/.dropped/{FLIGHTS}.partitions/{dropped}"
    assert not dml.store.unfinished_moves()


@pytest.mark.parametrize("kind", [RowKind.DATA_FILE, RowKind.PARTITION])
def test_no_row_has_a_name_that_no_database_can_store(dml: Dml, kind: RowKind) -> None:
    names = ["a\0b", "a\ud800b"]
    assert dml.store.rows(FLIGHTS, kind, write_ids=None, names=names) == []


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ["a\0b", random.Random(1).randbytes(3_000).hex()])
def test_a_name_that_a_server_cannot_store_is_refused_and_changes_nothing(
    dml: Dml, name: str
) -> None:
    txn_id = dml.begin()
    with pytest.raises(InvalidInput, match=r"can ?not hold|can hold"):
        stage(dml.store, txn_id, FLIGHTS, add=[data_file(name)])
    stage(dml.store, txn_id, FLIGHTS, add=[data_file("a")])
    dml.transactions.commit(txn_id)
    assert files(dml.store) == ["a"]
