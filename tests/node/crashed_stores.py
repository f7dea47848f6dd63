"""Stores as a crash leaves them: filled, copied while a node runs, truncated."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.store.rows import DataFile, new_file
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, Node
from tests.metastore.dml import stage


def write_some(node: Node, count: int, *, first: int = 0) -> None:
    """Create ``count`` tables and commit a file to each; every version and commit is synced."""
    session = node.session(user="ann")
    for number in range(first, first + count):
        definition = TableDefinition(
            name=f"t{number}", columns=(ColumnDefinition("a", INT),), transactional=True
        )
        session.execute(CreateTable(schema="default", definition=definition))
        table_id = session.table(f"default.t{number}").descriptor.id
        txn_id = node.transactions.begin(user="ann").txn_id
        content = DataFile(file_id=1, path="f", rows=1, bytes=1)
        stage(node.store.sql_store, txn_id, table_id, add=[new_file(content)])
        node.transactions.commit(txn_id)


def left_by_a_crash(folder: Path, copy: Path, versions: int) -> Path:
    """A store as a killed node leaves it: its write-ahead log is not in the database file yet."""
    with Node.open(folder) as node:
        write_some(node, 2)
    with Node.open(folder) as node:
        write_some(node, versions, first=2)
        shutil.copytree(folder, copy)
    return copy


def table_names(node: Node) -> list[str]:
    return [row.name for row in node.catalogs.present().tables()]


def log_of(folder: Path) -> Path:
    return folder / f"{DATABASE_FILE}-wal"


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
