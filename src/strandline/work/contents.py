"""`Content`: bytes that two processes pass to each other, outside the memory of both.

A message or an answer may have a hundred megabytes. It lies in a file that has no name and no place
on the disk; what crosses is its descriptor. So nothing is copied on the way, an answer that its
client reads slowly keeps no process busy, and the memory is free when the last one closes it.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress

PIECE = 128 * 1024
"""Bytes that are copied at once: some twenty microseconds."""
FREED_AT_ONCE = 1 << 20
"""Bytes that the system frees in the thread that closes them: some hundred microseconds."""
_NICENESS = 19


class Content:
    """Bytes to write once, from the front, and to read in pieces. Close it."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _new_file() if descriptor is None else descriptor
        self.size = 0 if descriptor is None else os.fstat(descriptor).st_size

    @classmethod
    def of(cls, data: bytes) -> Content:
        """What holds ``data``."""
        content = cls()
        try:
            content.write(data)
        except BaseException:
            content.close()
            raise
        return content

    def fileno(self) -> int:
        """The descriptor, to be sent to another process."""
        return self._descriptor

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.size)
            self.size += written
            rest = rest[written:]

    def pieces(self, size: int = PIECE) -> Iterator[bytes]:
        """All bytes in order, so many at a time."""
        at = 0
        while at < self.size:
            piece = os.pread(self._descriptor, size, at)
            at += len(piece)
            yield piece

    def read(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces(1 << 30))

    def close(self) -> None:
        """Let go of the bytes. Idempotent, and no longer than the event loop may wait."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self.size <= FREED_AT_ONCE or not _freeing.take(descriptor):
            os.close(descriptor)


class _Freeing:
    """Closes large files one by one, in a thread that gives way to all others."""

    def __init__(self) -> None:
        self._descriptors: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False

    def take(self, descriptor: int) -> bool:
        """Have it closed soon; False where no thread can be started for it."""
        with self._lock:
            if not self._runs:
                with suppress(RuntimeError):
                    threading.Thread(target=self._run, name="freeing", daemon=True).start()
                    self._runs = True
            if self._runs:
                self._descriptors.put(descriptor)
            return self._runs

    def _run(self) -> None:
        with suppress(OSError):  # not each system has niceness by thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            os.close(self._descriptors.get())


_freeing = _Freeing()


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("strandline")
    with tempfile.TemporaryFile() as file:  # where the system has none without a disk
        return os.dup(file.fileno())
