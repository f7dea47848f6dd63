"""What a child process wrote is read afterwards, also where the child ended early."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastore.served_calls import delegate
from strandline.node import Node
from strandline.work.children import ChildPool


@pytest.mark.parametrize(("only_reads", "looks"), [(False, 1), (True, 0)])
def test_memory_is_not_believed_after_a_change_though_its_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_reads: bool, looks: int
) -> None:
    threads: list[threading.Thread] = []

    def start(*, only_reads: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def end_without_a_reply() -> None:
            with theirs:
                theirs.recv(1)

        threads.append(threading.Thread(target=end_without_a_reply))
        threads[-1].start()
        return ours

    async def run() -> None:
        pool = ChildPool(start)
        with pytest.raises(Unavailable if only_reads else UnknownOutcome):
            await delegate(node.metastore, pool, "change", {}, b"", only_reads=only_reads)
        pool.close()

    looked: list[int] = []
    with Node.open(tmp_path / "store", background=False) as node:
        monkeypatch.setattr(node.metastore.store, "look_again", lambda: looked.append(1))
        asyncio.run(run())
    for thread in threads:
        thread.join()
    assert len(looked) == looks
