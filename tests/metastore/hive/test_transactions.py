"""Transactions of Hive's clients, call by call, with Apache Thrift's client and ours."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import (
    AbortTxnRequest,
    AbortTxnsRequest,
    AddDynamicPartitions,
    AllocateTableWriteIdsRequest,
    CheckLockRequest,
    CommitTxnKeyValue,
    CommitTxnRequest,
    CompactionRequest,
    CompactionType,
    Database,
    GetLatestCommittedCompactionInfoRequest,
    GetOpenTxnsRequest,
    GetValidWriteIdsRequest,
    HeartbeatRequest,
    HeartbeatTxnRangeRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    OpenTxnRequest,
    ShowCompactRequest,
    ShowLocksRequest,
    TxnState,
    TxnToWriteId,
    TxnType,
    UnlockRequest,
)

from strandline.metastore.hive import transactions
from strandline.metastore.hive.transactions import MAX_RANGE, aborted_bits
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.transactions import TransactionState, ValidTxnList
from tests.metastore.hive.hive_node import HiveNode, outcome, plain, refusal
from tests.times import exact_text

STORES = ("folder", "postgresql")
NOBODY = 10**12
"""An id that no transaction has."""


def opened(stub: Any, count: int = 1, *, kind: int = TxnType.DEFAULT, **more: Any) -> list[int]:
    asked = OpenTxnRequest(
        num_txns=count, user="ann", hostname="h1", agentInfo="job 7", txn_type=kind, **more
    )
    txn_ids: list[int] = stub.open_txns(asked).txn_ids
    return txn_ids


def commit(stub: Any, txn_id: int) -> None:
    stub.commit_txn(CommitTxnRequest(txnid=txn_id))


def abort(stub: Any, txn_id: int) -> None:
    stub.abort_txn(AbortTxnRequest(txnid=txn_id))


def allocated(
    stub: Any, txn_ids: list[int], table: str = "T", *, schema: str = "D1"
) -> dict[int, int]:
    asked = AllocateTableWriteIdsRequest(dbName=schema, tableName=table, txnIds=txn_ids)
    pairs = stub.allocate_table_write_ids(asked).txnToWriteIds
    return {pair.txnId: pair.writeId for pair in pairs}


def open_now(stub: Any) -> dict[str, Any]:
    answer: dict[str, Any] = plain(stub.get_open_txns())
    return answer


def seen(stub: Any, *, table: str = "d1.t", **asked: Any) -> dict[str, Any]:
    """The valid write ids of a table, without its name."""
    request = GetValidWriteIdsRequest(fullTableNames=[table], **asked)
    (answer,) = plain(stub.get_valid_write_ids(request))["tblValidWriteIds"]
    assert answer.pop("fullTableName") == table
    ids: dict[str, Any] = answer
    return ids


@pytest.fixture
def table(hive: HiveNode) -> str:
    hive.create_transactional("d1", "t", k="bigint")
    return "d1.t"


# -- open, commit, abort


def test_transactions_have_ascending_ids_and_are_listed_until_they_end(stub: Any) -> None:
    first, *others = opened(stub, 3)
    assert others == [first + 1, first + 2]
    now = open_now(stub)
    assert now["open_txns"][-3:] == [first, *others]
    assert (now["txn_high_water_mark"], now["min_open_txn"]) == (others[-1], first)
    commit(stub, first)
    abort(stub, others[0])
    now = open_now(stub)
    assert first not in now["open_txns"]
    assert now["min_open_txn"] == others[-1]
    stub.abort_txns(AbortTxnsRequest(txn_ids=others))
    now = open_now(stub)
    assert "min_open_txn" not in now
    again = plain(stub.get_open_txns_req(GetOpenTxnsRequest(excludeTxnTypes=[TxnType.READ_ONLY])))
    assert again["txn_high_water_mark"] == now["txn_high_water_mark"]


def test_a_commit_or_an_abort_may_be_repeated_but_not_reversed(stub: Any) -> None:
    committed, aborted = opened(stub, 2)
    for _ in range(2):
        assert outcome(lambda: commit(stub, committed)) is None
        assert outcome(lambda: abort(stub, aborted)) is None
    kind, text = refusal(lambda: commit(stub, aborted))
    assert (kind, f"transaction {aborted}" in text) == ("TxnAbortedException", True)
    kind, text = refusal(lambda: abort(stub, committed))
    assert (kind, "was committed" in text) == ("NoSuchTxnException", True)


@pytest.mark.parametrize("txn_id", [0, -1, NOBODY, (1 << 63) - 1])
def test_calls_for_an_unknown_transaction_are_answered_as_hive_does(
    stub: Any, table: str, txn_id: int
) -> None:
    for call in (
        lambda: commit(stub, txn_id),
        lambda: abort(stub, txn_id),
        lambda: allocated(stub, [txn_id]),
    ):
        assert refusal(call)[0] == "NoSuchTxnException"
    assert stub.abort_txns(AbortTxnsRequest(txn_ids=[txn_id])) is None
    answer = stub.heartbeat_txn_range(HeartbeatTxnRangeRequest(min=txn_id, max=txn_id))
    assert plain(answer) == {"aborted": [], "nosuch": [txn_id]}


def test_aborting_many_transactions_skips_those_that_cannot_be_aborted(
    hive: HiveNode, stub: Any
) -> None:
    committed, aborted, *others = opened(stub, 4)
    commit(stub, committed)
    abort(stub, aborted)
    stub.abort_txns(AbortTxnsRequest(txn_ids=[committed, aborted, NOBODY, -1, *others, *others]))
    states = {t.txn_id: t.state for t in map(hive.node.transactions.get, (committed, *others))}
    assert states == {
        committed: TransactionState.COMMITTED,
        **dict.fromkeys(others, TransactionState.ABORTED),
    }


def test_a_request_for_no_transactions_or_for_an_unsupported_type_is_refused(
    hive: HiveNode, stub: Any
) -> None:
    before = open_now(stub)["txn_high_water_mark"]
    for count in (0, -1, -(1 << 31)):
        _, text = refusal(lambda count=count: opened(stub, count))
        assert text == f"Invalid input for number of txns: {count}"
    for kind in (TxnType.REPL_CREATED, TxnType.COMPACTION, TxnType.MATER_VIEW_REBUILD, 77):
        assert "cannot be opened" in refusal(lambda kind=kind: opened(stub, kind=kind))[1]
    for more in ({"replPolicy": "d1.*"}, {"replSrcTxnIds": [7]}):
        assert "replicated" in refusal(lambda more=more: opened(stub, **more))[1]
    write_ids = AllocateTableWriteIdsRequest(
        dbName="d1", tableName="t", srcTxnToWriteIdList=[TxnToWriteId(1, 1)]
    )
    assert "replicated" in refusal(lambda: stub.allocate_table_write_ids(write_ids))[1]
    assert open_now(stub)["txn_high_water_mark"] == before


def test_one_request_opens_at_most_a_thousand_transactions(stub: Any) -> None:
    txn_ids = opened(stub, (1 << 31) - 1)
    assert txn_ids == list(range(txn_ids[0], txn_ids[0] + 1_000))
    stub.abort_txns(AbortTxnsRequest(txn_ids=txn_ids))
    assert "min_open_txn" not in open_now(stub)


def test_a_request_with_a_host_or_agent_name_that_is_too_long_opens_nothing(
    hive: HiveNode, stub: Any
) -> None:
    before = open_now(stub)["txn_high_water_mark"]
    for long in ({"hostname": "h" * 1_001}, {"agentInfo": "a" * 1_001}):
        asked = OpenTxnRequest(**{"num_txns": 1_000, "user": "ann", "hostname": "h"} | long)
        kind, text = refusal(lambda asked=asked: stub.open_txns(asked))
        assert (kind, "at most 1000 characters" in text) == ("TApplicationException", True)
    assert open_now(stub)["txn_high_water_mark"] == before
    asked = OpenTxnRequest(num_txns=1, user="ann", hostname="h" * 1_000, agentInfo="a" * 1_000)
    stub.abort_txns(AbortTxnsRequest(txn_ids=stub.open_txns(asked).txn_ids))


def test_a_commit_that_would_do_more_than_that_is_refused_and_leaves_the_transaction_open(
    hive: HiveNode, stub: Any
) -> None:
    (txn_id,) = opened(stub)
    value = CommitTxnKeyValue(tableId=1, key="a", value="b")
    for more, text in (({"keyValue": value}, "parameter"), ({"replPolicy": "d1.*"}, "replicated")):
        asked = CommitTxnRequest(txnid=txn_id, **more)
        assert text in refusal(lambda asked=asked: stub.commit_txn(asked))[1]
    replicated = AbortTxnRequest(txnid=txn_id, replPolicy="d1.*")
    assert "replicated" in refusal(lambda: stub.abort_txn(replicated))[1]
    assert hive.node.transactions.get(txn_id).state is TransactionState.OPEN
    abort(stub, txn_id)


def test_a_transaction_may_be_used_by_every_user_while_privileges_are_not_enforced(
    hive: HiveNode, stub: Any, table: str
) -> None:
    stub.set_ugi("ann", [])
    first, second = opened(stub, 2)
    with hive.stub() as other:
        other.set_ugi("bob", [])
        assert allocated(other, [first]) == {first: 1}
        assert other.heartbeat(HeartbeatRequest(txnid=first)) is None
        commit(other, first)
        abort(other, second)


def test_open_transactions_are_shown_with_their_clients(hive: HiveNode, stub: Any) -> None:
    stub.set_ugi("ann", [])
    before = stub.get_open_txns_info().txn_high_water_mark
    (txn_id,) = opened(stub)
    shown = plain(stub.get_open_txns_info())
    assert shown["txn_high_water_mark"] == txn_id > before
    (info,) = (info for info in shown["open_txns"] if info["id"] == txn_id)
    transaction = hive.node.transactions.get(txn_id)
    assert info == {
        "id": txn_id,
        "state": TxnState.OPEN,
        "user": "ann",
        "hostname": "h1",
        "agentInfo": "job 7",
        "heartbeatCount": 0,  # the default of the client
        "startedTime": transaction.begin_time >> 16,
        "lastHeartbeatTime": transaction.last_heartbeat,
    }
    abort(stub, txn_id)


def test_a_read_only_transaction_is_the_oldest_open_one_but_is_not_listed(
    stub: Any, table: str
) -> None:
    reader, writer = opened(stub, kind=TxnType.READ_ONLY) + opened(stub)
    now = open_now(stub)
    assert reader not in now["open_txns"]
    assert (now["open_txns"][-1], now["min_open_txn"]) == (writer, reader)
    assert "read-only" in refusal(lambda: allocated(stub, [reader]))[1]
    commit(stub, reader)
    abort(stub, writer)


# -- heartbeats


def test_a_heartbeat_for_a_range_returns_the_transactions_that_are_no_longer_open(
    stub: Any,
) -> None:
    first, committed, aborted, last = opened(stub, 4)
    commit(stub, committed)
    abort(stub, aborted)
    answer = stub.heartbeat_txn_range(HeartbeatTxnRangeRequest(min=first, max=last + 1))
    assert (set(answer.aborted), set(answer.nosuch)) == ({aborted}, {committed, last + 1})
    backwards = stub.heartbeat_txn_range(HeartbeatTxnRangeRequest(min=last, max=first))
    assert plain(backwards) == {"aborted": [], "nosuch": []}
    most = HeartbeatTxnRangeRequest(min=NOBODY, max=NOBODY + MAX_RANGE - 1)
    assert len(stub.heartbeat_txn_range(most).nosuch) == MAX_RANGE
    for low, high in ((NOBODY, NOBODY + MAX_RANGE), (-(1 << 63), (1 << 63) - 1)):
        too_many = HeartbeatTxnRangeRequest(min=low, max=high)
        assert "at most" in refusal(lambda sent=too_many: stub.heartbeat_txn_range(sent))[1]
    assert refusal(lambda: stub.heartbeat(HeartbeatRequest(txnid=committed))) == (
        "NoSuchTxnException",
        f"Transaction txnid:{committed} already committed",
    )
    stub.abort_txns(AbortTxnsRequest(txn_ids=[first, last]))


# -- write ids


def test_each_transaction_is_allocated_one_write_id_in_order(stub: Any, table: str) -> None:
    first, second, third = opened(stub, 3)
    assert allocated(stub, [third, first]) == {first: 1, third: 2}
    assert allocated(stub, [first]) == {first: 1}
    assert allocated(stub, [second, first, third]) == {first: 1, second: 3, third: 2}
    abort(stub, second)
    assert refusal(lambda: allocated(stub, [first, second]))[0] == "TxnAbortedException"
    stub.abort_txns(AbortTxnsRequest(txn_ids=[first, third]))


def test_no_write_ids_are_allocated_for_a_table_that_cannot_be_written(
    hive: HiveNode, stub: Any
) -> None:
    txn_ids = opened(stub, 2)
    hive.create_transactional("d1", "t", k="bigint")
    for name, said in (("nowhere", "not found"), ("t@1", "not found")):
        assert said in refusal(lambda name=name: allocated(stub, txn_ids, name))[1]
    past = f"d1@{hive.node.catalogs.latest_catalog().version}"
    assert "a table of the past" in refusal(lambda: allocated(stub, txn_ids, schema=past))[1]
    # The table was created after both transactions had begun.
    kind, text = refusal(lambda: allocated(stub, txn_ids))
    assert (kind, "begin another transaction" in text) == ("MetaException", True)
    assert refusal(lambda: allocated(stub, []))[0] == "MetaException"
    assert all(hive.node.transactions.write_id_pairs(txn_id) == () for txn_id in txn_ids)
    stub.abort_txns(AbortTxnsRequest(txn_ids=txn_ids))


def test_valid_write_ids_are_those_committed_when_the_open_transactions_were_read(
    stub: Any, table: str
) -> None:
    committed, still_open, later = opened(stub, 3)
    allocated(stub, [committed, still_open, later])
    commit(stub, committed)
    now = open_now(stub)
    # Aborted transactions of other tests are listed until they are cleaned up.
    assert [txn_id for txn_id in now["open_txns"] if txn_id >= committed] == [still_open, later]
    txns = ValidTxnList.derive(now["txn_high_water_mark"], unfinished=now["open_txns"])
    expected = {"writeIdHighWaterMark": 3, "invalidWriteIds": [2, 3], "minOpenWriteId": 2}
    assert seen(stub, validTxnList=str(txns)) == expected | {"abortedBits": b""}
    assert seen(stub) == {"writeIdHighWaterMark": 1, "invalidWriteIds": [], "abortedBits": b""}
    commit(stub, later)
    # The answer for the earlier list does not change; a request without a list sees more.
    assert seen(stub, validTxnList=str(txns)) == expected | {"abortedBits": b""}
    present = seen(stub)
    assert (present["writeIdHighWaterMark"], present["invalidWriteIds"]) == (3, [2])
    abort(stub, still_open)


def test_aborted_ids_are_encoded_as_the_bits_that_java_writes() -> None:
    assert aborted_bits((5, 6, 7), frozenset()) == b""
    assert aborted_bits((5, 6, 7), frozenset({5})) == b"\x01"
    assert aborted_bits(tuple(range(1, 12)), frozenset({2, 8, 10})) == b"\x82\x02"
    assert aborted_bits(tuple(range(1, 30)), frozenset({9})) == b"\x00\x01"


def test_the_owner_of_a_write_id_sees_its_own_write(stub: Any, table: str) -> None:
    first, second = opened(stub, 2)
    allocated(stub, [first, second])
    own = seen(stub, writeId=2)
    assert (own["writeIdHighWaterMark"], own["invalidWriteIds"]) == (2, [1])
    assert refusal(lambda: seen(stub, writeId=77))[0] == "NoSuchTxnException"
    both = GetValidWriteIdsRequest(fullTableNames=["d1.t", "d1.u"], writeId=1)
    assert "exactly one" in refusal(lambda: stub.get_valid_write_ids(both))[1]
    stub.abort_txns(AbortTxnsRequest(txn_ids=[first, second]))


def test_a_table_that_was_never_written_or_does_not_exist_has_no_write_ids(
    hive: HiveNode, stub: Any
) -> None:
    hive.create_transactional("d1", "t", k="bigint")
    empty = {"writeIdHighWaterMark": 0, "invalidWriteIds": [], "abortedBits": b""}
    for name in ("d1.t", "D1.T", "hive.d1.t", "d1.nowhere", "nowhere.t", "t"):
        assert seen(stub, table=name) == empty


def test_a_schema_may_have_the_name_of_the_catalog(hive: HiveNode, stub: Any) -> None:
    stub.create_database(Database("hive"))
    hive.create_transactional("hive", "t", k="bigint")
    (txn_id,) = opened(stub)
    asked = AllocateTableWriteIdsRequest(dbName="hive", tableName="t", txnIds=[txn_id])
    stub.allocate_table_write_ids(asked)
    commit(stub, txn_id)
    for name in ("hive.t", "hive.hive.t"):
        assert seen(stub, table=name)["writeIdHighWaterMark"] == 1


def test_a_request_for_lists_of_too_many_tables_is_refused(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_TABLES", 2)
    two, three = (GetValidWriteIdsRequest(fullTableNames=["d1.none"] * n) for n in (2, 3))
    assert len(stub.get_valid_write_ids(two).tblValidWriteIds) == 2
    assert "at most 2 tables, not of 3" in refusal(lambda: stub.get_valid_write_ids(three))[1]


def test_a_request_for_lists_of_too_many_write_ids_is_refused(
    hive: HiveNode, stub: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_IDS", 10)
    first, *others = opened(stub, 4)
    allocated(stub, [first, *others])
    commit(stub, others[-1])
    txns = ValidTxnList.of(others[-1], open_ids=[first, *others[:-1]])
    for count, refused in ((1, False), (3, False), (4, True)):
        names = [table] * count
        for text in (None, str(txns)):
            asked = GetValidWriteIdsRequest(fullTableNames=names, validTxnList=text)
            answer: Any = outcome(lambda asked=asked: stub.get_valid_write_ids(asked))
            if refused or (text and count > 1):
                assert "fewer tables" in answer[1]
            else:
                assert len(answer.tblValidWriteIds) == count
    stub.abort_txns(AbortTxnsRequest(txn_ids=[first, *others]))


@pytest.mark.parametrize("text", ["", "5", "5:x::", "t:5:4::", "5:4:9:", "5:4:4,4:"])
def test_an_invalid_list_of_transactions_is_refused(stub: Any, table: str, text: str) -> None:
    kind, _ = refusal(lambda: seen(stub, validTxnList=text))
    assert kind == "MetaException"


def test_a_session_can_stage_files_in_a_transaction_that_a_hive_client_opens_and_commits(
    hive: HiveNode, stub: Any, table: str
) -> None:
    stub.set_ugi("ann", [])
    (txn_id,) = opened(stub)
    assert allocated(stub, [txn_id]) == {txn_id: 1}
    session = hive.node.session(user="ann")
    table_id = session.table(table).descriptor.id
    file = DataFile(file_id=txn_id << FILE_NUMBER_BITS, path="a.parquet", rows=3, bytes=9)
    assert session.stage(txn_id, table_id, add=[file]) == 1
    assert session.files(table_id, session.open([table]).write_ids[table_id]).data_files == ()
    before = session.open([]).time
    commit(stub, txn_id)
    with hive.another_node() as other:
        there = other.session(user="bob")
        seen_ids = there.open([table]).write_ids[table_id]
        assert there.files(table_id, seen_ids).data_files == (file,)
    assert seen(stub)["writeIdHighWaterMark"] == 1
    past_table = f"d1@{exact_text(before)}.t"
    assert seen(stub, table=past_table)["writeIdHighWaterMark"] == 0


def test_the_second_transaction_that_changes_a_file_is_aborted_at_its_commit(
    hive: HiveNode, stub: Any, table: str
) -> None:
    session = hive.node.session(user="ann")
    table_id = session.table(table).descriptor.id
    first = session.begin().txn_id
    file = DataFile(file_id=first << FILE_NUMBER_BITS, path="a.parquet", rows=3, bytes=9)
    session.stage(first, table_id, add=[file])
    session.commit(first)
    winner, loser = opened(stub, 2)
    for txn_id in (winner, loser):
        session.stage(txn_id, table_id, remove=["a.parquet"])
    commit(stub, winner)
    kind, text = refusal(lambda: commit(stub, loser))
    assert (kind, f"transaction {winner}" in text) == ("TxnAbortedException", True)
    assert hive.node.transactions.get(loser).state is TransactionState.ABORTED
    assert refusal(lambda: commit(stub, loser))[0] == "TxnAbortedException"


# -- locks inside transactions


@pytest.mark.parametrize("end", [commit, abort])
def test_the_locks_of_a_transaction_are_released_when_it_ends(stub: Any, end: Any) -> None:
    (txn_id,) = opened(stub)
    component = LockComponent(
        type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname="d1", tablename="t"
    )
    first, waiting = (
        stub.lock(LockRequest(component=[component], user="ann", hostname="h", txnid=owner))
        for owner in (txn_id, None)
    )
    assert (first.state, waiting.state) == (LockState.ACQUIRED, LockState.WAITING)
    shown = plain(stub.show_locks(ShowLocksRequest(txnid=txn_id)))["locks"]
    assert [(lock["lockid"], lock["txnid"]) for lock in shown] == [(first.lockid, txn_id)]
    end(stub, txn_id)
    assert plain(stub.show_locks(ShowLocksRequest(txnid=txn_id))) == {"locks": []}
    checked = stub.check_lock(CheckLockRequest(lockid=waiting.lockid))
    assert checked.state == LockState.ACQUIRED
    stub.unlock(UnlockRequest(lockid=waiting.lockid))


def test_dynamic_partitions_are_accepted_for_an_open_transaction_only(
    hive: HiveNode, stub: Any
) -> None:
    still_open, committed, aborted = opened(stub, 3)
    commit(stub, committed)
    abort(stub, aborted)

    def add(txn_id: int) -> None:
        stub.add_dynamic_partitions(AddDynamicPartitions(txn_id, 1, "d1", "t", ["p=1"]))

    add(still_open)
    assert refusal(lambda: add(committed))[0] == "NoSuchTxnException"
    assert refusal(lambda: add(aborted))[0] == "TxnAbortedException"
    assert refusal(lambda: add(10**12))[0] == "NoSuchTxnException"


def test_compaction_requests_are_refused_and_no_compaction_is_listed(stub: Any) -> None:
    request = CompactionRequest("d1", "t", None, CompactionType.MAJOR)
    refused = plain(stub.compact2(request))
    assert (refused["accepted"], refused["state"]) == (False, "refused")
    assert "not Hive's deltas" in refused["errormessage"]
    kind, message = refusal(lambda: stub.compact(request))
    assert (kind, "not Hive's deltas" in message) == ("TApplicationException", True)
    assert plain(stub.show_compact(ShowCompactRequest()))["compacts"] == []
    request = GetLatestCommittedCompactionInfoRequest("d1", "t")
    assert plain(stub.get_latest_committed_compaction_info(request))["compactions"] == []
