"""Delegation: calls to this node that a child process executes, for both protocols.

A child writes to the store like another node. But its call is a call to this node: after the
answer, its client must see its own writes on any protocol. The notification of the commit may
arrive after the answer, so memory does not answer for the present before this node has looked at
the store again. This also holds after an error: a child that died may have committed.
"""

from __future__ import annotations

from strandline.metastore.metastore import Metastore
from strandline.work.child_pool import ChildPool, Data, Reply
from strandline.work.children import Fields


async def delegate(
    metastore: Metastore,
    children: ChildPool,
    name: str,
    fields: Fields,
    data: Data,
    *,
    only_reads: bool,
) -> Reply:
    """Run a call to ``metastore`` in a child process; see `ChildPool.run`."""
    if only_reads:
        return await children.run(name, fields, data, only_reads=True)
    with metastore.projector.delegated():
        try:
            return await children.run(name, fields, data, only_reads=False)
        finally:
            metastore.store.log_applier.invalidate_level()
