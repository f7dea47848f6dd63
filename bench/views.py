"""An unmodified Spark reads a transactional table, compared with plain Parquet.

The plain tables are external tables over the same files, through hard links with Spark's file
names. All times are from one Spark session in one run, measured in turns. The reference of a row is
the time for the plain table. A plan takes a tenth of a second, so it is measured many times, after
Spark has compiled the code for it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.registry import Measured, benchmark
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.cli.demo.node_process import NodeProcess
from strandline.metastore.interface import Session
from strandline.metastore.session import HttpSession
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import Partition, PartitionValue
from strandline.model.type_text import simple_string
from strandline.model.types import BIGINT, DATE, DOUBLE, STRING, DataType
from strandline.spark.folder import TableFolder, folder_path
from strandline.spark.positions import POSITIONS, bitmaps_of, write_delete_file
from tests.metastore.hive.spark_process import SparkProcess

ROWS, FILES = 6_000_000, 20
MANY_FILES = 2_000
DAYS = 365
DAY = date(2024, 3, 5)
DELETED = 0.01
ROUNDS = {"scan": (1, 5), "query": (5, 15), "plan": (15, 15)}
"""How many times a query runs to warm up, and how many times it is measured after that."""
TYPES: dict[str, DataType] = {"id": BIGINT, "price": DOUBLE, "comment": STRING}
NUMBERS = [f"n{number}" for number in range(13)]


@dataclass(frozen=True)
class Bench:
    """A session with a node, a Spark that uses the node, and the folder that contains the store."""

    session: Session
    spark: SparkProcess
    folder: Path

    def write(self, name: str, *, files: int, rows: int, by_day: bool = False) -> None:
        """Create ``name`` with ``files`` files of ``rows`` rows, and ``plain_…`` over the files.

        If ``by_day``, a column ``day`` with `DAYS` values partitions both tables.
        """
        columns = tuple(ColumnDefinition(n, t) for n, t in TYPES.items())
        columns += tuple(ColumnDefinition(n, BIGINT) for n in NUMBERS)
        columns += (ColumnDefinition("day", DATE),) * by_day
        definition = TableDefinition(
            name=name, columns=columns, transactional=True, partitioned_by=("day",) * by_day
        )
        self.session.execute(CreateTable(schema="default", definition=definition))
        table = self.session.table(name)
        plain = self.folder / f"plain_{name}"
        plain.mkdir()
        root = folder_path(table.location)
        (root / "_files").mkdir(parents=True)
        begun = self.session.begin()
        staged = []
        written = uuid.uuid4()
        for number in range(files):
            file_id = begun.txn_id << FILE_NUMBER_BITS | number
            path = data_path(file_id, uuid.uuid4().hex)
            day = date(2024, 1, 1) + timedelta(days=number % DAYS) if by_day else None
            ids = [column.id for column in table.descriptor.columns]
            content = _rows(number * rows, rows, ids, day=day)
            pq.write_table(content, root / path, compression="snappy")
            place = plain if day is None else plain / f"day={day}"
            place.mkdir(exist_ok=True)
            os.link(root / path, place / f"part-{number:05}-{written}-c000.snappy.parquet")
            staged.append(
                DataFile(
                    file_id=file_id,
                    path=path,
                    rows=rows,
                    bytes=(root / path).stat().st_size,
                    schema_version=1,
                    partition=_partition(table.descriptor, day),
                )
            )
        self.session.stage(begun.txn_id, table.descriptor.id, add=staged)
        self.session.commit(begun.txn_id)
        listed = ", ".join(f"{column.name} {simple_string(column.type)}" for column in columns)
        self.spark.sql(
            f"CREATE TABLE plain_{name} ({listed}) USING parquet"
            f" {'PARTITIONED BY (day)' if by_day else ''} LOCATION 'file:{plain}'"
        )
        if by_day:
            self.spark.sql(f"MSCK REPAIR TABLE plain_{name}")

    def compare(self, name: str, query: str, *, of: str) -> tuple[float, float]:
        """Return the median seconds of ``query`` on a table and on the plain table, in turns."""
        tables = (name, f"plain_{name}")
        spent: list[list[float]] = [[], []]
        warm_up, rounds = ROUNDS[of]
        for number in range(warm_up + rounds):
            for table, seconds in zip(tables, spent, strict=True):
                took = self.spark.seconds(query.format(table), of=of)
                if number >= warm_up:
                    seconds.append(took)
        ours, plain = map(statistics.median, spent)
        return ours, plain

    def delete(self, name: str, share: float) -> None:
        """Delete a ``share`` (0 to 1) of the rows of each file."""
        snapshot = self.session.open([name])
        table = snapshot.table(name)
        files = self.session.files(table.descriptor.id, snapshot.write_ids_of(name)).data_files
        chance = np.random.default_rng(7)
        pieces = [
            pa.table(
                {
                    "file_id": np.full(int(file.rows * share), file.file_id),
                    "position": chance.choice(file.rows, int(file.rows * share), replace=False),
                },
                schema=POSITIONS,
            )
            for file in files
        ]
        begun = self.session.begin()
        folder = TableFolder(table.location, table=name)
        bitmaps = bitmaps_of(pa.concat_tables(pieces))
        deleted = write_delete_file(folder, bitmaps, txn_id=begun.txn_id)
        folder.close()
        touched = [file.path for file in files]
        self.session.stage(begun.txn_id, table.descriptor.id, add=[deleted], touch=touched)
        self.session.commit(begun.txn_id)


def _partition(table: TableDescriptor, day: date | None) -> Partition:
    epoch = date(1970, 1, 1)
    return tuple(
        PartitionValue(field.id, None if day is None else (day - epoch).days)
        for field in table.partitioning
    )


def _rows(first: int, count: int, ids: list[int], *, day: date | None) -> pa.Table:
    chance = np.random.default_rng(first)
    columns = {
        "id": np.arange(first, first + count),
        "price": chance.random(count),
        "comment": pa.array([f"comment {n % 1000}" for n in range(count)]),
        **{name: chance.integers(0, 1_000_000, count) for name in NUMBERS},
    }
    if day is not None:
        columns["day"] = pa.array([day] * count)
    table = pa.table(columns)
    fields = [
        field.with_metadata({"PARQUET:field_id": str(column_id)})
        for field, column_id in zip(table.schema, ids, strict=True)
    ]
    return table.cast(pa.schema(fields))


@contextmanager
def opened() -> Iterator[Bench]:
    """Start a node on an empty folder, and a Spark that uses it as its metastore."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = NodeProcess(folder / "lake", log=folder / "node.log")
        node.start()
        try:
            with (
                HttpSession(node.http_uri, user="bench") as session,
                SparkProcess(
                    node.thrift_uri, folder / "lake" / "warehouse", compiled=True
                ) as spark,
            ):
                yield Bench(session, spark, folder)
        finally:
            node.stop()


@benchmark(group="views", name="unmodified Spark, transactional table", unit="s", better="lower")
def views() -> list[Measured]:
    """Scan all columns, scan with deleted rows, and plan a query on a table of many files.

    Then query a table of as many files by the column that partitions it, and plan such a query.
    """
    with opened() as bench:
        bench.write("orders", files=FILES, rows=ROWS // FILES)
        whole = bench.compare("orders", "SELECT * FROM {}", of="scan")
        bench.delete("orders", DELETED)
        deleted = bench.compare("orders", "SELECT * FROM {}", of="scan")
        bench.write("many", files=MANY_FILES, rows=100)
        plans = bench.compare("many", "SELECT sum(n1) FROM {}", of="plan")
        bench.write("days", files=MANY_FILES, rows=1_000, by_day=True)
        whole_days = bench.compare("days", "SELECT day, sum(n1) FROM {} GROUP BY day", of="query")
        of_day = f"SELECT sum(n1) FROM {{}} WHERE day = '{DAY}'"
        one_day = bench.compare("days", of_day, of="query")
        plans_of_day = bench.compare("days", of_day, of="plan")
    return [
        Measured(ours, reference=plain, label=label, target=ratio and ratio * plain)
        for (ours, plain), label, ratio in (
            (whole, f"scan of {ROWS:,} rows", 1.1),
            (deleted, f"scan with {DELETED:.0%} of the rows deleted", 1.4),
            (plans, f"plan of {MANY_FILES:,} files", 1.5),
            (whole_days, f"all of {DAYS} partitions in {MANY_FILES:,} files", 1.5),
            (one_day, f"one of {DAYS} partitions in {MANY_FILES:,} files", 1.5),
            # Spark lists one folder of the plain table, but all files of the transactional table.
            (plans_of_day, f"plan of one of {DAYS} partitions", None),
        )
    ]
