"""What a request reads: catalog, rows and locations, at once from memory or with patience.

The event loop may answer a request as long as it waits for nothing. So each request is first tried
`at once`: every fact must then be proved from memory, and where that fails `MustWait` is raised and
the request is answered again in a worker thread, where reading may ask the store. The same handlers
serve both ways.

What is read in one request belongs together: the present catalog is taken once, and rows are never
older than it. (`CachedStore.known_location` proves that memory is level with the log; what is read
after it is at least as new.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from strandline import work
from strandline.catalog import Catalog, Relation
from strandline.catalog.privileges.access import Access, enforced
from strandline.clock import Timestamp, format_timestamp
from strandline.durable.contents import Namespace
from strandline.errors import ObjectNotFound
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.hive.conversion import table_struct, view_struct
from strandline.metastore.hive.locations import hadoop_location
from strandline.metastore.hive.name_patterns import NamePattern
from strandline.metastore.hive.names import is_shown, shown_schema, split_schema
from strandline.metastore.hive.past_tables import (
    find_hidden,
    hidden_name,
    is_written_by_clients,
    past_view_struct,
)
from strandline.metastore.hive.storage import Struct
from strandline.metastore.hive.transactional import transactional_struct
from strandline.metastore.interface import PRESENT, AsOf
from strandline.metastore.metastore import Metastore
from strandline.metastore.store.rows import PARAMETERS_NAME, Row, RowKind, TableParametersRow
from strandline.model.descriptors import (
    Properties,
    SchemaDescriptor,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    properties,
)
from strandline.model.privileges import Privilege

_VIEW_NAMESPACE = "view.catalogAndNamespace.part.1"
"""Where Spark looks for the tables that a view's text names without a schema."""


MAX_THINGS = work.AT_ONCE
"""Names or partitions that an answer on the event loop may go over, in well under a millisecond."""


class MustWait(Exception):
    """The answer cannot be given at once; not an error."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A schema as it was asked for: ``name`` is the name in answers, with its version if any.

    ``moment`` is the time as of which rows are read, None for the present. ``hidden`` says that a
    table in it was asked for by the hidden name of its files.
    """

    name: str
    schema: SchemaDescriptor
    catalog: Catalog
    at: AsOf = PRESENT
    moment: Timestamp | None = None
    hidden: bool = False

    def shows_as_view(self, relation: Relation) -> bool:
        """Whether clients see a view: also in the place of a plain table as of then."""
        if isinstance(relation, ViewDescriptor):
            return True
        return self.at != PRESENT and not self.hidden and is_written_by_clients(relation)


class Reading:
    """The reads of one request. Not for several threads.

    ``user`` is who asks and is judged where privileges are enforced; None is nobody in particular
    and is not. ``address`` is this service's own URI, None as long as it is not known;
    ``identities`` says whether answers carry the identity of transactional tables.
    """

    def __init__(
        self,
        metastore: Metastore,
        *,
        at_once: bool,
        user: str | None = None,
        address: str | None = None,
        identities: bool = True,
    ) -> None:
        self._metastore = metastore
        self._at_once = at_once
        self._user = user
        self._address = address
        self._identities = identities
        self._catalog: Catalog | None = None
        self._level = False

    def need_patience(self, *, things: int | None = None) -> None:
        """What follows takes long; raises `MustWait` on the event loop.

        With ``things``, only if it goes over more than `MAX_THINGS` of them.
        """
        if self._at_once and (things is None or things > MAX_THINGS):
            raise MustWait

    # -- catalog

    @property
    def catalog(self) -> Catalog:
        """The catalog of the present, the same one throughout the request."""
        if self._catalog is None:
            catalogs = self._metastore.catalogs
            found = catalogs.known_present() if self._at_once else catalogs.present()
            if found is None:
                raise MustWait
            self._catalog = found
        return self._catalog

    @cached_property
    def access(self) -> Access:
        """What the user may do, by the catalog of the present."""
        return Access(self.catalog, self._user, history=self._metastore.catalogs.catalog)

    @property
    def for_all(self) -> bool:
        """Whether every user would get the same answer."""
        return not enforced(self.catalog)

    def find_scope(self, name: str) -> Scope | None:
        """The schema of that name, with or without a version; None if there is none.

        Raises `VersionNotFound`, `ObjectNotFound` where the name cannot be one, and
        `PermissionDenied` for a user who does not reach it.
        """
        own_name, at = split_schema(name)
        if at == PRESENT:
            catalog, moment = self.catalog, None
        else:
            if self._at_once:
                raise MustWait
            point = self._metastore.point(at)
            catalog, moment = point.catalog, point.moment
        schema = catalog.schema(own_name)
        if schema is not None and not is_shown(schema):
            schema = None
        if schema is not None:
            self.access.at(catalog).require(Privilege.USAGE, schema)
        return None if schema is None else Scope(shown_schema(name), schema, catalog, at, moment)

    def relation_names(self, catalog: Catalog, schema: SchemaDescriptor) -> list[str]:
        """The names of the tables and views of a schema, in lower case and in order."""
        self.need_patience(things=len(catalog.contents.names(Namespace("relation", schema.id))))
        return sorted(name.lower() for name in catalog.relation_names(schema.name))

    def fitting(self, names: list[str], pattern: str | None) -> list[str]:
        """The names that fit a pattern. Raises `InvalidInput` where it is wrong."""
        chosen = NamePattern(pattern)
        if not chosen.is_quick(names):
            self.need_patience()
        return chosen.choose(names)

    def scope(self, name: str) -> Scope:
        """The schema of that name. Raises `ObjectNotFound` with the name as its text."""
        found = self.find_scope(name)
        if found is None:
            raise ObjectNotFound(name)
        return found

    def relation(
        self, schema: str, name: str, *, need: Privilege = Privilege.SELECT
    ) -> tuple[Scope, Relation]:
        """The table or view of that name. Raises `ObjectNotFound`.

        Raises `PermissionDenied` for a user without ``need``, any of it.
        """
        scope = self.find_scope(schema)
        found = None if scope is None else self.find_relation(scope, name)
        if found is None:
            raise ObjectNotFound(f"{schema}.{name} table not found")
        self.access.at(found[0].catalog).require_any(need, found[1])
        return found

    def may_read(self, scope: Scope, relation: Relation) -> bool:
        """Whether the user may see the table or view."""
        return self.access.at(scope.catalog).allows(Privilege.SELECT, relation)

    def find_relation(self, scope: Scope, name: str) -> tuple[Scope, Relation] | None:
        """The table or view of that name, which may be a hidden one, and how it is seen."""
        found = scope.catalog.relation(scope.schema.name, name)
        if found is not None:
            return scope, found
        present = scope.at == PRESENT
        table = find_hidden(scope.catalog, scope.schema.name, name, present=present)
        if table is None or (present and not self._only_reads(scope, table)):
            return None
        return replace(scope, hidden=True), table

    def _only_reads(self, scope: Scope, relation: Relation) -> bool:
        """Whether the user would write into a plain table's files without being allowed to.

        Spark writes the files of an INSERT before it asks, so it is answered a view.
        """
        if scope.at != PRESENT or scope.hidden or not is_written_by_clients(relation):
            return False
        return not self.access.free and not self.access.allows(Privilege.INSERT, relation)

    # -- the object store

    def _prove_level(self, table: TableDescriptor) -> None:
        """Make sure that what memory says of rows is as new as the request."""
        store = self._metastore.store
        if self._level:
            return
        if self._at_once:
            if not isinstance(store, CachedStore) or store.known_location(table.id) is None:
                raise MustWait
        elif isinstance(store, CachedStore):
            store.catch_up()
        self._level = True

    def location(self, table: TableDescriptor) -> str:
        """Where the table's files lie, as Hadoop prints it. Raises `ObjectNotFound`."""
        if table.kind is TableKind.EXTERNAL and table.location is not None:
            return hadoop_location(self._metastore.folders.shown(table.location))
        store = self._metastore.store
        if not self._at_once:
            if store.location(table.id) is None:
                # Somebody's DDL is in the catalog and about to be carried out; do it for them.
                self._metastore.projector.project_up_to(self.catalog.version)
            return hadoop_location(self._metastore.location(table))
        found = store.known_location(table.id) if isinstance(store, CachedStore) else None
        if found is None:
            raise MustWait
        return hadoop_location(found)

    def rows(
        self,
        scope: Scope,
        table: TableDescriptor,
        kind: RowKind,
        names: Collection[str] | None = None,
    ) -> list[Row]:
        """The rows of a plain table by name, as of the scope."""
        self._prove_level(table)
        store = self._metastore.store
        if self._at_once:
            found = None
            if isinstance(store, CachedStore) and scope.moment is None:
                found = store.known_rows(table.id, kind, write_ids=None, names=names)
            if found is None:
                raise MustWait
            self.need_patience(things=len(found))
            return found
        write_ids = None
        if scope.moment is not None:
            write_ids = self._metastore.transactions.write_ids(table.id, at=scope.moment)
        return store.rows(table.id, kind, write_ids=write_ids, names=names)

    def counted(self, scope: Scope, table: TableDescriptor) -> Properties:
        """The parameters that count or date the table's content."""
        rows = self.rows(scope, table, RowKind.TABLE_PARAMETERS, (PARAMETERS_NAME,))
        return rows[0].as_(TableParametersRow).parameters if rows else ()

    # -- answers

    def struct(self, scope: Scope, relation: Relation) -> Struct:
        """The ``Table`` struct of a table or view."""
        if isinstance(relation, ViewDescriptor):
            return view_struct(_as_of(scope, relation), schema=scope.name)
        location = self.location(relation)
        if scope.shows_as_view(relation) or self._only_reads(scope, relation):
            hidden = hidden_name(relation, version=scope.catalog.version, location=location)
            return past_view_struct(relation, schema=scope.name, hidden=hidden)
        counted = self.counted(scope, relation)
        if not relation.transactional:
            return table_struct(relation, schema=scope.name, location=location, counted=counted)
        return transactional_struct(
            relation,
            schema=scope.name,
            location=location,
            counted=counted,
            identity=self._identity(scope, relation) if self._identities else None,
        )

    def _identity(self, scope: Scope, table: TableDescriptor) -> str:
        version = str(scope.catalog.version)
        if scope.at.time is not None:
            version = format_timestamp(scope.at.time)
        name = f"{scope.schema.name}.{table.name}@{version}"
        return name if self._address is None else f"{name};{self._address}"


def _as_of(scope: Scope, view: ViewDescriptor) -> ViewDescriptor:
    """The view, reading what its text names without a schema as of the scope too."""
    kept = dict(view.properties)
    if scope.at == PRESENT or kept.get(_VIEW_NAMESPACE, "").lower() != scope.schema.name.lower():
        return view
    kept[_VIEW_NAMESPACE] = scope.name
    return replace(view, properties=properties(kept))
