"""Methods of Hive's ACID tables that transactional tables here do not need.

Hive's clients report which partitions a transaction writes, so that conflicts are found and
compaction knows where to look. Here the staged files of a transaction provide both, so
`add_dynamic_partitions` checks the transaction and stores nothing. There are no deltas to compact:
none are listed as compacted, and requests to compact are not accepted.
"""

from __future__ import annotations

from strandline.errors import UnsupportedOperation
from strandline.metastore.hive.registry import Call, Request, answers, constantly, writes
from strandline.metastore.hive.transactions import owner_of_transactions
from strandline.metastore.thrift.messages import ThriftException
from strandline.transactions import TransactionState, require_owner

_NOT_ACCEPTED = (
    "the files of a transactional table are not Hive's deltas, so Hive clients cannot compact them"
)


@writes("add_dynamic_partitions")
async def add_dynamic_partitions(call: Call) -> None:
    txn_id = call.of("rqst").args["txnid"]
    transaction = call.metastore.transactions.get(txn_id)
    require_owner(txn_id, transaction.user, owner=owner_of_transactions(call))
    if transaction.state is not TransactionState.OPEN:
        aborted = transaction.state is TransactionState.ABORTED
        raise ThriftException(
            "TxnAbortedException" if aborted else "NoSuchTxnException",
            {"message": f"transaction {txn_id} is {transaction.state.name.lower()}; open another"},
        )


@answers("compact")
def compact(request: Request) -> None:
    raise UnsupportedOperation(_NOT_ACCEPTED)


constantly("show_compact", {"compacts": []})
constantly("get_latest_committed_compaction_info", {"compactions": []})
constantly(
    "compact2", {"id": 0, "state": "refused", "accepted": False, "errormessage": _NOT_ACCEPTED}
)
