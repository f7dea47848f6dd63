"""A small store that tests back up, and what they do with backups."""

from __future__ import annotations

import subprocess
from pathlib import Path

from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.metastore.session import LocalSession
from strandline.metastore.store.rows import DataFile
from strandline.model.types import INT
from strandline.node import Node
from tests.metastore.snapshots import paths_of

COLUMNS = (ColumnDefinition("k", INT),)

PLAIN = TableDefinition(name="plain", columns=COLUMNS)


def unpack(backup: Path, folder: Path) -> Path:
    """Unpack a backup, into a folder like the backups of release 0.2.1."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", backup, "-C", folder], check=True)
    return folder


def place(session: LocalSession, name: str) -> Path:
    return Path("/" + session.table(name).location.removeprefix("file:").lstrip("/"))


def append(session: LocalSession, name: str, file: str, *, write: bool = True) -> None:
    """Add a data file of ten bytes to a transactional table."""
    table_id = session.table(name).descriptor.id
    path = place(session, name) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if write:
        path.write_bytes(b"0123456789")
    txn = session.begin().txn_id
    file_id = sum(map(ord, file))
    session.stage(txn, table_id, add=[DataFile(file_id=file_id, path=file, rows=1, bytes=10)])
    session.commit(txn)


def files_of(session: LocalSession, name: str) -> list[str]:
    """The paths of the data files of a table that are on disk where the store says."""
    paths = paths_of(session, name)
    return [path for path in paths if (place(session, name) / path).read_bytes() == b"0123456789"]


def small_store(folder: Path) -> Path:
    """A store with a transactional table and a plain one, with a file each, and a settings file."""
    with Node.open(folder) as node:
        ann = node.session(user="ann")
        ann.execute(CreateSchema(name="shop"))
        rows = TableDefinition(
            name="rows", columns=COLUMNS, transactional=True, provider="strandline"
        )
        ann.execute(CreateTable(schema="shop", definition=rows))
        ann.execute(CreateTable(schema="shop", definition=PLAIN))
        append(ann, "shop.rows", "a.parquet")
        (place(ann, "shop.plain") / "part-0").write_text("plain")
    (folder / "strandline.toml").write_text("cache_bytes = 1000000\n")
    return folder
