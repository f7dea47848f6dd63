"""Transactions, write ids, the lists that readers use, locks, and holds on history. Kept in SQL."""

from strandline.transactions.catalog_view import (
    Behind,
)
from strandline.transactions.heartbeats import Heartbeats
from strandline.transactions.holders import Holder, Holders, HolderType
from strandline.transactions.holds import Hold, Holds
from strandline.transactions.id_lists import NO_OPEN, RangeResponse
from strandline.transactions.locks import Component, LockMode, LockRequest, Locks
from strandline.transactions.transaction import (
    ForeignTransaction,
    Step,
    Transaction,
    TransactionListener,
    TransactionState,
    require_owner,
)
from strandline.transactions.transactions import Transactions
from strandline.transactions.write_ids import (
    CleanerWriteIds,
    CompactorWriteIds,
    ValidTxnList,
    ValidWriteIdList,
)

__all__ = [
    "NO_OPEN",
    "Behind",
    "CleanerWriteIds",
    "CompactorWriteIds",
    "Component",
    "ForeignTransaction",
    "Heartbeats",
    "Hold",
    "Holder",
    "HolderType",
    "Holders",
    "Holds",
    "LockMode",
    "LockRequest",
    "Locks",
    "RangeResponse",
    "Step",
    "Transaction",
    "TransactionListener",
    "TransactionState",
    "Transactions",
    "ValidTxnList",
    "ValidWriteIdList",
    "require_owner",
]
