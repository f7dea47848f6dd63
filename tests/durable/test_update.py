from __future__ import annotations

import pytest

from strandline.durable.update import ARGUMENTS, EntryArguments
from strandline.errors import CorruptData, InvalidInput
from strandline.wire.codecs import Reader


def test_arguments_are_written_back_as_they_were_read() -> None:
    out = bytearray()
    ARGUMENTS.write(out, {"b": 1, "a": ["é"]})
    text = b'{"a":["\xc3\xa9"],"b":1}'
    assert out == bytes([len(text)]) + text
    read = ARGUMENTS.read(Reader(bytes(out)))
    again = bytearray()
    ARGUMENTS.write(again, read)
    assert again == out
    assert read == {"a": ["é"], "b": 1}
    assert EntryArguments({"a": 1}) == EntryArguments(None, text=b'{"a":1}')


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff{}", b"[" * 100_000])
def test_arguments_that_are_not_a_json_object_are_refused_on_access(text: bytes) -> None:
    arguments = EntryArguments(None, text=text)
    with pytest.raises(CorruptData, match="not a JSON object"):
        arguments.get("a")


def test_a_lone_surrogate_in_arguments_is_refused_on_write() -> None:
    with pytest.raises(InvalidInput, match="whole characters"):
        ARGUMENTS.write(bytearray(), {"a": "\ud800"})
