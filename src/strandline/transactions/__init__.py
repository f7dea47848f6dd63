"""Transactions, write ids, the lists that readers use, locks, and holds on history. Kept in SQL."""

from strandline.transactions.catalog_view import Behind
from strandline.transactions.holders import Holder, Holders, HolderType
from strandline.transactions.holds import Hold
from strandline.transactions.id_lists import NO_OPEN
from strandline.transactions.locks import Component, LockMode, LockRequest
from strandline.transactions.transaction import (
    ForeignTransaction,
    Step,
    Transaction,
    TransactionState,
    require_owner,
)
from strandline.transactions.transactions import Transactions
from strandline.transactions.write_ids import ValidTxnList, ValidWriteIdList

__all__ = [
    "NO_OPEN",
    "Behind",
    "Component",
    "ForeignTransaction",
    "Hold",
    "Holder",
    "HolderType",
    "Holders",
    "LockMode",
    "LockRequest",
    "Step",
    "Transaction",
    "TransactionState",
    "Transactions",
    "ValidTxnList",
    "ValidWriteIdList",
    "require_owner",
]
