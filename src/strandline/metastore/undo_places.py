"""Where the folders of managed tables go when what was done to the tables is undone.

A restored table goes back to where its name says, beside the place where dropped folders are kept;
a renamed one follows its name back if it lies where its present name says. A table that was dropped
and whose data was kept where it was, or could not be moved, stays there.

This is asked before anything is appended, and so is whether there is anything to restore: files
that were cleaned up do not come back, and a table without its files would answer with nothing.
"""

from __future__ import annotations

from typing import Protocol

from strandline.catalog import CatalogManager
from strandline.catalog.undo.command import TableMove, Undo
from strandline.errors import ObjectNotFound
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import DROPPED
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor, TableKind


class Places(Protocol):
    """What a metastore knows of places."""

    @property
    def catalogs(self) -> CatalogManager: ...
    @property
    def store(self) -> ObjectStore: ...
    @property
    def projector(self) -> Projector: ...
    @property
    def folders(self) -> StoreFolders: ...
    def table_location(self, schema: SchemaDescriptor, name: str) -> str: ...


def places_of_undo(metastore: Places, undo: Undo) -> dict[int, str]:
    """`Undo.places`. Raises `ObjectNotFound` where the files of a dropped table are gone."""
    moves = [move for move in undo.moves() if move.then.kind is TableKind.MANAGED]
    if not moves:
        return {}
    catalog = metastore.catalogs.latest_catalog()
    metastore.projector.project_up_to(catalog.version)
    known: dict[int, str | None] = {}
    places: dict[int, str] = {}
    for move in moves:
        table = move.then
        place = known.get(table.id) or metastore.store.location(table.id)
        if move.now is None and catalog.table_by_id(table.id) is None:
            place = _restored(metastore, undo, table, place)
        elif move.now is not None:
            place = _renamed(metastore, undo, move, place)
        known[table.id] = place
        if place is not None:
            places[move.entry] = place
    return places


def _default(metastore: Places, undo: Undo, table: TableDescriptor) -> str | None:
    schema = undo.schema(metastore.catalogs.latest_catalog(), table.schema_id)
    return None if schema is None else metastore.table_location(schema, table.name)


def _restored(metastore: Places, undo: Undo, table: TableDescriptor, place: str | None) -> str:
    folders = metastore.folders
    if place is None or (folders.reaches(place) and not folders.exists(place)):
        raise ObjectNotFound(
            f"{undo.purpose} cannot be undone: the files of table {table.name} (id {table.id}) were"
            " deleted, by PURGE or by cleaning; older versions still tell its columns"
        )
    if metastore.store.tables_at(place) - {table.id}:
        raise ObjectNotFound(
            f"{undo.purpose} cannot be undone: the folder of table {table.name} (id {table.id}),"
            f" {place}, belongs to another table by now"
        )
    default = _default(metastore, undo, table)
    parent = place.removesuffix(f"/{DROPPED}/{table.id}")
    if parent == place or default is None or not folders.is_own_table(place):
        return place
    return f"{parent}/{default.rpartition('/')[2]}"


def _renamed(metastore: Places, undo: Undo, move: TableMove, place: str | None) -> str | None:
    now = None if move.now is None else _default(metastore, undo, move.now)
    return _default(metastore, undo, move.then) if place is not None and place == now else None
