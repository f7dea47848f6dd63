"""A linearizable key-value store: one interface, one implementation for each kind of server."""

from strandline.metastorage.election import Election, ElectionListener, ElectionStatistics
from strandline.metastorage.opening import KINDS, open_metastorage
from strandline.metastorage.sqlite import SqliteMetastorage
from strandline.metastorage.store import (
    MAX_KEY_LENGTH,
    MAX_VALUE_BYTES,
    Absent,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    Head,
    KeyValue,
    Lease,
    LeaseHeld,
    Metastorage,
    MetastorageStatistics,
    Operation,
    Outcome,
    Put,
    RevisionIs,
    ValueIs,
    prefix_end,
)

__all__ = [
    "KINDS",
    "MAX_KEY_LENGTH",
    "MAX_VALUE_BYTES",
    "Absent",
    "Condition",
    "Delete",
    "DeleteRange",
    "Election",
    "ElectionListener",
    "ElectionStatistics",
    "Exists",
    "Head",
    "KeyValue",
    "Lease",
    "LeaseHeld",
    "Metastorage",
    "MetastorageStatistics",
    "Operation",
    "Outcome",
    "Put",
    "RevisionIs",
    "SqliteMetastorage",
    "ValueIs",
    "open_metastorage",
    "prefix_end",
]
