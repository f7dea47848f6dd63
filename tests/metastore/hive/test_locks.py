"""The locks of Hive's clients, call by call, with Apache Thrift's client and ours."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import (
    CheckLockRequest,
    HeartbeatRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    ShowLocksRequest,
    UnlockRequest,
)

from strandline.transactions import Component
from tests.metastore.hive.hive_node import HiveNode, outcome, plain, refusal

STORES = ("folder", "postgresql")


def request(*components: LockComponent, **more: Any) -> LockRequest:
    return LockRequest(component=list(components), user="ann", hostname="h1", **more)


def component(
    table: str | None = "t", *, kind: int = LockType.EXCLUSIVE, partition: str | None = None
) -> LockComponent:
    level = LockLevel.DB if table is None else LockLevel.TABLE
    return LockComponent(
        type=kind,
        level=LockLevel.PARTITION if partition else level,
        dbname="D1",
        tablename=table,
        partitionname=partition,
        isTransactional=True,
    )


def check(stub: Any, lock_id: int) -> int:
    state: int = stub.check_lock(CheckLockRequest(lockid=lock_id)).state
    return state


def test_a_lock_is_acquired_waited_for_and_released(stub: Any) -> None:
    first = stub.lock(request(component("T")))
    second = stub.lock(request(component("t")))
    assert (first.state, second.state) == (LockState.ACQUIRED, LockState.WAITING)
    assert check(stub, second.lockid) == LockState.WAITING
    stub.unlock(UnlockRequest(lockid=first.lockid))
    assert check(stub, second.lockid) == LockState.ACQUIRED
    stub.unlock(UnlockRequest(lockid=second.lockid))


def test_a_lock_request_with_a_user_host_or_agent_name_that_is_too_long_is_refused(
    stub: Any,
) -> None:
    for long in ({"user": "u" * 1_001}, {"hostname": "h" * 1_001}, {"agentInfo": "a" * 1_001}):
        asked = {"component": [component()], "user": "ann", "hostname": "h1"} | long
        answer = stub.lock(LockRequest(**asked))
        assert (answer.state, answer.lockid) == (LockState.NOT_ACQUIRED, 0)
        assert "at most 1000 characters" in answer.errorMessage
    assert plain(stub.show_locks(ShowLocksRequest())) == {"locks": []}


@pytest.mark.parametrize("lock_id", [-1, 0, 10**12, (1 << 63) - 1])
def test_an_unknown_lock_is_answered_as_hive_does(stub: Any, lock_id: int) -> None:
    kind, text = refusal(lambda: check(stub, lock_id))
    assert kind == "NoSuchLockException"
    assert f"lockid:{lock_id}" in text
    if lock_id != 0:
        assert refusal(lambda: stub.heartbeat(HeartbeatRequest(lockid=lock_id)))[0] == kind
    assert outcome(lambda: stub.unlock(UnlockRequest(lockid=lock_id))) is None


def test_a_lock_of_a_transaction_needs_an_open_transaction_and_ends_with_it(
    hive: HiveNode, stub: Any
) -> None:
    transactions = hive.node.transactions
    txn_id = transactions.begin(user="ann").txn_id
    lock = stub.lock(request(component(), txnid=txn_id))
    kind, _ = refusal(lambda: stub.unlock(UnlockRequest(lockid=lock.lockid)))
    assert kind == "TxnOpenException"
    waiting = stub.lock(request(component(), txnid=transactions.begin(user="ann").txn_id))
    stub.unlock(UnlockRequest(lockid=waiting.lockid))
    assert refusal(lambda: check(stub, waiting.lockid))[0] == "NoSuchLockException"
    (shown,) = plain(stub.show_locks(ShowLocksRequest(txnid=txn_id)))["locks"]
    assert (shown["txnid"], shown["lastheartbeat"]) == (txn_id, 0)  # the transaction has one
    assert stub.heartbeat(HeartbeatRequest(lockid=lock.lockid, txnid=txn_id)) is None
    transactions.abort(txn_id)
    for call in (
        lambda: stub.lock(request(component(), txnid=txn_id)),
        lambda: stub.heartbeat(HeartbeatRequest(txnid=txn_id)),
    ):
        assert refusal(call)[0] == "TxnAbortedException"
    for call in (
        lambda: stub.lock(request(component(), txnid=10**12)),
        lambda: stub.heartbeat(HeartbeatRequest(txnid=10**12)),
    ):
        assert refusal(call)[0] == "NoSuchTxnException"
    assert refusal(lambda: check(stub, lock.lockid))[0] == "NoSuchLockException"


def test_locks_are_shown_with_the_lock_that_they_wait_for(hive: HiveNode, stub: Any) -> None:
    first = stub.lock(
        request(component(kind=LockType.SHARED_READ), component(None, kind=LockType.SHARED_READ))
    )
    two = stub.lock(request(component(), agentInfo="job 7"))
    shown = plain(stub.show_locks(ShowLocksRequest()))["locks"]
    assert [(e["lockid"], e["lockIdInternal"], e.get("tablename"), e["type"]) for e in shown] == [
        (first.lockid, 1, "t", LockType.SHARED_READ),
        (first.lockid, 2, None, LockType.SHARED_READ),
        (two.lockid, 1, "t", LockType.EXCLUSIVE),
    ]
    last = shown[-1]
    assert (last["state"], last["blockedByExtId"]) == (LockState.WAITING, first.lockid)
    assert (last["user"], last["hostname"], last["agentInfo"]) == ("ann", "h1", "job 7")
    assert (last["dbname"], last["txnid"]) == ("d1", 0)
    # Clients in some languages send 0 and empty names for what they leave out.
    for more in ({}, {"txnid": 0, "partname": ""}):
        request_ = ShowLocksRequest(dbname="d1", tablename="T", **more)
        of_table = plain(stub.show_locks(request_))["locks"]
        assert [e["lockid"] for e in of_table] == [first.lockid, two.lockid]
    for lock_id in (first.lockid, two.lockid):
        stub.unlock(UnlockRequest(lockid=lock_id))
    assert plain(stub.show_locks(ShowLocksRequest())) == {"locks": []}


def test_locks_on_many_partitions_are_shown_without_comparing_all_with_all(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partitions(prefix: str) -> list[Any]:
        return [component(partition=f"{prefix}={number}") for number in range(200)]

    first = stub.lock(request(*partitions("p"), component("u")))
    two = stub.lock(request(*partitions("q"), component("u")))
    waits_for, compared = Component.waits_for, []

    def counting(self: Component, earlier: Component) -> bool:
        compared.append(earlier)
        return waits_for(self, earlier)

    monkeypatch.setattr(Component, "waits_for", counting)
    shown = plain(stub.show_locks(ShowLocksRequest()))["locks"]
    waiting = [(e["lockid"], e["lockIdInternal"]) for e in shown if "blockedByExtId" in e]
    assert waiting == [(two.lockid, 201)]
    assert (shown[-1]["blockedByExtId"], shown[-1]["blockedByIntId"]) == (first.lockid, 201)
    assert len(compared) < 1_000
    for lock_id in (first.lockid, two.lockid):
        stub.unlock(UnlockRequest(lockid=lock_id))


def test_a_request_that_must_not_wait_is_not_acquired_and_leaves_no_lock(
    hive: HiveNode, stub: Any
) -> None:
    lock = stub.lock(request(component()))
    read = component(kind=LockType.SHARED_READ)
    for asked in (
        request(read, zeroWaitReadEnabled=True),
        request(component(), exclusiveCTAS=True),
    ):
        answer = stub.lock(asked)
        assert (answer.state, bool(answer.errorMessage)) == (LockState.NOT_ACQUIRED, True)
    assert [lock.lock_id for lock in hive.node.transactions.locks.list()] == [lock.lockid]
    mixed = stub.lock(request(read, component("u"), zeroWaitReadEnabled=True))
    assert mixed.state == LockState.WAITING
    for lock_id in (lock.lockid, mixed.lockid):
        stub.unlock(UnlockRequest(lockid=lock_id))


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [{"type": 9, "level": 2, "dbname": "d", "tablename": "t"}],
        [{"type": 3, "level": 9, "dbname": "d", "tablename": "t"}],
        [{"type": 3, "level": 2, "dbname": "d"}],
        [{"type": 3, "level": 1, "dbname": ""}],
    ],
)
def test_an_invalid_lock_request_is_refused(hive: HiveNode, sent: list[dict[str, Any]]) -> None:
    with hive.client() as client:
        asked = {"component": sent, "user": "ann", "hostname": "h"}
        assert isinstance(outcome(lambda: client.call("lock", rqst=asked)), tuple)
    assert hive.node.transactions.locks.list() == []


def test_the_answer_to_a_request_of_too_many_components_names_the_limit(
    hive: HiveNode, stub: Any
) -> None:
    response = stub.lock(request(*[component()] * 1_001))
    assert response.state == LockState.NOT_ACQUIRED
    assert hive.node.transactions.locks.list() == []
    assert response.errorMessage.startswith(
        "a lock request has at most 1000 components, this one has"
    )
