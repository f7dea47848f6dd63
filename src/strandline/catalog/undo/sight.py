"""What of an undo its user may know: who may not see a thing is answered as if it had never been.

A refusal of `undo` or `undrop` names objects, people and versions. So before anything of it is
said, everything that would be taken back must be in a schema that the user reaches, by the
privileges of the present. A version of which that does not hold is answered like one that does not
exist.
"""

from __future__ import annotations

from strandline.catalog.catalog import Catalog
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.privileges.access import Access
from strandline.catalog.undo.command import Undo
from strandline.catalog.undo.reading import RESTORABLE, never_dropped, read_undo, read_undrop
from strandline.errors import AlreadyExists, NotFound, VersionNotFound
from strandline.model.descriptors import SchemaDescriptor
from strandline.model.identifiers import QualifiedName


def visible_undo(
    catalogs: CatalogFollower, version: int, *, through: int | None, identity: str | None
) -> Undo:
    """`read_undo` for ``identity``; `VersionNotFound` also for what that user may not see."""
    access = _access(catalogs, identity)
    if access.free:
        return read_undo(catalogs, version, through=through)
    unseen = VersionNotFound(
        f"version {version} cannot be undone: there is no such version that user {identity} may see"
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
    if access.free or kind not in RESTORABLE:
        return read_undrop(catalogs, kind, name)
    try:
        undo = read_undrop(catalogs, kind, name)
    except (AlreadyExists, NotFound):
        place = name if kind == "schema" else QualifiedName.parse(name).schema
        schema = access.catalog.schema(place)
        if schema is None or not access.reaches(schema):
            raise never_dropped(catalogs, kind, name) from None
        raise
    if not _sees(access, catalogs, undo):
        raise never_dropped(catalogs, kind, name)
    return undo


def _access(catalogs: CatalogFollower, identity: str | None) -> Access:
    return Access(catalogs.present(), identity, history=catalogs.catalog)


def _sees(access: Access, catalogs: CatalogFollower, undo: Undo) -> bool:
    """Whether everything that is taken back lies in schemas that the user reaches."""
    last = undo.update.version
    states = (access.catalog, catalogs.catalog(last), catalogs.catalog(last - 1))
    for net in undo.net.values():
        value = net.was or net.left
        if isinstance(value, SchemaDescriptor):
            schema: SchemaDescriptor | None = value
        elif hasattr(value, "schema_id"):
            schema = _schema(states, undo, value.schema_id)
        else:
            continue  # its name is no secret, and the privileges on it are judged
        if schema is None or not access.at(states[-1]).reaches(schema):
            return False
    return True


def _schema(states: tuple[Catalog, ...], undo: Undo, schema_id: int) -> SchemaDescriptor | None:
    schemas = (state.schema_by_id(schema_id) for state in states)
    return next(
        (schema for schema in schemas if schema is not None), undo.schema(states[0], schema_id)
    )
