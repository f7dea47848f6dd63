"""The tables of the stash: a catalog as rows of (collection, key, value, time, diff) in SQL.

=====================  =========================================================================
``stash``              one row: ``upper``, ``since``, the fence token; no row while it is empty
``stash_collection``   each kind that has rows: its number in the rows, its name, and, for an
                       append-only kind, the version up to which its rows were pruned
``stash_row``          the rows of versions (see `strandline.durable.rows`): heads and objects
``stash_appended``     the rows of append-only kinds, which are never consolidated
=====================  =========================================================================

In a row, ``version`` is what the model calls time, and ``time`` is the time of that version.
``number`` is 0 for the head of an update; for the other rows it is their position in the update.

What must stay true: damage to a row is detected. Each row has a checksum of all its parts,
including the name of its collection. A row may also become invisible, if a flipped bit in its
version moves it out of every read. In a readable version the head has the number of its rows. For
the versions up to ``since``, the ``stash`` row has the number of rows and the sum of their
checksums; it also has the sum of the checksums of the collections, and a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
)

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.rows import REMEDY, Row, checksum
from strandline.errors import CorruptData
from strandline.fencing import FenceToken
from strandline.sql import Parameter, Query, change_each, first_row, insert_queries, run
from strandline.sql import Row as SqlRow
from strandline.sql.schema_versions import Part, whole_row

METADATA = MetaData()


def _add_nonce(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE stash ADD COLUMN nonce BIGINT NOT NULL DEFAULT 0")


PART = Part("stash", 2, METADATA, {2: _add_nonce})

STASH = Table(
    "stash",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("upper", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("since_time", BigInteger, nullable=False),
    Column("deploy_generation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("objects", BigInteger, nullable=False),
    Column("sum", BigInteger, nullable=False),
    Column("collections", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("nonce", BigInteger, nullable=False),
)
COLLECTIONS = Table(
    "stash_collection",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False, unique=True),
    Column("pruned", BigInteger, nullable=False),
)
ROWS = Table(
    "stash_row",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("collection", Integer, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("diff", SmallInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    # The last column, because SQLite reads a row from its start, through all pages of a value.
    Column("value", LargeBinary, nullable=False),
)
APPENDED = Table(
    "stash_appended",
    METADATA,
    Column("collection", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("value", LargeBinary, nullable=False),
)
whole_row(COLLECTIONS)

STATE_QUERY: Query = ("SELECT stash.* FROM stash WHERE id = 1", ())
"""Selects all columns: a table of version 1, which a reader does not upgrade, has no nonce."""
_COLUMNS_OF_1 = 11
_PUT_STATE = (
    "INSERT INTO stash (id, upper, time, since, since_time, deploy_generation, epoch, objects, sum,"
    " collections, checksum, nonce) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET"
    " upper = excluded.upper, time = excluded.time, since = excluded.since,"
    " since_time = excluded.since_time, deploy_generation = excluded.deploy_generation,"
    " epoch = excluded.epoch, objects = excluded.objects, sum = excluded.sum,"
    " collections = excluded.collections, checksum = excluded.checksum, nonce = excluded.nonce"
)
_PUT_ROWS = (
    "INSERT INTO stash_row (version, number, collection, time, diff, checksum, key, value) VALUES "
)
_PUT_APPENDED = (
    "INSERT INTO stash_appended (collection, version, number, time, checksum, key, value) VALUES "
)
ROW_PARTS = "version, number, collection, time, diff, checksum, key, value"


@dataclass(frozen=True, slots=True)
class StashState:
    """The one row of ``stash``.

    ``time`` is the time of the last version, ``since_time`` that of version ``since``. ``objects``
    is the number of object rows up to ``since``, ``sum`` the sum of their checksums.
    ``collections`` is the sum of the checksums of the collections (`Kinds.sum`).
    """

    upper: int
    time: Timestamp
    since: int
    since_time: Timestamp
    token: FenceToken | None
    objects: int
    sum: int
    collections: int


EMPTY = StashState(1, MIN_TIMESTAMP, 0, MIN_TIMESTAMP, None, 0, 0, 0)
"""The state of a stash before its first version."""


def state_on(connection: Connection) -> StashState:
    """The state that the transaction of ``connection`` sees. Raises `CorruptData`."""
    return state_in(first_row(connection, *STATE_QUERY))


def state_in(row: SqlRow | None) -> StashState:
    """The state in the result of `STATE_QUERY`. Raises `CorruptData`."""
    if row is None:
        return EMPTY
    _, *numbers, stored_checksum = row[:_COLUMNS_OF_1]
    nonce = row[_COLUMNS_OF_1] if len(row) > _COLUMNS_OF_1 else 0
    if _checksum_of(numbers, nonce) != stored_checksum:
        raise CorruptData(
            f"the row of the table stash does not match its checksum: upper {row[1]}, since "
            f"{row[3]}, epoch {row[6]}; {REMEDY}"
        )
    upper, time, since, since_time, generation, epoch, *counts = numbers
    token = FenceToken(generation, epoch, nonce)
    return StashState(upper, Timestamp(time), since, Timestamp(since_time), token, *counts)


def put_state(connection: Connection, state: StashState) -> None:
    """Write ``state`` into the one row of ``stash``."""
    token = state.token
    assert token is not None  # a non-empty log has a token
    numbers: tuple[int, ...] = (
        state.upper,
        state.time,
        state.since,
        state.since_time,
        token.deploy_generation,
        token.epoch,
        state.objects,
        state.sum,
        state.collections,
    )
    kept = _checksum_of(numbers, token.nonce)
    change_each(connection, _PUT_STATE, [(*numbers, kept, token.nonce)])


def _checksum_of(numbers: Sequence[int], nonce: int) -> int:
    """The checksum of the ``stash`` row. Without a nonce it equals the one that version 1 wrote."""
    return crc32(" ".join(map(str, (*numbers, nonce) if nonce else numbers)).encode())


@dataclass(frozen=True, slots=True)
class Numbered:
    """A row, with its number and checksum in the table."""

    row: Row
    number: int
    checksum: int


def row_in(parts: SqlRow, kinds: Mapping[int, str]) -> Numbered:
    """The row in a result with the columns `ROW_PARTS`. Raises `CorruptData`."""
    version, number, collection, time, diff, stored_checksum, key, value = parts
    kind = kinds.get(collection)
    row = Row(kind or "", bytes(key), bytes(value), version, Timestamp(time), diff)
    if kind is None or checksum(row) != stored_checksum:
        raise CorruptData(
            f"row {number} of version {version} of the stash, in collection {collection} "
            f"({kind or 'unknown'}), does not match its checksum: it was changed after it was "
            f"written; {REMEDY}"
        )
    return Numbered(row, number, stored_checksum)


def appended_in(parts: SqlRow, collection: int, kinds: Mapping[int, str]) -> Row:
    """The row in a result with version, number, time, checksum, key and value."""
    version, number, time, stored_checksum, key, value = parts
    return row_in((version, number, collection, time, 1, stored_checksum, key, value), kinds).row


class Kinds:
    """The collections: from number to name, and from name to number.

    ``rows`` are the rows of ``stash_collection``, ``pruned`` is `Frontier.pruned`.
    """

    def __init__(self, rows: Iterable[SqlRow]) -> None:
        self.rows = tuple((number, name, pruned) for number, name, pruned in rows)
        self.names = {number: name for number, name, _ in self.rows}
        self.numbers = {name: number for number, name, _ in self.rows}
        pruned = ((name, version) for _, name, version in self.rows if version)
        self.pruned: tuple[tuple[str, int], ...] = tuple(sorted(pruned))
        self.sum = sum(crc32(" ".join(map(str, row)).encode()) for row in self.rows)


def kinds_on(connection: Connection, state: StashState) -> Kinds:
    """The collections of ``state``, which the same transaction has read.

    Raises `CorruptData` if they do not match its checksum.
    """
    kinds = Kinds(run(connection, "SELECT id, name, pruned FROM stash_collection"))
    if kinds.sum != state.collections:
        raise CorruptData(
            "the table stash_collection does not match its checksum: it has the rows "
            f"{kinds.rows}; {REMEDY}"
        )
    return kinds


def with_kinds(connection: Connection, kinds: Kinds, names: Iterable[str]) -> Kinds:
    """Add ``names`` to ``kinds``, with numbers above the existing ones. Returns all collections."""
    first = max(kinds.names, default=0) + 1
    added = [(number, name, 0) for number, name in enumerate(sorted(names), first)]
    text = "INSERT INTO stash_collection (id, name, pruned) VALUES (?, ?, ?)"
    change_each(connection, text, added)
    return Kinds((*kinds.rows, *added))


def with_pruned(connection: Connection, kinds: Kinds, kind: str, up_to: int) -> Kinds:
    """Remove the rows of the append-only ``kind`` up to version ``up_to``.

    Returns the collections with that version.
    """
    number = kinds.numbers[kind]
    run(connection, "UPDATE stash_collection SET pruned = ? WHERE id = ?", (up_to, number))
    run(
        connection,
        "DELETE FROM stash_appended WHERE collection = ? AND version <= ?",
        (number, up_to),
    )
    others = (row for row in kinds.rows if row[0] != number)
    return Kinds((*others, (number, kind, up_to)))


def put_rows(connection: Connection, rows: Sequence[Row], numbers: Mapping[str, int]) -> None:
    """Add the head and the objects of one version; ``numbers`` has the number of each kind."""
    values: list[tuple[Parameter, ...]] = []
    for position, row in enumerate(rows):
        kind, key, value, version, time, diff = row
        values.append((version, position, numbers[kind], time, diff, checksum(row), key, value))
    _put(connection, _PUT_ROWS, values)


def put_appended(connection: Connection, rows: Sequence[Row], numbers: Mapping[str, int]) -> None:
    """Add the rows of append-only kinds of one version."""
    _put(
        connection,
        _PUT_APPENDED,
        [
            (numbers[row.kind], row.version, position, row.time, checksum(row), row.key, row.value)
            for position, row in enumerate(rows)
        ],
    )


def _put(connection: Connection, text: str, rows: Sequence[tuple[Parameter, ...]]) -> None:
    for query, values in insert_queries(text, rows):
        change_each(connection, query, [values])
