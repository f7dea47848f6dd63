"""What became of a commit, an abort or a staging whose answer a session over HTTP did not get."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.errors import (
    AlreadyExists,
    CorruptData,
    Fenced,
    PermissionDenied,
    StoreMoved,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnknownOutcome,
    WriteConflict,
)
from strandline.metastore.session import LocalSession, http_session
from strandline.metastore.session.http_transport import Lost
from strandline.metastore.store.rows import DeleteFile
from strandline.transactions import Transaction, TransactionState
from tests.metastore.session.scene import Scene, data
from tests.metastore.snapshots import files_of

# -- commit and abort ----------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_is_found_committed(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_answer("commit")
    committed = scene.session.commit(txn_id)
    assert committed == scene.local.transaction(txn_id)
    assert committed.state is TransactionState.COMMITTED
    assert (scene.proxy.seen["commit"], scene.proxy.seen["transaction"]) == (1, 1)
    assert scene.paths() == ["a"]


@pytest.mark.parametrize("status", ["200 OK", "524 A Timeout Occurred"], ids=["ok", "late"])
def test_a_commit_whose_answer_a_gateway_replaced_by_a_page_is_found_committed(
    scene: Scene, status: str
) -> None:
    txn_id = scene.written("a")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n"
    scene.proxy.replace_answer("commit", f"{head}hi".encode())
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    assert (scene.proxy.seen["commit"], scene.proxy.seen["transaction"]) == (1, 1)


def test_a_commit_that_did_not_arrive_is_sent_again(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_request("commit")
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    assert scene.proxy.seen["commit"] == 2
    assert scene.paths() == ["a"]


def test_a_commit_succeeds_after_several_lost_connections(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_request("commit", times=2)
    scene.proxy.cut_request("transaction")
    scene.proxy.cut_answer("transaction")
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    assert scene.paths() == ["a"]


def test_a_commit_whose_refusal_is_lost_raises_transaction_finished(scene: Scene) -> None:
    scene.session.commit(scene.written("a"))
    first, second = scene.session.begin().txn_id, scene.session.begin().txn_id
    for txn_id in (first, second):
        scene.session.stage(txn_id, scene.table_id, remove=["a"])
    scene.session.commit(first)
    scene.proxy.cut_answer("commit")
    with pytest.raises(TransactionFinished, match="aborted"):
        scene.session.commit(second)


def test_a_commit_waits_until_the_node_comes_back(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.go_away()
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(scene.session.commit, txn_id)
        scene.proxy.wait_until_turned_away(3)
        assert scene.local.transaction(txn_id).state is TransactionState.OPEN
        scene.proxy.come_back()
        assert committing.result().state is TransactionState.COMMITTED


def test_the_outcome_of_a_commit_is_unknown_if_the_node_stays_away_until_the_deadline(
    scene: Scene,
) -> None:
    txn_id = scene.written("a")
    with scene.impatient() as session:
        scene.proxy.stop_listening()
        with pytest.raises(UnknownOutcome, match=rf"transaction\({txn_id}\)"):
            session.commit(txn_id)
        scene.proxy.listen_again()
    assert scene.session.transaction(txn_id).state is TransactionState.OPEN


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_the_outcome_of_a_commit_is_unknown_if_all_answers_are_lost_until_the_deadline(
    scene: Scene,
) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_answer("commit", times=100)
    scene.proxy.cut_answer("transaction", times=100)
    with pytest.raises(UnknownOutcome):
        scene.session.commit(txn_id)
    assert scene.local.transaction(txn_id).state is TransactionState.COMMITTED


def test_an_abort_whose_answer_is_lost_is_found_aborted(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_answer("abort")
    assert scene.session.abort(txn_id).state is TransactionState.ABORTED
    assert scene.proxy.seen["abort"] == 1


def test_an_abort_of_a_transaction_that_was_committed_meanwhile_is_refused(scene: Scene) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_request("abort")
    scene.local.commit(txn_id)
    with pytest.raises(TransactionFinished, match="committed"):
        scene.session.abort(txn_id)


@pytest.mark.parametrize("fails", ["before", "after"])
def test_after_an_internal_failure_the_state_of_the_transaction_decides(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    txn_id = scene.written("a")
    commit = scene.node.transactions.commit

    def broken(txn_id: int, *, owner: str | None) -> Transaction:
        if fails == "after":
            commit(txn_id, owner=owner)
        raise RuntimeError("planted")

    monkeypatch.setattr(scene.node.transactions, "commit", broken)
    if fails == "after":
        assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    else:
        with pytest.raises(StrandlineError, match="internal error") as caught:
            scene.session.commit(txn_id)
        assert caught.type is StrandlineError
        assert scene.local.transaction(txn_id).state is TransactionState.OPEN


def test_a_commit_is_sent_again_if_the_node_does_not_know_the_outcome(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id = scene.written("a")
    commit, calls = scene.node.transactions.commit, []

    def uncertain(txn_id: int, *, owner: str | None) -> Transaction:
        calls.append(txn_id)
        if len(calls) == 1:
            raise UnknownOutcome("the disk failed")
        return commit(txn_id, owner=owner)

    monkeypatch.setattr(scene.node.transactions, "commit", uncertain)
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    assert len(calls) == 2


def refuse(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    *,
    times: int,
    after: int = 0,
    error: type[StrandlineError] = Unavailable,
) -> None:
    """Let the node refuse ``times`` calls, as without its database, ``after`` so many others."""
    original, numbers = getattr(LocalSession, call), itertools.count()

    def refusing(session: LocalSession, **arguments: Any) -> Any:
        if after <= next(numbers) < after + times:
            raise error("the store is away")
        return original(session, **arguments)

    monkeypatch.setattr(LocalSession, call, refusing)


def test_a_begin_that_the_node_could_not_confirm_is_sent_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "begin", times=2, error=UnknownOutcome)
    assert scene.session.begin().state is TransactionState.OPEN
    assert scene.proxy.seen["begin"] == 3


@pytest.mark.parametrize(
    "error", [Unavailable, StoreMoved, Fenced, PermissionDenied, CorruptData, StrandlineError]
)
def test_an_ended_transaction_is_found_although_the_node_could_not_look_in_between(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: type[StrandlineError]
) -> None:
    refuse(monkeypatch, "transaction", times=2, error=error)
    scene.proxy.cut_answer("commit")
    committed = scene.session.commit(scene.written("a"))
    assert committed.state is TransactionState.COMMITTED
    assert (scene.proxy.seen["commit"], scene.proxy.seen["transaction"]) == (1, 3)


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_the_outcome_of_a_commit_is_unknown_if_the_store_stays_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_answer("commit")
    refuse(monkeypatch, "transaction", times=100)
    with pytest.raises(UnknownOutcome, match="the store is away"):
        scene.session.commit(txn_id)
    assert scene.node.transactions.get(txn_id).state is TransactionState.COMMITTED


def test_the_outcome_of_a_commit_is_unknown_if_the_session_is_closed_before_it_can_ask(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id = scene.written("a")
    scene.proxy.cut_answer("commit")
    pause = http_session._Attempts.pause

    def close_after(attempts: http_session._Attempts, loss: Lost) -> None:
        pause(attempts, loss)
        scene.session.close()

    monkeypatch.setattr(http_session._Attempts, "pause", close_after)
    with pytest.raises(UnknownOutcome, match=r"this session .* is closed"):
        scene.session.commit(txn_id)
    assert scene.node.transactions.get(txn_id).state is TransactionState.COMMITTED


@pytest.mark.parametrize("error", [Unavailable, Fenced])
def test_a_refused_commit_may_still_happen_only_if_an_earlier_one_was_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: type[StrandlineError]
) -> None:
    txn_id = scene.written("a")
    refuse(monkeypatch, "commit", times=2, error=error)
    with pytest.raises(StrandlineError, match="the store is away") as caught:
        scene.session.commit(txn_id)
    assert caught.type is error
    scene.proxy.cut_request("commit")
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED
    assert scene.proxy.seen["commit"] == 4


# -- staging -----------------------------------------------------------------------


@pytest.mark.usefixtures("deadline_at_a_pause")
@pytest.mark.parametrize("error", [Unavailable, Fenced])
def test_a_refused_staging_may_have_happened_only_if_an_earlier_one_was_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: type[StrandlineError]
) -> None:
    txn_id = scene.session.begin().txn_id
    refuse(monkeypatch, "stage", times=1, error=error)
    with pytest.raises(StrandlineError, match="the store is away") as caught:
        scene.session.stage(txn_id, scene.table_id, add=[data("a")])
    assert caught.type is error
    scene.proxy.cut_answer("stage")
    with monkeypatch.context() as patch:
        refuse(patch, "stage", times=1, after=1, error=error)
        scene.session.stage(txn_id, scene.table_id, add=[data("a")])
    scene.proxy.cut_answer("stage")
    refuse(monkeypatch, "stage", times=100, after=1, error=error)
    with pytest.raises(UnknownOutcome, match="the store is away"):
        scene.session.stage(txn_id, scene.table_id, add=[data("b")])
    assert scene.paths(txn_id=txn_id) == ["a", "b"]


@pytest.mark.parametrize("cut", ["answer", "request"])
def test_a_staging_whose_connection_is_lost_is_applied_once(scene: Scene, cut: str) -> None:
    scene.session.commit(scene.written("old"))
    txn_id = scene.session.begin().txn_id
    cutting = scene.proxy.cut_answer if cut == "answer" else scene.proxy.cut_request
    cutting("stage")
    write_id = scene.session.stage(
        txn_id, scene.table_id, add=[data("b"), data("a")], remove=["old"], touch=[]
    )
    assert scene.paths(txn_id=txn_id) == ["a", "b"]
    scene.session.commit(txn_id)
    assert write_id == scene.session.open([scene.name]).write_ids_of(scene.name).hwm == 2
    assert scene.proxy.seen["stage"] == 3


def test_a_removal_whose_answer_is_lost_is_applied_once(scene: Scene) -> None:
    scene.session.commit(scene.written("old"))
    txn_id = scene.session.begin().txn_id
    scene.proxy.cut_answer("stage")
    assert scene.session.stage(txn_id, scene.table_id, remove=["old"]) == 2
    assert scene.paths(txn_id=txn_id) == []


def test_touched_files_of_a_staging_whose_answer_is_lost_still_conflict(scene: Scene) -> None:
    scene.session.commit(scene.written("old"))
    txn_id, other = scene.session.begin().txn_id, scene.session.begin().txn_id
    scene.proxy.cut_answer("stage")
    scene.session.stage(txn_id, scene.table_id, add=[data("a")], touch=["old"])
    scene.session.stage(other, scene.table_id, remove=["old"])
    scene.session.commit(other)
    with pytest.raises(WriteConflict):
        scene.session.commit(txn_id)


def test_a_refused_staging_stays_refused_if_its_answer_is_lost(scene: Scene) -> None:
    scene.session.commit(scene.written("old"))
    txn_id = scene.session.begin().txn_id
    scene.proxy.cut_answer("stage")
    with pytest.raises(AlreadyExists):
        scene.session.stage(txn_id, scene.table_id, add=[data("old")])
    for removed, touched in ((["never"], []), ([], ["never"])):
        scene.proxy.cut_answer("stage")
        with pytest.raises(WriteConflict):
            scene.session.stage(txn_id, scene.table_id, remove=removed, touch=touched)
    assert scene.proxy.seen["stage"] == 7
    assert scene.paths(txn_id=txn_id) == ["old"]


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_the_outcome_of_a_staging_is_unknown_at_the_deadline(scene: Scene) -> None:
    txn_id = scene.session.begin().txn_id
    scene.proxy.cut_request("stage", times=100)
    with pytest.raises(UnknownOutcome, match="abort"):
        scene.session.stage(txn_id, scene.table_id, add=[data("a")])


def test_a_delete_file_whose_answer_is_lost_is_staged_once(scene: Scene) -> None:
    scene.session.commit(scene.written("old"))
    txn_id = scene.session.begin().txn_id
    deletes = DeleteFile(path="d", file_ids=(data("old").file_id,), counts=(9,))
    scene.proxy.cut_answer("stage")
    scene.session.stage(txn_id, scene.table_id, add=[deletes], touch=["old"])
    scene.session.commit(txn_id)
    assert files_of(scene.local, scene.name).delete_files == (deletes,)
