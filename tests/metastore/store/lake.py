"""A store whose clock a test moves, for the tests of cleaning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.config import Settings
from strandline.metastore.store.cleaned_files import Cleaned
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.node.address import StoreAddress
from strandline.transactions import ValidWriteIdList

RETENTION = 7 * 24 * 3_600_000
LATER = RETENTION + 60_000
SETTINGS = Settings(
    transaction_timeout_ms=1_000 * RETENTION,
    clean_interval_ms=0,
    notification_retention_ms=100 * RETENTION,
    clock_ahead_limit_ms=1_000 * RETENTION,
)
"""No transaction times out when a test moves the clock, ages count its moves, no thread cleans."""


class Lake:
    """A node whose clock a test moves, with a transactional table ``t``."""

    def __init__(self, node: Node, ahead: list[int]) -> None:
        self.node = node
        self.address: str | Path | StoreAddress = node.name
        self.session = node.session(user="ann")
        self._ahead = ahead

    def wait(self, milliseconds: int = LATER) -> None:
        """Move the clock forward."""
        self._ahead[0] += milliseconds
        with self.node.database.write() as connection:  # the store's time moves with its writers
            self.node.notifications.position_on(connection)

    def create(self, name: str = "t", **definition: object) -> int:
        columns = (ColumnDefinition("k", BIGINT),)
        table = TableDefinition(name=name, columns=columns, transactional=True, **definition)  # type: ignore[arg-type]  # fields of it
        self.session.execute(CreateTable(schema="default", definition=table))
        return self.session.table(f"default.{name}").descriptor.id

    def folder(self, name: str = "t") -> Path:
        return Path(urlsplit(self.session.table(f"default.{name}").location).path)

    def warehouse(self) -> Path:
        return self.node.folders.warehouse

    def folders(self) -> set[str]:
        """The names of the folders of schemas in the warehouse."""
        return {folder.name for folder in self.warehouse().iterdir()}

    def write(self, table_id: int, name: str = "t", *, txn_id: int | None = None) -> str:
        """Put a file into the folder and stage it; without ``txn_id``, commit it too."""
        own = self.session.begin().txn_id if txn_id is None else txn_id
        file_id = own << FILE_NUMBER_BITS
        path = data_path(file_id, uuid4().hex)
        self.put(name, path)
        file = DataFile(file_id=file_id, path=path, rows=1, bytes=4)
        self.session.stage(own, table_id, add=[file])
        if txn_id is None:
            self.session.commit(own)
        return path

    def put(self, name: str, path: str) -> Path:
        target = self.folder(name) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"rows")
        return target

    def remove(self, table_id: int, path: str) -> None:
        txn_id = self.session.begin().txn_id
        self.session.stage(txn_id, table_id, remove=[path])
        self.session.commit(txn_id)

    def write_ids(self, table_id: int) -> ValidWriteIdList:
        return self.session.open(["default.t"]).write_ids[table_id]

    def paths(self, table_id: int, write_ids: ValidWriteIdList | None = None) -> list[str]:
        files = self.session.files(table_id, write_ids or self.write_ids(table_id))
        return sorted(file.path for file in files.data_files)

    def on_disk(self, name: str = "t") -> set[str]:
        root = self.folder(name)
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def clean(self) -> list[tuple[str, int, int]]:
        """Clean and return what was cleaned; a dry run before it must report the same."""
        said = self.node.cleaner.clean(dry_run=True).parts
        cleaned = self.node.cleaner.clean().parts
        assert _sorted(said) == _sorted(cleaned)
        assert self.node.cleaner.clean().parts == ()
        return [(part.what, part.rows, part.files) for part in cleaned]


def _sorted(cleaned: Sequence[Cleaned]) -> list[tuple[object, ...]]:
    return sorted(
        (part.what, part.table, part.rows, part.files, part.bytes, sorted(part.names))
        for part in cleaned
    )
