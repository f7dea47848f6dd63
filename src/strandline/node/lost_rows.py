"""Rows of the database that are missing, as other rows show; for `verification`.

A restore by other tools may leave out rows or whole tables. Without the row of a write id, the rows
that it wrote count as committed. Without a removal, the removed row is there again. Without the row
of a partition, the partition is gone, and without that of a delete file, deleted rows are back.
Without the place of a table, the next table of its name gets its folder, and cleaning then deletes
files that only the first table has.

Each statement sees one state of the database, so nodes may work meanwhile. `verification` compares
what a table must have as long as a version of the catalog has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sqlalchemy import Connection

from strandline.metastore.store.notifications import Notification
from strandline.sql import run, run_in, value
from strandline.sql.fence import FENCE_ROW
from strandline.sql.schema_versions import WRITES_ROW

_NO_WRITE_ID = (
    "NOT EXISTS (SELECT 1 FROM txn_write_id AS own"
    " WHERE own.table_id = stored.table_id AND own.write_id = stored.write_id)"
)
_OF_TABLES = {
    "{} of its rows have write ids of which nothing is recorded": (
        f"SELECT table_id, count(*) FROM store_row AS stored WHERE {_NO_WRITE_ID} GROUP BY table_id"
    ),
    "{} removals of its rows have write ids of which nothing is recorded": (
        "SELECT table_id, count(*) FROM store_removal AS stored"
        f" WHERE {_NO_WRITE_ID} GROUP BY table_id"
    ),
    "{} of its write ids are those of transactions that are not there": (
        "SELECT table_id, count(*) FROM txn_write_id AS own WHERE NOT EXISTS"
        " (SELECT 1 FROM txn WHERE txn.txn_id = own.txn_id) GROUP BY table_id"
    ),
    "{} of its write ids have other commit times than their transactions": (
        "SELECT table_id, count(*) FROM txn_write_id AS own JOIN txn ON txn.txn_id = own.txn_id"
        " WHERE coalesce(own.commit_time, -1) <> coalesce(txn.commit_time, -1) GROUP BY table_id"
    ),
    "its write id {} was assigned, and would be assigned again": (
        "SELECT own.table_id, max(own.write_id) FROM txn_write_id AS own"
        " JOIN next_write_id AS following ON following.table_id = own.table_id"
        " WHERE own.write_id >= following.next GROUP BY own.table_id"
    ),
}
"""Queries for (table id, number), by what is missing."""
UNNUMBERED = "its write ids would be assigned again: the next one is not recorded"
UNPLACED = (
    "the place of its files is not recorded; let no node run until you have restored the store: "
    "the next table of its name would get its folder, and cleaning would delete its files"
)
_UNNUMBERED = (
    "SELECT DISTINCT table_id FROM txn_write_id AS own WHERE NOT EXISTS"
    " (SELECT 1 FROM next_write_id AS following WHERE following.table_id = own.table_id)"
)
_EVENTS = (
    "SELECT count(*), coalesce(min(event_id), 0), coalesce(max(event_id), 0),"
    " coalesce((SELECT event_id FROM notification_sequence), 0) FROM notification_log"
)
_LAST_TIME = f"SELECT time FROM strandline_clock WHERE id = {WRITES_ROW}"
_HAS_METASTORAGE = "SELECT 1 FROM strandline_schema WHERE part = 'metastorage'"
_LAST_REVISION = (
    "SELECT coalesce(max(revision), 0),"
    " coalesce((SELECT revision FROM metastorage_head WHERE id = 1), 0) FROM metastorage"
)
_LAST_ROW = (
    "SELECT coalesce(max(row_id), 0), coalesce((SELECT row_id FROM store_sequence), 0)"
    " FROM store_row"
)


_UNREMOVED = (
    "SELECT row_id FROM store_row AS stored WHERE NOT EXISTS"
    " (SELECT 1 FROM store_removal AS removal WHERE removal.row_id = stored.row_id) AND row_id IN"
)
_STORED = "SELECT row_id FROM store_row WHERE row_id BETWEEN ? AND ?"
_ROWS_AT_ONCE = 100_000
"""About how many ids of rows are in memory at once; an event may have added as many."""
_LAST_ASSIGNED = "SELECT row_id FROM store_sequence"
_COMMITTED = (
    "SELECT 1 FROM txn_write_id WHERE table_id = ? AND write_id = ? AND commit_time IS NOT NULL"
)


def lost_of_tables(connection: Connection) -> Iterator[tuple[int, str]]:
    """Yield table ids, each with what is missing of the table."""
    for message, query in _OF_TABLES.items():
        for table_id, number in run(connection, query):
            yield table_id, message.format(number)


def unnumbered_tables(connection: Connection) -> set[int]:
    """The tables that were written and have no next write id, as dropped ones that were cleaned."""
    return {table_id for (table_id,) in run(connection, _UNNUMBERED)}


def lost_removals(connection: Connection, events: Sequence[Notification]) -> Iterator[int]:
    """Yield the ids of those of ``events`` that removed rows which nothing removes any more.

    All of them are of `STAGED` verbs. Cleaning deletes a removal together with its row.
    """
    removed = {event: frozenset(event.write().removed) for event in events}
    row_ids = sorted(frozenset().union(*removed.values()))
    unremoved = {row_id for (row_id,) in run_in(connection, _UNREMOVED, row_ids)}
    for event, its_ids in removed.items():
        pair = event.table_id, event.write_id
        if not unremoved.isdisjoint(its_ids) and run(connection, _COMMITTED, pair):
            yield event.event_id


def lost_additions(
    connection: Connection, events: Sequence[Notification]
) -> Iterator[tuple[int, int]]:
    """Yield the ids of rows that ``events`` added and that are not there, with their table's id.

    Cleaning deletes a row only if a later event removed it.
    """
    last_id = value(connection, _LAST_ASSIGNED) or 0
    added = [(event, event.write().added) for event in events]
    # With a flipped byte, an event may name ids that were never assigned, and very many.
    added = [(event, row_ids) for event, row_ids in added if row_ids and row_ids[-1] <= last_id]
    added.sort(key=_first_id)
    for _, group in groupby(added, key=lambda pair: _first_id(pair) // _ROWS_AT_ONCE):
        near = list(group)
        bounds = _first_id(near[0]), max(ids.stop for _, ids in near)
        stored_ids = {row_id for (row_id,) in run(connection, _STORED, bounds)}
        for event, row_ids in near:
            missing_ids = [row_id for row_id in row_ids if row_id not in stored_ids]
            if missing_ids and run(connection, _COMMITTED, (event.table_id, event.write_id)):
                yield from ((row_id, event.table_id or 0) for row_id in missing_ids)


def _first_id(added: tuple[Notification, range]) -> int:
    return added[1].start


def lost_of_store(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield places in the database, each with what is missing there."""
    ((count, first, last, newest),) = run(connection, _EVENTS)
    if last != newest or count != (last - first + 1 if last else 0):
        yield (
            "notification log",
            f"it has {count} events, from {first} to {last}, but all up to {newest} were logged, "
            "and cleaning removes only the oldest ones",
        )
    if not run(connection, _LAST_TIME):
        yield "strandline_clock", "the last time of the store is missing"
    if not run(connection, FENCE_ROW):
        yield "strandline_fence", "the fence of the store is missing: earlier holders could write"
    if run(connection, _HAS_METASTORAGE):  # else etcd has the catalog
        ((last, assigned),) = run(connection, _LAST_REVISION)
        if last > assigned:
            yield (
                "metastorage_head",
                f"revision {last} would be assigned again: the last one was {assigned}",
            )
    ((last, assigned),) = run(connection, _LAST_ROW)
    if last > assigned:
        yield f"row {last}", f"its id would be assigned again: the last one was {assigned}"
