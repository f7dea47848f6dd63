"""The places of managed tables: one row for each table id, including dropped tables.

A row contains the text of a `Place`. Equal places have equal texts, so the tables at a place are
found by an index. Rows of release 0.2.1 and older contain URIs, and are rewritten when a node
starts.

`TablePlaces` are the places that one SQL transaction of the projection reads and changes. It reads
the rows of many tables at once, and writes its changes at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlalchemy import Connection

from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.places import Place
from strandline.sql import Database, Query, Row, in_lists, run, run_all, value
from strandline.transactions.tables import is_id

_PUT = (
    "INSERT INTO table_location (table_id, location) VALUES (?, ?)"
    " ON CONFLICT (table_id) DO UPDATE SET location = excluded.location"
)
_OF = "SELECT table_id, location FROM table_location WHERE table_id IN"
_AT = "SELECT table_id, location FROM table_location WHERE location IN"
_LIKE = "SELECT table_id, location FROM table_location WHERE location LIKE ? OR location LIKE ?"
_REMOVE = "DELETE FROM table_location WHERE table_id = ?"


def place_of(connection: Connection, table_id: int) -> Place | None:
    text = value(connection, *place_query(table_id))
    return None if text is None else Place(text)


def place_query(table_id: int) -> Query:
    """The query for the text of a managed table's place; it returns no row if it has none."""
    return "SELECT location FROM table_location WHERE table_id = ?", (table_id,)


def places_queries(table_ids: Iterable[int]) -> list[Query]:
    """The queries for the places of these managed tables; `by_id` reads their rows."""
    known_ids = filter(is_id, table_ids)
    return [(f"{_OF} {in_list}", ids) for in_list, ids in in_lists(known_ids)]


def by_id(rows: Iterable[Row]) -> dict[int, Place]:
    return {table_id: Place(text) for table_id, text in rows}


def has_places(database: Database) -> bool:
    """Whether a managed table, also a dropped one, has a place below the warehouse.

    Raises `StoreMoved` if the warehouse is missing because the whole store is.
    """
    database.check_place()
    with database.read() as connection:
        return any(place.is_inside for place in all_places(connection).values())


def all_places(connection: Connection) -> dict[int, Place]:
    """The places of all managed tables, including dropped ones."""
    return by_id(run(connection, "SELECT table_id, location FROM table_location"))


def tables_at_queries(places: Collection[Place]) -> list[Query]:
    """The queries for the tables at these places; `by_place` reads their rows."""
    return [(f"{_AT} {in_list}", texts) for in_list, texts in in_lists(p.text for p in places)]


def by_place(rows: Iterable[Row]) -> dict[Place, set[int]]:
    """The tables at each place, from the rows of `tables_at_queries`; none for an empty place."""
    holders: dict[Place, set[int]] = {}
    for table_id, text in rows:
        holders.setdefault(Place(text), set()).add(table_id)
    return holders


def put_places(connection: Connection, places: Mapping[int, Place | None]) -> None:
    """Write the places of tables; None removes the place of a table."""
    run_all(connection, *(_put_query(table_id, place) for table_id, place in places.items()))


def _put_query(table_id: int, place: Place | None) -> Query:
    return (_REMOVE, (table_id,)) if place is None else (_PUT, (table_id, place.text))


def foreign_places(connection: Connection, folders: StoreFolders) -> dict[int, Place]:
    """The new places, by table id, of rows of older releases that must be rewritten.

    Includes rows with a path below a former folder of this store.
    """
    rows = run(connection, _LIKE, ("/%", "%:%"))
    places = {table_id: (text, folders.place(text)) for table_id, text in rows}
    return {i: place for i, (text, place) in places.items() if place.text != text}


class TablePlaces:
    """See the module."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._of: dict[int, Place | None] = {}
        self._at: dict[Place, set[int]] = {}
        self._changed: dict[int, Place | None] = {}
        self._put: dict[Place, set[int]] = {}

    def _rows(self, statements: Iterable[Query]) -> Iterator[Row]:
        return (row for query in statements for row in run(self._connection, *query))

    def note_new(self, table_id: int) -> None:
        """Note that a table is new, and has no row yet."""
        self._of.setdefault(table_id, None)

    def prefetch(self, table_ids: Iterable[int]) -> None:
        """Read the places of these tables, and the other tables there, in two statements."""
        unread = [table_id for table_id in table_ids if table_id not in self._of]
        places = by_id(self._rows(places_queries(unread)))
        self._of |= {table_id: places.get(table_id) for table_id in unread}
        self.prefetch_at(places.values())

    def prefetch_at(self, places: Iterable[Place]) -> None:
        """Read the tables at these places, in one statement."""
        unread = [place for place in dict.fromkeys(places) if place not in self._at]
        tables = by_place(self._rows(tables_at_queries(unread)))
        for place in unread:
            # The rows do not have the changes that this transaction has not written yet.
            stay = {i for i in tables.get(place, ()) if i not in self._changed}
            self._at[place] = stay | self._put.get(place, set())

    def of(self, table_id: int) -> Place | None:
        if table_id not in self._of:
            self.prefetch([table_id])
        return self._of[table_id]

    def put(self, table_id: int, place: Place | None) -> None:
        """Change the place of a table; None removes it."""
        before = self.of(table_id)
        if before is not None:
            self._at.get(before, set()).discard(table_id)
            self._put.get(before, set()).discard(table_id)
        if place is not None:
            self._put.setdefault(place, set()).add(table_id)
            if place in self._at:
                self._at[place].add(table_id)
        self._of[table_id] = self._changed[table_id] = place

    def taken(self, place: Place, *, by_other_than: int) -> bool:
        """Whether another table, even a dropped one, has that place."""
        return not self.holders(place) <= {by_other_than}

    def holders(self, place: Place) -> frozenset[int]:
        """The tables at that place, including dropped ones."""
        if place not in self._at:
            self.prefetch_at([place])
        return frozenset(self._at[place])

    def take_writes(self) -> list[Query]:
        """Return the statements that write the changes since the last call."""
        writes = [_put_query(table_id, place) for table_id, place in self._changed.items()]
        self._changed, self._put = {}, {}
        return writes
