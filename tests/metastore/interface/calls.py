"""Calls that the tests of every `Session` share: they create tables, and files in them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from zlib import crc32

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.interface import Session, TableFiles
from strandline.metastore.session import HttpSession
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.model.types import BIGINT, STRING
from strandline.node import Node

USER = "ann é"
NOBODYS = 10**12
"""An id that does not exist."""


@dataclass
class Served:
    node: Node
    url: str

    def open(self, kind: str, *, user: str = USER) -> Session:
        """Return a session of this kind."""
        return self.node.session(user=user) if kind == "local" else HttpSession(self.url, user=user)


_numbers = itertools.count(1)


def new_schema_name() -> str:
    """Return a schema name that no other test of this process uses."""
    return f"s{next(_numbers)}"


def create(schema: str, name: str = "t", *columns: ColumnDefinition) -> CreateTable:
    return CreateTable(
        schema=schema,
        definition=TableDefinition(
            name=name,
            columns=columns or (ColumnDefinition("k", BIGINT), ColumnDefinition("v", STRING)),
            transactional=True,
            provider="strandline",
        ),
    )


def data(path: str, *, file_id: int | None = None, rows: int = 10) -> DataFile:
    if file_id is None:
        file_id = crc32(path.encode()) >> 12
    return DataFile(file_id=file_id, path=path, rows=rows, bytes=100)


def write(session: Session, table_id: int, *files: DataFile | DeleteFile) -> int:
    """Add files in a transaction and commit it; return its id."""
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=files)
    session.commit(txn_id)
    return txn_id


def paths(files: TableFiles) -> list[str]:
    return [file.path for file in files.data_files]
