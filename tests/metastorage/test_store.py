from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput
from strandline.metastorage import prefix_end

TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=4)


@given(prefix=TEXT, key=TEXT)
def test_a_prefix_and_its_end_bound_the_keys_with_that_prefix(prefix: str, key: str) -> None:
    assert (prefix <= key < prefix_end(prefix)) == key.startswith(prefix)


@given(prefix=TEXT)
def test_the_end_of_a_prefix_is_ascii(prefix: str) -> None:
    assert prefix_end(prefix).isascii()


@pytest.mark.parametrize("prefix", ["é", "\x7f", "a\n"])
def test_a_prefix_that_no_key_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidInput):
        prefix_end(prefix)
