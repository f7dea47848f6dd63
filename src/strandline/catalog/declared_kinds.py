"""What the catalog does with objects of each kind: privileges, drop, undo, owners, system views.

`DeclaredKind` adds this to `Kind`, for the modules that do it: the check of privileges, undo, the
commands that drop a schema or set an owner, and the system views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import Kind, all_kinds, kind_named, register
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.rules import Rule
from strandline.catalog.system_views.rows import SystemView
from strandline.catalog.undo.net import Net

# Below, Any stands for a descriptor of the kind.


def _unchanged(earlier: Any, now: Any, net: Net, whole: Net | None) -> Any:
    return earlier


def _nothing_follows(catalog: Catalog, before: Any, value: Any) -> Iterator[Any]:
    return iter(())


def _always_agrees(planning: Planning, before: Any, after: Any) -> None:
    """Accept any change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """How a change of an object is undone. By default its old bytes are put back.

    * ``by_command(planning, now, earlier)`` uses a command instead.
    * ``is_dropped_first``: an object that the version created is dropped before anything is put
      back. No restored object can need it, and it might occupy the name of one.
    * ``same(left, now)``: whether two values look the same to users.
    * ``comes_back(earlier, now, net, whole)`` returns the value to put in place of ``now`` to
      restore ``earlier``. ``net`` is the net effect of the version on the object, and ``whole``
      that on the object that it is part of.
    * ``following(catalog, before, value)`` returns the other objects that change with the object
      when ``value`` replaces ``before``, as they should be afterwards.
    * ``check(planning, before, after)`` refuses a value that does not fit the rest of the catalog.
    * ``by_name``: whether `undrop` finds the object by name.
    * ``why_kept``: the reason why a version that changed such an object cannot be undone, or None.
    """

    by_command: Callable[[Planning, Any, Any], None] | None = None
    is_dropped_first: bool = False
    same: Callable[[Any, Any], bool] = operator.eq
    comes_back: Callable[[Any, Any, Net, Net | None], Any] = _unchanged
    following: Callable[[Catalog, Any, Any], Iterator[Any]] = _nothing_follows
    check: Callable[[Planning, Any, Any], None] = _always_agrees
    by_name: bool = False
    why_kept: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKind(Kind):
    """A kind, and what the catalog does with objects of it.

    * ``drop(planning, value)`` removes an object and its dependents, by the rules and with the
      entries of its command. It is called when the schema of the object is dropped, or the version
      that created it is undone. If it is None, the object is just deleted.
    * ``rule`` refuses a change that a user may not make. If it is None, only superusers may make
      it.
    * ``after_owner(planning, before, value)`` does what follows after the owner is set. If it is
      None, no owner can be set.
    * ``views`` are the system views that list the objects.
    """

    drop: Callable[[Planning, Any], None] | None = None
    rule: Rule | None = None
    undo: Undoing = Undoing()
    after_owner: Callable[[Planning, Any, Any], None] | None = None
    views: tuple[SystemView, ...] = ()


def declare(*kinds: DeclaredKind) -> None:
    """Add kinds to the catalog, once in a process. Raises `ValueError` if one already exists."""
    for kind in kinds:
        register(kind)


def declared_kinds() -> tuple[DeclaredKind, ...]:
    """`all_kinds`, each of which was declared with `declare`."""
    return cast("tuple[DeclaredKind, ...]", all_kinds())


def declared_kind(name: str) -> DeclaredKind:
    """`kind_named`."""
    return cast(DeclaredKind, kind_named(name))
