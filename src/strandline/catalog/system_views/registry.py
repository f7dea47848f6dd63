"""The registry of the catalog's own system views.

Each view is a function from a catalog to rows, registered with its columns by `system_view`. Rows
are values of Python (text, whole number, truth, None) in the order of the columns. They come in no
promised order, and one at a time: a view over every column of every table must not be held whole.

A row never fails for what a catalog can hold: a column that a stopping index still names and the
table has dropped is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from strandline.catalog.catalog import Catalog
from strandline.model.descriptors import SystemViewKind
from strandline.model.types import BIGINT, BOOLEAN, INT, DataType, StringType

Row = tuple[str | int | bool | None, ...]
Rows = Callable[[Catalog], Iterator[Row]]

_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "id": BIGINT,
    "number": INT,
    "truth": BOOLEAN,
}


@dataclass(frozen=True, slots=True)
class SystemView:
    """A view that the program provides. ``doc`` is a sentence for people, no part of it."""

    name: str
    columns: tuple[tuple[str, DataType], ...]
    rows: Rows = field(compare=False)
    doc: str = field(compare=False)
    kind: SystemViewKind = SystemViewKind.CLUSTER


SYSTEM_VIEWS: dict[str, SystemView] = {}
"""Every system view of the catalog, by its name."""


def system_view(columns: str, *, doc: str) -> Callable[[Rows], Rows]:
    """Register a function as the rows of the view of its name.

    ``columns`` are ``name kind`` pairs, kinds being those of `_TYPES`; all may be NULL.
    """

    def register(rows: Rows) -> Rows:
        name = rows.__name__
        if name in SYSTEM_VIEWS:
            raise RuntimeError(f"the system view {name} is declared twice")
        pairs = (one.split() for one in columns.split(","))
        typed = tuple((column, _TYPES[kind]) for column, kind in pairs)
        SYSTEM_VIEWS[name] = SystemView(name, typed, rows, doc)
        return rows

    return register
