"""Methods for Hive's ACID tables: which calls are answered, and which are refused."""

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


def test_dynamic_partitions_are_accepted_for_an_open_transaction_only(
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
