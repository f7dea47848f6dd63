"""The names of schemas that are the catalog's own, compared without regard to case.

``system`` is where the catalog shows itself (`strandline.catalog.system_views`), and
``information_schema`` is kept free for SQL's own.
"""

from __future__ import annotations

from strandline.errors import IllegalChange
from strandline.model.identifiers import normalize

SYSTEM_SCHEMA = "system"
"""The schema of the catalog's own views."""

RESERVED_SCHEMAS = frozenset({SYSTEM_SCHEMA, "information_schema"})


def is_reserved(name: str) -> bool:
    """Whether a schema of that name belongs to the catalog itself."""
    return normalize(name) in RESERVED_SCHEMAS


def refuse_reserved(name: str, what: str) -> None:
    """Raise `IllegalChange` where a schema of the catalog itself was to be ``what``."""
    if is_reserved(name):
        raise IllegalChange(f"system schema {name} cannot be {what}: it is the catalog's own")
