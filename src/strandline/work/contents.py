"""`Content`: bytes that processes pass to each other without copying them.

A message or an answer may have a hundred megabytes. It is stored in an anonymous file in memory,
and the sender passes only the file descriptor. So nothing is copied on the way, a client that reads
its answer slowly keeps no process busy, and the memory is freed when the last process closes it.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

PIECE = 128 * 1024
"""The bytes of one copy step: some twenty microseconds."""
FREED_AT_ONCE = 1 << 20
"""The largest content that is freed in the thread that closes it: some hundred microseconds."""
_NICENESS = 19


class Content:
    """Bytes that are written once, from the start, and read in pieces. Close it."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _new_file() if descriptor is None else descriptor
        self._size = 0 if descriptor is None else os.fstat(descriptor).st_size

    def __len__(self) -> int:
        return self._size

    @classmethod
    def of(cls, data: bytes) -> Content:
        return cls.of_pieces((data,))

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes]) -> Content:
        """Return a content with all ``pieces``, one after the other."""
        content = cls()
        try:
            for piece in pieces:
                content.write(piece)
        except BaseException:
            content.close()
            raise
        return content

    def fileno(self) -> int:
        """Return the file descriptor, to send it to another process."""
        return self._descriptor

    def identity(self) -> tuple[int, int]:
        """Return what is equal for the copies of one content, and different for all others."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, self._size)
            self._size += written
            rest = rest[written:]

    def pieces(self, size: int = PIECE) -> Iterator[bytes]:
        """Iterate over all bytes in order, in pieces of ``size``."""
        at = 0
        while at < self._size:
            # Not ``size``, of which Python takes that much memory before it reads.
            piece = os.pread(self._descriptor, min(size, self._size - at), at)
            at += len(piece)
            yield piece

    def read(self) -> bytes:
        return b"".join(self.pieces(1 << 30))

    def close(self) -> None:
        """Release the bytes. Idempotent, and fast enough for the event loop."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self._size <= FREED_AT_ONCE or not _freeing.take(descriptor):
            os.close(descriptor)


Body = bytes | Content
"""The bytes of a message or an answer, in this process or outside of it."""


def pieces_of(body: Body) -> Iterator[bytes]:
    """Iterate over all bytes in order, in pieces that are quickly sent."""
    if isinstance(body, Content):
        return body.pieces()
    return (body[at : at + PIECE] for at in range(0, len(body), PIECE))


def release(body: Body) -> None:
    """Close a `Content` that is no longer needed."""
    if isinstance(body, Content):
        body.close()


class _Freeing:
    """Closes large files one by one, in a thread of the lowest priority."""

    def __init__(self) -> None:
        self._descriptors: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False

    def take(self, descriptor: int) -> bool:
        """Queue the descriptor to be closed. Return False if the thread cannot be started."""
        with self._lock:
            if not self._runs:
                with suppress(RuntimeError):
                    threading.Thread(target=self._run, name="freeing", daemon=True).start()
                    self._runs = True
            if self._runs:
                self._descriptors.put(descriptor)
            return self._runs

    def _run(self) -> None:
        with suppress(OSError):  # some systems have no niceness for single threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            os.close(self._descriptors.get())


_freeing = _Freeing()


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("strandline")
    with tempfile.TemporaryFile() as file:  # the system has no files in memory
        return os.dup(file.fileno())
