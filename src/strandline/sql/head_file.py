"""The head file: how far a database had come, recorded outside of it.

If a database's write-ahead log was cut or removed, or an older copy of it was put back, the
database is sound but lacks commits. Nothing inside it can show that. So each process, after a
commit that moved one of the database's *marks* (numbers that only grow: the catalog's version, the
last event), writes the marks to a small file beside it. A process that opens the database compares
the two.

What must stay true: **the file is never ahead of what is durable.** The marks are read inside the
write transaction and written to the file after its synced commit has returned. So a crash between
the two, a power cut that loses the file's last pages (the file is not synced), or a process that is
late leaves the file behind. That is harmless, since the next commit brings it up to date. A commit
that is not synced also leaves it behind: its marks are written with those of the next synced one.

The file has two slots of fixed size, written alternately, each with a checksum. A torn write leaves
the other slot intact. Several processes write under a lock of the file, and a mark never goes back.
If a stopped process holds that lock, the others leave the file behind, and log it.
A missing or unreadable file contributes nothing; it is logged and created again.

Rejected: a new file name in the database's folder for each write (it needs a sync of the folder, or
may vanish), and a synced write for each commit (it doubles the cost of a commit, for a file that
may be behind anyway).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from zlib import crc32

from strandline.errors import CorruptData, IncompatibleFormat
from strandline.files import give_to_owner, try_lock

logger = logging.getLogger(__name__)

SLOT_BYTES = 512
_LOCK_SECONDS = 2.0
"""How long a commit waits for the lock, which a running process holds for microseconds."""
Marks = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A number that only grows: its name in messages, and the SQL that reads it in ``table``.

    If several have one name, the highest counts.
    """

    name: str
    table: str
    select: str


class HeadFile:
    """The head file of one database, in this process. Its callers write one at a time."""

    def __init__(self, path: Path, marks: Sequence[Mark]) -> None:
        self.path = path
        self._marks = tuple(marks)
        self._read: str | None = None  # the query of `read_marks`
        self._written: dict[str, int] | None = None
        self._last: tuple[bytes, dict[str, int]] = b"", {}  # the file as last written, and decoded
        self._file: int | None = None
        self._failed = False

    # -- what the database says

    def read_marks(self, connection: sqlite3.Connection) -> dict[str, int]:
        """The marks that the transaction of ``connection`` sees.

        A mark is 0 if its table does not exist at the first call.
        """
        if self._read is None:
            names = connection.execute("SELECT name FROM sqlite_master").fetchall()
            tables = {name for (name,) in names}
            selects = (f"({mark.select})" if mark.table in tables else "0" for mark in self._marks)
            self._read = "SELECT " + ", ".join(selects)
        marks: dict[str, int] = {}
        values = connection.execute(self._read).fetchone()
        for mark, value in zip(self._marks, values, strict=True):
            marks[mark.name] = max(int(value or 0), marks.get(mark.name, 0))
        return marks

    # -- what the file says

    def recorded_marks(self) -> dict[str, int] | None:
        """The marks in the file, or None if it does not exist or cannot be read.

        Raises `IncompatibleFormat` for a mark of a newer release: what it counts is unknown here.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s cannot be read: %s", self.path, error)
            return None
        newest = _newest(data)
        if newest is None:
            logger.warning(
                "%s is damaged; its content is ignored, and a node will replace it", self.path
            )
            return None
        unknown = newest.keys() - {mark.name for mark in self._marks} - {_TURN}
        if unknown:
            raise IncompatibleFormat(
                f"{self.path} records {min(unknown)!r}, which this release does not know: a newer "
                "release wrote it; run that release"
            )
        return {name: number for name, number in newest.items() if name != _TURN}

    def compare(self, recorded: Marks, marks: Marks) -> None:
        """Raise `CorruptData` if the file has ``recorded`` more than the database's ``marks``.

        The caller reads the file first, because another process may commit between the two reads.
        """
        lost = {name: (marks.get(name, 0), recorded[name]) for name in recorded}
        missing = [
            f"{name}s {stored_number + 1} to {recorded_number}"
            if recorded_number > stored_number + 1
            else f"{name} {recorded_number}"
            for name, (stored_number, recorded_number) in lost.items()
            if recorded_number > stored_number
        ]
        if missing:
            raise CorruptData(
                f"the database beside {self.path} is older than it was: missing are "
                f"{', '.join(missing)}, which were committed. Its write-ahead log was cut or "
                "removed, or only the database was restored from an older backup. Restore the "
                "whole folder from a backup; to go on without what is missing, run `strandline "
                f"accept-loss {quote(str(self.path.parent))}`"
            )

    # -- writing

    def note(self, marks: Marks) -> None:
        """Record that ``marks`` are durable. Never raises, since the file may be behind."""
        if self._written == marks:
            return
        try:
            self._note(marks)
            self._written = dict(marks)
            self._failed = False
        except OSError as error:
            if not self._failed:  # log it once, until a write succeeds
                logger.warning("%s cannot be written and is not up to date: %s", self.path, error)
            self._failed = True

    def reset(self, marks: Marks) -> None:
        """Make the file contain exactly ``marks``, even if they are lower than before."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._note(marks)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = self._written = None

    def _note(self, marks: Marks) -> None:
        file = self._opened()
        self._lock(file)
        try:
            data = os.pread(file, 2 * SLOT_BYTES, 0)
            written_marks = self._last[1] if data == self._last[0] else _newest(data) or {}
            merged = written_marks | {
                name: max(written_marks.get(name, 0), number) for name, number in marks.items()
            }
            merged[_TURN] = turn = written_marks.get(_TURN, 0) + 1
            start, slot = turn % 2 * SLOT_BYTES, _slot(merged)
            os.pwrite(file, slot, start)
            self._last = data[:start] + slot + data[start + SLOT_BYTES :], merged
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _lock(self, file: int) -> None:
        end = time.monotonic() + (0 if self._failed else _LOCK_SECONDS)
        while not try_lock(file):
            if time.monotonic() >= end:
                raise TimeoutError("a process keeps it locked; if it is stopped, resume or end it")
            time.sleep(0.001)

    def _opened(self) -> int:
        file = self._file
        if file is not None and os.fstat(file).st_nlink:
            return file
        self.close()
        folder = self.path.parent
        flags, mode = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folder.stat().st_mode & 0o666
        self._file = os.open(self.path, flags, mode)
        give_to_owner(self._file, of=folder)
        return self._file


_TURN = "writes"


def _slot(values: Mapping[str, int]) -> bytes:
    # As JSON, whose encoder takes longer than all else here. No name contains what JSON escapes.
    numbers = ",".join([f'"{name}":{number}' for name, number in values.items()])
    text = f"{{{numbers}}}".encode()
    return b"%08x %s" % (crc32(text), text.ljust(SLOT_BYTES - 10)) + b"\n"


def _newest(data: bytes) -> dict[str, int] | None:
    """The values of the slot that was written last, or None if neither slot is intact."""
    newest: dict[str, int] | None = None
    for start in (0, SLOT_BYTES):
        slot = data[start : start + SLOT_BYTES]
        text = slot[9:].strip()
        if slot[:8] != b"%08x" % crc32(text):
            continue
        values: dict[str, int] = json.loads(text)
        if newest is None or values.get(_TURN, 0) > newest.get(_TURN, 0):
            newest = values
    return newest
