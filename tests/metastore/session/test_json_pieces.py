"""Long JSON texts read in pieces give what the library gives, and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import LimitExceeded
from strandline.metastore.session import json_pieces
from strandline.metastore.session.json_pieces import read_in_pieces

DECODER = json.JSONDecoder(object_pairs_hook=dict)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=40,
)


@pytest.fixture(autouse=True)
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE", 24)
    monkeypatch.setattr(json_pieces, "_FIRST_WINDOW", 6)


def outcome(read: Any, text: str) -> Any:
    try:
        return read(text)
    except json.JSONDecodeError as error:
        return type(error)


@given(values, st.sampled_from([None, 1]), st.data())
def test_the_library_agrees(value: Any, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=data.draw(st.booleans()))
    assert read_in_pieces(text, DECODER) == value
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.sampled_from(["", ",", "]", '"', "x", " "])) + text[at + 1 :]
    ours = outcome(lambda one: read_in_pieces(one, DECODER), damaged)
    assert repr(ours) == repr(outcome(DECODER.decode, damaged))


def test_numbers_may_be_cut_between_their_spaces() -> None:
    text = json.dumps([[-10, -1_000_000_000_000, None]], indent=1)
    assert read_in_pieces(text, DECODER) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"a": [' + "1," * 100 + "1 1]}", 209),
        ('{"a": [' + "1," * 100 + "]}", 207),
        ("[" + '"x",' * 50 + "tru]", 201),
        ('{"aa": 1, ' * 1 + '"b": [' + "[1]," * 50 + "[1}]}", 218),
        ("[" + "1," * 100 + "1]]", 203),
        ('{"a": "' + "x" * 100 + '" "b"}', 109),
    ],
)
def test_errors_tell_the_place_in_the_whole_text(text: str, position: int) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        read_in_pieces(text, DECODER)
    with pytest.raises(json.JSONDecodeError) as expected:
        DECODER.decode(text)
    assert (raised.value.msg, raised.value.pos) == (expected.value.msg, expected.value.pos)
    assert raised.value.pos == position


def test_no_call_of_the_library_is_given_more_than_a_piece() -> None:
    seen: list[int] = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            value, end = super().raw_decode(s, idx)
            seen.append(end - idx)
            return value, end

    value = {"add": [{"path": "x" * 10, "n": number} for number in range(100)]}
    assert read_in_pieces(json.dumps(value), Counting()) == value
    assert max(seen) <= 2 * json_pieces.PIECE
    assert len(seen) > 100


def test_too_many_values_and_too_deep_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "MAX_PIECES", 100)
    with pytest.raises(LimitExceeded, match="more than 100 values"):
        read_in_pieces(json.dumps([[]] * 200), DECODER)
    with pytest.raises(RecursionError):
        read_in_pieces("[" * 80 + " " * 100 + "]" * 80, DECODER)
