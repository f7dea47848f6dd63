"""Locks and transactions of Hive's clients."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import NO_ID, Given, Scenario, table

_SHARED_READ, _SHARED_WRITE, _EXCLUSIVE = 1, 2, 3
_INSERT = 2
_SCHEMA, _TABLE, _PARTITION = 1, 2, 3


def _component(
    schema: str, name: str | None = None, part: str | None = None, *, kind: int = _EXCLUSIVE
) -> dict[str, Any]:
    level = _PARTITION if part else _TABLE if name else _SCHEMA
    struct = {
        "type": kind,
        "level": level,
        "dbname": schema,
        "tablename": name,
        "partitionname": part,
    }
    return {field: value for field, value in struct.items() if value is not None}


def _written(schema: str, name: str) -> dict[str, Any]:
    """The lock component of an insert in a transaction."""
    component = _component(schema, name, kind=_SHARED_WRITE)
    return component | {"operationType": _INSERT, "isTransactional": True}


def _lock(*components: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return ("lock", {"component": list(components), "user": "ann", "hostname": "h", **fields})


def _of(call: int, part: str = "lockid", *, name: str = "lockid") -> dict[str, Any]:
    return {name: Given(call, part)}


_OPEN = ("open_txns", {"num_txns": 1, "user": "ann", "hostname": "h"})

SCENARIOS = (
    Scenario(
        "locks",
        (
            _lock(_component("lk", "t")),  # 0
            _lock(_component("lk", "t"), agentInfo="me"),  # 1
            ("check_lock", _of(1)),
            ("show_locks", {}),
            ("unlock", _of(0)),
            ("check_lock", _of(1)),
            ("unlock", _of(1)),
            ("unlock", _of(1)),
            ("check_lock", _of(1)),
            ("heartbeat", _of(1)),
            ("heartbeat", {}),
            ("heartbeat", {"lockid": NO_ID}),
            ("heartbeat", {"txnid": NO_ID}),
            ("unlock", {"lockid": NO_ID}),
            ("check_lock", {"lockid": NO_ID}),
            ("show_locks", {}),
        ),
    ),
    Scenario(
        "locks that share",
        (
            _lock(_component("ls", "t", kind=_SHARED_READ)),  # 0
            _lock(_component("ls", "t", kind=_SHARED_READ)),  # 1
            _lock(_component("ls", "t", kind=_SHARED_WRITE)),  # 2
            _lock(_component("ls", "t", kind=_SHARED_WRITE)),  # 3
            _lock(_component("ls", "other")),  # 4
            _lock(_component("ls", "t", "p=1")),  # 5
            ("show_locks", {}),
            ("show_locks", {"dbname": "ls", "tablename": "other"}),
            *(("unlock", _of(call)) for call in range(6)),
            _lock(_component("ls", kind=_SHARED_READ), _component("ls", "t"), agentInfo="me"),  # 14
            ("show_locks", {}),
            ("heartbeat", _of(14)),
            ("unlock", _of(14)),
            ("show_locks", {}),
        ),
    ),
    Scenario(
        "a reader after a waiting writer",
        (
            _lock(_component("lw", "t", kind=_SHARED_READ)),  # 0
            _lock(_component("lw", "t")),  # 1
            _lock(_component("lw", "t", kind=_SHARED_READ)),  # 2
            ("unlock", _of(0)),
            ("check_lock", _of(1)),
            ("check_lock", _of(2)),
            ("unlock", _of(1)),
            ("check_lock", _of(2)),
            ("unlock", _of(2)),
        ),
    ),
    Scenario(
        "locks of several components",
        (
            _lock(_component("lc", "u", kind=_SHARED_READ), _component("lc", "t")),  # 0
            _lock(  # 1
                _component("lc", "v", kind=_SHARED_READ),
                _component("lc", "t", kind=_SHARED_READ),
                _component("lc", "w", "p=1"),
            ),
            ("show_locks", {}),
            ("show_locks", {"dbname": "lc", "tablename": "t"}),
            ("show_locks", {"dbname": "lc", "tablename": "w", "partname": "p=1"}),
            ("show_locks", {"dbname": "lc", "isExtended": True}),
            ("unlock", _of(0)),
            ("check_lock", _of(1)),
            ("show_locks", {"dbname": "lc"}),
            ("unlock", _of(1)),
            _lock(_component("lc", kind=_SHARED_WRITE)),  # 10
            _lock(_component("lc", "t", kind=_SHARED_WRITE)),  # 11
            _lock(_component("lc", "t", "p=1", kind=_SHARED_WRITE)),  # 12
            _lock(_component("other", "t", kind=_SHARED_WRITE)),  # 13
            _lock(_component("lc", "t", kind=_SHARED_READ)),  # 14
            ("show_locks", {}),
            ("unlock", _of(10)),
            ("check_lock", _of(11)),
            ("check_lock", _of(12)),
            *(("unlock", _of(call)) for call in (11, 12, 13, 14)),
            ("show_locks", {"dbname": "lc"}),
        ),
    ),
    Scenario(
        "transactions",
        (
            ("set_ugi", "ann", []),
            _OPEN,
            ("open_txns", {"num_txns": 2, "user": "ann", "hostname": "h"}),  # 2
            ("get_open_txns_info",),
            ("commit_txn", {"txnid": NO_ID}),
            ("abort_txn", {"txnid": NO_ID}),
            ("open_txns", {"num_txns": 0, "user": "ann", "hostname": "h"}),
            ("heartbeat_txn_range", {"min": NO_ID, "max": NO_ID + 1}),
            ("abort_txns", {"txn_ids": []}),
            ("abort_txns", {"txn_ids": [NO_ID]}),
            ("abort_txns", {"txn_ids": Given(2, "txn_ids")}),
            ("get_open_txns_info",),
        ),
    ),
    Scenario(
        "a transaction and its locks",
        (
            ("create_database", {"name": "tx"}),
            ("create_table", table("tx", "t")),
            _OPEN,  # 2
            ("first", 2, "txn_ids"),  # 3
            _lock(_written("tx", "t"), txnid=Given(3, "id")),  # 4
            ("unlock", _of(4)),
            ("check_lock", _of(4)),
            ("show_locks", {"dbname": "tx"}),
            ("heartbeat", {"txnid": Given(3, "id"), "lockid": Given(4, "lockid")}),
            ("heartbeat_txn_range", {"min": Given(3, "id"), "max": Given(3, "id")}),
            ("commit_txn", {"txnid": Given(3, "id")}),
            ("check_lock", _of(4)),
            ("commit_txn", {"txnid": Given(3, "id")}),
            ("abort_txn", {"txnid": Given(3, "id")}),
            ("heartbeat", {"txnid": Given(3, "id")}),
            _lock(_component("tx", "t"), txnid=Given(3, "id")),
            ("heartbeat_txn_range", {"min": Given(3, "id"), "max": Given(3, "id")}),
            _OPEN,  # 17
            ("first", 17, "txn_ids"),  # 18
            ("abort_txn", {"txnid": Given(18, "id")}),
            ("abort_txn", {"txnid": Given(18, "id")}),
            ("commit_txn", {"txnid": Given(18, "id")}),
            ("heartbeat", {"txnid": Given(18, "id")}),
            ("heartbeat_txn_range", {"min": Given(18, "id"), "max": Given(18, "id")}),
            _lock(_component("tx", "t"), txnid=Given(18, "id")),
            _lock(_component("tx", "t"), txnid=NO_ID),
            ("show_locks", {}),
        ),
    ),
)
