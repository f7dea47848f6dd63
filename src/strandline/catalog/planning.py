"""Planning: how a command becomes entries.

A command is a frozen value with one method, `Command.plan`: a pure function of the catalog that it
is validated against. It reads the catalog, and either raises a typed error or writes entries into
the transaction. It may run several times, each time on a newer catalog, because another node may
append first; so it must read nothing else. A command that changes nothing writes nothing.

Each command of a batch sees the changes of the commands before it. A batch is one version, all or
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from strandline.catalog.catalog import Catalog, Relation, is_reserved
from strandline.catalog.kinds import kind_of
from strandline.catalog.privileges.access import with_default_privileges
from strandline.catalog.verbs import Action, declared_verb
from strandline.clock import Timestamp, milliseconds
from strandline.durable.transaction import OBJECT_IDS, CatalogTransaction
from strandline.durable.update import Argument
from strandline.errors import AlreadyExists, IllegalChange, ObjectNotFound, UnsupportedOperation
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor, ViewDescriptor
from strandline.model.identifiers import normalize

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T", bound="DataclassInstance")


class Named(Protocol):
    """An object that has an id and a name."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...


class Planning:
    """One batch during planning: the transaction, and the catalog as the transaction sees it."""

    def __init__(self, base: Catalog, transaction: CatalogTransaction, now: Timestamp) -> None:
        self.base = base
        self.transaction = transaction
        self.now = now
        self.author = transaction.author
        self._catalog = base

    @property
    def catalog(self) -> Catalog:
        """The catalog with all changes that this batch has made so far."""
        contents = self.transaction.contents
        if self._catalog.contents is not contents:
            self._catalog = Catalog(self.base.version, self.base.time, contents)
        return self._catalog

    def owner(self, named: str | None) -> str:
        """The owner of what a command creates: ``named`` ("" for none), by default the author."""
        return self.author if named is None else named

    @property
    def now_seconds(self) -> int:
        """The time of planning in seconds since 1970."""
        return milliseconds(self.now) // 1000

    @contextmanager
    def entry(self, verb: str, /, **arguments: Argument) -> Iterator[CatalogTransaction]:
        """The transaction, for the changes of one entry. Arguments that are None are left out.

        If the verb creates, the created objects begin with the default privileges of their kind.
        Raises `LookupError` if the verb is not declared.
        """
        named = {name: value for name, value in arguments.items() if value is not None}
        transaction = self.transaction
        with transaction.entry(verb, named):
            if declared_verb(verb).action is Action.CREATE:
                transaction.on_insert = partial(
                    with_default_privileges, self.catalog, granted=self.now_seconds
                )
            try:
                yield transaction
            finally:
                transaction.on_insert = None

    @property
    def next_id(self) -> int:
        """The id that the next `new_id` will return."""
        return self.catalog.next_number(OBJECT_IDS)

    def new_id(self) -> int:
        """Return an id for a new object; call it inside `entry`."""
        return self.transaction.allocate_id()[0]

    def schema(self, name: str) -> SchemaDescriptor:
        """The schema of that name. Raises `ObjectNotFound` if it does not exist."""
        return must_exist(self.catalog.schema(name), f"schema {name!r}")

    def relation(self, schema: str, name: str) -> Relation:
        """The table or view of that name. Raises `ObjectNotFound` if it does not exist."""
        relation = self.catalog.relation(schema, name)
        if relation is None:
            raise ObjectNotFound(f"{schema}.{name} table not found")
        return relation

    def table(self, schema: str, name: str) -> TableDescriptor:
        """The table of that name. Raises `ObjectNotFound`, or `UnsupportedOperation` for a view."""
        relation = self.relation(schema, name)
        if isinstance(relation, ViewDescriptor):
            raise UnsupportedOperation(f"{schema}.{name} is a view, a table was expected")
        return relation

    def existing_table(self, schema: str, name: str, *, if_exists: bool) -> TableDescriptor | None:
        """The table of that name. Raises what `table` raises, also for a view.

        Returns None if ``if_exists`` is set and the table or its schema does not exist.
        """
        if if_exists and self.catalog.relation(schema, name) is None:
            return None
        return self.table(schema, name)

    def ensure_free(
        self, schema: SchemaDescriptor, name: str, *, own_id: int = 0, pending: Iterable[str] = ()
    ) -> None:
        """Raise `AlreadyExists` if an object other than that with ``own_id`` has the name.

        Tables, views, system views and alive indexes of a schema share one namespace. ``pending``
        are names that the same command is about to take.
        """
        occupant = self.catalog.occupant(schema.id, name)
        if occupant is not None and occupant.id == own_id:
            return
        if occupant is not None:
            raise AlreadyExists(
                f"{kind_of(occupant).spoken} {schema.name}.{occupant.name} already exists"
            )
        if normalize(name) in map(normalize, pending):
            raise AlreadyExists(
                f"this command would create two objects with the name {schema.name}.{name}; give "
                "one of them another name"
            )


def refuse_reserved(name: str, what: str) -> None:
    """Raise `IllegalChange` if schema ``name`` is the catalog's own and so cannot be ``what``."""
    if is_reserved(name):
        raise IllegalChange(
            f"system schema {name} cannot be {what}: it is reserved for the catalog itself"
        )


def altered(old: T, **values: Any) -> T:  # Any: fields of any type
    """Return ``old`` with those of ``values`` that are not None."""
    new_values = {name: value for name, value in values.items() if value is not None}
    return replace(old, **new_values)


def changed_parts(
    old: SchemaDescriptor | TableDescriptor, new: SchemaDescriptor | TableDescriptor, *fields: str
) -> list[str]:
    """Those of ``fields`` that differ, and the properties that do, as the history shows them."""
    changed = [name for name in fields if getattr(old, name) != getattr(new, name)]
    differing = dict(set(old.properties) ^ set(new.properties))
    return changed + [f"property {name}" for name in sorted(differing)]


def must_exist(present: T | None, what: str) -> T:
    """Return ``present``. Raises `ObjectNotFound` if it is None."""
    if present is None:
        raise ObjectNotFound(f"{what} does not exist")
    return present


def required(present: T | None, what: str, *, if_exists: bool) -> T | None:
    """Return ``present``. Raises `ObjectNotFound` if it is None, unless ``if_exists``."""
    return present if if_exists else must_exist(present, what)


def refuse_holder(
    holder: Named | None, what: str, *, own_id: int = 0, inside: str | None = None
) -> None:
    """Raise `AlreadyExists` if an object other than the one with ``own_id`` has the name.

    ``inside`` is the name of the object that contains it, for the message.
    """
    if holder is not None and holder.id != own_id:
        name = holder.name if inside is None else f"{inside}.{holder.name}"
        raise AlreadyExists(f"{what} {name} already exists")


class Command(Protocol):
    """See the module."""

    def plan(self, planning: Planning) -> None:
        """Write the entries that carry out this command, or raise an error."""
