"""The versioned catalog: immutable versions, commands, and the manager that applies them."""

from strandline.catalog import declarations  # noqa: F401 - declares the kinds
from strandline.catalog.catalog import DEFAULT_DATABASE, Catalog, Relation
from strandline.catalog.events import VersionInfo, read_history
from strandline.catalog.follower import Behind
from strandline.catalog.initial import initial_catalog
from strandline.catalog.manager import Applied, CatalogManager
from strandline.catalog.planning import Command

__all__ = [
    "DEFAULT_DATABASE",
    "Applied",
    "Behind",
    "Catalog",
    "CatalogManager",
    "Command",
    "Relation",
    "VersionInfo",
    "initial_catalog",
    "read_history",
]
