"""What every `Session` does, run over both implementations on one store.

One node is shared by all tests of this module, as clients share one; each test works in a schema of
its own. What would disturb others (compaction, time-outs) has a node of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from zlib import crc32

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    DropColumns,
    DropTable,
    RenameColumn,
    SetTableProperties,
    TableDefinition,
    ViewDefinition,
)
from strandline.catalog.differences import DifferenceKind, FieldDifference
from strandline.clock import Timestamp
from strandline.errors import (
    AlreadyExists,
    Conflict,
    HoldExpired,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    TransactionNotFound,
    UnsupportedOperation,
    VersionNotFound,
    WriteConflict,
)
from strandline.metastore.interface import AsOf, ColumnBounds, ResolvedTable, Session, TableFiles
from strandline.metastore.session import HttpSession
from strandline.metastore.session.calls import CALLS
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile
from strandline.model.partitioning import PartitionValue, Physical
from strandline.model.types import (
    BIGINT,
    INT,
    STRING,
    TIMESTAMP,
    ArrayType,
    StructField,
    StructType,
)
from strandline.node import Node
from strandline.transactions import HolderType, TransactionState, ValidWriteIdList
from tests.metastore.session.served import serving
from tests.metastore.snapshots import files_of, paths_of
from tests.servers import stores

USER = "ann é"
NOBODYS = 10**12
"""An id that nothing has."""


@dataclass
class Served:
    node: Node
    url: str

    def open(self, kind: str, *, user: str = USER) -> Session:
        """A session of that kind."""
        return self.node.session(user=user) if kind == "local" else HttpSession(self.url, user=user)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What crosses HTTP does not depend on what the store is kept in."""
    kinds = {"folder": ["local", "http"], "postgresql": ["local"]}
    if "kind" in metafunc.fixturenames:
        pairs = [(store, kind) for store in kinds for kind in kinds[store]]
        metafunc.parametrize(("store_kind", "kind"), pairs, scope="module")
    elif "store_kind" in metafunc.fixturenames:
        metafunc.parametrize("store_kind", kinds, scope="module")


@pytest.fixture(scope="module")
def served(store_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = stores.new_store(store_kind, tmp_path_factory.mktemp("store"))
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        yield Served(node, url)


@pytest.fixture
def own_node(store_kind: str, tmp_path: Path) -> Iterator[Served]:
    store = stores.new_store(store_kind, tmp_path)
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        yield Served(node, url)


@pytest.fixture
def session(served: Served, kind: str) -> Iterator[Session]:
    opened = served.open(kind)
    yield opened
    opened.close()


_numbers = itertools.count(1)


@pytest.fixture
def schema(session: Session) -> str:
    name = f"s{next(_numbers)}"
    session.execute(CreateSchema(name=name))
    return name


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


@pytest.fixture
def table(session: Session, schema: str) -> ResolvedTable:
    session.execute(create(schema))
    return session.table(f"{schema}.t")


def data(path: str, *, file_id: int | None = None, rows: int = 10) -> DataFile:
    if file_id is None:
        file_id = crc32(path.encode()) >> 12
    return DataFile(file_id=file_id, path=path, rows=rows, bytes=100)


def write(session: Session, table_id: int, *files: DataFile | DeleteFile) -> int:
    """Add files in a transaction that commits; its id."""
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=files)
    session.commit(txn_id)
    return txn_id


def paths(files: TableFiles) -> list[str]:
    return [file.path for file in files.data_files]


def test_every_method_of_a_session_crosses_http() -> None:
    assert set(CALLS) == Session.__abstractmethods__ - {"close"}


# -- catalog -------------------------------------------------------------------------------------


def test_a_batch_of_ddl_is_one_version_that_says_what_it_changed(session: Session) -> None:
    name = f"s{next(_numbers)}"
    again = CreateSchema(name=name, if_not_exists=True)
    done = session.execute([CreateSchema(name=name, comment="Été"), again, create(name)])
    assert done.applied == (True, False, True)
    found = session.table(f"{name}.t")
    assert found.catalog_version == done.version
    assert session.history(start=done.version)[0].time == done.time


def test_one_command_needs_no_list(session: Session, schema: str) -> None:
    assert session.execute(create(schema)).applied == (True,)


def test_a_batch_without_commands_changes_nothing(session: Session) -> None:
    before = session.history()[-1].version
    done = session.execute([])
    assert (done.applied, session.history()[-1].version) == ((), before)


def test_a_refused_batch_changes_nothing(session: Session, schema: str) -> None:
    with pytest.raises(AlreadyExists):
        session.execute([create(schema, "a"), CreateSchema(name=schema)])
    assert session.tables(schema) == []


def test_a_table_is_the_same_through_both(served: Served, session: Session, schema: str) -> None:
    nested = StructType(
        (
            StructField("x", ArrayType(StructType((StructField("y", INT, comment="tief"),)))),
            StructField("z", STRING, nullable=False, metadata='{"a":[1,"é"]}'),
        )
    )
    columns = (
        ColumnDefinition("k", BIGINT, nullable=False, comment="the key"),
        ColumnDefinition("s", nested, default="NULL", metadata='{"unit":"m"}'),
        ColumnDefinition("p", STRING),
    )
    command = create(schema, "t", *columns)
    definition = replace(
        command.definition,
        partitioned_by=("bucket(4, k)", "p"),
        primary_key=("k",),
        properties=(("a", "1"), ("b", "zwei")),
        comment="flights",
    )
    session.execute(replace(command, definition=definition))
    found = session.table(f"{schema}.t")
    assert found == served.node.session(user="bob").table(f"{schema}.t")
    stored = found.descriptor.columns[1].type
    assert isinstance(stored, StructType)
    assert [field.field_id for field in stored.fields] != [None, None]
    assert found.descriptor.owner == USER


def test_a_managed_table_lies_below_its_schema(session: Session, schema: str) -> None:
    session.execute(create(schema, "Flights"))
    location = session.table(f"{schema}.Flights").location
    assert location.endswith(f"/{schema}.db/flights")
    assert Path(location.removeprefix("file://")).is_dir()


def test_commands_of_every_layer_cross(session: Session, table: ResolvedTable) -> None:
    name = f"{table.schema}.t"
    session.execute(
        [
            AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),)),
            AlterColumn(schema=table.schema, table="t", column="n", type=BIGINT, comment="wide"),
            RenameColumn(schema=table.schema, table="t", column="n", new_name="m"),
            SetTableProperties(schema=table.schema, table="t", set=(("a", "1"),)),
            CreateView(
                schema=table.schema,
                definition=ViewDefinition(
                    name="w",
                    columns=(ColumnDefinition("k", BIGINT),),
                    original_text="SELECT k FROM t",
                    expanded_text=f"SELECT k FROM {name}",
                ),
            ),
        ]
    )
    changed = session.table(name).descriptor
    assert [c.name for c in changed.columns] == ["k", "v", "m"]
    assert (changed.columns[2].type, changed.columns[2].comment) == (BIGINT, "wide")
    assert changed.properties == (("a", "1"),)
    assert session.tables(table.schema) == ["t", "w"]


def test_a_table_can_be_read_as_of_a_version_and_a_time(
    session: Session, table: ResolvedTable
) -> None:
    name, before = f"{table.schema}.t", table.catalog_version
    done = session.execute(
        AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),))
    )
    assert session.table(name, at=AsOf(version=before)) == table
    assert session.table(name, at=AsOf(time=Timestamp(done.time - 1))) == table
    assert len(session.table(name, at=AsOf(time=done.time)).descriptor.columns) == 3
    assert session.tables(table.schema, at=AsOf(version=before)) == ["t"]


def test_a_version_is_undone_and_redone(session: Session, schema: str) -> None:
    session.execute(create(schema))
    before = session.table(f"{schema}.t")
    dropped = session.execute(DropTable(schema=schema, table="t"))
    undone = session.undo(dropped.version)
    assert undone.applied == (True,)
    restored = session.table(f"{schema}.t")
    assert (restored.descriptor, restored.location) == (before.descriptor, before.location)
    with pytest.raises(Conflict, match=f"came back in version {undone.version} by {USER}"):
        session.undo(dropped.version)
    session.undo(undone.version)
    assert session.tables(schema) == []
    session.undrop(f"{schema}.t")
    assert session.table(f"{schema}.t").descriptor == before.descriptor
    with pytest.raises(ObjectNotFound, match="no version from"):
        session.undrop(f"{schema}.never", kind="view")
    with pytest.raises(VersionNotFound):
        session.undo(10**9)
    with pytest.raises(InvalidInput, match="no partitions"):
        session.undrop_partitions(f"{schema}.t", partitions=["p=1"])


def test_versions_are_compared_by_object_and_field(session: Session, table: ResolvedTable) -> None:
    before = AsOf(version=table.catalog_version)
    done = session.execute(
        [
            AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),)),
            SetTableProperties(schema=table.schema, table="t", set=(("a", "1"),)),
        ]
    )
    after = AsOf(version=done.version)
    (found,) = session.differences(before, after)
    assert (found.kind, found.id, found.name) == ("table", table.descriptor.id, f"{table.schema}.t")
    assert found.change is DifferenceKind.ALTERED
    assert set(found.fields) == {
        FieldDifference("columns[n]", None, "n int"),
        FieldDifference("properties[a]", None, "1"),
        FieldDifference("schema_version", 1, 2),
        FieldDifference("next_column_id", 3, 4),
    }
    assert found in session.differences(before)
    assert session.differences(after, after) == ()


def test_history_says_who_did_what(session: Session, schema: str) -> None:
    done = session.execute(create(schema))
    (version,) = session.history(start=done.version, end=done.version + 1)
    ((verb, arguments),) = version.actions
    assert (version.author, version.trimmed, verb) == (USER, False, "create_table")
    assert arguments["table"] == f"{schema}.t"
    assert arguments["columns"] == ["k bigint", "v string"]
    assert session.history(end=1) == []


def test_compaction_refuses_older_reads_and_keeps_the_others(own_node: Served, kind: str) -> None:
    with_http = own_node.open(kind)
    with_http.execute(CreateSchema(name="s"))
    with_http.execute(create("s"))
    kept = with_http.table("s.t")
    version = kept.catalog_version
    assert with_http.compact(version) is True
    assert with_http.compact(version) is False
    assert with_http.table("s.t", at=AsOf(version=version)) == kept
    with pytest.raises(VersionNotFound, match=f"the earliest is version {version}"):
        with_http.table("s.t", at=AsOf(version=version - 1))
    assert [one.trimmed for one in with_http.history()] == [True, True, False]
    with_http.close()


# -- snapshots -----------------------------------------------------------------------------------


def test_files_cross_with_all_they_say(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    statistics = (
        ColumnStatistics(column_id=1, lower="-5", upper="12", nulls=0),
        ColumnStatistics(column_id=2, lower="é", upper=None, nulls=None),
    )
    file = DataFile(
        file_id=7, path="p=1/ü b.parquet", rows=1, bytes=2**40, statistics=statistics,
    )  # fmt: skip
    deletes = DeleteFile(path="d.parquet", file_ids=(7, 8), counts=(1, 3))
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[file, deletes, data("a.parquet", file_id=8)])
    session.commit(txn_id)
    files = files_of(session, table.name)
    assert files == TableFiles((data("a.parquet", file_id=8), file), (deletes,))


def test_a_reader_of_a_part_is_sent_the_files_that_may_hold_it(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id

    def file(number: int, *, low: int, high: int) -> DataFile:
        k = ColumnStatistics(column_id=1, lower=str(low), upper=str(high), nulls=0)
        return replace(data(f"{number}", file_id=number), statistics=(k,))

    deletes = [DeleteFile(path=f"d{number}", file_ids=(number,), counts=(1,)) for number in (1, 2)]
    write(session, table_id, *(file(n, low=9 * n, high=9 * n + 9) for n in range(4)), *deletes)
    write_ids = session.open([table.name]).write_ids_of(table.name)

    def parts(*bounds: ColumnBounds) -> list[str]:
        files = session.files(table_id, write_ids, bounds=bounds)
        paths = [file.path for file in files.data_files]
        return [*paths, *(file.path for file in files.delete_files)]

    assert parts() == ["0", "1", "2", "3", "d1", "d2"]
    assert parts(ColumnBounds(1, lower="28")) == ["3"]
    assert parts(ColumnBounds(1, upper="9")) == ["0", "1", "d1"]
    assert parts(ColumnBounds(1, values=("0", "36"))) == ["0", "3"]
    assert parts(ColumnBounds(1, null=True)) == parts(ColumnBounds(1, values=())) == []
    assert parts(ColumnBounds(1, "9", "10"), ColumnBounds(2, lower="x")) == ["0", "1", "d1"]
    assert parts(ColumnBounds(99, lower="x")) == parts()
    with pytest.raises(InvalidInput, match="'x' is no bound of column 1; write it as"):
        parts(ColumnBounds(1, lower="x"))


PARTITIONED = ("day(ts)", "bucket(4, k)", "v")


def test_a_partitioned_table_takes_files_of_its_partitions_and_finds_them_by_its_columns(
    session: Session, schema: str
) -> None:
    columns = (
        ColumnDefinition("k", BIGINT),
        ColumnDefinition("v", STRING),
        ColumnDefinition("ts", TIMESTAMP),
    )
    command = create(schema, "t", *columns)
    definition = replace(command.definition, partitioned_by=PARTITIONED)
    session.execute(replace(command, definition=definition))
    table = session.table(f"{schema}.t")
    fields = table.descriptor.partitioning
    assert [str(field) for field in fields] == [
        "day of column 3", "bucket[4] of column 1", "identity of column 2",
    ]  # fmt: skip

    def file(number: int, *values: Physical | None) -> DataFile:
        partition = zip((field.id for field in fields), values, strict=False)
        return replace(
            data(f"{number}", file_id=number), partition=tuple(starmap(PartitionValue, partition))
        )

    table_id = table.descriptor.id
    write(session, table_id, file(1, 0, 2, "a"), file(2, -1, 3, ""), file(3, None, None, None))
    write_ids = session.open([table.name]).write_ids_of(table.name)

    def found(*bounds: ColumnBounds) -> list[str]:
        return paths(session.files(table_id, write_ids, bounds=bounds))

    assert found() == ["1", "2", "3"]
    assert found(ColumnBounds(3, upper="1969-12-31T23:59:59Z")) == ["2"]
    assert found(ColumnBounds(3, lower="1970-01-01T00:00:00Z")) == ["1"]
    assert found(ColumnBounds(2, without=("a",))) == ["2"]
    assert found(ColumnBounds(2, null=True)) == ["3"]
    assert found(ColumnBounds(2)) == ["1", "2"]
    assert found(ColumnBounds(1, values=("0",))) == []  # its bucket is 0
    assert session.files(table_id, write_ids).data_files[1] == file(2, -1, 3, "")
    session.execute(RenameColumn(schema=schema, table="t", column="v", new_name="w"))
    assert session.table(table.name).descriptor.partitioning == fields
    assert found(ColumnBounds(2, lower="a")) == ["1"]

    txn_id = session.begin().txn_id
    for bad, message in (
        (file(4), r"0 values, of the fields \[\], the table has \[1000, 1001, 1002\]"),
        (file(4, 0, 2), r"2 values, of the fields \[1000, 1001\]"),
        (file(4, "1970-01-01", 2, "a"), "'1970-01-01' is no value of ts_day, day"),
        (file(4, 0, 4, "a"), r"4 is no value of k_bucket, bucket\[4\]"),
        (file(4, 0, 2, 7), "7 is no value of v, identity"),
    ):
        with pytest.raises(InvalidInput, match=message):
            session.stage(txn_id, table_id, add=[bad])
    session.abort(txn_id)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (DropColumns(schema="", table="t", names=("v",)), "identity of 'v', which cannot be"),
        (AlterColumn(schema="", table="t", column="k", type=BIGINT), r"bucket\[4\] of 'k', which"),
    ],
)
def test_a_column_that_partitions_is_kept_as_it_is(
    session: Session, schema: str, command: DropColumns | AlterColumn, message: str
) -> None:
    made = create(schema, "t", ColumnDefinition("k", INT), ColumnDefinition("v", STRING))
    definition = replace(made.definition, partitioned_by=PARTITIONED[1:])
    session.execute(replace(made, definition=definition))
    with pytest.raises(IllegalChange, match=message):
        session.execute(replace(command, schema=schema))


def test_the_partitions_of_plain_and_of_transactional_tables_are_not_mixed_up(
    session: Session, schema: str
) -> None:
    made = create(schema)
    wrong = (
        replace(made.definition, partition_columns=("v",)),
        replace(made.definition, partitioned_by=("v",), transactional=False),
    )
    for definition in wrong:
        with pytest.raises(UnsupportedOperation, match="partition"):
            session.execute(replace(made, definition=definition))


def test_a_table_that_was_never_written_has_no_files(
    session: Session, table: ResolvedTable
) -> None:
    assert files_of(session, table.name) == TableFiles((), ())


def test_a_snapshot_gives_the_same_rows_for_ever(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    old = session.open([table.name]).write_ids_of(table.name)
    write(session, table_id, data("b", file_id=2))
    assert paths(session.files(table_id, old)) == ["a"]
    assert paths_of(session, table.name) == ["a", "b"]


def test_a_snapshot_as_of_a_time_ends_with_the_commits_up_to_it(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    first = session.transaction(write(session, table_id, data("a"))).commit_time
    write(session, table_id, data("b", file_id=2))
    assert first is not None
    assert session.open([table.name], at=AsOf(time=first)).time == first
    assert paths_of(session, table.name, at=AsOf(time=first)) == ["a"]
    assert paths_of(session, table.name, at=AsOf(time=Timestamp(first - 1))) == []


def test_a_snapshot_as_of_a_version_ends_where_the_version_does(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    version = session.table(f"{table.schema}.t").catalog_version
    session.execute(SetTableProperties(schema=table.schema, table="t", set=(("a", "1"),)))
    write(session, table_id, data("b", file_id=2))
    taken = session.open([table.name], at=AsOf(version=version))
    assert taken.catalog_version == taken.table(table.name).catalog_version == version
    assert paths(session.files(table_id, taken.write_ids_of(table.name))) == ["a"]


def test_a_transaction_sees_its_begin_and_its_own_writes(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    txn_id = session.begin().txn_id
    write(session, table_id, data("b", file_id=2))
    session.stage(txn_id, table_id, add=[data("c", file_id=3)])
    assert paths_of(session, table.name, txn_id=txn_id) == ["a", "c"]
    assert paths_of(session, table.name) == ["a", "b"]
    session.commit(txn_id)
    assert paths_of(session, table.name) == ["a", "b", "c"]


def test_a_list_with_open_and_aborted_writes_crosses(
    served: Served, session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    opened, aborted = session.begin().txn_id, session.begin().txn_id
    session.stage(opened, table_id, add=[data("open")])
    session.stage(aborted, table_id, add=[data("aborted", file_id=2)])
    write(session, table_id, data("a", file_id=3))
    session.abort(aborted)
    taken = session.open([table.name]).write_ids_of(table.name)
    assert (taken.open_ids, taken.aborted_ids, taken.hwm) == ((1,), (2,), 3)
    assert taken == served.node.transactions.write_ids(table_id)
    assert paths(session.files(table_id, taken)) == ["a"]
    session.abort(opened)


def test_a_snapshot_is_of_one_moment_for_several_tables(session: Session, schema: str) -> None:
    session.execute([create(schema, "a"), create(schema, "b")])
    names = [f"{schema}.a", f"{schema}.b"]
    before = session.open(names)
    a, b = (before.table(name).descriptor.id for name in names)
    txn_id = session.begin().txn_id
    session.stage(txn_id, a, add=[data("x")])
    session.stage(txn_id, b, add=[data("y")])
    opened = session.open(names)
    assert {i: w.hwm for i, w in opened.write_ids.items()} == {a: 0, b: 0}
    assert opened.table(names[0]) == session.table(names[0])
    session.commit(txn_id)
    assert {i: w.hwm for i, w in session.open(names).write_ids.items()} == {a: 1, b: 1}
    nothing = session.open([])
    assert (nothing.tables, nothing.write_ids) == ({}, {})


def test_names_of_tables_are_those_of_the_snapshots_own_catalog(
    session: Session, schema: str
) -> None:
    name = f"{schema}.t"
    session.execute(create(schema))
    begun = session.begin()
    old = session.open([name])
    session.execute(DropTable(schema=schema, table="t"))
    session.execute(create(schema, "t", ColumnDefinition("other", STRING)))
    new = session.open([f"{schema}.`T`", name.upper(), name])
    assert len(new.tables) == len(new.write_ids) == 1
    assert new.table(name).descriptor.id != old.table(name).descriptor.id
    past = session.open([name], at=AsOf(version=old.catalog_version)).table(name)
    assert past.descriptor == old.table(name).descriptor
    seen = session.open([name], txn_id=begun.txn_id)
    assert (seen.table(name), seen.time) == (past, begun.begin_time)
    with pytest.raises(InvalidInput, match=f"is of {schema}.t, not of {schema}.u; name it when"):
        new.table(f"{schema}.u")


# -- holds ---------------------------------------------------------------------------------------


def test_a_hold_is_taken_renewed_and_released(session: Session) -> None:
    at = session.open([]).time
    held = session.hold("reader", "ann", at=at, ttl_ms=60_000)
    assert (held.kind, held.owner, held.at) == ("reader", "ann", at)
    longer = session.renew_hold(held.hold_id, ttl_ms=600_000)
    assert longer == replace(held, expires=longer.expires)
    assert longer.expires > held.expires
    session.release_hold(held.hold_id)
    session.release_hold(held.hold_id)
    with pytest.raises(HoldExpired):
        session.renew_hold(held.hold_id)


def test_who_keeps_something_back_is_listed(session: Session) -> None:
    begun = session.begin()
    held = session.hold("backup", "job 7", at=begun.begin_time)
    present = session.holders()
    assert present.min_open_txn is not None
    assert present.min_open_txn <= begun.txn_id
    assert present.low_watermark <= begun.begin_time
    keepers = {(h.type, h.id): h for h in present.holders}
    transaction = keepers[HolderType.TRANSACTION, begun.txn_id]
    assert (transaction.kind, transaction.owner) == ("read-write", begun.user)
    assert transaction.since == begun.begin_time
    hold = keepers[HolderType.HOLD, held.hold_id]
    assert (hold.kind, hold.owner, hold.ends) == ("backup", "job 7", held.expires)
    session.release_hold(held.hold_id)
    session.abort(begun.txn_id)
    left = {(h.type, h.id) for h in session.holders().holders}
    assert not left & {(transaction.type, transaction.id), (hold.type, hold.id)}


# -- transactions --------------------------------------------------------------------------------


def test_a_transaction_says_who_began_it_and_how_it_stands(session: Session) -> None:
    begun = session.begin()
    assert (begun.user, begun.state, begun.read_only) == (USER, TransactionState.OPEN, False)
    assert session.transaction(begun.txn_id) == begun
    assert session.begin(read_only=True).read_only
    committed = session.commit(begun.txn_id)
    assert committed.state is TransactionState.COMMITTED
    assert committed.commit_time is not None
    assert committed.commit_time > begun.begin_time
    assert session.transaction(begun.txn_id) == committed


def test_commit_and_abort_succeed_again_when_repeated(
    session: Session, table: ResolvedTable
) -> None:
    committed, aborted = session.begin().txn_id, session.begin().txn_id
    session.stage(committed, table.descriptor.id, add=[data("a")])
    assert session.commit(committed) == session.commit(committed)
    assert session.abort(aborted) == session.abort(aborted)
    assert session.transaction(aborted).state is TransactionState.ABORTED


def test_a_write_id_is_given_once_for_each_table(session: Session, schema: str) -> None:
    session.execute([create(schema, "a"), create(schema, "b")])
    a, b = (session.table(f"{schema}.{name}").descriptor.id for name in "ab")
    write(session, a, data("x"))
    txn_id = session.begin().txn_id
    assert [session.stage(txn_id, i) for i in (a, b, a)] == [2, 1, 2]
    assert session.stage(txn_id, a, add=[data("y")]) == 2
    session.abort(txn_id)


def test_an_aborted_transaction_leaves_nothing(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data("b", file_id=2)], remove=["a"])
    session.abort(txn_id)
    assert paths_of(session, table.name) == ["a"]


def test_files_are_replaced_in_one_step(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"), data("b", file_id=2))
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data("ab", file_id=3)], remove=["a", "b"])
    assert paths_of(session, table.name) == ["a", "b"]
    session.commit(txn_id)
    assert paths_of(session, table.name) == ["ab"]


@pytest.mark.parametrize("how", ["remove", "touch", "name"])
def test_of_two_that_change_one_file_the_first_to_commit_wins(
    session: Session, table: ResolvedTable, how: str
) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    first, second = session.begin().txn_id, session.begin().txn_id
    for number, txn_id in enumerate((first, second)):
        file_ids = (data("a").file_id,)
        deletes = DeleteFile(path=f"d{number}", file_ids=file_ids, counts=(1,))
        if how == "touch":
            session.stage(txn_id, table_id, add=[deletes], touch=["a"])
        elif how == "remove":
            session.stage(txn_id, table_id, add=[deletes], remove=["a"])
        else:
            session.stage(txn_id, table_id, add=[deletes])
    session.commit(second)
    with pytest.raises(WriteConflict, match=f"transaction {second}"):
        session.commit(first)
    assert session.transaction(first).state is TransactionState.ABORTED
    assert [file.path for file in files_of(session, table.name).delete_files] == ["d1"]


def test_appends_of_two_transactions_are_both_there(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    first, second = session.begin().txn_id, session.begin().txn_id
    session.stage(first, table_id, add=[data("a")])
    session.stage(second, table_id, add=[data("b", file_id=2)])
    session.commit(second)
    session.commit(first)
    assert paths_of(session, table.name) == ["a", "b"]


def test_ddl_that_takes_the_table_away_is_a_conflict(
    session: Session, table: ResolvedTable
) -> None:
    txn_id = session.begin().txn_id
    session.stage(txn_id, table.descriptor.id, add=[data("a")])
    session.execute(DropTable(schema=table.schema, table="t"))
    with pytest.raises(WriteConflict, match="dropped"):
        session.commit(txn_id)


def test_ddl_that_adds_a_column_is_no_conflict(session: Session, table: ResolvedTable) -> None:
    txn_id = session.begin().txn_id
    session.stage(txn_id, table.descriptor.id, add=[data("a")])
    session.execute(
        AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),))
    )
    session.commit(txn_id)
    assert paths_of(session, table.name) == ["a"]


def test_a_heartbeat_is_heard(session: Session) -> None:
    begun = session.begin()
    session.heartbeat(begun.txn_id)
    assert session.transaction(begun.txn_id).last_heartbeat >= begun.last_heartbeat
    session.commit(begun.txn_id)
    session.heartbeat(begun.txn_id)  # a committed one has nothing left to lose


# -- errors --------------------------------------------------------------------------------------


@dataclass
class Ids:
    """What the calls that fail are made with."""

    schema: str
    table_id: int
    opened: int
    read_only: int
    committed: int
    aborted: int


def ddl(command: Callable[[Ids], Command]) -> Callable[[Session, Ids], object]:
    return lambda session, ids: session.execute(command(ids))


FAILURES: dict[str, tuple[type[StrandlineError], Callable[[Session, Ids], object]]] = {
    "create_a_schema_twice": (AlreadyExists, ddl(lambda i: CreateSchema(name=i.schema))),
    "create_a_table_nowhere": (ObjectNotFound, ddl(lambda i: create("no_such_schema"))),
    "drop_a_missing_table": (ObjectNotFound, ddl(lambda i: DropTable(schema=i.schema, table="x"))),
    "lose_data": (
        IllegalChange,
        ddl(lambda i: AlterColumn(schema=i.schema, table="t", column="k", type=INT)),
    ),
    "a_name_that_is_empty": (InvalidInput, ddl(lambda i: CreateSchema(name=""))),
    "table_missing": (ObjectNotFound, lambda s, i: s.table(f"{i.schema}.x")),
    "table_not_a_name": (InvalidInput, lambda s, i: s.table("a.b.c")),
    "table_future_version": (
        VersionNotFound,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(version=NOBODYS)),
    ),
    "table_negative_version": (
        InvalidInput,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(version=-1)),
    ),
    "table_not_a_time": (
        InvalidInput,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(time=Timestamp(0))),
    ),
    "tables_of_no_schema": (ObjectNotFound, lambda s, i: s.tables("no_such_schema")),
    "compact_the_future": (VersionNotFound, lambda s, i: s.compact(NOBODYS)),
    "open_the_future": (
        VersionNotFound,
        lambda s, i: s.open([f"{i.schema}.t"], at=AsOf(time=Timestamp(1 << 62))),
    ),
    "open_at_two_points": (
        InvalidInput,
        lambda s, i: s.open([f"{i.schema}.t"], at=AsOf(version=1), txn_id=i.opened),
    ),
    "open_in_no_transaction": (
        TransactionNotFound,
        lambda s, i: s.open([f"{i.schema}.t"], txn_id=NOBODYS),
    ),
    "open_in_an_aborted_one": (
        TransactionFinished,
        lambda s, i: s.open([f"{i.schema}.t"], txn_id=i.aborted),
    ),
    "open_a_missing_table": (
        ObjectNotFound,
        lambda s, i: s.open([f"{i.schema}.t", f"{i.schema}.x"]),
    ),
    "open_what_is_no_name": (InvalidInput, lambda s, i: s.open(["a.b.c"])),
    "open_one_name": (InvalidInput, lambda s, i: s.open(f"{i.schema}.t")),
    "hold_before_history": (VersionNotFound, lambda s, i: s.hold("r", "a", at=Timestamp(1))),
    "hold_for_no_time": (
        InvalidInput,
        lambda s, i: s.hold("r", "a", at=Timestamp(1 << 56), ttl_ms=0),
    ),
    "renew_no_hold": (HoldExpired, lambda s, i: s.renew_hold(NOBODYS)),
    "transaction_missing": (TransactionNotFound, lambda s, i: s.transaction(NOBODYS)),
    "heartbeat_missing": (TransactionNotFound, lambda s, i: s.heartbeat(NOBODYS)),
    "heartbeat_aborted": (TransactionFinished, lambda s, i: s.heartbeat(i.aborted)),
    "write_id_missing": (
        TransactionNotFound,
        lambda s, i: s.stage(NOBODYS, i.table_id),
    ),
    "write_id_committed": (
        TransactionFinished,
        lambda s, i: s.stage(i.committed, i.table_id),
    ),
    "write_id_read_only": (
        UnsupportedOperation,
        lambda s, i: s.stage(i.read_only, i.table_id),
    ),
    "stage_missing": (TransactionNotFound, lambda s, i: s.stage(NOBODYS, i.table_id)),
    "stage_committed": (
        TransactionFinished,
        lambda s, i: s.stage(i.committed, i.table_id, add=[data("x")]),
    ),
    "stage_read_only": (
        UnsupportedOperation,
        lambda s, i: s.stage(i.read_only, i.table_id, add=[data("x")]),
    ),
    "stage_a_taken_name": (
        AlreadyExists,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("there")]),
    ),
    "stage_a_name_twice": (
        AlreadyExists,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("x"), data("x")]),
    ),
    "stage_an_unknown_row": (
        WriteConflict,
        lambda s, i: s.stage(i.opened, i.table_id, remove=["never"]),
    ),
    "touch_an_unknown_row": (
        WriteConflict,
        lambda s, i: s.stage(i.opened, i.table_id, touch=["never"]),
    ),
    "stage_less_than_nothing": (
        InvalidInput,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("x", rows=-1)]),
    ),
    "stage_without_a_path": (
        InvalidInput,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("")]),
    ),
    "commit_missing": (TransactionNotFound, lambda s, i: s.commit(NOBODYS)),
    "commit_aborted": (TransactionFinished, lambda s, i: s.commit(i.aborted)),
    "abort_missing": (TransactionNotFound, lambda s, i: s.abort(NOBODYS)),
    "abort_committed": (TransactionFinished, lambda s, i: s.abort(i.committed)),
}


@pytest.fixture(scope="module")
def ids(served: Served) -> Iterator[Ids]:
    session = served.open("local")
    session.execute([CreateSchema(name="failures"), create("failures")])
    table_id = session.table("failures.t").descriptor.id
    committed = write(session, table_id, data("there"))
    aborted = session.begin().txn_id
    session.abort(aborted)
    made = Ids(
        schema="failures",
        table_id=table_id,
        opened=session.begin().txn_id,
        read_only=session.begin(read_only=True).txn_id,
        committed=committed,
        aborted=aborted,
    )
    yield made
    assert paths_of(session, "failures.t", txn_id=made.opened) == ["there"], (
        "a failure left something"
    )
    assert session.transaction(made.opened).state is TransactionState.OPEN


@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_has_its_class_and_the_same_message_everywhere(
    served: Served, ids: Ids, failure: str
) -> None:
    expected, call = FAILURES[failure]
    raised = []
    for kind in ("local", "http"):
        session = served.open(kind)
        with pytest.raises(expected) as caught:
            call(session, ids)
        session.close()
        raised.append((type(caught.value), _timeless(caught.value.message)))
    assert raised[0] == raised[1]


def _timeless(message: str) -> Sequence[str]:
    """The words of a message without the times in it, and without what they stand behind."""
    return [word for word in message.split() if not any(c.isdigit() for c in word)]


def test_an_empty_list_of_write_ids_shows_nothing(session: Session, table: ResolvedTable) -> None:
    write(session, table.descriptor.id, data("a"))
    assert paths(session.files(table.descriptor.id, ValidWriteIdList(hwm=0))) == []
