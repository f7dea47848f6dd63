"""Methods on transactions for engines that use Hive's; `strandline.transactions` stores them.

A client opens transactions, allocates write ids of tables for them, sends heartbeats, and commits
or aborts them. A reader asks once for the list of open transactions, and with this list asks which
writes of each table are valid. `strandline.metastore.interface.Session` has the same transactions:
a transaction may begin here and stage files there.

Replays are answered as Hive answers them: a second commit of a committed transaction succeeds, and
so does a second abort of an aborted one. An abort of a committed transaction raises
``NoSuchTxnException``. A commit of an aborted transaction raises ``TxnAbortedException``, and so
does the commit that loses a conflict.

Where privileges are enforced, a transaction belongs to its user. A user gets write ids only for
tables that it may write, and lists of write ids only for tables that it may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from strandline import work
from strandline.catalog import DEFAULT_DATABASE
from strandline.catalog.privileges.rules import WRITING
from strandline.clock import milliseconds
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.metastore.hive.registry import Call, shares, writes
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.off_loop import off_loop, result_of
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.descriptors import TableDescriptor
from strandline.model.identifiers import normalize
from strandline.transactions import (
    NO_OPEN,
    Transaction,
    TransactionState,
    ValidTxnList,
    ValidWriteIdList,
    require_owner,
)
from strandline.transactions.transactions import MAX_BATCH

NO_AGENT = "Unknown"
"""The agent of a client that does not name one: the protocol's default."""

MAX_RANGE = 10_000
"""The maximum number of ids that `heartbeat_txn_range` accepts."""
MAX_SHOWN = work.IN_THREAD
"""The maximum number of open, and of aborted, transactions in `get_open_txns_info`."""
MAX_TABLES = 10_000
"""The maximum number of tables that `get_valid_write_ids` accepts."""
MAX_IDS = 2_000_000
"""The maximum number of ids in the list of a `get_valid_write_ids`, times its tables, and in the
answer."""

_DEFAULT, _READ_ONLY = 0, 2
"""Transaction types, as the protocol numbers them. Types of Hive's own maintenance are refused."""
_STATES = {TransactionState.COMMITTED: 1, TransactionState.ABORTED: 2, TransactionState.OPEN: 3}


@shares("open_txns")
async def open_txns(call: Call) -> Struct:
    request = call.args
    _refuse_replication(request)
    count, kind = request["num_txns"], request.get("txn_type", _DEFAULT)
    if count < 1:
        raise InvalidInput(f"Invalid input for number of txns: {count}")
    if kind not in (_DEFAULT, _READ_ONLY):
        raise UnsupportedOperation(
            f"a transaction of the type {kind} cannot be opened; use {_DEFAULT} or {_READ_ONLY} "
            "(read-only)"
        )
    transactions = call.metastore.transactions
    begun = await result_of(
        transactions.beginning(
            min(count, MAX_BATCH),
            user=call.user,
            host=request.get("hostname") or "",
            agent=request.get("agentInfo") or "",
            read_only=kind == _READ_ONLY,
        )
    )
    return {"txn_ids": [transaction.txn_id for transaction in begun]}


@shares("commit_txn")
async def commit_txn(call: Call) -> None:
    request = call.args
    _refuse_replication(request)
    if request.get("keyValue"):
        raise UnsupportedOperation(
            "a commit cannot set a parameter of a table; alter the table in a separate request"
        )
    txn_id, transactions = request["txnid"], call.metastore.transactions
    if transactions.is_unwritten(txn_id):
        committing = transactions.committing(
            txn_id, owner=owner_of_transactions(call), under=call.reader.catalog.version
        )
        if await result_of(committing) is not None:
            return
    await off_loop()
    owner = owner_of_transactions(await call.proven())
    try:
        call.metastore.commit(txn_id, owner=owner)
    except WriteConflict as conflict:
        raise ThriftException("TxnAbortedException", {"message": conflict.message}) from None


@writes("abort_txn")
async def abort_txn(call: Call) -> None:
    request = call.args
    _refuse_replication(request)
    try:
        call.metastore.abort(request["txnid"], owner=owner_of_transactions(call))
    except TransactionFinished as error:
        raise ThriftException("NoSuchTxnException", {"message": error.message}) from None


@writes("abort_txns")
async def abort_txns(call: Call) -> None:
    txn_ids = call.args["txn_ids"]
    call.metastore.abort_all(txn_ids, owner=owner_of_transactions(call))


@writes("heartbeat_txn_range")
async def heartbeat_txn_range(call: Call) -> Struct:
    request = call.args
    first, last = request["min"], request["max"]
    if last - first >= MAX_RANGE:
        raise LimitExceeded(
            f"one heartbeat covers at most {MAX_RANGE} transactions, {first} to {last} are more; "
            "send one heartbeat for each range that was opened"
        )
    outcomes = call.metastore.transactions.heartbeat(
        range(first, last + 1), owner=owner_of_transactions(call)
    )
    return {
        "aborted": sorted(outcomes.aborted),
        "nosuch": sorted(outcomes.missing | outcomes.committed),
    }


@writes("add_dynamic_partitions")
async def add_dynamic_partitions(call: Call) -> None:
    """Check that the transaction is open. Its staged files say which partitions it writes."""
    txn_id = call.of("rqst").args["txnid"]
    transaction = call.metastore.transactions.get(txn_id)
    require_owner(txn_id, transaction.user, owner=owner_of_transactions(call))
    if transaction.state is not TransactionState.OPEN:
        aborted = transaction.state is TransactionState.ABORTED
        raise ThriftException(
            "TxnAbortedException" if aborted else "NoSuchTxnException",
            {"message": f"transaction {txn_id} is {transaction.state.name.lower()}; open another"},
        )


# -- open transactions


@writes("get_open_txns", "get_open_txns_req")
async def get_open_txns(call: Call) -> Struct:
    unfinished = call.metastore.transactions.unfinished()
    return {
        "txn_high_water_mark": unfinished.hwm,
        "open_txns": list(unfinished.txn_ids),
        "min_open_txn": unfinished.min_open,
        "abortedBits": aborted_bits(unfinished.txn_ids, unfinished.aborted),
    }


@writes("get_open_txns_info")
async def get_open_txns_info(call: Call) -> Struct:
    transactions = call.metastore.transactions
    unfinished = transactions.unfinished()
    free, own_name = call.reader.access.free, normalize(call.user)
    wanted = None if free else lambda user: normalize(user) == own_name
    open_ones = transactions.open_transactions(limit=MAX_SHOWN, wanted=wanted)
    shown = {transaction.txn_id: transaction for transaction in open_ones}
    shown |= transactions.find_many(sorted(unfinished.aborted)[:MAX_SHOWN])
    return {
        "txn_high_water_mark": unfinished.hwm,
        "open_txns": [
            _info(transaction)
            for _, transaction in sorted(shown.items())
            if free or normalize(transaction.user) == own_name
        ],
    }


def _info(transaction: Transaction) -> Struct:
    return {
        "id": transaction.txn_id,
        "state": _STATES[transaction.state],
        "user": transaction.user,
        "hostname": transaction.host,
        "agentInfo": transaction.agent or NO_AGENT,
        "startedTime": milliseconds(transaction.begin_time),
        "lastHeartbeatTime": transaction.last_heartbeat,
    }


# -- write ids


@shares("allocate_table_write_ids")
async def allocate_table_write_ids(call: Call) -> Struct:
    request = call.args
    _refuse_replication(request)
    txn_ids, transactions = request.get("txnIds") or [], call.metastore.transactions
    write_ids = table_id = None
    with suppress(StrandlineError):  # another node may just have created it, or granted access
        table_id = await _writable_table(call, request)
    if len(txn_ids) == 1 and table_id is not None:
        write_ids = await result_of(
            transactions.allocating(
                txn_ids[0],
                table_id,
                owner=owner_of_transactions(call),
                under=call.reader.catalog.version,
            )
        )
    if write_ids is None:
        await off_loop()
        call = await call.proven()
        write_ids = transactions.allocate(
            txn_ids, await _writable_table(call, request), owner=owner_of_transactions(call)
        )
    return {
        "txnToWriteIds": [
            {"txnId": txn_id, "writeId": write_id} for txn_id, write_id in sorted(write_ids.items())
        ]
    }


async def _writable_table(call: Call, request: Struct) -> int:
    """Return the id of the table to write. Raises `UnsupportedOperation` unless it is one."""
    scope, table = await call.reader.relation(request["db_name"], request["tbl_name"], need=WRITING)
    if scope.is_past or not isinstance(table, TableDescriptor):
        raise UnsupportedOperation(
            f"{request['db_name']}.{request['tbl_name']} cannot be written: it is a view, or a "
            "table of the past"
        )
    return table.id


@writes("get_valid_write_ids")
async def get_valid_write_ids(call: Call) -> Struct:
    request = call.args
    names, write_id = request["fullTableNames"], request.get("writeId") or None
    if len(names) > MAX_TABLES:
        raise LimitExceeded(
            f"one request gets the lists of at most {MAX_TABLES} tables, not of {len(names)}"
        )
    if write_id is not None and len(names) != 1:
        raise InvalidInput("a write id belongs to one table; name exactly one table")
    text = request.get("validTxnList")
    txns = None if text is None else ValidTxnList.parse(text)
    remaining_ids = MAX_IDS - len(names) * (0 if txns is None else len(txns.exceptions))
    _require_few(remaining_ids)
    answers: list[Struct] = []
    for name in names:
        answers.append(await _valid_write_ids(call, name, txns, write_id))
        remaining_ids -= len(answers[-1]["invalidWriteIds"])
        _require_few(remaining_ids)
    return {"tblValidWriteIds": answers}


def _require_few(remaining_ids: int) -> None:
    if remaining_ids < 0:
        raise LimitExceeded(
            f"the lists of one request cover at most {MAX_IDS} transaction ids and write ids; "
            "request fewer tables at once"
        )


async def _valid_write_ids(
    call: Call, full_name: str, txns: ValidTxnList | None, write_id: int | None
) -> Struct:
    ids = await _write_ids_of(call, full_name, txns, write_id)
    return {
        "fullTableName": full_name,
        "writeIdHighWaterMark": ids.hwm,
        "invalidWriteIds": list(ids.exceptions),
        "minOpenWriteId": None if ids.min_open == NO_OPEN else ids.min_open,
        "abortedBits": aborted_bits(ids.exceptions, frozenset(ids.aborted_ids)),
    }


async def _write_ids_of(
    call: Call, full_name: str, txns: ValidTxnList | None, write_id: int | None
) -> ValidWriteIdList:
    """The write ids of a table. As in Hive, the list is empty for a table never written."""
    schema, _, name = full_name.rpartition(".")
    schema = schema.removeprefix(f"{DEFAULT_DATABASE}.")
    try:
        scope, table = await call.reader.relation(schema, name)
    except ObjectNotFound:
        return ValidWriteIdList(hwm=0)
    if not isinstance(table, TableDescriptor) or not table.transactional:
        return ValidWriteIdList(hwm=0)
    transactions = call.metastore.transactions
    if write_id is not None:
        txn_id = transactions.txn_with_write_id(table.id, write_id)
        user = transactions.get(txn_id).user
        require_owner(txn_id, user, owner=owner_of_transactions(call))
        return transactions.write_ids(table.id, txn_id=txn_id)
    if txns is not None:
        return transactions.write_ids_by(table.id, txns)
    return transactions.write_ids(table.id, at=scope.point.moment)


def aborted_bits(ids: Sequence[int], aborted: frozenset[int]) -> bytes:
    """One bit per id, lowest bit of a byte first, without trailing zero bytes, as Java writes."""
    bits = bytearray(len(ids) // 8 + 1)
    for position, number in enumerate(ids):
        if number in aborted:
            bits[position // 8] |= 1 << position % 8
    return bytes(bits).rstrip(b"\0")


# -- what the user may do


def owner_of_transactions(call: Call) -> str | None:
    """The user whose transactions the user may use: itself, or None for those of all users."""
    return None if call.reader.access.free else call.user


def _refuse_replication(request: Struct) -> None:
    if (
        request.get("replPolicy")
        or request.get("replSrcTxnIds")
        or request.get("srcTxnToWriteIdList")
    ):
        raise UnsupportedOperation(
            "transactions of another metastore cannot be replicated here; open transactions"
            " without a replication policy"
        )
