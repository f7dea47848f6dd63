"""Which process holds the write lock of a SQLite file, for people who wait for it.

In a write-ahead log the write lock is a POSIX lock on one byte of the shared index. Linux lists
every such lock in ``/proc/locks``, with the process. Nothing is opened for that: a process that
closes *any* descriptor of a file loses all its own POSIX locks on it, so asking by ``fcntl`` on a
descriptor of our own would let go of the locks that SQLite holds in this very process.

Where the system does not tell (not Linux, or a process of another container), nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOCKS = Path("/proc/locks")
PROCESSES = Path("/proc")
_WRITE_BYTE = 120
"""Of the shared index; SQLite's file format."""
_SHOWN = 120
_STOPPED = frozenset("Tt")


class _Lock(NamedTuple):
    process: int
    inode: int
    device: str
    first: int
    last: float


def describe_holder(database: Path, *, locks: Path = LOCKS, own: bool = True) -> str | None:
    """Who holds the write lock of the file ``database`` and what can be done; None if unknown.

    Without ``own`` it is None as well where this process holds the lock itself.
    """
    holder = _holder(database, locks)
    return None if holder is None or (holder == os.getpid() and not own) else _described(holder)


def _holder(database: Path, locks: Path) -> int | None:
    try:
        index = os.stat(f"{database}-shm")
        lines = locks.read_text(errors="replace").splitlines()
    except OSError:
        return None
    device = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}"
    holders = [
        lock
        for lock in _write_locks(lines)
        if lock.inode == index.st_ino and lock.first <= _WRITE_BYTE <= lock.last
    ]
    # Some file systems have other numbers in that list than the file itself tells.
    holders.sort(key=lambda lock: lock.device != device)
    return holders[0].process if holders and holders[0].process > 0 else None


def _write_locks(lines: list[str]) -> Iterator[_Lock]:
    """The exclusive locks in lines ``1: POSIX ADVISORY WRITE 4711 08:01:123 120 120``."""
    for line in lines:
        words = line.split()
        if "->" in words or len(words) < 8 or words[3] != "WRITE":
            continue
        device, _, inode = words[5].rpartition(":")
        last = float("inf") if words[7] == "EOF" else float(words[7])
        yield _Lock(int(words[4]), int(inode), device, int(words[6]), last)


def _described(process: int) -> str:
    if process == os.getpid():
        return "another part of this process holds its write lock"
    folder = PROCESSES / str(process)
    who = f"process {process}"
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"{who} holds its write lock"
    # Any program can choose its command line: it must not break the line of the log.
    command = " ".join("".join(c if c.isprintable() else " " for c in command).split())
    if command:
        who += f" ({command if len(command) <= _SHOWN else command[:_SHOWN] + '…'})"
    if state in _STOPPED:
        return f"{who} holds its write lock and is stopped; let it go on (kill -CONT) or end it"
    return f"{who} holds its write lock"
