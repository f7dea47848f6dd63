"""Bytes that lie outside the memory of the processes that pass them on."""

from __future__ import annotations

import os

import pytest

from strandline.work.contents import Content


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_what_was_written_is_read_in_pieces(size: int) -> None:
    data = os.urandom(size)
    content = Content()
    content.write(data[: size // 3])
    content.write(memoryview(data)[size // 3 :])
    assert content.size == size
    pieces = list(content.pieces(4096))
    assert b"".join(pieces) == data == content.read()
    assert all(len(piece) <= 4096 for piece in pieces)
    content.close()


def test_another_descriptor_reads_the_same_from_the_front() -> None:
    content = Content.of(b"one and two")
    other = Content(os.dup(content.fileno()))
    content.close()
    content.close()
    assert (other.size, other.read(), other.read()) == (11, b"one and two", b"one and two")
    other.close()
