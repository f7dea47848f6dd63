"""The program ``strandline``, before it has loaded its commands."""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType

import pytest

from strandline import __main__, cli

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ended(Exception):
    """Stands for the end of the process, with its exit status."""


def handlers_at_the_command(
    monkeypatch: pytest.MonkeyPatch, *, pid: int, former: signal.Handlers
) -> list[object]:
    """The handlers of `SIGNALS` when a process of that id runs its command."""
    found: list[object] = []

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(cli, "main", lambda: found.extend(map(signal.getsignal, SIGNALS)))
    of_this_process = [signal.signal(number, former) for number in SIGNALS]
    try:
        __main__.run()
    finally:
        for number, handler in zip(SIGNALS, of_this_process, strict=True):
            signal.signal(number, handler)
    return found


def test_signals_end_the_first_process_of_a_container_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers = handlers_at_the_command(monkeypatch, pid=1, former=signal.SIG_DFL)
    for number, handle in zip(SIGNALS, handlers, strict=True):
        assert callable(handle)
        with pytest.raises(Ended, match=f"^{128 + number}$"):
            handle(number, None)


@pytest.mark.parametrize(
    ("pid", "former"),
    [(1, signal.SIG_IGN), (2, signal.SIG_DFL)],
    ids=["ignored, as by nohup", "another process"],
)
def test_other_processes_handle_signals_as_their_parent_decided(
    monkeypatch: pytest.MonkeyPatch, pid: int, former: signal.Handlers
) -> None:
    assert handlers_at_the_command(monkeypatch, pid=pid, former=former) == [former, former]


def test_an_interrupt_of_the_first_imports_ends_the_program_as_one_of_its_command_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "strandline.cli", Interrupted("strandline.cli"))
    with pytest.raises(SystemExit, match=r"^130$"):
        __main__.run()
