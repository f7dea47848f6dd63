from __future__ import annotations

import pytest

from strandline.errors import Overloaded
from strandline.metastore.served_calls import RequestMemory


def test_what_is_held_beyond_the_allowance_is_bounded_in_sum() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.hold("a", 700)
    memory.hold("b", 500)
    assert memory.taken == 1_000
    with pytest.raises(Overloaded, match="this node is full"):
        memory.hold("b", 501)
    memory.hold("c", 100)
    assert (memory.taken, memory.refused) == (1_000, 1)


def test_holding_less_and_releasing_give_back() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.hold("a", 1_100)
    memory.hold("a", 150)
    assert memory.taken == 50
    memory.hold("a", 100)
    assert memory.taken == 0
    memory.hold("a", 600)
    memory.release("a")
    memory.release("a")
    assert memory.taken == 0
