"""How much memory the requests and answers of a node may take, in all and by user."""

from __future__ import annotations

from contextlib import closing

import pytest

from strandline.errors import Overloaded
from strandline.metastore.request_memory import AnswerMemory, RequestMemory
from strandline.work.child_pool import Reply
from strandline.work.contents import Content


def test_request_memory_beyond_the_allowance_is_bounded_in_total() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("a", 700, user="a")
    memory.reserve("b", 500, user="b")
    assert memory.taken == 1_000
    with pytest.raises(Overloaded, match="this node is full"):
        memory.reserve("b", 501, user="b")
    memory.reserve("c", 100, user="c")
    assert (memory.taken, memory.refused) == (1_000, 1)


def test_holding_less_and_releasing_give_memory_back() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("a", 1_100, user="a")
    memory.reserve("a", 150, user="a")
    assert memory.taken == 50
    memory.reserve("a", 100, user="a")
    assert memory.taken == 0
    memory.reserve("a", 600, user="a")
    memory.release("a")
    memory.release("a")
    assert memory.taken == 0


def test_an_answer_that_several_clients_share_takes_memory_once() -> None:
    memory = AnswerMemory(1_500, allowance=100)
    shared = bytes(1_100)
    for client in range(20):
        memory.reserve_answer(client, shared, user=f"user {client}", only_reads=True)
    assert memory.taken == 1_000
    with pytest.raises(Overloaded, match="have not read the answers"):
        memory.reserve_answer("other", bytes(1_100), user="ann", only_reads=True)
    for client in range(19):
        memory.release(client)
        memory.release(client)
    assert memory.taken == 1_000
    memory.reserve_answer(19, bytes(400), user="user 19", only_reads=True)
    assert (memory.taken, memory.refused) == (300, 1)
    memory.release(19)
    assert memory.taken == 0


def test_a_user_with_memory_of_its_own_gets_at_most_three_quarters() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("first", 600, user="ann")
    memory.reserve("second", 350, user="ann")
    with pytest.raises(Overloaded, match="750 of 1000, 750 of them for this user"):
        memory.reserve("second", 351, user="ann")
    memory.reserve("first", 500, user="ann")
    memory.reserve("second", 450, user="ann")
    memory.reserve("other", 350, user="bob")
    assert (memory.taken, memory.refused) == (1_000, 1)
    for owner in ("first", "second", "other"):
        memory.release(owner)
    memory.reserve("alone", 1_100, user="ann")
    assert memory.taken == 1_000


def test_answers_of_one_user_leave_memory_for_those_of_others() -> None:
    memory = AnswerMemory(1_000, allowance=0)
    bodies = [bytes(400), bytes(400), bytes(200)]
    memory.reserve_answer("first", bodies[0], user="ann", only_reads=True)
    with pytest.raises(Overloaded):
        memory.reserve_answer("second", bodies[1], user="ann", only_reads=True)
    memory.reserve_answer("second", bodies[1], user="ann", only_reads=False)
    memory.reserve_answer("other", bodies[2], user="bob", only_reads=True)
    for owner in ("first", "second", "other"):
        memory.release(owner)
    assert memory.taken == 0


def test_the_copies_of_the_answer_of_a_child_take_memory_once() -> None:
    memory, reply = AnswerMemory(1_500, allowance=100), Reply({}, Content.of(bytes(1_100)))
    copy, other = reply.copy(), Content.of(bytes(1_100))
    with closing(reply.content), closing(copy.content), closing(other):
        memory.reserve_answer("a", reply.content, user="ann", only_reads=True)
        memory.reserve_answer("b", copy.content, user="ann", only_reads=True)
        assert memory.taken == 1_000
        memory.reserve_answer("c", other, user="ann", only_reads=False)
        assert memory.taken == 2_000
