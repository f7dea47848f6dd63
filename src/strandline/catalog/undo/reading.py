"""What is read from the log before something is undone: the version, and what came after it.

Only versions above the earliest one that can be read have their updates; at the earliest stands a
snapshot, which says what there was and not what was done. Reading costs the length of the history
since the version that is undone; so it is done by who asks, and not where commands are judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter

from strandline.catalog.catalog import Catalog
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.object_names import described, references
from strandline.catalog.undo.command import RESTORED_TABLES, Undo
from strandline.catalog.undo.net import Target, as_one, target_of
from strandline.durable.collections import collection, id_key
from strandline.durable.update import Change, Update
from strandline.errors import AlreadyExists, InvalidInput, NotFound, ObjectNotFound, VersionNotFound
from strandline.model.identifiers import QualifiedName, normalize
from strandline.wire.registry import decode
from strandline.wire.stored import AnyStored

BATCH = 500
"""Versions that are read at once."""

RESTORABLE = ("table", "view", "function", "schema")
"""What `read_undrop` finds: a schema, and what lies in one and is dropped by its name."""
_IN_SCHEMA = frozenset(RESTORABLE) - {"schema"}


def read_undo(catalogs: CatalogFollower, version: int, *, through: int | None = None) -> Undo:
    """What undoes ``version``, or with ``through`` all from it to that one, as one change.

    `VersionNotFound` where there is none, or it was trimmed; `InvalidInput` for a range that goes
    backwards.
    """
    last = version if through is None else through
    if last < version:
        raise InvalidInput(
            f"versions {version} to {last} cannot be undone: name the older one first"
        )
    latest = _latest(catalogs)
    _check_kept(catalogs, version, latest)
    _check_kept(catalogs, last, latest)
    updates = tuple(_forwards(catalogs, version, last))
    return _with_what_came_after(catalogs, Undo(update=as_one(updates), first=version), latest)


def read_undrop(catalogs: CatalogFollower, kind: str, name: str) -> Undo:
    """What brings the ``kind`` of that name back, as it was before the version that dropped it.

    ``name`` is ``schema.name``, by the schema's name of then or of now: the name of before that
    version, or where it had another one within it, that. What was restored already is passed over,
    and what was made and dropped in one version. Raises `AlreadyExists` where there is one of that
    name, `ObjectNotFound`, `InvalidInput`.
    """
    if kind not in RESTORABLE:
        raise InvalidInput(f"{kind[:80]!r} cannot be restored by name: {', '.join(RESTORABLE)} can")
    latest = _latest(catalogs)
    if kind == "schema":
        return _read_undrop_schema(catalogs, name, latest)
    qualified = QualifiedName.parse(name)
    present = latest.schema(qualified.schema)
    schema_id = 0 if present is None else present.id
    there = latest.function if kind == "function" else latest.relation
    holder = there(qualified.schema, qualified.name)
    if holder is not None:
        raise AlreadyExists(
            f"{kind} {name} cannot be restored: that name is taken by {described(latest, holder)}; "
            "rename that first"
        )
    for update in _backwards(catalogs, catalogs.earliest_catalog().version + 1, latest.version):
        for target, stored in _dropped(update, kind, qualified.name):
            again = latest.contents.get(*target) is not None
            if not again and (
                stored.parent == schema_id
                or _schema_was_named(catalogs, update, stored.parent, qualified.schema)
            ):
                return _only(catalogs, update, target, latest)
    raise _never_dropped(catalogs, kind, name, normalize(f"{qualified.schema}.{qualified.name}"))


def _read_undrop_schema(catalogs: CatalogFollower, name: str, latest: Catalog) -> Undo:
    """What brings a schema back with what was dropped with it.

    That is what went in the same version, and what the same client dropped from it in the versions
    right before: Spark's DROP SCHEMA CASCADE drops one table after the other, then the schema.
    """
    holder = latest.schema(name)
    if holder is not None:
        raise AlreadyExists(
            f"schema {name} cannot be restored: there is a schema of that name; rename that first"
        )
    earliest = catalogs.earliest_catalog().version
    backwards = _backwards(catalogs, earliest + 1, latest.version)
    for update in backwards:
        for target, _ in _dropped(update, "schema", name):
            if latest.contents.get(*target) is None:
                before = _emptying(backwards, update, int.from_bytes(target.key, "big"))
                return _with_its_parts(catalogs, as_one([*before, update]), target, latest)
    raise _never_dropped(catalogs, "schema", name, normalize(name))


def _emptying(older: Iterator[Update], update: Update, schema_id: int) -> list[Update]:
    """The versions right before ``update`` in which its author only dropped from the schema."""
    emptying: list[Update] = []
    for earlier in older:
        dropped = [change for change in earlier.changes() if change.kind in _IN_SCHEMA]
        if (earlier.author, earlier.member) != (update.author, update.member) or not dropped:
            break
        if any(change.new is not None for change in earlier.changes()):
            break
        if any(_stored(change).parent != schema_id for change in dropped):
            break
        emptying.insert(0, earlier)
    return emptying


def _with_its_parts(
    catalogs: CatalogFollower, update: Update, schema: Target, latest: Catalog
) -> Undo:
    """What undoes the drop of a schema, and of what was dropped from it."""
    schema_id = int.from_bytes(schema.key, "big")
    gone = {target: one for target, one in Undo(update=update).net.items() if one.new is None}
    restored = {schema}
    for target, one in gone.items():
        in_it = target.kind in _IN_SCHEMA and one.was.schema_id == schema_id
        about_it = target.kind == "default_privilege" and one.was.schema == schema_id
        if in_it or about_it:
            restored.add(target)
    tables = {int.from_bytes(one.key, "big") for one in restored if one.kind == "table"}
    indexes = (target for target in gone if target.kind == "index")
    restored |= {target for target in indexes if gone[target].was.table_id in tables}
    restored |= _comments_on(update, restored)
    undo = Undo(update=update, only=frozenset(restored))
    return _with_what_came_after(catalogs, undo, latest)


def _comments_on(update: Update, objects: Iterable[Target]) -> set[Target]:
    """The comments that went with these objects."""
    named = {f"{one.kind}/{int.from_bytes(one.key, 'big')}".encode() for one in objects}
    dropped = (one for one in update.changes() if one.new is None and one.old is not None)
    return {target_of(one) for one in dropped if one.kind == "comment" and one.key in named}


def _latest(catalogs: CatalogFollower) -> Catalog:
    """What a command is judged by: the newest version, active yet or not."""
    catalogs.present()
    return catalogs.latest_catalog()


def _dropped(update: Update, kind: str, name: str) -> list[tuple[Target, AnyStored]]:
    """What ``update`` dropped of a kind and name: those called so before it, then those within."""
    if not any(one.kind == kind and one.new is None for one in update.changes()):
        return []
    net = Undo(update=update).net
    found = []
    for change in update.changes():
        target = target_of(change)
        if change.kind != kind or change.old is None or target not in net or net[target].new:
            continue
        stored = _stored(change)
        if normalize(stored.name) == normalize(name):
            found.append((change.old != net[target].old, target, stored))
    return [(target, stored) for _, target, stored in sorted(found, key=itemgetter(0))]


def _stored(change: Change) -> AnyStored:
    """The object that a change replaced."""
    return collection(change.kind).stored(change.old or b"")


def _schema_was_named(catalogs: CatalogFollower, update: Update, schema_id: int, name: str) -> bool:
    before = catalogs.catalog(update.version - 1).schema_by_id(schema_id)
    return before is not None and normalize(before.name) == normalize(name)


def _only(catalogs: CatalogFollower, update: Update, target: Target, latest: Catalog) -> Undo:
    """What undoes the drop of one object, with the indexes and the comments that went with it."""
    dropped = [one for one in update.changes() if one.new is None and one.old is not None]
    object_id = int.from_bytes(target.key, "big")
    found = {target}
    for change in dropped if target.kind == "table" else ():
        if change.kind == "index" and _stored(change).group == object_id:
            found.add(Target(change.kind, change.key))
    found |= _comments_on(update, found)
    undo = Undo(update=update, only=frozenset(found))
    return _with_what_came_after(catalogs, undo, latest)


def _check_kept(catalogs: CatalogFollower, version: int, latest: Catalog) -> None:
    earliest = catalogs.earliest_catalog().version
    if version > latest.version or version < 1:
        raise VersionNotFound(
            f"version {version} cannot be undone: it does not exist; the latest is {latest.version}"
        )
    if version == earliest:
        raise VersionNotFound(
            f"version {version} cannot be undone: history was trimmed up to it, so what was before "
            f"it is gone; what was done from {earliest + 1} on can be undone"
        )
    if version < earliest:
        raise VersionNotFound(
            f"version {version} cannot be undone: it was trimmed; the earliest version is "
            f"{earliest}, and what was done from {earliest + 1} on can be undone"
        )


def _never_dropped(catalogs: CatalogFollower, kind: str, name: str, plain: str) -> NotFound:
    earliest = catalogs.earliest_catalog().version
    for info in reversed(catalogs.history(1, earliest + 1)):
        for verb, arguments in info.actions:
            if verb == f"drop_{kind}" and normalize(str(arguments.get(kind))) == plain:
                return VersionNotFound(
                    f"{kind} {name} cannot be restored: version {info.version}, in which "
                    f"{info.author} dropped it, was trimmed; the earliest version is {earliest}"
                )
    return never_dropped(catalogs, kind, name)


def never_dropped(catalogs: CatalogFollower, kind: str, name: str) -> ObjectNotFound:
    """The answer for a name under which nothing was dropped."""
    earliest = catalogs.earliest_catalog().version
    return ObjectNotFound(
        f"{kind} {name} cannot be restored: no version from {earliest + 1} on dropped a {kind} of "
        "that name"
    )


def _with_what_came_after(catalogs: CatalogFollower, undo: Undo, latest: Catalog) -> Undo:
    watched: set[Target] = set(undo.net)
    needed: set[Target] = set()
    for target, net in undo.net.items():
        if net.old is not None:
            value = decode(net.old, collection(target.kind).of)
            needed |= {Target(kind, id_key(one)) for kind, one in references(value)}
    later = []
    for update in _forwards(catalogs, undo.update.version + 1, latest.version):
        touched = {Target(one.kind, one.key) for one in update.changes()}
        gone = {Target(one.kind, one.key) for one in update.changes() if one.new is None}
        if touched & watched or gone & needed:
            later.append(update)
    counted = latest.get("id_allocator", RESTORED_TABLES)
    return replace(undo, later=tuple(later), restored=counted.next_id if counted else 1)


def _forwards(catalogs: CatalogFollower, first: int, last: int) -> Iterator[Update]:
    for start in range(first, last + 1, BATCH):
        yield from catalogs.updates(start, min(start + BATCH, last + 1))


def _backwards(catalogs: CatalogFollower, first: int, last: int) -> Iterator[Update]:
    for end in range(last, first - 1, -BATCH):
        yield from reversed(catalogs.updates(max(first, end - BATCH + 1), end + 1))
