"""The differences between two versions of the catalog, by object and by field.

Objects are matched by their key (the id, or the name in kinds that are keyed by name). So a renamed
table is one object, and a table that was dropped and created again is two. The comparison walks the
fields of the descriptors, which are frozen dataclasses, and knows a few shapes of values: items
with an id are matched by it (columns), pairs by their first half (properties), memberships by their
role, grants by grantee and grantor. Any other value is compared as a whole. So a new kind of
object, or a new field, needs no code here.

What must stay true: two versions have no difference if and only if they hold equal objects. A value
whose difference fits no shape is therefore reported as a whole.

Cost: one identity comparison for each object of a kind that was touched at all. Only objects whose
bytes differ are decoded. Rejected: adding up the updates between the versions (they are gone if
history was trimmed, and a table that was altered back and forth would differ from itself).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import (
    KindOf,
    all_kinds,
    kind_named,
    kind_of,
    name_of,
    object_name,
    referred_kind,
)
from strandline.model.descriptors import ColumnDescriptor, Constraint, SchemaVersion
from strandline.model.privileges import Grant, Membership, Privilege, privilege_names
from strandline.model.type_text import simple_string
from strandline.model.types import DataType
from strandline.wire.stored import AnyStored

_COMPARED_PER_UNIT = 50
"""The number of objects whose comparison costs one unit of `strandline.work`."""
_UNITS_PER_DIFFERENCE = 20
"""The cost of an object that differs, which is decoded before and after."""
Shown = str | int | float | bool | None
"""A value in the form for people and JSON; None if there is no value."""


class DifferenceKind(Enum):
    """What happened to an object. A renamed object may also be altered."""

    CREATED = "created"
    DROPPED = "dropped"
    RENAMED = "renamed"
    ALTERED = "altered"


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field before and after: ``zone``, ``columns[price].type``, ``properties[owner]``."""

    field: str
    old: Shown
    new: Shown


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that differs. ``old_name`` is its older name if it was renamed.

    ``id`` is 0 in kinds without ids. ``fields`` are the fields that differ, empty if the object was
    created or dropped.
    """

    kind: str
    id: int
    name: str
    change: DifferenceKind
    old_name: str | None = None
    fields: tuple[FieldDifference, ...] = ()


def differences(old: Catalog, new: Catalog) -> tuple[Difference, ...]:
    """The differences between ``old`` and ``new``, sorted by kind and name.

    The program's own records are left out. Version 0 is the empty catalog: in a comparison with it,
    the objects that come with every catalog are left out too. Charges the budget. Raises `TooLong`.
    """
    work.spend(_count_compared(old, new) // _COMPARED_PER_UNIT)
    differing = []
    for kind_name, _, before, after in old.contents.differing(new.contents):
        work.spend(_UNITS_PER_DIFFERENCE)
        stored, kind = after or before, kind_named(kind_name)
        if stored is None or kind.is_internal(stored.name):
            continue
        if old.version == 0 and kind.built_in(new, stored.value):
            continue
        difference = _difference(kind_name, old, before, new, after)
        if difference is not None:
            differing.append(difference)
    order = {kind.name: number for number, kind in enumerate(all_kinds())}
    return tuple(sorted(differing, key=lambda entry: (order[entry.kind], entry.name, entry.id)))


def _count_compared(old: Catalog, new: Catalog) -> int:
    """The number of objects in the kinds of which any object was changed."""
    before, after = old.contents, new.contents
    names = (kind.name for kind in all_kinds())
    changed = (name for name in names if not before.shares((name,), after))
    return sum(max(before.count(name), after.count(name)) for name in changed)


def _difference(
    kind: str, old: Catalog, before: AnyStored | None, new: Catalog, after: AnyStored | None
) -> Difference | None:
    if after is None:
        return None if before is None else _whole(kind, old, before, DifferenceKind.DROPPED)
    if before is None:
        return _whole(kind, new, after, DifferenceKind.CREATED)
    if before.value == after.value:
        return None  # written in another format
    moved = (before.name, before.parent) != (after.name, after.parent)
    return Difference(
        kind,
        after.id,
        object_name(new, after.value),
        DifferenceKind.RENAMED if moved else DifferenceKind.ALTERED,
        object_name(old, before.value) if moved else None,
        tuple(_fields(_Names(old, new), before.value, after.value, refers=_referring(after.value))),
    )


def _whole(kind: str, catalog: Catalog, stored: AnyStored, change: DifferenceKind) -> Difference:
    return Difference(kind, stored.id, object_name(catalog, stored.value), change)


_NO_FIELDS: Mapping[str, KindOf] = {}

# -- fields ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Names:
    """The catalogs before and after, which give the names for ids."""

    old: Catalog
    new: Catalog

    def role(self, role_id: int) -> str:
        names = (name_of(catalog, "role", role_id) for catalog in (self.new, self.old))
        return next((name for name in names if name != "?"), f"dropped role {role_id}")


def _referring(value: Any) -> Mapping[str, KindOf]:  # Any: a descriptor of any kind
    """The fields that hold the id of another object."""
    kind = kind_of(value)
    return {**kind.references, **kind.mentions}


# Any: values of fields, of any type
def _fields(
    names: _Names, old: Any, new: Any, path: str = "", *, refers: Mapping[str, KindOf] = _NO_FIELDS
) -> Iterator[FieldDifference]:
    """The fields that differ in two values of one dataclass; ``refers`` are the fields with ids."""
    for field in fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        inner = f"{path}.{field.name}".lstrip(".")
        kind_of_field = refers.get(field.name)
        kind = None if kind_of_field is None else referred_kind(kind_of_field, new)
        if kind is not None:
            yield FieldDifference(
                inner.removesuffix("_id"),
                _referred(names.old, kind, int(before)),
                _referred(names.new, kind, int(after)),
            )
        else:
            yield from _compared(names, inner, before, after)


def _referred(catalog: Catalog, kind: str, object_id: int) -> str | None:
    return f"{name_of(catalog, kind, object_id)} (id {object_id})" if object_id else None


def _compared(names: _Names, path: str, old: Any, new: Any) -> Iterator[FieldDifference]:
    """The differences within a value; at least one, because the values are not equal."""
    if _is_plain_dataclass(old) and type(old) is type(new):
        yield from _fields(names, old, new, path)
        return
    if _latest(old) is not None and _latest(new) is not None:
        yield from _schema_versions(names, path, old, new)
        return
    keyed = _by_key(names, old), _by_key(names, new)
    if keyed[0] is None or keyed[1] is None:
        yield FieldDifference(path, shown(old), shown(new))
        return
    yield from _items(names, path, keyed[0], keyed[1])


def _is_plain_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, DataType | _Dated)


def _latest(value: Any) -> SchemaVersion | None:
    last = value[-1] if isinstance(value, tuple) and value else None
    return last if isinstance(last, SchemaVersion) else None


def _schema_versions(names: _Names, path: str, old: Any, new: Any) -> Iterator[FieldDifference]:
    """Compare the latest schema and its number; older versions only if nothing else differs."""
    if old[-1].columns != new[-1].columns:
        yield from _compared(names, "columns", old[-1].columns, new[-1].columns)
    if old[-1].number != new[-1].number:
        yield FieldDifference("schema_version", old[-1].number, new[-1].number)
    elif old[-1] == new[-1]:
        yield FieldDifference(path, _all_versions(old), _all_versions(new))


def _all_versions(versions: tuple[SchemaVersion, ...]) -> str:
    return "; ".join(f"{version.number}: {shown(version.columns)}" for version in versions)


_Keyed = dict[Any, tuple[str, Any]]
"""Key → (its label for people, value), in order."""


def _by_key(names: _Names, value: Any) -> _Keyed | None:
    """The items of a tuple by the key that matches them, or None if they have no such key."""
    if not isinstance(value, tuple):
        return None
    if value and all(isinstance(item, Grant) for item in value):
        return _by_grantee_and_grantor(names, value)
    for fits, key in _KEYS:
        if all(map(fits, value)):
            keyed = dict(key(names, item) for item in value)
            return keyed if len(keyed) == len(value) else None
    return None


def _items(names: _Names, path: str, old: _Keyed, new: _Keyed) -> Iterator[FieldDifference]:
    for key in dict.fromkeys((*old, *new)):
        label = old[key][0] if key in old else new[key][0]
        before = old[key][1] if key in old else None
        after = new[key][1] if key in new else None
        if before == after:
            continue
        inner = f"{path}[{label}]"
        if isinstance(before, _Dated) and isinstance(after, _Dated) and before.text == after.text:
            yield FieldDifference(f"{inner}.granted", before.granted, after.granted)
        elif before is None or after is None or not _is_plain_dataclass(before):
            yield FieldDifference(inner, shown(before), shown(after))
        else:
            yield from _fields(names, before, after, inner)
    if [key for key in old if key in new] != [key for key in new if key in old]:
        yield FieldDifference(
            f"{path}.order",
            ", ".join(label for label, _ in old.values()),
            ", ".join(label for label, _ in new.values()),
        )


@dataclass(frozen=True, slots=True)
class _Dated:
    """What was granted, and when. The times are shown if nothing else differs."""

    text: str
    granted: str | int


def _by_grantee_and_grantor(names: _Names, several: tuple[Grant, ...]) -> _Keyed:
    """The grants, those of one grantor to one grantee together."""
    pairs: dict[tuple[int, int], list[Grant]] = {}
    for grant in several:
        pairs.setdefault((grant.grantee, grant.grantor), []).append(grant)
    return {
        (grantee, grantor): (
            names.role(grantee) + (f" by {names.role(grantor)}" if grantor else ""),
            _dated(dated_grants),
        )
        for (grantee, grantor), dated_grants in pairs.items()
    }


def _dated(grants: list[Grant]) -> _Dated:
    every = reduce(or_, (grant.privileges for grant in grants))
    times = (f"{_listed(grant.privileges)} at {grant.granted}" for grant in grants)
    return _Dated(_listed(every), "; ".join(times))


def _listed(privileges: Privilege) -> str:
    return ", ".join(privilege_names(privileges))


def _membership_key(names: _Names, membership: Membership) -> tuple[Any, tuple[str, Any]]:
    by = f"granted by {names.role(membership.grantor)}" if membership.grantor else "granted"
    return membership.group, (names.role(membership.group), _Dated(by, membership.granted))


def _pair_of(first: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and len(value) == 2 and type(value[0]) is first


_KEYS: tuple[tuple[Callable[[Any], bool], Callable[[_Names, Any], tuple[Any, Any]]], ...] = (
    (
        lambda item: hasattr(item, "id") and hasattr(item, "name"),
        lambda _, item: (item.id, (item.name, item)),
    ),
    (
        lambda item: isinstance(item, Constraint),
        lambda _, item: (item.name.lower(), (item.name, item)),
    ),
    (_pair_of(str), lambda _, item: (item[0], (item[0], item[1]))),
    (lambda item: isinstance(item, Membership), _membership_key),
)


def shown(value: Any) -> Shown:
    """The value of a field in the form for people and JSON."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, Privilege):
        return _listed(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, DataType):
        return simple_string(value)
    if isinstance(value, ColumnDescriptor):
        default = "" if value.default is None else f" DEFAULT {value.default}"
        null = "" if value.nullable else " NOT NULL"
        return f"{value.name} {simple_string(value.type)}{null}{default}"
    if isinstance(value, Constraint):
        return f"{value.kind.name.replace('_', ' ')} {value.text}".strip()
    if isinstance(value, _Dated):
        return value.text
    if isinstance(value, tuple):
        return ", ".join(str(shown(item)) for item in value)
    return str(value)
