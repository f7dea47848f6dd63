"""Methods for the locks of Hive's clients, which `strandline.transactions.locks` keeps.

Where privileges are enforced, a user needs USAGE on the schema of a lock. A shared read lock on a
table needs SELECT. Any other lock needs a privilege to write the table, or CREATE on the schema if
it names no table or one that does not exist. A user sees, checks, renews and releases only its own
locks.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.catalog.privileges.rules import WRITING
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    PermissionDenied,
    TransactionFinished,
    TransactionNotFound,
)
from strandline.metastore.hive.names import shown_schema
from strandline.metastore.hive.registry import Call, writes
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.transactions import NO_AGENT, owner_of_transactions
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.identifiers import normalize
from strandline.model.privileges import Privilege
from strandline.transactions import Component, LockMode, LockRequest

ACQUIRED, WAITING, NOT_ACQUIRED = 1, 2, 4
"""States of a lock, as the protocol numbers them."""


@writes("lock")
async def lock(call: Call) -> Struct:
    txn_id = call.args.get("txnid") or None
    locks = call.metastore.transactions.locks
    try:
        components = [_component(sent) for sent in call.args.get("component") or ()]
        for component in components:
            _require_privilege(call, component)
        queued = locks.acquire(
            components,
            owner=call.user,
            user=call.args.get("user") or "",
            host=call.args.get("hostname") or "",
            agent=call.args.get("agentInfo") or "",
            txn_id=txn_id,
            txn_owner=owner_of_transactions(call),
        )
    except LimitExceeded as error:
        # The method declares no exception for it. Clients take any other for a bug of the server.
        return {"lockid": 0, "state": NOT_ACQUIRED, "errorMessage": error.message}
    if not queued.acquired and _gives_up(call, queued):
        locks.withdraw(queued.lock_id)
        message = f"Unable to acquire the lock: lock {queued.blocked_by} is held or waits before it"
        return {"lockid": queued.lock_id, "state": NOT_ACQUIRED, "errorMessage": message}
    return _response(queued)


@writes("check_lock")
async def check_lock(call: Call) -> Struct:
    locks = call.metastore.transactions.locks
    return _response(locks.check(call.args["lockid"], may_touch=_only_own(call)))


@writes("unlock")
async def unlock(call: Call) -> None:
    locks = call.metastore.transactions.locks
    try:
        locks.release(call.args["lockid"], may_touch=_only_own(call))
    except TransactionFinished as error:
        raise ThriftException("TxnOpenException", {"message": error.message}) from None


@writes("heartbeat")
async def heartbeat(call: Call) -> None:
    lock_id, txn_id = call.args.get("lockid") or None, call.args.get("txnid") or None
    transactions = call.metastore.transactions
    if lock_id is not None:
        transactions.locks.heartbeat(lock_id, may_touch=_only_own(call))
    if txn_id is None:
        return
    outcomes = transactions.heartbeat([txn_id], owner=owner_of_transactions(call))
    if outcomes.missing:
        raise TransactionNotFound(f"No such transaction txnid:{txn_id}")
    if outcomes.committed:
        raise TransactionNotFound(f"Transaction txnid:{txn_id} already committed")
    if outcomes.aborted:
        raise TransactionFinished(f"Transaction txnid:{txn_id} already aborted")


@writes("show_locks")
async def show_locks(call: Call) -> Struct:
    arguments = call.args
    locks = call.metastore.transactions.locks
    requests = locks.list(
        schema=_name(arguments.get("db_name")),
        table=_name(arguments.get("tbl_name")),
        partition=_name(arguments.get("partname")),
        txn_id=arguments.get("txnid") or None,
    )
    free, own_name = call.reader.access.free, normalize(call.user)
    shown = [request for request in requests if free or normalize(request.owner) == own_name]
    blocking_ids = {request.blocked_by for request in shown if request.blocked_by is not None}
    earlier = locks.list(lock_ids=blocking_ids) if blocking_ids else ()
    blocking = {request.lock_id: request for request in earlier}
    return {
        "locks": [
            element
            for request in shown
            for element in _elements(request, blocking.get(request.blocked_by or 0))
        ]
    }


def _component(sent: Struct) -> Component:
    level, table, partition = sent["level"], sent.get("tablename"), sent.get("partitionname")
    if level not in (1, 2, 3):
        raise InvalidInput(f"{level} is not a lock level; send 1, 2 or 3")
    if level > 1 and not table:
        raise InvalidInput("a lock on a table or partition must name the table")
    try:
        mode = LockMode(sent["type"])
    except ValueError:
        raise InvalidInput(f"{sent['type']} is not a lock type") from None
    schema = shown_schema(sent.get("dbname", ""))
    if level == 1:
        return Component(mode, schema)
    return Component(mode, schema, _name(table), _name(partition) if level == 3 else None)


def _name(sent: str | None) -> str | None:
    return sent.lower() if sent else None


def _response(request: LockRequest) -> Struct:
    return {"lockid": request.lock_id, "state": ACQUIRED if request.acquired else WAITING}


def _gives_up(call: Call, queued: LockRequest) -> bool:
    """Whether the client asked not to wait, as a reader or to create a table."""
    modes = {component.mode for component in queued.components}
    if call.args.get("zeroWaitReadEnabled") and modes == {LockMode.SHARED_READ}:
        return True
    return bool(call.args.get("exclusiveCTAS")) and LockMode.EXCLUSIVE in modes


def _elements(request: LockRequest, blocking: LockRequest | None) -> list[Struct]:
    blocked_by = {} if blocking is None else request.waits_for(blocking)
    shared = {
        "lockid": request.lock_id,
        "state": ACQUIRED if request.acquired else WAITING,
        "txnid": request.txn_id or 0,
        "lastheartbeat": 0 if request.txn_id else request.last_heartbeat,
        "acquiredat": request.acquired_at,
        "user": request.user,
        "hostname": request.host,
        "agentInfo": request.agent or NO_AGENT,
    }
    return [
        {
            **shared,
            "dbname": component.schema,
            "tablename": component.table,
            "partname": component.partition,
            "blockedByExtId": request.blocked_by if component in blocked_by else None,
            "blockedByIntId": blocked_by.get(component),
            "type": component.mode.value,
            "lockIdInternal": component.number,
        }
        for component in request.components
    ]


# -- what the user may do


def _require_privilege(call: Call, component: Component) -> None:
    access, catalog = call.reader.access, call.reader.catalog
    if access.free:
        return
    schema = catalog.schema(component.schema)
    # Checked first, so that a refusal does not reveal whether the schema has such a table.
    access.require(Privilege.USAGE, schema)
    relation = None
    if component.table is not None:
        relation = catalog.relation(component.schema, component.table)
    if component.mode is LockMode.SHARED_READ:
        if relation is not None:
            access.require(Privilege.SELECT, relation)
    elif relation is not None:
        access.require_any(WRITING, relation)
    else:
        access.require(Privilege.CREATE, schema)


def _only_own(call: Call) -> Callable[[LockRequest], None]:
    """Return a function that raises `PermissionDenied` for a lock of another user."""
    free = call.reader.access.free

    def may_touch(request: LockRequest) -> None:
        if not free and normalize(request.owner) != normalize(call.user):
            raise PermissionDenied(
                f"lock {request.lock_id} belongs to another user, and user {call.user} is not a "
                "superuser"
            )

    return may_touch
