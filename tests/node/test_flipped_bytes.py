"""A flipped byte of the database is an error or changes nothing; it never gives a different answer.

The store has DDL of many kinds, commits, removals, an aborted and an open transaction, partitions
of a plain table and a trimmed history. One byte or one bit of its database is flipped at places
spread over all pages. Then a node opens the store and reads everything that a client can ask for.
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import LargeBinary

from strandline.catalog.commands import (
    AddColumns,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    TableDefinition,
)
from strandline.durable.collections import COLLECTIONS
from strandline.errors import StrandlineError
from strandline.metastore.store.notifications import ABORT, COMMIT, WRITE, DdlEvent
from strandline.metastore.store.rows import DataFile, NewRow, PartitionRow, RowKind, new_file
from strandline.model.descriptors import TableDescriptor
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, Node
from strandline.node.store_database import PARTS
from strandline.node.store_place import HEAD_FILE
from strandline.sql import open_sqlite, sqlite_file
from strandline.wire import registry
from tests.metastore.dml import stage

Answer = tuple[object, ...]
TRANSACTIONS = range(1, 12)


def make_store(folder: Path) -> None:
    with Node.open(folder) as node:
        session = node.session(user="ann")
        ids = {}
        for schema in ("a", "b"):
            session.execute(CreateSchema(name=schema))
            for number in range(3):
                definition = TableDefinition(
                    name=f"t{number}",
                    columns=tuple(ColumnDefinition(f"c{n}", INT) for n in range(12)),
                    transactional=number < 2,
                )
                session.execute(CreateTable(schema=schema, definition=definition))
                name = f"{schema}.t{number}"
                ids[name] = session.table(name).descriptor.id
        for round_number in range(4):
            for table_id in (ids["a.t0"], ids["b.t1"]):
                append(node, table_id, round_number)
        column = ColumnDefinition("later", INT)
        session.execute(AddColumns(schema="a", table="t0", columns=(column,)))
        append(node, ids["a.t0"], 9)
        lost = node.transactions.begin(user="bob").txn_id
        stage(node.store.sql_store, lost, ids["a.t1"], add=[data_file("lost")])
        node.transactions.abort(lost)
        with node.store.change(ids["a.t2"], author="ann") as change:
            change.stage(
                add=[
                    NewRow.of(PartitionRow(values=(f"{n}",), location=f"m={n}"), name=f"m={n}")
                    for n in range(12)
                ]
            )
        session.execute(DropTable(schema="b", table="t0"))
        at = node.catalogs.latest_catalog().time
        session.hold("stream", "reader", at=at, ttl_ms=10_000_000)
        session.compact(node.catalogs.latest_catalog().version - 6)


def data_file(path: str) -> NewRow:
    return new_file(DataFile(file_id=1, path=path, rows=7, bytes=100))


def append(node: Node, table_id: int, number: int) -> None:
    txn_id = node.transactions.begin(user="ann").txn_id
    stage(node.store.sql_store, txn_id, table_id, add=[data_file(f"f{number}")])
    node.transactions.commit(txn_id)


def answers(folder: Path) -> Iterator[Answer]:
    """Everything that a client can ask for, in a fixed order."""
    with Node.open(folder) as node:
        session = node.session(user="ann")
        for version in session.history():
            yield ("version", version, [dict(arguments) for _, arguments in version.actions])
        earliest = node.catalogs.earliest_catalog().version
        latest = node.catalogs.latest_catalog()
        tables: dict[int, TableDescriptor] = {}
        for number in range(earliest, latest.version + 1):
            catalog = node.catalogs.catalog(number)
            yield ("catalog", number, catalog.time)
            for kind in COLLECTIONS:
                for stored in sorted(catalog.contents.objects(kind), key=lambda item: item.data):
                    yield (kind, stored.id, stored.name, stored.updated, stored.value)
            tables |= {table.id: table for table in catalog.tables()}
        for table_id in tables:
            yield ("location", table_id, node.store.location(table_id))
            for row_kind in RowKind:
                for row in node.store.rows(table_id, row_kind, write_ids=None):
                    yield ("row", row, row.content)
            for txn_id in TRANSACTIONS:
                seen = node.transactions.write_ids(
                    table_id, at=node.transactions.get(txn_id).begin_time
                )
                yield ("then", table_id, txn_id, str(seen))
                for row in node.store.rows(table_id, RowKind.DATA_FILE, write_ids=seen):
                    yield ("row then", row, row.content)
        for event in node.notifications.read(0, limit=10_000):
            event.compare()
            body: object = event.ddl() if event.verb not in (WRITE, COMMIT, ABORT) else None
            body = event.write() if event.verb == WRITE else body
            body = event.end() if event.verb in (COMMIT, ABORT) else body
            arguments = dict(body.arguments) if isinstance(body, DdlEvent) else None
            yield ("event", event.event_id, event.time, event.verb, body, arguments)
        yield ("holds", node.transactions.holds.list())
        for txn_id in TRANSACTIONS:
            transaction = node.transactions.get(txn_id)
            yield (
                "transaction",
                replace(transaction, last_heartbeat=0),
                node.transactions.write_id_pairs(txn_id),
            )


@dataclass(frozen=True)
class Flips:
    """The results of the flips: the count of each outcome, and those that are wrong."""

    outcomes: Counter[str]
    wrong: list[str]


class Store:
    """A store whose database is restored before each flip."""

    def __init__(self, folder: Path) -> None:
        make_store(folder)
        self.folder = folder
        self.file = folder / DATABASE_FILE
        with closing(sqlite3.connect(self.file)) as database:
            # The background check may have kept the node from a checkpoint when it closed.
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.data = self.file.read_bytes()
        self.head = (folder / HEAD_FILE).read_bytes()
        self.expected = list(answers(folder))
        self.put(self.data)
        assert self.outcome() == "same answers"

    def put(self, data: bytes) -> None:
        for end in ("-wal", "-shm"):
            self.file.with_name(self.file.name + end).unlink(missing_ok=True)
        self.file.write_bytes(data)
        (self.folder / HEAD_FILE).write_bytes(self.head)

    def flips(self, count: int) -> Flips:
        """Flip at ``count`` places, one after another, spread over all pages.

        Bytes that are 0 are left alone: most of them are unused space.
        """
        places = [place for place, byte in enumerate(self.data) if byte]
        choose = random.Random(8)
        outcomes: Counter[str] = Counter()
        wrong = []
        for number in range(count):
            place = places[int((number + choose.random()) * len(places) / count)]
            flip = 1 << choose.randrange(8) if number % 2 else choose.randrange(1, 256)
            spoiled = bytearray(self.data)
            spoiled[place] ^= flip
            self.put(bytes(spoiled))
            outcome = self.outcome()
            outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith(("another", "bare")):
                wrong.append(f"{outcome} (byte {place} ^ {flip}, page {place // 4096 + 1})")
        self.put(self.data)
        return Flips(outcomes, wrong)

    def outcome(self) -> str:
        try:
            listed = list(answers(self.folder))
        except StrandlineError as error:
            return f"refused: {error}"
        except Exception as error:
            return f"bare error: {type(error).__name__}: {error}"
        if listed == self.expected:
            return "same answers"
        differing = [answer for answer in listed if answer not in self.expected]
        return f"another answer: {differing[:1]}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("flipped") / "store")


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[None]:
    """Log records are kept until a test ends, and their frames hold a file of the store open."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_a_flipped_byte_is_an_error_or_changes_nothing(store: Store) -> None:
    outcome = store.flips(20)
    assert outcome.wrong == []
    assert outcome.outcomes["refused"] > 2


def test_a_row_with_a_wrong_zone_partition_is_refused(store: Store) -> None:
    with closing(sqlite3.connect(store.file)) as database:
        database.execute("UPDATE store_row SET bucket = -3 WHERE row_id = 20")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spoiled = store.file.read_bytes()
    store.put(spoiled)
    outcome = store.outcome()
    store.put(store.data)
    assert outcome.startswith("refused: a record of"), outcome


OTHER_TYPES = ("7", "2.5", "'text'", "x'01'")


def outcome_of_type(store: Store, table: str, column: str, value: str) -> str | None:
    """What a node does with one row of ``table`` whose ``column`` has a value of another type.

    A flipped byte in the header of a row causes that: the header has the type of each column. None
    if SQLite itself refuses the value or converts it to the column's type.
    """
    try:
        with closing(sqlite3.connect(store.file)) as database:
            where = f"WHERE rowid = (SELECT max(rowid) FROM {table})"
            look = f'SELECT typeof("{column}") FROM {table} {where}'
            before = database.execute(look).fetchone()
            database.execute(f'UPDATE {table} SET "{column}" = {value} {where}')
            if database.execute(look).fetchone() == before:
                return None
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return store.outcome()
    except sqlite3.IntegrityError:
        return None
    finally:
        store.put(store.data)


@pytest.mark.parametrize("value", OTHER_TYPES[:3])
@pytest.mark.parametrize(
    ("table", "column"),
    [("metastorage", "value"), ("notification_log", "body"), ("store_row", "body")],
)
def test_a_record_of_another_type_is_refused(
    store: Store, table: str, column: str, value: str
) -> None:
    outcome = outcome_of_type(store, table, column, value)
    assert outcome is not None
    assert outcome.startswith("refused"), outcome


@pytest.mark.slow
def test_a_column_of_another_type_gives_no_unhandled_exception(store: Store) -> None:
    with closing(sqlite3.connect(store.file)) as database:
        tables = [
            name
            for name, sql in database.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            )
            if "WITHOUT ROWID" not in sql
        ]
        columns = [
            (table, column)
            for table in tables
            for (column,) in database.execute("SELECT name FROM pragma_table_info(?)", (table,))
        ]
    bare = []
    tried = 0
    for table, column in columns:
        for value in OTHER_TYPES:
            outcome = outcome_of_type(store, table, column, value)
            tried += outcome is not None
            if outcome is not None and outcome.startswith("bare"):
                bare.append((table, column, value, outcome))
    assert bare == []
    assert tried > 40


def test_an_unknown_schema_format_of_sqlite_is_refused(store: Store) -> None:
    spoiled = bytearray(store.data)
    spoiled[47] ^= 143  # the byte of the schema format
    store.put(bytes(spoiled))
    outcome = store.outcome()
    store.put(store.data)
    assert outcome.startswith("refused"), outcome


ROWS = {
    "lock_request": "VALUES (7, 4, 'job', 'ann', 'host', 'agent', 8, 9, 10, 6)",
    "lock_component": "VALUES (7, 2, 'sales', 'orders', 'day=1', 3)",
    "txn_footprint": "VALUES (-5, 4, 77, 12)",
    "strandline_schema": "VALUES ('more', 3)",
    "hold": "VALUES (5, 'stream', 'job', 6, 7, 'ann')",
}


@pytest.mark.slow
def test_a_flipped_byte_of_a_table_without_records_is_found_or_changes_nothing(
    tmp_path: Path,
) -> None:
    """Each byte of one row is changed: the check finds the damage, or the row is unchanged.

    All such tables have an index with each of their columns, which another test checks.
    """
    file = tmp_path / DATABASE_FILE
    with closing(open_sqlite(file)) as database:
        for part in PARTS.values():
            database.ensure_schema(part)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        for table, row in ROWS.items():
            connection.execute(f"INSERT INTO {table} {row}")
        connection.commit()
        pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall())
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    sound = file.read_bytes()
    for table in ROWS:
        expected = rows_of(file, table)
        assert expected
        first = (pages[table] - 1) * size
        # The rows are at the end of the page.
        for place in range(first + size - 64, first + size):
            if not sound[place]:
                continue
            spoiled = bytearray(sound)
            spoiled[place] ^= 1
            file.write_bytes(spoiled)
            if not sqlite_file.find_damage(file):
                assert rows_of(file, table) == expected, (table, place)
        file.write_bytes(sound)


def rows_of(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall()


def test_each_column_of_a_table_without_records_is_indexed() -> None:
    for part in PARTS.values():
        for table in part.metadata.sorted_tables:
            if any(isinstance(column.type, LargeBinary) for column in table.c):
                continue  # the checksum of its record covers the other columns
            if "checksum" in table.c:
                continue  # it covers the whole row
            indexed = {column.name for index in table.indexes for column in index.columns}
            missing = {column.name for column in table.c} - indexed
            missing -= {column.name for column in table.primary_key}
            assert not missing, table.name


@pytest.mark.slow
def test_a_flipped_byte_in_any_page_is_an_error_or_changes_nothing(store: Store) -> None:
    outcome = store.flips(440)
    assert outcome.wrong == []
    assert outcome.outcomes["refused"] > 150


@pytest.mark.teeth
def test_flips_give_different_answers_without_checksums_and_integrity_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "find_damage", lambda *_, **__: [])
    monkeypatch.setattr(registry, "compare", lambda *_, **__: None)
    outcome = store.flips(60)
    assert any(wrong.startswith("another") for wrong in outcome.wrong)


@pytest.mark.teeth
def test_flips_are_not_all_found_without_the_integrity_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "find_damage", lambda *_, **__: [])
    outcome = store.flips(100)
    assert outcome.wrong != [], store.outcome()
