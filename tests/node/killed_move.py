"""The command ``strandline durable migrate`` in a process that is killed at a counted point.

A point is before each statement that the process sends to a database, before each request to etcd,
and before and after each sync and rename of a file. A statement that only reads is no point: a kill
before it leaves the same state as a kill before the next statement that writes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from strandline.cli import main
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.sql import statements


def run(
    say: Callable[[object], None],
    hear: Callable[[], Any],
    at: int,
    output: str,
    source: str,
    target: str,
    objects: str = "",
) -> None:
    """Kill this process at point ``at``; without a kill, report exit status and number of points.

    What the command prints goes to the file ``output``.
    """
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    passed = 0

    def reached() -> None:
        nonlocal passed
        passed += 1
        if passed == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(
        call: Callable[..., Any],  # Any: passed on as it came
        *,
        is_behind: bool,
    ) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            if not (call is send and str(arguments[1]).startswith("SELECT")):
                reached()
            answer = call(*arguments, **named)
            if is_behind:
                reached()
            return answer

        return counting

    def asking(gateway: EtcdGateway, *arguments: Any, repeatable: bool, **named: Any) -> Any:
        if not repeatable:
            reached()
        return ask(gateway, *arguments, repeatable=repeatable, **named)

    ask = EtcdGateway._call
    send = statements._sent
    patch = pytest.MonkeyPatch()
    patch.setattr(EtcdGateway, "_call", asking)
    patch.setattr(statements, "_sent", counted(send, is_behind=False))
    for name in ("fsync", "rename"):
        patch.setattr(os, name, counted(getattr(os, name), is_behind=True))
    status: object = 0
    try:
        command = ["durable", "migrate", "--from", source, "--to", target]
        main([*command, *(["--objects", objects] * bool(objects))], standalone_mode=False)
    except SystemExit as ended:
        status = ended.code
    say([status, passed])
