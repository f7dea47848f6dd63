"""Random DDL on plain tables through two nodes, beside a model of what must be read.

Each table and each partition has a file that names it. So a table that shows the folder of another
one, and a partition whose folder is empty, moved away or that of a later partition, is found at
once, in the present on both nodes and at any earlier time. Versions are trimmed and the store is
cleaned meanwhile; what a kept version has must stay.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hive_metastore.ttypes import (
    AlreadyExistsException,
    Database,
    FieldSchema,
    InvalidObjectException,
    InvalidOperationException,
    MetaException,
    NoSuchObjectException,
    Partition,
)

from strandline.clock import Timestamp
from strandline.config import Settings
from strandline.errors import StrandlineError
from strandline.metastore.interface import AsOf
from tests.metastore.hive.hive_node import hive_node, storage, table
from tests.servers import stores
from tests.times import exact_text

SCHEMAS, TABLES, VALUES = ("a", "b"), ("t", "u", "v"), ("1", "2", "3")
TABLE_FILE, PARTITION_FILE = "of-table", "of-partition"
LOOKS_BACK_EVERY = 4
REFUSALS = (
    AlreadyExistsException,
    InvalidObjectException,
    InvalidOperationException,
    MetaException,
    NoSuchObjectException,
    StrandlineError,
)


class Name(NamedTuple):
    """A table by its name."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass
class ModelTable:
    """A table: its id, and for each of its partitions what the file in its folder says.

    If the partition key has ``capitals``, the client does with the folders of partitions what Spark
    does: it names them like the key, also after a rename.
    """

    id: int
    is_partitioned: bool
    is_external: bool = False
    capitals: bool = False
    partitions: dict[str, str] = field(default_factory=dict)


Model = dict[Name, ModelTable]


WEIGHTS = {  # of the steps, by the names of their methods
    "create": 2,
    "create_partitioned": 5,
    "create_external": 2,
    "drop": 3,
    "rename": 4,
    "add_columns": 2,
    "truncate": 1,
    "add_partition": 8,
    "drop_partition": 5,
    "rename_partition": 5,
    "undrop": 3,
    "undrop_partitions": 6,
    "undo": 4,
    "drop_schema": 1,
    "trim": 2,
    "clean": 2,
}


class PlainModel:
    """Two nodes on one new store, and the model. A context manager."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._opened = ExitStack()
        settings = Settings(metadata_staleness_ms=0, snapshot_hold_ms=0)
        store = stores.new_store(kind, folder / "lake", settings=settings)
        enter = self._opened.enter_context
        self._nodes = [enter(hive_node(store.address, settings=store.settings)) for _ in range(2)]
        self._stubs = [enter(node.stub()) for node in self._nodes]
        self._sessions = [node.node.session(user="ann") for node in self._nodes]
        self._numbers = iter(range(1, 1_000_000))
        self.tables: Model = {}
        self._dropped: list[tuple[Name, ModelTable]] = []
        self._known: dict[int, ModelTable] = {}
        self._past: list[tuple[int, Timestamp, Model]] = []
        self.log: list[tuple[object, ...]] = []

    def __enter__(self) -> PlainModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def run(self, steps: int) -> None:
        """Take random steps; compare with the model after each one."""
        for number in range(steps):
            self._step()
            for node in range(len(self._nodes)):
                self._compare_present(node)
            if number % LOOKS_BACK_EVERY == 0:
                self._compare_past()

    # -- steps -------------------------------------------------------------------------------------

    def _step(self) -> None:
        node = self._random.randrange(2)
        self._client, self._session = self._stubs[node], self._sessions[node]
        for schema in SCHEMAS:
            if schema not in self._client.get_all_databases():
                self._client.create_database(Database(schema))
        (step,) = self._random.choices([*WEIGHTS], [*WEIGHTS.values()])
        self.log.append((node, step))
        try:
            getattr(self, f"_{step}")()
            self.log[-1] += ("done",)
        except REFUSALS as refused:
            self.log[-1] += (getattr(refused, "message", ""),)
        assert "internal error" not in str(self.log[-1][-1]).lower()
        self._known |= {known.id: known for known in self.tables.values()}
        for stub in self._stubs:
            stub.get_all_databases()  # a look at the log
        catalogs = self._nodes[node].node.metastore.catalogs
        moment = (catalogs.latest_catalog().version, catalogs.complete_now())
        self._past.append((*moment, copy.deepcopy(self.tables)))

    def _create(self, *, is_partitioned: bool = False, is_external: bool = False) -> None:
        name = self._pick(self._free(), any_of=True)
        new = table(name.table, schema=name.schema)
        capitals = is_partitioned and self._random.random() < 0.5
        if is_partitioned:
            new.partitionKeys = [FieldSchema("P" if capitals else "p", "string", None)]
        if is_external:
            new.tableType, new.parameters = "EXTERNAL_TABLE", {"EXTERNAL": "TRUE"}
            place = self._folder / f"external-{next(self._numbers)}"
            place.mkdir()
            new.sd.location = f"file:{place}"
        self._client.create_table(new)
        assert name not in self.tables
        created = ModelTable(self._id_of(name), is_partitioned, is_external, capitals)
        assert created.id not in self._known
        self._write_table_file(name, created)
        self.tables[name] = created

    def _create_partitioned(self) -> None:
        self._create(is_partitioned=True)

    def _create_external(self) -> None:
        self._create(is_external=True)

    def _drop(self) -> None:
        name = self._pick([*self.tables], any_of=True)
        self._client.drop_table(*name, True)
        self._dropped.append((name, self.tables.pop(name)))

    def _rename(self) -> None:
        name, to = self._pick([*self.tables], any_of=True), self._pick(self._free(), any_of=True)
        new = self._client.get_table(*name)
        new.dbName, new.tableName = to
        self._client.alter_table(*name, new)
        if to != name:
            assert to not in self.tables
            self.tables[to] = self.tables.pop(name)

    def _add_columns(self) -> None:
        name = self._pick([*self.tables], any_of=True)
        new = self._client.get_table(*name)
        new.sd.cols = [*new.sd.cols, FieldSchema(f"c{next(self._numbers)}", "string", None)]
        self._client.alter_table(*name, new)

    def _truncate(self) -> None:
        name = self._pick([*self.tables])
        truncated = self.tables.get(name)
        if truncated and not truncated.is_external and not truncated.is_partitioned:
            self._client.truncate_table(*name, [])
            self._write_table_file(name, truncated)

    def _add_partition(self) -> None:
        name, value = self._pick(self._partitioned(), any_of=True), self._random.choice(VALUES)
        location = None
        if name in self.tables and self.tables[name].capitals:
            location = f"{self._client.get_table(*name).sd.location}/P={value}"
        self._client.add_partition(Partition([value], *name, sd=storage(location=location)))
        assert value not in self.tables[name].partitions
        text = str(next(self._numbers))
        location = self._client.get_partition(*name, [value]).sd.location
        (_path(location) / PARTITION_FILE).write_text(text)
        self.tables[name].partitions[value] = text

    def _drop_partition(self) -> None:
        name, value = self._existing_partition()
        self._client.drop_partition(*name, [value], True)
        del self.tables[name].partitions[value]

    def _rename_partition(self) -> None:
        name, value = self._existing_partition()
        to = self._random.choice(VALUES)
        self.log[-1] += (to,)
        new = self._client.get_partition(*name, [value])
        new.values = [to]
        self._client.rename_partition(*name, [value], new)
        partitions = self.tables[name].partitions
        if to != value:
            assert to not in partitions
            partitions[to] = partitions.pop(value)
        if self.tables[name].capitals:
            new = self._client.get_partition(*name, [to])
            folder = _path(new.sd.location)
            new.sd.location = f"file:{folder.rename(folder.with_name(f'P={to}'))}"
            self._client.alter_partition(*name, new)

    def _undrop(self) -> None:
        name = self._pick([name for name, _ in self._dropped], any_of=True)
        self._session.undrop(f"{name}")
        number, restored = max(
            (number, dropped)
            for number, (dropped_name, dropped) in enumerate(self._dropped)
            if dropped_name == name
        )
        del self._dropped[number]
        self.tables[name] = restored

    def _undrop_partitions(self) -> None:
        self._session.undrop_partitions(f"{self._pick(self._partitioned(), any_of=True)}")
        self._adopt()

    def _undo(self) -> None:
        latest = self._nodes[0].node.metastore.catalogs.latest_catalog().version
        version = latest - self._random.randrange(4)
        self.log[-1] += (version,)
        self._session.undo(version)
        self._adopt()

    def _drop_schema(self) -> None:
        schema = self._random.choice(SCHEMAS)
        self._client.drop_database(schema, True, True)
        for name in [name for name in self.tables if name.schema == schema]:
            self._dropped.append((name, self.tables.pop(name)))
        if self._random.random() < 0.5:
            self._session.undrop(schema, kind="schema")
            self._adopt()

    def _trim(self) -> None:
        version = self._earliest() + self._random.randrange(12)
        self.log[-1] += (version,)
        self._session.compact(version)

    def _clean(self) -> None:
        cleaned = self._random.choice(self._nodes).node.cleaner.clean().parts
        self.log[-1] += tuple(f"{each.what} {each.table}" for each in cleaned)

    def _earliest(self) -> int:
        """The earliest version that is kept."""
        return self._nodes[0].node.metastore.catalogs.earliest_catalog().version

    # -- choices -----------------------------------------------------------------------------------

    def _pick(self, names: Sequence[Name], *, any_of: bool = False) -> Name:
        """One of ``names``; with ``any_of``, sometimes any name, which may be refused."""
        if not names or (any_of and self._random.random() < 0.1):
            name = Name(self._random.choice(SCHEMAS), self._random.choice(TABLES))
        else:
            name = self._random.choice(names)
        self.log[-1] += (f"{name}",)
        return name

    def _free(self) -> list[Name]:
        names = (Name(schema, name) for schema in SCHEMAS for name in TABLES)
        return [name for name in names if name not in self.tables]

    def _partitioned(self) -> list[Name]:
        return [name for name, known in self.tables.items() if known.is_partitioned]

    def _existing_partition(self) -> tuple[Name, str]:
        name = self._pick(self._partitioned(), any_of=True)
        known = self.tables.get(name)
        value = self._random.choice([*(known.partitions if known else ())] or VALUES)
        self.log[-1] += (value,)
        return name, value

    # -- comparisons -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over what an undo has brought back, if each file still names its table."""
        present: Model = {}
        schemas = self._client.get_all_databases()
        for schema in filter(schemas.__contains__, SCHEMAS):
            for table_name in sorted(self._client.get_all_tables(schema)):
                name = Name(schema, table_name)
                known = self._known[self._id_of(name)]
                partitions = self._partition_texts(0, *name) if known.is_partitioned else {}
                present[name] = replace(known, partitions=partitions)
        ids = {known.id for known in present.values()}
        self._dropped += [(name, lost) for name, lost in self.tables.items() if lost.id not in ids]
        self._dropped = [each for each in self._dropped if each[1].id not in ids]
        self.tables = present

    def _compare_present(self, node: int) -> None:
        for schema in self._stubs[node].get_all_databases():
            expected = {name.table for name in self.tables if name.schema == schema}
            assert set(self._stubs[node].get_all_tables(schema)) == expected
        for name, known in self.tables.items():
            location = self._stubs[node].get_table(*name).sd.location
            assert (_path(location) / TABLE_FILE).read_text() == str(known.id)
            if known.is_partitioned:
                assert self._partition_texts(node, *name) == known.partitions

    def _compare_past(self) -> None:
        """Compare one recorded moment, read by its time, and the last one of its version."""
        earliest = self._earliest()
        self._past = [past for past in self._past if past[0] >= earliest]
        version, moment, tables = self._random.choice(self._past)
        node = self._random.randrange(2)
        last = [recorded for number, _, recorded in self._past if number == version][-1]
        for at, text, expected in (
            (AsOf(time=moment), exact_text(moment), tables),
            (AsOf(version=version), str(version), last),
        ):
            for name, known in expected.items():
                location = self._sessions[node].table(f"{name}", at=at).location
                assert (_path(location) / TABLE_FILE).read_text() == str(known.id)
                if known.is_partitioned:
                    texts = self._partition_texts(node, f"{name.schema}@{text}", name.table)
                    assert texts == known.partitions

    def _partition_texts(self, node: int, schema: str, name: str) -> dict[str, str]:
        return {
            partition.values[0]: (_path(partition.sd.location) / PARTITION_FILE).read_text()
            for partition in self._stubs[node].get_partitions(schema, name, -1)
        }

    def _write_table_file(self, name: Name, known: ModelTable) -> None:
        location = self._client.get_table(*name).sd.location
        (_path(location) / TABLE_FILE).write_text(str(known.id))

    def _id_of(self, name: Name) -> int:
        return self._session.table(f"{name}").descriptor.id


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))
