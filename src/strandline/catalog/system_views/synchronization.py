"""Synchronization: how a catalog gets the system views of its program.

Each release of the program has its own system views (`declared_views`), and a catalog that an older
release wrote must show the newer ones. Even so, the views are objects of the catalog, with ids,
columns and grants, in the schema ``system``. So names are resolved and privileges granted as for
any other object.

The model. With each view the catalog stores a **fingerprint**: a hash of the stored definition. A
node that starts and may write compares the fingerprints with its own. It creates new views,
replaces views that differ under a new id (a reader of the old id sees the old columns), and drops
views that the program no longer has, all in one version. If nothing differs, it creates no version.
So a restart creates none, and if several nodes start together, one of them creates it. A new
catalog has the views from its first version on.

The same version records the content version of the program (`strandline.durable.migrations`), and a
program with a lower content version refuses the catalog. So two releases that start alternately
never drop and create each other's views.

What must stay true: a start never fails because of a view. Release 0.1.0 allowed users to create a
schema named ``system``. It remains theirs, and a view whose name is held by a table in it is left
out.

Rejected: views that exist in code alone (there would be nothing to grant on, and an old version of
the catalog would show columns that it never had).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from strandline.catalog.catalog import DEFAULT_DATABASE, SYSTEM_SCHEMA, Catalog
from strandline.catalog.declared_kinds import declared_kinds
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.manager import CatalogManager
from strandline.catalog.planning import Planning, must_exist
from strandline.catalog.system_views.rows import SystemView
from strandline.durable import migrations
from strandline.durable.contents import Namespace
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import AlreadyExists, InvalidInput
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaDescriptor,
    SystemObjectFingerprint,
    SystemViewDescriptor,
)
from strandline.model.identifiers import check_name, normalize
from strandline.model.privileges import SYSTEM_NAME, ObjectKind
from strandline.model.type_text import simple_string

logger = logging.getLogger(__name__)

FINGERPRINT_KIND = "system_object_fingerprint"


@cache  # each start compares those of all views
def fingerprint(view: SystemView) -> str:
    """A hash of everything that the catalog stores about a view: 64 hexadecimal digits."""
    columns = [[name, simple_string(data_type)] for name, data_type in view.columns]
    definition = json.dumps([view.name, view.kind.name, columns], separators=(",", ":"))
    return hashlib.sha256(definition.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSystemView:
    """Create this view in the catalog, or replace its older definition. Clients cannot send it."""

    view: SystemView

    def plan(self, planning: Planning) -> None:
        """Raises `AlreadyExists` if another object has the name, and `InvalidInput`."""
        view = self.view
        _check(view)
        schema = planning.catalog.schema(SYSTEM_SCHEMA)
        old = planning.catalog.system_view(SYSTEM_SCHEMA, view.name)
        if schema is not None and old is None:
            planning.ensure_free(schema, view.name)
        if old is not None and _stored_fingerprint(planning.catalog, view) == fingerprint(view):
            return
        present = planning.catalog.database(DEFAULT_DATABASE)
        database = must_exist(present, f"database {DEFAULT_DATABASE!r}")
        verb = "create_system_view" if old is None else "replace_system_view"
        with planning.entry(verb, system_view=f"{SYSTEM_SCHEMA}.{view.name}") as transaction:
            schema_id = schema.id if schema is not None else planning.new_id()
            if schema is None:
                transaction.put(_schema(schema_id, database.id))
            new = _descriptor(view, planning.new_id(), schema_id)
            if old is not None:
                delete_with_comment(transaction, "system_view", old.id)
                new = replace(new, privileges=old.privileges)
            transaction.put(new)
            transaction.set_system_object_mapping([_fingerprinted(view, new.id)])


@dataclass(frozen=True, slots=True)
class _Synchronize:
    """Make the system views of the catalog equal to ``views``, in one version."""

    views: Mapping[str, SystemView]

    def plan(self, planning: Planning) -> None:
        for view in self.views.values():
            try:
                CreateSystemView(view=view).plan(planning)
            except AlreadyExists as error:
                logger.warning("skipping system view %s: %s", view.name, error.message)
        for old in planning.catalog.system_views():
            if old.name not in self.views:
                qualified = planning.catalog.qualified_name(old)
                with planning.entry("drop_system_view", system_view=qualified) as transaction:
                    delete_with_comment(transaction, "system_view", old.id)
                    if planning.catalog.get(FINGERPRINT_KIND, _fingerprint_name(old.name)):
                        transaction.delete(FINGERPRINT_KIND, _fingerprint_name(old.name))
        with planning.transaction.entry("configure", {"name": migrations.CONTENT}):
            planning.transaction.put(migrations.present_content())


def declared_views() -> dict[str, SystemView]:
    """Every system view of this program, by name."""
    return {view.name: view for kind in declared_kinds() for view in kind.views}


def synchronize_system_views(
    manager: CatalogManager, *, views: Mapping[str, SystemView] | None = None
) -> bool:
    """Give the catalog the views of this program, in at most one version.

    Return whether a version was needed. For nodes that may write; see the module. Raises what
    `CatalogManager.execute` raises.
    """
    views_by_name = declared_views() if views is None else views
    catalog = manager.present()
    content = migrations.content_of(catalog.contents)
    if content == migrations.CONTENT_VERSION and not differing_views(catalog, views_by_name):
        return False
    manager.execute(_Synchronize(views_by_name), author=SYSTEM_NAME)
    return True


def initialize_system_views(transaction: CatalogTransaction, *, database_id: int) -> None:
    """Create the views in a new catalog, inside the entry that fills it."""
    known = tuple(declared_views().values())
    schema_id, *view_ids = transaction.allocate_id(amount=1 + len(known))
    transaction.put(_schema(schema_id, database_id))
    with_ids = tuple(zip(known, view_ids, strict=True))
    transaction.put_all(_descriptor(view, view_id, schema_id) for view, view_id in with_ids)
    transaction.set_system_object_mapping(_fingerprinted(*with_id) for with_id in with_ids)
    transaction.put(migrations.present_content())


def differing_views(catalog: Catalog, views: Mapping[str, SystemView]) -> set[str]:
    """The names of the views that `synchronize_system_views` would create, replace or drop.

    A view that must be left out is not among them.
    """
    undeclared = {view.name for view in catalog.system_views()} - set(views)
    return undeclared | {
        name
        for name, view in views.items()
        if _stored_fingerprint(catalog, view) != fingerprint(view)
        and not _name_is_taken(catalog, view)
    }


def _name_is_taken(catalog: Catalog, view: SystemView) -> bool:
    schema = catalog.schema(SYSTEM_SCHEMA)
    if schema is None:
        return False
    holder = catalog.contents.find(Namespace("relation", schema.id), view.name)
    return holder is not None and holder.kind != "system_view"


def _stored_fingerprint(catalog: Catalog, view: SystemView) -> str | None:
    """The fingerprint of the definition stored under the view's name, or None."""
    entry: SystemObjectFingerprint | None = catalog.get(
        FINGERPRINT_KIND, _fingerprint_name(view.name)
    )
    return None if entry is None else entry.fingerprint


def _fingerprint_name(view: str) -> str:
    return f"{SYSTEM_SCHEMA}.{view}"


def _fingerprinted(view: SystemView, view_id: int) -> SystemObjectFingerprint:
    return SystemObjectFingerprint(
        _fingerprint_name(view.name), view_id, ObjectKind.SYSTEM_VIEW, fingerprint(view)
    )


def _schema(schema_id: int, database_id: int) -> SchemaDescriptor:
    return SchemaDescriptor(
        id=schema_id,
        database_id=database_id,
        name=SYSTEM_SCHEMA,
        owner=SYSTEM_NAME,
        comment="The catalog's own views",
    )


def _descriptor(view: SystemView, view_id: int, schema_id: int) -> SystemViewDescriptor:
    return SystemViewDescriptor(
        id=view_id,
        schema_id=schema_id,
        name=view.name,
        owner=SYSTEM_NAME,
        columns=_columns(view),
        kind=view.kind,
    )


@cache
def _columns(view: SystemView) -> tuple[ColumnDescriptor, ...]:
    return tuple(
        ColumnDescriptor(number, name, data_type)
        for number, (name, data_type) in enumerate(view.columns, start=1)
    )


def _check(view: SystemView) -> None:
    check_name(view.name, "system view")
    if not view.columns:
        raise InvalidInput(f"system view {view.name} needs at least one column")
    names = [normalize(name) for name, _ in view.columns]
    for name in names:
        check_name(name, "column")
        if names.count(name) > 1:
            raise InvalidInput(f"duplicate column {name!r} in system view {view.name}")
