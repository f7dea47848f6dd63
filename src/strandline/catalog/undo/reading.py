"""Reading what an undo needs from the log: the version, and the versions after it.

Only versions above the earliest readable one have updates. At the earliest version the log has a
snapshot, which has the objects but not the changes. Reading costs the length of the history since
the version that is undone. So the caller does it, not the thread that plans commands, and its
budget is charged.

A refusal of `undo` or `undrop` names objects, people and versions. So before such a refusal is
given, everything that would be taken back must be in a schema that the user reaches, by the present
privileges (`visible_undo`, `visible_undrop`). If it is not, the answer is the same as for a version
that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from strandline import work
from strandline.catalog.catalog import DEFAULT_DATABASE, Catalog
from strandline.catalog.declared_kinds import declared_kind, declared_kinds
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.kinds import Kind, described, find, kind_named, references
from strandline.catalog.privileges.access import Access, owned_by
from strandline.catalog.undo.command import RESTORED_TABLES, Undo
from strandline.catalog.undo.net import Net, Target, as_one, target_of
from strandline.catalog.verbs import Action, verb_named
from strandline.clock import milliseconds
from strandline.durable.collections import collection, id_key
from strandline.durable.contents import Namespace
from strandline.durable.log import updates_at_once
from strandline.durable.update import Change, Update
from strandline.errors import AlreadyExists, InvalidInput, NotFound, ObjectNotFound, VersionNotFound
from strandline.model.descriptors import Comment, SchemaDescriptor
from strandline.model.identifiers import QualifiedName, normalize
from strandline.model.privileges import DefaultPrivilege
from strandline.wire.stored import AnyStored

MAX_VERSIONS = 10_000
"""The maximum number of versions undone as one; all of them are in memory at once."""
_UNITS_PER_OBJECT = 20
"""The cost of planning the undo of one object, in units of `strandline.work`."""
CASCADE_PAUSE_MS = 60_000
"""The longest time between two drops of one DROP SCHEMA CASCADE if others make versions then."""


def restorable() -> tuple[str, ...]:
    """The kinds whose dropped objects `read_undrop` finds by name."""
    return tuple(kind.name for kind in declared_kinds() if kind.undo.by_name)


def read_undo(catalogs: CatalogFollower, version: int, *, through: int | None = None) -> Undo:
    """Return the command that undoes ``version``.

    With ``through``, it undoes all versions up to that one as one change. Raises `VersionNotFound`
    if a version does not exist or was trimmed, and `InvalidInput` if the range goes backwards or
    has more than `MAX_VERSIONS`.
    """
    last = version if through is None else through
    if last < version:
        raise InvalidInput(
            f"versions {version} to {last} cannot be undone: name the older one first"
        )
    if last - version >= MAX_VERSIONS:
        raise InvalidInput(
            f"versions {version} to {last} cannot be undone at once: the limit is {MAX_VERSIONS} "
            "versions; undo the newest ones first"
        )
    latest = _latest(catalogs)
    _check_kept(catalogs, version, latest)
    _check_kept(catalogs, last, latest)
    updates = tuple(catalogs.each_update(version, last))
    return _with_what_came_after(catalogs, Undo(update=as_one(updates), first=version), latest)


def read_undrop(catalogs: CatalogFollower, kind: str, name: str) -> Undo:
    """Return the command that restores a dropped object of that ``kind`` and ``name``.

    The object comes back as it was before the version that dropped it, with the objects that were
    dropped with it. ``name`` is the name before that version, or a name that the object had within
    it. It is written as users write it: ``schema.name`` for objects in a schema, with the schema's
    former or present name. Skips objects that exist again, and objects that were created and
    dropped in one version. Raises `AlreadyExists` if the name is taken, `ObjectNotFound`,
    `InvalidInput`.
    """
    if kind not in restorable():
        known = ", ".join(restorable())
        raise InvalidInput(
            f"objects of the kind {kind[:80]!r} cannot be restored by name; kinds that can are "
            f"{known}"
        )
    latest, dropped_name = _latest(catalogs), _DroppedName.named(kind_named(kind), name)
    _refuse_taken(latest, dropped_name)
    updates = _backwards(catalogs, catalogs.earliest_catalog().version + 1, latest.version)
    for update in updates:
        undo = Undo(update=update)
        for target, stored in _dropped(undo, kind, dropped_name.name):
            again = latest.contents.get(*target) is not None
            if not again and _was_in_parent(catalogs, update, dropped_name, stored.parent, latest):
                if kind == "schema":
                    before = _drops_before(updates, update, stored.id)
                    undo = Undo(update=as_one([*before, update]))
                return _with_its_parts(catalogs, undo, target, latest)
    raise _never_dropped(catalogs, dropped_name)


@dataclass(frozen=True, slots=True)
class _DroppedName:
    """The dropped object to find: its kind, its name, and the name of its parent."""

    kind: Kind
    text: str
    parent: str
    name: str

    @classmethod
    def named(cls, kind: Kind, text: str) -> _DroppedName:
        if not kind.is_qualified:
            return cls(kind, text, DEFAULT_DATABASE, text)
        qualified = QualifiedName.parse(text)
        return cls(kind, text, qualified.schema, qualified.name)

    def parent_id(self, catalog: Catalog) -> int:
        """The id of its parent, or 0 if the kind has no parent or the parent does not exist."""
        if self.kind.parent_kind is None:
            return 0
        parent = find(catalog, kind_named(self.kind.parent_kind), self.parent)
        return 0 if parent is None else int(parent.id)


def _refuse_taken(latest: Catalog, dropped_name: _DroppedName) -> None:
    namespace = Namespace(dropped_name.kind.collection.scope or "", dropped_name.parent_id(latest))
    holder = latest.contents.find(namespace, dropped_name.name)
    stored = None if holder is None else latest.contents.get(*holder)
    if stored is not None:
        raise AlreadyExists(
            f"{dropped_name.kind.spoken} {dropped_name.text} cannot be restored: that name is "
            f"taken by {described(latest, stored.value)}, which may have been restored already; to "
            "restore another one, rename that first"
        )


def _was_in_parent(
    catalogs: CatalogFollower,
    update: Update,
    dropped_name: _DroppedName,
    parent_id: int,
    latest: Catalog,
) -> bool:
    """Whether ``parent_id`` is the wanted parent, by its name now or before ``update``."""
    if parent_id == dropped_name.parent_id(latest):
        return True
    before = catalogs.catalog(update.version - 1)
    parent = before.get(dropped_name.kind.parent_kind or "", parent_id) if parent_id else None
    return parent is not None and normalize(parent.name) == normalize(dropped_name.parent)


def _drops_before(older: Iterator[Update], update: Update, schema_id: int) -> list[Update]:
    """The versions directly before ``update`` in which its author only dropped from the schema.

    Spark's DROP SCHEMA CASCADE drops one table after another, then the schema. In between, there
    may be versions of others that do not concern this schema, for at most `CASCADE_PAUSE_MS`.
    """
    emptying: list[Update] = []
    next_drop, skips = update, False
    for earlier in older:
        is_same_author = (earlier.author, earlier.member) == (update.author, update.member)
        skips = skips or not is_same_author
        if skips and milliseconds(next_drop.time) - milliseconds(earlier.time) > CASCADE_PAUSE_MS:
            break
        if not is_same_author and _is_elsewhere(earlier, schema_id):
            continue
        dropped = [change for change in earlier.changes() if _is_dropped_by_name(change)]
        if not is_same_author or not dropped:
            break
        if any(change.new is not None for change in earlier.changes()):
            break
        if any(_stored(change).parent != schema_id for change in dropped):
            break
        emptying.insert(0, earlier)
        next_drop, skips = earlier, False
    return emptying


def _is_elsewhere(update: Update, schema_id: int) -> bool:
    """Whether a version changed neither the name of this schema nor the set of names in it.

    Nor may it have dropped what its objects may refer to, such as a role. An object that was only
    altered comes back as it was when it was dropped.
    """
    for change in work.spending(update.changes()):
        kind = kind_named(change.kind)
        is_schema = (kind.name, change.key) == ("schema", id_key(schema_id))
        if is_schema or kind.in_schema:
            stored_objects = map(kind.collection.stored, filter(None, (change.old, change.new)))
            names = [(stored.parent, stored.name) for stored in stored_objects]
            is_only_altered = len(names) == 2 and names[0] == names[1]
            is_here = is_schema or any(parent == schema_id for parent, _ in names)
            if is_here and not is_only_altered:
                return False
        elif change.new is None:
            return False
    return True


def _is_dropped_by_name(change: Change) -> bool:
    kind = declared_kind(change.kind)
    return kind.in_schema and kind.undo.by_name


def _with_its_parts(catalogs: CatalogFollower, undo: Undo, target: Target, latest: Catalog) -> Undo:
    """Return the part of ``undo`` for an object and all dropped objects that refer to it.

    Default privileges end with their role, so those of roles that were dropped since are left out.
    """
    needs = {
        other: needed
        for other, net in undo.net.items()
        if net.new is None
        for needed in (_needs(net),)
        if not (isinstance(net.old_value, DefaultPrivilege) and _lacks_role(latest, needed))
    }
    restored, added = {target}, {target}
    while added:
        added = {other for other, needed in needs.items() if needed & added} - restored
        restored |= added
    return _with_what_came_after(catalogs, replace(undo, only=frozenset(restored)), latest)


def _needs(net: Net) -> set[Target]:
    """What the object referred to before the version."""
    return {Target(kind, id_key(object_id)) for kind, object_id in references(net.old_value)}


def _lacks_role(latest: Catalog, needed: set[Target]) -> bool:
    roles = (target for target in needed if target.kind == "role")
    return any(latest.contents.get(*role) is None for role in roles)


def _latest(catalogs: CatalogFollower) -> Catalog:
    """The catalog that commands are validated against: the newest version, active yet or not."""
    catalogs.present()
    return catalogs.latest_catalog()


def _dropped(undo: Undo, kind: str, name: str) -> list[tuple[Target, AnyStored]]:
    """The objects of a kind that the update dropped and that had ``name`` before or within it.

    Objects that had the name before it come first.
    """
    changes = list(undo.update.changes())
    if not any(change.kind == kind and change.new is None for change in changes):
        return []
    net, dropped = undo.net, []
    for change in changes:
        target = target_of(change)
        if change.kind != kind or change.old is None or target not in net or net[target].new:
            continue
        stored = _stored(change)
        if normalize(stored.name) == normalize(name):
            dropped.append((change.old != net[target].old, target, stored))
    return [(target, stored) for _, target, stored in sorted(dropped, key=itemgetter(0))]


def _stored(change: Change) -> AnyStored:
    return collection(change.kind).stored(change.old or b"")


def _check_kept(catalogs: CatalogFollower, version: int, latest: Catalog) -> None:
    earliest = catalogs.earliest_catalog().version
    if version > latest.version or version < 1:
        raise VersionNotFound(
            f"version {version} cannot be undone: it does not exist; the latest is {latest.version}"
        )
    if version == earliest:
        raise VersionNotFound(
            f"version {version} cannot be undone: history was trimmed up to it, so the state "
            f"before it is no longer known; versions from {earliest + 1} on can be undone"
        )
    if version < earliest:
        raise VersionNotFound(
            f"version {version} cannot be undone: it was trimmed; the earliest version is "
            f"{earliest}, and versions from {earliest + 1} on can be undone"
        )


def _never_dropped(catalogs: CatalogFollower, dropped_name: _DroppedName) -> NotFound:
    kind, name = dropped_name.kind, dropped_name.text
    plain = f"{dropped_name.parent}.{dropped_name.name}" if kind.is_qualified else name
    earliest = catalogs.earliest_catalog().version
    for info in reversed(catalogs.history(1, earliest + 1)):
        for verb_name, arguments in info.actions:
            verb = verb_named(verb_name)
            is_drop = verb.action is Action.DROP and verb.kind == kind.name
            if is_drop and normalize(str(arguments.get(verb.subject or ""))) == normalize(plain):
                return VersionNotFound(
                    f"{kind.spoken} {name} cannot be restored: version {info.version}, in which "
                    f"{info.author} dropped it, was trimmed; the earliest version is {earliest}"
                )
    return never_dropped(catalogs, kind.name, name)


def never_dropped(catalogs: CatalogFollower, kind: str, name: str) -> ObjectNotFound:
    """The error for a name under which nothing was dropped."""
    earliest = catalogs.earliest_catalog().version
    return ObjectNotFound(
        f"{kind} {name} cannot be restored: no version from {earliest + 1} on dropped a {kind} of "
        "that name"
    )


def _with_what_came_after(catalogs: CatalogFollower, undo: Undo, latest: Catalog) -> Undo:
    work.spend(_UNITS_PER_OBJECT * len(undo.net))  # for the planning, which makes others wait
    needed: set[Target] = set()
    for net in undo.net.values():
        if net.old is not None:
            needed |= _needs(net)

    def matters(change: Change) -> bool:
        target = target_of(change)
        return target in undo.net or (change.new is None and target in needed)

    updates = catalogs.each_update(undo.update.version + 1, latest.version)
    later = [update for update in updates if any(map(matters, update.changes()))]
    before = catalogs.catalog((undo.first or undo.update.version) - 1)
    return undo.with_later(
        later,
        restored=latest.next_number(RESTORED_TABLES),
        owners=_owners_then(before, undo),
        kept=_owned_before(before, undo),
    )


def _owners_then(before: Catalog, undo: Undo) -> dict[str, int]:
    """`Undo.owners`, without the roles that the undo itself takes back."""
    names = {getattr(net.old_value, "owner", "") for net in undo.net.values()}
    roles = [role for role in map(before.role, names) if role is not None]
    return {
        normalize(role.name): role.id
        for role in roles
        if Target("role", id_key(role.id)) not in undo.net
    }


def _owned_before(before: Catalog, undo: Undo) -> frozenset[Target]:
    """`Undo.kept`."""
    nets = [net for target, net in undo.net.items() if target.kind == "role"]
    names = [net.new_value.name for net in nets if net.old is not None and net.new is not None]
    return frozenset(
        Target(kind, id_key(stored.id))
        for name in names
        if before.role(name) is None
        for kind, stored in owned_by(before.contents, name)
    )


def _backwards(catalogs: CatalogFollower, first: int, last: int) -> Iterator[Update]:
    end, at_once = last + 1, 1
    while end > first:  # what is undropped was mostly dropped just now
        start = max(end - at_once, first)
        work.spend(end - start)
        updates = catalogs.updates(start, end)
        yield from reversed(updates)
        end, at_once = start, min(2 * at_once, updates_at_once(updates))


# -- visibility for a user -------------------------------------------------------------------------


def visible_undo(
    catalogs: CatalogFollower, version: int, *, through: int | None, identity: str | None
) -> Undo:
    """`read_undo` for ``identity``; `VersionNotFound` also for what that user may not see."""
    access = _access(catalogs, identity)
    if access.free:
        return read_undo(catalogs, version, through=through)
    unseen = VersionNotFound(
        f"version {version} cannot be undone: it does not exist, or user {identity} may not see it"
        if through is None
        else f"versions {version} to {through} cannot be undone: user {identity} may not see all of"
        " them, or they do not exist"
    )
    try:
        undo = read_undo(catalogs, version, through=through)
    except VersionNotFound:
        raise unseen from None
    if not _sees(access, catalogs, undo):
        raise unseen
    return undo


def visible_undrop(
    catalogs: CatalogFollower, kind: str, name: str, *, identity: str | None
) -> Undo:
    """`read_undrop` for ``identity``; `ObjectNotFound` also for what that user may not see."""
    access = _access(catalogs, identity)
    if access.free or kind not in restorable():
        return read_undrop(catalogs, kind, name)
    try:
        undo = read_undrop(catalogs, kind, name)
    except NotFound:  # which may name the user who dropped it
        raise never_dropped(catalogs, kind, name) from None
    except AlreadyExists:
        if not _reaches_place(access, _DroppedName.named(kind_named(kind), name)):
            raise never_dropped(catalogs, kind, name) from None
        raise
    if not _sees(access, catalogs, undo):
        raise never_dropped(catalogs, kind, name)
    return undo


def _access(catalogs: CatalogFollower, identity: str | None) -> Access:
    return Access(catalogs.present(), identity, history=catalogs.catalog)


def _reaches_place(access: Access, dropped_name: _DroppedName) -> bool:
    """Whether the user may know which object holds the wanted name."""
    if dropped_name.kind.name != "schema" and not dropped_name.kind.in_schema:
        return True
    schema = access.catalog.schema(
        dropped_name.parent if dropped_name.kind.in_schema else dropped_name.name
    )
    return schema is not None and access.reaches(schema)


def _sees(access: Access, catalogs: CatalogFollower, undo: Undo) -> bool:
    """Whether all that is taken back is, was and comes back in schemas that the user reaches."""
    last = undo.update.version
    states = (access.catalog, catalogs.catalog(last), catalogs.catalog(last - 1))
    access_then = access.at(states[-1])
    for target in undo.net or undo.touched:
        net, now = undo.net.get(target), access.catalog.contents.value(*target)
        for value in (now,) if net is None else (net.old_value, net.new_value, now):
            if isinstance(value, SchemaDescriptor):
                schema: SchemaDescriptor | None = value
            elif schema_id := _schema_id(states, value):
                schema = _schema(states, undo, schema_id)
            else:
                continue  # its name is no secret, and the privileges on it are checked
            if schema is None or not access_then.reaches(schema):
                return False
    return True


def _schema_id(states: tuple[Catalog, ...], value: Any) -> int:  # Any: a descriptor, or None
    """The id of the schema of a value, or of what a comment or default privilege is about; or 0."""
    if isinstance(value, DefaultPrivilege):
        return value.schema
    if isinstance(value, Comment):
        kind = value.object_kind.name.lower()
        subjects = (state.get(kind, value.object_id) for state in states)
        value = next((subject for subject in subjects if subject is not None), None)
    return int(getattr(value, "schema_id", 0))


def _schema(states: tuple[Catalog, ...], undo: Undo, schema_id: int) -> SchemaDescriptor | None:
    schemas = (state.schema_by_id(schema_id) for state in states)
    return next((schema for schema in schemas if schema is not None), undo.schema(schema_id))
