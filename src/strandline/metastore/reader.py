"""`Reader`: all that one request reads: catalogs, privileges, places and rows.

The problem: both protocols resolve names as of some point in history, for a user who may not see
everything. If each resolved them by itself, their answers would differ, and a request that resolves
an object twice could see two states of it.

The model. A reader belongs to one request. It takes the catalog of the present once, when it is
made, and resolves names, points in history, privileges, places and rows from there. A point in
history is resolved to a catalog *and* a moment, and rows are read as of that moment, so that the
two clocks (catalog versions and write ids) agree:

* as of a time T: the catalog active at T, and the rows committed at or before T;
* as of a version V: that catalog, and the last moment at which V was active (now, if it still is);
* the present: what is committed now. `Reader.dated` returns its moment, a time from the store, so
  that no later commit can get an earlier time.

Memory answers a question if it can prove the answer; otherwise the store does. Before a request
waits for the store, it leaves the event loop (`strandline.metastore.off_loop`). A caller that may
wait from the beginning uses `finish`.

What must stay true: rows are never older than the catalog that they are read with. A user who has
no access to a schema gets the same answer for objects that it contains and for objects that it does
not, also by id.

If privileges are enforced, they are those of the catalog of the present, also for reads of the past
(`strandline.catalog.privileges.access`). If ``user`` is None, the program itself reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from strandline import work
from strandline.catalog import Catalog
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.privileges.access import Access, enforced
from strandline.clock import Timestamp, format_timestamp
from strandline.durable.contents import Namespace
from strandline.errors import ObjectNotFound, PermissionDenied, VersionNotFound
from strandline.metastore.interface import PRESENT, AsOf, ResolvedTable, Snapshot, table_key
from strandline.metastore.metastore import Metastore
from strandline.metastore.off_loop import off_loop, off_loop_for
from strandline.metastore.store.rows import PARAMETERS_NAME, Row, RowKind, TableParametersRow
from strandline.model.descriptors import Properties, SchemaDescriptor, TableDescriptor
from strandline.model.identifiers import QualifiedName
from strandline.model.privileges import Privilege
from strandline.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Point:
    """A point in history as it was named, its catalog, and the moment as of which rows are read.

    If ``moment`` is None, all rows that are committed now are read.
    """

    at: AsOf
    catalog: Catalog
    moment: Timestamp | None

    @property
    def spoken(self) -> str:
        """The point, for messages: its version, and its time if it was named by one."""
        point = f"version {self.catalog.version} of the catalog"
        if self.at.time is not None:
            point = f"{point}, the one of {format_timestamp(self.at.time)}"
        if not self.catalog.version:
            point = f"{point}, which is empty: the store was created later"
        return point


async def present_catalog(metastore: Metastore) -> Catalog:
    """The present catalog: it includes all DDL that has returned, on any node."""
    catalog = metastore.catalogs.known_present()
    if catalog is None:
        await off_loop()
        catalog = metastore.catalogs.present()
    return catalog


class Reader:
    """See the module. For one request. ``present`` comes from `present_catalog`."""

    def __init__(self, metastore: Metastore, present: Catalog, *, user: str | None) -> None:
        self.metastore = metastore
        self.catalog = present
        self.user = user
        self._rows_are_level = False

    # -- points in history

    @cached_property
    def present(self) -> Point:
        return Point(PRESENT, self.catalog, None)

    async def point(self, at: AsOf) -> Point:
        """Resolve ``at`` to a point. Raises `VersionNotFound`."""
        if at == PRESENT:
            return self.present
        catalog, moment = await self.dated(at)
        return Point(at, catalog, moment)

    async def dated(self, at: AsOf) -> tuple[Catalog, Timestamp]:
        """Resolve ``at`` to a catalog and a moment. Raises `VersionNotFound`."""
        await off_loop()
        catalogs = self.metastore.catalogs
        if at.time is not None:
            self.metastore.transactions.ensure_past(at.time)
            return catalogs.catalog_as_of(at.time), at.time
        if at.version is None:
            return self._dated_now(since=self.catalog.time)
        catalog, end = catalogs.catalog(at.version), catalogs.last_moment(at.version)
        if end is not None and self.metastore.transactions.is_past(end):
            return catalog, end  # no commit can change it any more: no wait for writers
        _, now = self._dated_now(since=max(self.catalog.time, catalog.time))
        if catalog.time > now:
            raise VersionNotFound(
                f"version {at.version} becomes active at {format_timestamp(catalog.time)}; read it "
                "after that time"
            )
        end = catalogs.last_moment(at.version)
        return catalog, now if end is None else min(now, end)

    def _dated_now(self, *, since: Timestamp) -> tuple[Catalog, Timestamp]:
        """A moment not before the time of any commit that has returned, and its catalog.

        No commit gets a time at or below it any more. Uses the store's last time if that is not
        before ``since``: to take a new time is a write, which waits for the writes in progress and
        makes every other node look at the log.
        """
        catalogs, transactions = self.metastore.catalogs, self.metastore.transactions
        now = transactions.settled(since=since)
        if now is None:
            now = catalogs.complete_now()
            if transactions.has_own_times:
                # It is the time of the catalog's store, and commits get times from another one.
                last_commit = transactions.latest_time()
                if last_commit > now:
                    return catalogs.catalog_as_of(last_commit), last_commit
                if last_commit < now:
                    transactions.settle(now)
        return catalogs.active_catalog(now), now

    # -- what the user may do

    @cached_property
    def access(self) -> Access:
        """The access of the user, by the privileges in the present catalog."""
        return Access(self.catalog, self.user, history=self.metastore.catalogs.catalog)

    @property
    def for_all(self) -> bool:
        """Whether every user would get the same answer."""
        return not enforced(self.catalog)

    def require(self, table_id: int, needs: Privilege, *, is_dropped: bool = False) -> None:
        """Raise `PermissionDenied` unless the user has all of ``needs`` on the table.

        ``is_dropped`` says that the table was dropped: its last owner and grants decide. A user
        without access to its schema gets the same error as for a table that does not exist.
        """
        if self.access.free:
            return
        catalog = self._last_with(table_id) if is_dropped else self.catalog
        access, table = self.access.at(catalog), catalog.table_by_id(table_id)
        schema = None if table is None else access.schema_of(table)
        if table is None or schema is None or not access.reaches(schema):
            raise PermissionDenied(
                f"user {self.user} cannot see a table with the id {table_id}; look up the table "
                "by its name"
            )
        access.require(needs, table)

    def _last_with(self, table_id: int) -> Catalog:
        """The last catalog that has a dropped table, or the present one if no kept version has."""
        catalogs = self.metastore.catalogs
        versions = range(self.catalog.version - 1, catalogs.earliest_catalog().version - 1, -1)
        older_catalogs = map(catalogs.catalog, work.spending(versions))
        with_table = (older for older in older_catalogs if older.table_by_id(table_id) is not None)
        return next(with_table, self.catalog)

    # -- names

    def schema(self, point: Point, name: str) -> SchemaDescriptor | None:
        """The schema, or None. Raises `PermissionDenied` if the user has no access to it."""
        schema = point.catalog.schema(name)
        if schema is not None:
            self.require_reach(point, schema)
        return schema

    def require_reach(self, point: Point, schema: SchemaDescriptor) -> None:
        """Raise `PermissionDenied` if the user has no access to ``schema``."""
        self.access.at(point.catalog).require(Privilege.USAGE, schema)

    async def table(
        self, name: str, *, at: AsOf = PRESENT, need: Privilege = Privilege.SELECT
    ) -> ResolvedTable:
        """The table ``schema.table`` and its location. Raises `ObjectNotFound`, `VersionNotFound`.

        Raises `PermissionDenied` if the user does not have the privilege ``need``.
        """
        point = await self.point(at)
        schema, table = self._find(point, name, need)
        return self._resolved(point, schema, table, location=await self.location(table))

    def _find(
        self, point: Point, name: str, need: Privilege
    ) -> tuple[SchemaDescriptor, TableDescriptor]:
        """The table ``schema.table``, and its schema. Raises what `table` raises."""
        qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
        schema, relation = self.schema(point, qualified.schema), None
        if schema is not None:
            record_bytes = point.catalog.relation_bytes(schema.id, qualified.name)
            work.spend(work.units_of_bytes(record_bytes))
            relation = point.catalog.relation_in(schema.id, qualified.name)
        if schema is None or relation is None:
            hint = "; give its version or time apart from its name" if "@" in name else ""
            raise ObjectNotFound(f"table {qualified} does not exist in {point.spoken}{hint}")
        if not isinstance(relation, TableDescriptor):
            raise ObjectNotFound(f"{qualified} is a view in {point.spoken}; read it with SQL")
        self.access.at(point.catalog).require(need, relation)
        return schema, relation

    def _resolved(
        self, point: Point, schema: SchemaDescriptor, table: TableDescriptor, *, location: str
    ) -> ResolvedTable:
        if table.location is not None:
            table = replace(table, location=self.metastore.folders.shown(table.location))
        return ResolvedTable(schema.name, table, point.catalog.version, location)

    async def relation_names(self, point: Point, schema: SchemaDescriptor) -> list[str]:
        names = point.catalog.contents.names(Namespace("relation", schema.id))
        await off_loop_for(len(names))
        return point.catalog.relation_names(schema.name)

    # -- the object store

    async def location(self, table: TableDescriptor) -> str:
        """The URI of the table's present folder. Raises `ObjectNotFound`."""
        location = self.metastore.known_location(table, version=self.catalog.version)
        if location is None:
            await off_loop()
            location = self.metastore.location(table)
        return location

    async def rows(
        self,
        point: Point,
        table: TableDescriptor,
        kind: RowKind,
        names: Collection[str] | None = None,
        *,
        like: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """The rows of a plain table, ordered by name; with ``names``, only those of these names.

        ``like`` and ``limit`` are as in `ObjectStore.rows`.
        """
        store = self.metastore.store
        if point.moment is not None:
            await off_loop()
            write_ids = self.metastore.transactions.write_ids(table.id, at=point.moment)
            return store.rows(
                table.id, kind, write_ids=write_ids, names=names, like=like, limit=limit
            )
        self._rows_are_level = self._rows_are_level or store.log_applier.is_at_head()
        if self._rows_are_level:
            rows = store.known_rows(table.id, kind, write_ids=None, names=names)
            if rows is not None:
                return rows
        await off_loop()
        if not self._rows_are_level:
            self._rows_are_level = store.log_applier.look()
        return store.rows(table.id, kind, write_ids=None, names=names, like=like, limit=limit)

    async def counted(self, point: Point, table: TableDescriptor) -> Properties:
        """The parameters of the table that count or date its content."""
        rows = await self.rows(point, table, RowKind.TABLE_PARAMETERS, (PARAMETERS_NAME,))
        return rows[0].as_(TableParametersRow).parameters if rows else ()

    async def open(
        self, names: Iterable[str], *, at: AsOf = PRESENT, transaction: Transaction | None = None
    ) -> Snapshot:
        """A snapshot of the tables ``schema.table`` as of ``at``, or as the transaction sees them.

        Raises what `table` raises, `TransactionNotFound`, `TransactionFinished`.
        """
        await off_loop()
        transactions = self.metastore.transactions
        if transaction is None:
            catalog, moment = await self.dated(at)
        else:
            catalog = self.metastore.catalogs.catalog(transaction.catalog_version)
            moment = transaction.begin_time
        point = Point(at, catalog, moment)
        pairs = [self._find(point, name, Privilege.SELECT) for name in names]
        locations = self.metastore.locations((table for _, table in pairs), present=self.catalog)
        opened = [
            self._resolved(point, schema, table, location=locations[table.id])
            for schema, table in pairs
        ]
        tables = {table_key(table.name): table for table in opened}
        table_ids = [table.descriptor.id for table in tables.values()]
        if transaction is None:
            write_ids = transactions.write_ids_as_of(table_ids, moment)
            if at != PRESENT:
                # Memory may still have files that another process has cleaned.
                self.metastore.store.sql_store.require_kept(write_ids)
        else:
            write_ids = {
                table_id: transactions.write_ids(table_id, txn_id=transaction.txn_id)
                for table_id in table_ids
            }
        return Snapshot(catalog.version, moment, tables, write_ids)
