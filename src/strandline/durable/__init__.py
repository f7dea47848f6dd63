"""The durable catalog state and the update logs under it."""

from strandline.durable.contents import Contents
from strandline.durable.log import Companion, Frontier, SetBack, Superseded, UpdateLog
from strandline.durable.metastorage_log import VERSION, MetastorageLog, upper_within
from strandline.durable.opening import OpenableState, durable_state, joined_anew
from strandline.durable.shadow_log import ShadowLog
from strandline.durable.stash_log import StashLog
from strandline.durable.state import AppliedUpdate, DurableCatalogState, ReadOnlyState, config_in
from strandline.durable.transaction import CatalogTransaction, Position
from strandline.durable.update import Arguments, AuditEvent, CatalogSnapshot, Change, Entry, Update

__all__ = [
    "VERSION",
    "AppliedUpdate",
    "Arguments",
    "AuditEvent",
    "CatalogSnapshot",
    "CatalogTransaction",
    "Change",
    "Companion",
    "Contents",
    "DurableCatalogState",
    "Entry",
    "Frontier",
    "MetastorageLog",
    "OpenableState",
    "Position",
    "ReadOnlyState",
    "SetBack",
    "ShadowLog",
    "StashLog",
    "Superseded",
    "Update",
    "UpdateLog",
    "config_in",
    "durable_state",
    "joined_anew",
    "upper_within",
]
