"""Methods of Hive's ACID tables: what is answered of them, and what is refused."""

from __future__ import annotations

from typing import Any

from hive_metastore.ttypes import (
    AbortTxnRequest,
    AddDynamicPartitions,
    CommitTxnRequest,
    CompactionRequest,
    CompactionType,
    GetLatestCommittedCompactionInfoRequest,
    OpenTxnRequest,
    ShowCompactRequest,
)

from tests.metastore.hive.hive_node import HiveNode, plain, refusal


def test_the_partitions_of_an_open_transaction_are_taken_note_of_by_its_files(
    hive: HiveNode, stub: Any
) -> None:
    asked = OpenTxnRequest(num_txns=3, user="ann", hostname="h1")
    opened, committed, aborted = stub.open_txns(asked).txn_ids
    stub.commit_txn(CommitTxnRequest(txnid=committed))
    stub.abort_txn(AbortTxnRequest(txnid=aborted))

    def add(txn_id: int) -> None:
        stub.add_dynamic_partitions(AddDynamicPartitions(txn_id, 1, "d1", "t", ["p=1"]))

    add(opened)
    assert refusal(lambda: add(committed))[0] == "NoSuchTxnException"
    assert refusal(lambda: add(aborted))[0] == "TxnAbortedException"
    assert refusal(lambda: add(10**12))[0] == "NoSuchTxnException"


def test_nothing_is_compacted_and_a_request_for_it_is_not_accepted(stub: Any) -> None:
    request = CompactionRequest("d1", "t", None, CompactionType.MAJOR)
    refused = plain(stub.compact2(request))
    assert (refused["accepted"], refused["state"]) == (False, "refused")
    assert "not Hive's deltas" in refused["errormessage"]
    kind, message = refusal(lambda: stub.compact(request))
    assert (kind, "not Hive's deltas" in message) == ("TApplicationException", True)
    assert plain(stub.show_compact(ShowCompactRequest()))["compacts"] == []
    request = GetLatestCommittedCompactionInfoRequest("d1", "t")
    assert plain(stub.get_latest_committed_compaction_info(request))["compactions"] == []
