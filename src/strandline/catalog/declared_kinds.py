"""What the catalog does with objects of each kind: who may change them, how they go and come back.

`DeclaredKind` adds this to `Kind`, for the modules that do it: the judgement of privileges, undo,
the commands that drop a schema or set an owner, and the system views.

Rejected: a registry for each of these aspects (eleven places for one kind, and a forgotten one is
found by a user), and a base class of all descriptors (they are values, and their formats are frozen
without the rest).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import Kind, all_kinds, forget, kind_named, register
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.rules import Rule
from strandline.catalog.system_views.rows import SystemView
from strandline.catalog.undo.net import Net

# Below, Any stands for a descriptor of the kind.


def _unchanged(then: Any, now: Any, net: Net, whole: Net | None) -> Any:
    return then


def _nothing_follows(catalog: Catalog, value: Any) -> Iterator[Any]:
    return iter(())


def _always_agrees(planning: Planning, before: Any, after: Any) -> None:
    """There is nothing that it must agree with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """How a change of an object is taken back. By default its old bytes are put back.

    ``set_back(planning, now, then)`` does it by a command instead. What ``goes_first`` is needed by
    nothing that is put back and might stand in its way. ``same(left, now)`` is whether two values
    say the same to people. ``comes_back(then, now, net, whole)`` is what to put in the place of
    ``now`` so that it is as ``then``: ``net`` is what the version did to it, and ``whole`` what it
    did to the object that it is part of. ``following`` gives the parts that must be where the
    object is, as they should be. ``check(planning, before, after)`` refuses what does not fit the
    rest of the catalog. ``by_name`` is whether `undrop` finds it. ``why_kept`` is the reason why a
    version that changed one cannot be undone.
    """

    set_back: Callable[[Planning, Any, Any], None] | None = None
    goes_first: bool = False
    same: Callable[[Any, Any], bool] = operator.eq
    comes_back: Callable[[Any, Any, Net, Net | None], Any] = _unchanged
    following: Callable[[Catalog, Any], Iterator[Any]] = _nothing_follows
    check: Callable[[Planning, Any, Any], None] = _always_agrees
    by_name: bool = False
    why_kept: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKind(Kind):
    """A kind, and what is done with objects of it.

    ``drop(planning, value)`` removes an object with what goes with it, by the rules and the entries
    of its command, as where its schema is dropped or the version that made it is undone; without it
    an object is just deleted. ``rule`` refuses a change that a user may not make; without one, only
    superusers may. ``after_owner(planning, value)`` does what follows where an owner is set; None
    where none can be. ``views`` are the system views that list the objects.
    """

    drop: Callable[[Planning, Any], None] | None = None
    rule: Rule | None = None
    undo: Undoing = Undoing()
    after_owner: Callable[[Planning, Any], None] | None = None
    views: tuple[SystemView, ...] = ()


def declare(*kinds: DeclaredKind) -> None:
    """Add kinds to the catalog, once in a process. `ValueError` where one is there already."""
    for kind in kinds:
        register(kind)


def declared_kinds() -> tuple[DeclaredKind, ...]:
    """`all_kinds`: each has come through `declare`."""
    return cast("tuple[DeclaredKind, ...]", all_kinds())


def declared_kind(name: str) -> DeclaredKind:
    """`kind_named`."""
    return cast(DeclaredKind, kind_named(name))


def withdraw(kind: DeclaredKind) -> None:
    """Take back `declare`, as a test does behind it."""
    forget(kind)
