"""Contents: bytes that are kept outside the memory of the processes that pass them on."""

from __future__ import annotations

import os
import threading

import pytest

from strandline.work import contents
from strandline.work.contents import FREED_AT_ONCE, Content
from tests.work.open_contents import open_contents


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_content_reads_back_in_pieces(size: int) -> None:
    data = os.urandom(size)
    content = Content()
    content.write(data[: size // 3])
    content.write(memoryview(data)[size // 3 :])
    assert len(content) == size
    pieces = list(content.pieces(4096))
    assert b"".join(pieces) == data == content.read()
    assert all(len(piece) <= 4096 for piece in pieces)
    content.close()


def test_a_duplicated_descriptor_reads_the_content_from_its_start() -> None:
    content = Content.of(b"one and two")
    other = Content(os.dup(content.fileno()))
    content.close()
    content.close()
    assert (len(other), other.read(), other.read()) == (11, b"one and two", b"one and two")
    other.close()


def test_a_content_is_closed_if_one_of_its_pieces_cannot_be_made() -> None:
    before = open_contents()
    with pytest.raises(ZeroDivisionError):
        Content.of_pieces(bytes(1 // number) for number in (1, 0))
    assert open_contents() <= before


@pytest.mark.parametrize(("size", "elsewhere"), [(FREED_AT_ONCE, False), (FREED_AT_ONCE + 1, True)])
def test_a_large_content_is_freed_by_another_thread(
    monkeypatch: pytest.MonkeyPatch, size: int, elsewhere: bool
) -> None:
    content, descriptor = Content.of(bytes(size)), -1
    threads: list[threading.Thread] = []
    closed, close = threading.Event(), os.close

    def note(number: int) -> None:
        if number == descriptor:
            threads.append(threading.current_thread())
            closed.set()
        close(number)

    descriptor = content.fileno()
    monkeypatch.setattr(contents, "_freeing", contents._Freeing())
    monkeypatch.setattr(os, "close", note)
    content.close()
    assert closed.wait(60)
    assert (threads != [threading.current_thread()]) is elsewhere


def test_one_thread_frees_all_large_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_freeing", contents._Freeing())
    before = threading.enumerate()
    for _ in range(3):
        Content.of(bytes(FREED_AT_ONCE + 1)).close()
    (thread,) = (thread for thread in threading.enumerate() if thread not in before)
    assert thread.daemon  # so a process can end


def test_a_large_content_is_freed_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Content.of(bytes(FREED_AT_ONCE + 1))
    descriptor = content.fileno()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(contents, "_freeing", contents._Freeing())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    content.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
