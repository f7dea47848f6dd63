"""A session over HTTP whose connections break."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from strandline.metastore.session import HttpSession, LocalSession
from strandline.metastore.store.rows import DataFile
from strandline.node import Node
from tests.metastore.session.served import CuttingProxy
from tests.metastore.snapshots import paths_of

SHORT = 0.6
"""The timeout, in seconds, of a session that reaches no node until its deadline."""
LAST_PAUSE = 4
"""The pause of a call at which its deadline is over; see `deadline_at_a_pause`."""


@dataclass
class Scene:
    """A node behind a proxy, a session through the proxy, and a local session on the node."""

    node: Node
    url: str
    proxy: CuttingProxy
    session: HttpSession
    local: LocalSession
    name: str
    table_id: int

    def impatient(self) -> HttpSession:
        return HttpSession(self.proxy.url, user="ann", timeout=SHORT)

    def paths(self, *, txn_id: int | None = None) -> list[str]:
        return paths_of(self.local, self.name, txn_id=txn_id)

    def written(self, *paths: str) -> int:
        """Begin a transaction and stage these files in it; return its id."""
        txn_id = self.session.begin().txn_id
        self.session.stage(txn_id, self.table_id, add=[data(path) for path in paths])
        return txn_id


def data(path: str) -> DataFile:
    return DataFile(file_id=crc32(path.encode()) >> 12, path=path, rows=10, bytes=100)
