"""The kinds of objects: how each is stored and found, what it refers to, and what it is called.

The code for names, differences, undo, privileges, comments, grants, owners, events and system views
queries the kinds, and contains no kind's name. So a new kind is added in one place, its
declaration: a `Kind`, and what the catalog does with objects of it
(`strandline.catalog.declared_kinds.DeclaredKind`). The declarations of the catalog's kinds are in
`strandline.catalog.declarations`.

Apart from its declaration, a kind needs only what cannot be derived: the class of its objects, the
format of their records (`strandline.wire`), and its commands.

Rejected: a registry for each of these aspects (eleven places for one kind, and a user would find
the forgotten one), and a base class of all descriptors (they are values, and their formats are
frozen without the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.catalog.catalog import DEFAULT_DATABASE, Catalog
from strandline.catalog.verbs import Action, FolderEffect, Verb, declare_verb
from strandline.durable.collections import Collection, collection_of, register_collection
from strandline.durable.contents import Namespace
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import CorruptData
from strandline.model.descriptors import comment_name
from strandline.model.identifiers import QualifiedName
from strandline.model.privileges import PUBLIC, PUBLIC_NAME, SYSTEM_NAME, ObjectKind, Privilege

# Below, Any stands for a descriptor of the kind.
KindOf = str | Callable[[Any], str | None]
"""The kind that a field refers to, or a function that returns it if it depends on the object."""


def _built_in(catalog: Catalog, value: Any) -> bool:
    return bool(getattr(value, "owner", None) == SYSTEM_NAME)


_NOTHING = Privilege(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object.

    * ``parent`` is the field with the id of the parent object; users write its name before the
      object's name.
    * ``part_of`` is the field with the id of the object with which this one is created and dropped.
    * ``references`` are the fields with the id of an object that must exist, and the kind of that
      object. ``mentions`` are the fields whose object may be missing, or comes with this one.
    * ``object_kind`` is the number of the kind if its objects can have grants, comments or an owner
      that is set; ``grantable`` is what can be granted on one.
    * ``carries_comment``: whether the comment on an object is in the object's own record.
    * ``called`` returns the name of an object that has no name of its own.
    * ``is_internal(name)``: whether the object belongs to the program's own records, so that users
      are not shown changes of it.
    * ``built_in``: whether the object came with the catalog and is unchanged.
    * ``subject`` is the argument of entries that names an object; by default the name of the kind.
    * ``in_events``: whether DDL events report changes of objects of the kind.
    * ``verbs`` are the verbs in addition to the five that every kind with ids has. ``folders`` is
      what these five do to folders.
    """

    collection: Collection
    parent: str | None = None
    part_of: str | None = None
    references: Mapping[str, KindOf] = field(default_factory=dict)
    mentions: Mapping[str, KindOf] = field(default_factory=dict)
    object_kind: ObjectKind | None = None
    grantable: Privilege = _NOTHING
    carries_comment: bool = False
    called: Callable[[Catalog, Any], str] | None = None
    is_internal: Callable[[str], bool] = lambda name: False
    built_in: Callable[[Catalog, Any], bool] = _built_in
    subject: str = ""
    in_events: bool = False
    verbs: tuple[Verb, ...] = ()
    folders: Mapping[Action, FolderEffect] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``cluster_replica``."""
        return self.collection.kind

    @property
    def spoken(self) -> str:
        """``cluster replica``."""
        return spoken(self.name)

    @property
    def parent_kind(self) -> str | None:
        if self.parent is None:
            return None
        kind = self.references[self.parent]
        return kind if isinstance(kind, str) else None

    @property
    def in_schema(self) -> bool:
        """Whether the parent is a schema, so that users write ``schema.name``."""
        return self.parent_kind == "schema"

    @property
    def is_qualified(self) -> bool:
        """Whether users write two names, the parent's before the object's own."""
        return self.parent_kind not in (None, "database")

    def whole_of(self, value: Any) -> tuple[str, int] | None:
        """The kind and id of the object that ``value`` is part of, or None."""
        if self.part_of is None:
            return None
        kind = referred_kind(self.references[self.part_of], value)
        return None if kind is None else (kind, getattr(value, self.part_of))

    def verb(self, action: Action) -> str:
        return f"{action.value}_{self.name}"

    def all_verbs(self) -> Iterator[Verb]:
        """The verbs that come with the kind."""
        yield from self.verbs
        for action in Action if self.collection.has_id else ():
            yield Verb(
                name=self.verb(action),
                kind=self.name,
                subject=self.subject or self.name,
                action=action,
                folders=self.folders.get(action),
                inverse=self.verb(_INVERSE[action]) if action in _INVERSE else "",
            )


_INVERSE = {Action.DROP: Action.RESTORE, Action.RENAME: Action.RENAME}
"""A create is undone by the drop command, so it needs no inverse verb here."""

_KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Register a kind, once in a process. Raises `ValueError` if its name is already registered."""
    if kind.name in _KINDS:
        raise ValueError(f"the kind {kind.name} is declared twice")
    if kind.parent is not None and kind.parent not in kind.references:
        raise ValueError(
            f"the parent {kind.parent} of the kind {kind.name} is not one of its references"
        )
    register_collection(kind.collection)
    _KINDS[kind.name] = kind
    for verb in kind.all_verbs():
        declare_verb(verb)


def all_kinds() -> tuple[Kind, ...]:
    """Every kind, in the order of declaration."""
    return tuple(_KINDS.values())


def kind_named(name: str) -> Kind:
    """The kind of that name. Raises `CorruptData` if it is unknown, because a log may name it."""
    try:
        return _KINDS[name]
    except KeyError:
        known = ", ".join(sorted(_KINDS))
        raise CorruptData(f"object kind {name!r} is unknown; known are {known}") from None


def kind_of(value: object) -> Kind:
    return _KINDS[collection_of(value).kind]


def kind_of_object(object_kind: ObjectKind) -> Kind | None:
    """The kind with that number, or None for the system, which is not an object."""
    kinds = (kind for kind in _KINDS.values() if kind.object_kind is object_kind)
    return next(kinds, None)


# -- finding objects -------------------------------------------------------------------------------


def find(catalog: Catalog, kind: Kind, name: str) -> Any:
    """The object that users call ``name``, or None: ``schema.name``, ``cluster.replica``, ``zone``.

    Searches the schemas of the default database. Raises `InvalidName` if ``name`` is not a valid
    name.
    """
    if not kind.is_qualified:
        return find_in(catalog, kind, DEFAULT_DATABASE, name)
    qualified = QualifiedName.parse(name)
    return find_in(catalog, kind, qualified.schema, qualified.name)


def find_in(catalog: Catalog, kind: Kind, parent: str, name: str) -> Any:
    """The object of that name in the parent named ``parent``, or None.

    If the kind has no parent, ``parent`` is ignored.
    """
    scope, parent_id = kind.collection.scope, 0
    if kind.parent_kind is not None:
        above = find(catalog, kind_named(kind.parent_kind), parent)
        if above is None:
            return None
        parent_id = above.id
    holder = catalog.contents.find(Namespace(scope or "", parent_id), name)
    if holder is None or holder.kind != kind.name:
        return None
    return catalog.contents.value(*holder)


def delete_with_comment(transaction: CatalogTransaction, kind: str, object_id: int) -> None:
    """Delete an object and the comment on it, inside an entry. Raises `ObjectNotFound`."""
    transaction.delete(kind, object_id)
    object_kind = _KINDS[kind].object_kind
    if object_kind is not None:
        name = comment_name(object_kind, object_id)
        if transaction.get_named("comment", name) is not None:
            transaction.delete("comment", name)


# -- references and names --------------------------------------------------------------------------


def referred_kind(of: KindOf, value: Any) -> str | None:
    """The kind that a field of ``value`` refers to, or None."""
    return of if isinstance(of, str) else of(value)


def references(value: Any) -> Iterator[tuple[str, int]]:
    """The kind and id of every object that must exist for this descriptor."""
    for name, kind_of_field in kind_of(value).references.items():
        kind, object_id = referred_kind(kind_of_field, value), int(getattr(value, name))
        if kind is not None and object_id:
            yield kind, object_id


def object_name(catalog: Catalog, value: Any) -> str:
    """The name that users write for an object: ``shop.orders``, ``etl.r1``, ``analysts``."""
    kind = kind_of(value)
    if kind.called is not None:
        return kind.called(catalog, value)
    name = str(value.name)
    if kind.parent is None or kind.parent_kind is None:
        return name
    parent = name_of(catalog, kind.parent_kind, getattr(value, kind.parent))
    in_default = kind.parent_kind == "database" and parent == DEFAULT_DATABASE
    return name if in_default else f"{parent}.{name}"


def name_of(catalog: Catalog, kind: str, object_id: int) -> str:
    """The name of the object with that id, or ``?`` if it does not exist in ``catalog``."""
    if kind == "role" and object_id == PUBLIC:
        return PUBLIC_NAME
    value = catalog.get(kind, object_id)
    return "?" if value is None else object_name(catalog, value)


def described(catalog: Catalog, value: Any) -> str:
    """The kind and name of an object for messages: ``table shop.orders``."""
    return f"{kind_of(value).spoken} {object_name(catalog, value)}"


def spoken(kind: str) -> str:
    """The words for a kind: ``cluster_replica`` → ``cluster replica``."""
    return kind.replace("_", " ").lower()
