"""Write the golden logs of the present release, which later releases must read and continue.

Run ``python -m tests.golden.of_release`` once, just before a release. It also writes the SQL tables
of the release, which later releases must upgrade: keep them if one of the parts has a new version.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import create_mock_engine
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.schema import ExecutableDDLElement

import strandline
from strandline.catalog import CatalogManager, commands
from strandline.catalog.commands import ColumnDefinition, ConstraintDefinition, TableDefinition
from strandline.catalog.initial import initial_catalog
from strandline.clock import HybridClock
from strandline.durable import UpdateLog, durable_state
from strandline.model.descriptors import ConstraintKind, StorageFormat
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.type_parser import parse_type
from strandline.node import DATABASE_FILE
from strandline.node.store_database import PARTS
from tests.catalog.test_logs_of_releases import names_of
from tests.catalog.test_logs_since_0_4_0 import KINDS
from tests.durable.logs import LOGS

FOLDER = Path(__file__).parent
RELEASE = strandline.__version__.partition(".dev")[0].replace(".", "_")


def column(name: str, type_text: str, comment: str | None = None) -> ColumnDefinition:
    return ColumnDefinition(name, parse_type(type_text), comment=comment)


KEY = ColumnDefinition("id", parse_type("bigint"), nullable=False)
VISITS = TableDefinition(
    name="visits",
    columns=(column("id", "bigint"), column("day", "date")),
    provider="hive",
    partition_columns=("day",),
    storage=StorageFormat(
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    ),
)
ALTERED = replace(VISITS.storage, serde_properties=(("field.delim", ";"),))
BEFORE = (
    commands.CreateSchema(name="shop"),
    commands.CreateTable(
        schema="shop",
        definition=TableDefinition(
            name="orders",
            columns=(KEY, column("price", "decimal(9,2)")),
            primary_key=("id",),
        ),
    ),
    commands.CreateView(
        schema="shop",
        definition=commands.ViewDefinition(
            name="top",
            columns=(column("id", "bigint"),),
            original_text="SELECT 1 AS id",
            expanded_text="SELECT 1 AS id",
        ),
    ),
    commands.CreateTable(
        schema="shop",
        definition=TableDefinition(
            name="sales",
            columns=(column("id", "bigint"), column("day", "date")),
            transactional=True,
            partitioned_by=("month(day)",),
        ),
    ),
    commands.CreateTable(schema="shop", definition=VISITS),
    commands.CreateSchema(name="gone"),
)
AFTER = (
    commands.CreateRole(name="analysts"),
    commands.CreateRole(name="bob"),
    commands.GrantRole(role="analysts", member="bob"),
    commands.GrantPrivileges(
        kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="analysts", name="shop.sales"
    ),
    commands.AddColumns(
        schema="shop",
        table="sales",
        columns=(column("price", "decimal(9,2)", comment="net"),),
    ),
    commands.RenameColumn(schema="shop", table="sales", column="price", new_name="amount"),
    commands.DropColumns(schema="shop", table="sales", names=("amount",)),
    commands.AddColumns(
        schema="shop", table="sales", columns=(column("amount", "struct<net:int>"),)
    ),
    commands.AddConstraints(
        schema="shop",
        table="orders",
        constraints=(ConstraintDefinition(kind=ConstraintKind.NOT_NULL, columns=("price",)),),
    ),
    commands.AlterTable(
        schema="shop",
        table="visits",
        definition=replace(VISITS, storage=ALTERED),
    ),
    commands.CommentOn(kind=ObjectKind.ROLE, name="analysts", text="readers"),
    commands.DropSchema(name="gone"),
    commands.RenameTable(schema="shop", table="orders", new_name="purchases"),
)


@contextmanager
def manager_of(log: UpdateLog, clock: HybridClock) -> Iterator[CatalogManager]:
    """A manager that has opened a new epoch of the log."""
    initialize = initial_catalog(delay_ms=0, skew_ms=0, default_location="default.db")
    state = durable_state(log).open(member="n1", initialize=initialize, raise_fence=lambda *_: None)
    manager = CatalogManager(state, clock)
    manager.start()
    try:
        yield manager
    finally:
        manager.stop()


def write_log(kind: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, clock = Path(made), HybridClock()
        address = LOGS[KINDS[kind]].create(folder)
        for epoch in (BEFORE, AFTER):
            with LOGS[KINDS[kind]].open(address, clock) as log, manager_of(log, clock) as manager:
                for command in epoch:
                    manager.execute(command, author="ann")
                if epoch is BEFORE:
                    continue
                assert manager.compact(5)
                versions = range(5, manager.latest_catalog().version + 1)
                catalogs = {version: manager.catalog(version) for version in versions}
                token = manager.token.rank
        (database,) = folder.rglob(DATABASE_FILE)
        with closing(sqlite3.connect(database)) as connection:
            sql = list(connection.iterdump())
        golden = {
            "database": str(database.relative_to(folder)),
            "sql": sql,
            "blobs": {
                blob.name: blob.read_bytes().hex()
                for blob in sorted((folder / "blobs").rglob("*"))
                if blob.is_file()
            },
            "token": token,
            "objects": {version: names_of(catalog) for version, catalog in catalogs.items()},
            "times": {version: catalog.time for version, catalog in catalogs.items()},
        }
    path = FOLDER / f"log_{RELEASE}_{kind}.json"
    path.write_text(json.dumps(golden, indent=1) + "\n")


def write_tables(dialect: str, address: str) -> None:
    statements: list[str] = []

    def note(ddl: ExecutableDDLElement, *_: Any) -> None:
        statements.append(f"{str(ddl.compile(dialect=engine.dialect)).strip()};\n")

    engine: MockConnection = create_mock_engine(address, note)
    for part in PARTS.values():
        part.metadata.create_all(engine, checkfirst=False)
    (FOLDER / "tables" / f"{RELEASE}.{dialect}.sql").write_text("".join(statements))


if __name__ == "__main__":
    for kind in KINDS:
        write_log(kind)
    write_tables("sqlite", "sqlite://")
    write_tables("postgresql", "postgresql+psycopg://")
