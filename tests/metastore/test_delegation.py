"""After a child process wrote, memory looks at the log again, even if the child ended early."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from strandline.catalog import update_priority
from strandline.catalog.commands import CreateSchema
from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastore.delegation import delegate
from strandline.node import Node
from strandline.work.child_pool import ChildPool
from strandline.work.children import send_packet
from strandline.work.contents import Content


@pytest.mark.parametrize(("only_reads", "looks"), [(False, 1), (True, 0)])
def test_after_a_change_with_unknown_outcome_memory_looks_at_the_log_and_commands_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_reads: bool, looks: int
) -> None:
    threads: list[threading.Thread] = []

    def start(*, only_reads: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def end_without_a_reply() -> None:
            with theirs:
                send_packet(theirs, {"opened": True}, Content.of(b""))
                theirs.recv(1)
                if not only_reads:
                    send_packet(theirs, {"announces": True}, Content.of(b"an update"))
                    theirs.recv(1)  # the node has noted it

        threads.append(threading.Thread(target=end_without_a_reply))
        threads[-1].start()
        return ours

    async def run() -> None:
        priority = node.catalogs._commits.priority
        pool = ChildPool(
            start,
            on_announced=lambda update: priority.grant(),
            on_ended=node.catalogs.child_ended,
        )
        with pytest.raises(Unavailable if only_reads else UnknownOutcome):
            await delegate(node.metastore, pool, "change", {}, b"", only_reads=only_reads)
        pool.close()

    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", 3600.0)
    looked: list[int] = []
    with Node.open(tmp_path / "store", background=False) as node:
        monkeypatch.setattr(
            node.metastore.store.log_applier, "invalidate_level", lambda: looked.append(1)
        )
        asyncio.run(run())
        node.session(user="ann").execute(CreateSchema(name="s"))
    for thread in threads:
        thread.join()
    assert len(looked) == looks
