"""`HiveReader`: what a request of a Hive client reads, under the names that Hive clients use.

A schema name may include a version (``sales@42``). Plain tables of the past and all transactional
tables are answered as views over hidden tables (`past_tables`, `snapshot_views`). Everything else
is in `strandline.metastore.reader.Reader`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from strandline import work
from strandline.catalog import Catalog, Relation
from strandline.catalog.catalog import is_shown
from strandline.clock import Timestamp
from strandline.errors import ObjectNotFound
from strandline.metastore.hive.names import hadoop_location, shown_schema, split_schema
from strandline.metastore.hive.parameters import show_last_change
from strandline.metastore.hive.past_tables import (
    find_hidden,
    hidden_name,
    is_written_by_clients,
    past_view_struct,
)
from strandline.metastore.hive.patterns import NamePattern
from strandline.metastore.hive.session_tables import COMPENSATION, VIEW_SCHEMA, VIEW_SCHEMA_MODE
from strandline.metastore.hive.snapshot_parts import (
    NO_COMMIT,
    HiddenName,
    TableSnapshot,
    hidden_struct,
    parse_hidden,
)
from strandline.metastore.hive.snapshot_views import snapshot_view_struct
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.table_structs import table_struct, view_struct
from strandline.metastore.interface import PRESENT, TableFiles
from strandline.metastore.off_loop import charge, off_loop, off_loop_for
from strandline.metastore.reader import Point, Reader
from strandline.metastore.store.file_columns import without_statistics
from strandline.metastore.store.file_schemas import with_schema_versions
from strandline.metastore.store.rows import DeleteFile, RowKind
from strandline.model.descriptors import (
    SchemaDescriptor,
    TableDescriptor,
    ViewDescriptor,
    properties,
)
from strandline.model.privileges import Privilege

logger = logging.getLogger("strandline.calls")


@dataclass(frozen=True, slots=True)
class Scope:
    """A schema as of a point in history. ``name`` is its name in answers, with its version if any.

    ``is_hidden`` means that the request used a hidden name for a table in it. ``part`` is the part
    of a transactional table that this name identifies, if any.
    """

    name: str
    schema: SchemaDescriptor
    point: Point
    is_hidden: bool = False
    part: HiddenName | None = None

    @property
    def catalog(self) -> Catalog:
        return self.point.catalog

    @property
    def is_past(self) -> bool:
        """Whether the request named the schema with a version."""
        return self.point.at != PRESENT

    def shows_as_view(self, relation: Relation) -> bool:
        """Whether clients see the relation as a view, even if it is a table."""
        if isinstance(relation, ViewDescriptor):
            return True
        if self.is_hidden:
            return False
        return relation.transactional or (self.is_past and is_written_by_clients(relation))


class HiveReader(Reader):
    """See the module.

    ``relies_on_hold`` says whether the answer names files that a hold keeps. Such an answer must be
    made again for each request, so that each finds a hold.

    ``needs_proof`` says whether the answer must include every commit of rows that has returned, on
    any node. The answers about plain tables may be a little older.
    """

    relies_on_hold = False
    needs_proof = False

    # -- names

    async def find_scope(self, name: str) -> Scope | None:
        """Return the schema of that name, with or without a version; None if it does not exist.

        Raises `VersionNotFound`, `ObjectNotFound` if the name is malformed, and `PermissionDenied`
        if the user does not reach the schema.
        """
        own_name, at = split_schema(name)
        point = await self.point(at)
        schema = point.catalog.schema(own_name)
        if schema is None or not is_shown(schema):
            _note_absent(point, f"schema {own_name}")
            return None
        self.require_reach(point, schema)
        return Scope(shown_schema(name), schema, point)

    async def scope(self, name: str) -> Scope:
        """Return the schema of that name. Raises `ObjectNotFound` with the name as its text."""
        scope = await self.find_scope(name)
        if scope is None:
            raise ObjectNotFound(name)
        return scope

    async def matching_names(self, names: list[str], pattern: str | None) -> list[str]:
        """Return the names that match a pattern. Raises `InvalidInput` if the pattern is wrong."""
        compiled = NamePattern(pattern)
        if not compiled.is_quick(names):
            await off_loop()
        return compiled.choose(names)

    async def relation(
        self, schema: str, name: str, *, need: Privilege = Privilege.SELECT
    ) -> tuple[Scope, Relation]:
        """Return the table or view of that name. Raises `ObjectNotFound`.

        Raises `PermissionDenied` unless the user has one of the privileges in ``need``.
        """
        scope = await self.find_scope(schema)
        if scope is None:
            raise ObjectNotFound(f"{schema}.{name} table not found")
        await charge(units_of_record(scope, name))
        scope_and_relation = self.find_relation(scope, name)
        if scope_and_relation is None:
            _note_absent(scope.point, f"table {scope.schema.name}.{name}")
            raise ObjectNotFound(f"{schema}.{name} table not found")
        scope, relation = scope_and_relation
        self.access.at(scope.catalog).require_any(need, relation)
        return scope, relation

    def find_relation(self, scope: Scope, name: str) -> tuple[Scope, Relation] | None:
        """Return the table or view of that name, even a hidden one, and the scope that shows it."""
        relation = scope.catalog.relation_in(scope.schema.id, name)
        if relation is not None:
            return scope, relation
        if "@" not in name:
            return None
        part = parse_hidden(name)
        if part is not None:
            parent_table = scope.catalog.table_by_id(part.table_id)
            if (
                parent_table is None
                or parent_table.schema_id != scope.schema.id
                or not parent_table.transactional
            ):
                return None
            return replace(scope, is_hidden=True, part=part), parent_table
        table = find_hidden(scope.catalog, scope.schema.name, name, present=not scope.is_past)
        if table is None or not (scope.is_past or self._only_reads(scope, table)):
            return None
        return replace(scope, is_hidden=True), table

    def may_read(self, scope: Scope, relation: Relation) -> bool:
        return self.access.at(scope.catalog).allows(Privilege.SELECT, relation)

    def _only_reads(self, scope: Scope, relation: Relation) -> bool:
        """Whether the relation is a plain table that the user may not insert into.

        Spark writes the files of an INSERT before it asks, so such a user gets a view.
        """
        if scope.is_past or scope.is_hidden or not is_written_by_clients(relation):
            return False
        return not self.access.free and not self.access.allows(Privilege.INSERT, relation)

    # -- answers

    async def shown_location(self, table: TableDescriptor) -> str:
        """Return where the table's files are, as Hadoop prints it. Raises `ObjectNotFound`."""
        return hadoop_location(await self.location(table))

    async def struct(self, scope: Scope, relation: Relation) -> Struct:
        await off_loop_for(len(relation.columns))
        if isinstance(relation, ViewDescriptor):
            struct = view_struct(_as_of(scope, relation), schema=scope.name)
        elif relation.transactional:
            struct = await self._transactional_struct(scope, relation)
        else:
            location = await self.shown_location(relation)
            if scope.shows_as_view(relation) or self._only_reads(scope, relation):
                hidden = hidden_name(relation, version=scope.catalog.version, location=location)
                struct = past_view_struct(relation, schema=scope.name, hidden=hidden)
            else:
                counted = await self.counted(scope.point, relation)
                struct = table_struct(
                    relation, schema=scope.name, location=location, counted=counted
                )
        if scope.part is None:  # a hidden table never changes, since Spark keeps it by its name
            show_last_change(struct["parameters"], scope.catalog.updated(relation))
        return struct

    async def _transactional_struct(self, scope: Scope, table: TableDescriptor) -> Struct:
        """Return the view or the hidden table that stands in for a transactional table."""
        await off_loop()
        transactions = self.metastore.transactions
        if scope.part is not None:
            # No commit has a time that was not assigned yet: such a name is forged.
            if not transactions.is_past(scope.part.last_commit):
                raise ObjectNotFound(f"{scope.name}.{scope.part.table} does not have this part")
            snapshot = await self._snapshot(scope.part.table_then(table), scope.part.last_commit)
            return hidden_struct(snapshot, scope.part, schema=scope.name)
        self.needs_proof = scope.point.at.time is None
        last_commit = transactions.last_commit(table.id, at=scope.point.moment)
        if scope.point.moment is not None:
            self.keep_past(table, scope.point.moment)
        else:
            # Read after the commits: this catalog has every schema version of their files.
            present = self.metastore.catalogs.present().table_by_id(table.id)
            if present is None:
                raise ObjectNotFound(f"{scope.name}.{table.name} table not found")
            table = present
        snapshot = await self._snapshot(table, last_commit or NO_COMMIT)
        return snapshot_view_struct(snapshot, schema=scope.name)

    def keep_past(self, table: TableDescriptor, moment: Timestamp) -> None:
        """Keep the files of a past snapshot for its reader, unless they are those of the present.

        The hidden tables of the snapshot are asked for at once, and rely on the same hold. Raises
        `VersionNotFound` and `DeadlineExceeded`; see `SnapshotHolds.keep`.
        """
        next_commit = self.metastore.transactions.next_commit(table.id, after=moment)
        if next_commit is None and self.catalog.table_by_id(table.id) is not None:
            return
        last = moment if next_commit is None else Timestamp(next_commit - 1)
        self.metastore.snapshot_holds.keep(moment, last=last)
        self.relies_on_hold = True

    async def _snapshot(self, table: TableDescriptor, last_commit: Timestamp) -> TableSnapshot:
        location = await self.shown_location(table)
        path = self.metastore.folders.path_if_local(location)
        root = None if path is None else Path(path)
        if last_commit == NO_COMMIT:
            return TableSnapshot(table, location, root, last_commit, TableFiles((), ()))
        store = self.metastore.store
        as_of_commit = self.metastore.transactions.write_ids_as_of([table.id], last_commit)
        write_ids = as_of_commit[table.id]
        data_rows = store.data_files(table.id, write_ids=write_ids)
        delete_rows = store.rows(table.id, RowKind.DELETE_FILE, write_ids=write_ids)
        work.spend(len(data_rows))
        data = without_statistics(data_rows)
        if root is not None:
            data = with_schema_versions(data, table, root=root)
        deletes = tuple(row.as_(DeleteFile) for row in work.spending(delete_rows))
        return TableSnapshot(table, location, root, last_commit, TableFiles(tuple(data), deletes))


def units_of_record(scope: Scope, name: str) -> int:
    """The cost of a table or view by its size: it may have few columns and a million parameters."""
    catalog, schema_id = scope.catalog, scope.schema.id
    size = catalog.relation_bytes(schema_id, name)
    if not size:  # perhaps a hidden name, which begins with that of its table
        size = catalog.relation_bytes(schema_id, name.rpartition("@")[0])
    return work.units_of_bytes(size)


def _note_absent(point: Point, what: str) -> None:
    """Tell the user of a past name what is missing. Spark shows only that it found nothing."""
    if point.at != PRESENT:
        logger.info("%s does not exist in %s", what, point.spoken)


def _as_of(scope: Scope, view: ViewDescriptor) -> ViewDescriptor:
    """Return the view so that names without a schema in its text are read as of the scope too.

    In the past it keeps its columns, whatever its text selects from the present tables: Spark would
    alter a view that follows them (``WITH SCHEMA EVOLUTION``), which is refused, in each query.
    """
    if not scope.is_past:
        return view
    view_properties = dict(view.properties)
    if view_properties.get(VIEW_SCHEMA, "").lower() == scope.schema.name.lower():
        view_properties[VIEW_SCHEMA] = scope.name
    if view_properties.get(VIEW_SCHEMA_MODE, "").endswith("EVOLUTION"):
        view_properties[VIEW_SCHEMA_MODE] = COMPENSATION
    return replace(view, properties=properties(view_properties))
