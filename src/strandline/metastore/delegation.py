"""`delegate`: have a child process answer a call, and see afterwards what it wrote.

A child writes to the store as another node would. But its call is this node's: whoever made it, on
any protocol, reads what it wrote as soon as it is answered. News of a commit may come later than
the answer, so memory is not believed before it has looked at the store again. That holds after an
error too: a child that ended in the middle may have committed.
"""

from __future__ import annotations

from strandline.metastore.metastore import Metastore
from strandline.work.children import ChildPool, Data, Fields, Reply


async def delegate(
    metastore: Metastore,
    children: ChildPool,
    name: str,
    fields: Fields,
    data: Data,
    *,
    only_reads: bool,
) -> Reply:
    """`ChildPool.run` for a call to ``metastore``."""
    if only_reads:
        return await children.run(name, fields, data, only_reads=True)
    with metastore.projector.delegated():
        try:
            return await children.run(name, fields, data, only_reads=False)
        finally:
            metastore.store.look_again()
