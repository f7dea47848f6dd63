"""Appends lost to versions of another node: which of them are validated again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from strandline.catalog.planning import Planning
from tests.catalog.callers import Gate, Managers, create, keep_books, schemas


@pytest.mark.parametrize("silent", [True, False])
def test_a_lost_append_is_validated_again_unless_it_lost_only_to_silent_versions(
    new_manager: Managers, silent: bool
) -> None:
    manager, other = new_manager(), new_manager()
    judged: list[int] = []

    @dataclass(frozen=True)
    class Counted:
        def plan(self, planning: Planning) -> None:
            judged.append(planning.base.version)
            create("a").plan(planning)

    gate = Gate(manager)
    gate.let_all_pass()
    real, between = gate.real, [1, 2]

    def lose(*arguments: Any, **named: Any) -> Any:
        if between:
            keep_books(other, between.pop(), "configure" if silent else "comment_on")
        return real(*arguments, **named)

    gate.real = lose
    assert manager.execute(Counted(), author="ann").version == 5
    assert judged == ([2] if silent else [2, 3, 4])
    assert manager.statistics().rebased == (2 if silent else 0)
    other.sync()
    assert other.catalog(5).contents == manager.catalog(5).contents
    assert schemas(other) == ["a"]


def test_an_append_lost_to_a_silent_change_of_the_same_object_is_validated_again(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    gate.let_all_pass()
    real, first = gate.real, [True]

    def lose(*arguments: Any, **named: Any) -> Any:
        if first:
            first.clear()
            other.sync()
            transaction = other._state.transaction(other.latest_catalog(), author="system")
            with transaction.entry("allocate", {}):
                transaction.allocate_id(amount=7)
            other._state.commit_transaction(transaction)
        return real(*arguments, **named)

    gate.real = lose
    assert manager.execute(create("a"), author="ann").version == 4
    schema = manager.present().schema("a")
    assert schema is not None
    before = manager.catalog(3).get("id_allocator", "object").next_id
    assert schema.id == before
    assert manager.statistics().rebased == 0
