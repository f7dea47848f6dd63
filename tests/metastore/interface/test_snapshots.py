"""What every `Session` reads of tables: their files as of a time, a version or a transaction."""

from __future__ import annotations

from dataclasses import replace
from itertools import starmap
from pathlib import Path

import pytest

from strandline.catalog.commands import (
    AlterColumn,
    ColumnDefinition,
    DropColumns,
    DropTable,
    RenameColumn,
    SetTableProperties,
)
from strandline.clock import Timestamp
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.metastore.interface import AsOf, ColumnBounds, ResolvedTable, Session, TableFiles
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile
from strandline.model.descriptors import TableKind
from strandline.model.partitioning import PartitionValue, Physical
from strandline.model.types import BIGINT, INT, STRING, TIMESTAMP
from strandline.transactions import ValidWriteIdList
from tests.metastore.interface.calls import Served, create, data, paths, write
from tests.metastore.snapshots import files_of, paths_of


def test_all_attributes_of_files_are_staged_and_read_back(
    session: Session, table: ResolvedTable
) -> None:
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


def test_bounds_select_the_files_that_may_hold_matching_rows(
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
    with pytest.raises(InvalidInput, match="'x' is not a bound of column 1; write it as"):
        parts(ColumnBounds(1, lower="x"))


PARTITIONED = ("day(ts)", "bucket(4, k)", "v")


def test_files_of_a_partitioned_table_have_valid_partitions_and_are_found_by_columns(
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
    assert found(ColumnBounds(1, values=("0",))) == []  # its bucket, 0, has no file
    assert session.files(table_id, write_ids).data_files[1] == file(2, -1, 3, "")
    session.execute(RenameColumn(schema=schema, table="t", column="v", new_name="w"))
    assert session.table(table.name).descriptor.partitioning == fields
    assert found(ColumnBounds(2, lower="a")) == ["1"]

    txn_id = session.begin().txn_id
    for bad, message in (
        (file(4), r"0 values, of the fields \[\], the table has \[1000, 1001, 1002\]"),
        (file(4, 0, 2), r"2 values, of the fields \[1000, 1001\]"),
        (file(4, "1970-01-01", 2, "a"), "'1970-01-01' is not a valid value of ts_day, day"),
        (file(4, 0, 4, "a"), r"4 is not a valid value of k_bucket, bucket\[4\]"),
        (file(4, 0, 2, 7), "7 is not a valid value of v, identity"),
    ):
        with pytest.raises(InvalidInput, match=message):
            session.stage(txn_id, table_id, add=[bad])
    session.abort(txn_id)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            DropColumns(schema="", table="t", names=("v",)),
            "t is partitioned by 'v', which cannot be dropped",
        ),
        (
            AlterColumn(schema="", table="t", column="k", type=BIGINT),
            "partitioned by 'k', which cannot change",
        ),
    ],
)
def test_a_column_that_partitions_a_table_cannot_be_dropped_or_change_its_type(
    session: Session, schema: str, command: DropColumns | AlterColumn, message: str
) -> None:
    made = create(schema, "t", ColumnDefinition("k", INT), ColumnDefinition("v", STRING))
    definition = replace(made.definition, partitioned_by=PARTITIONED[1:])
    session.execute(replace(made, definition=definition))
    with pytest.raises(IllegalChange, match=message):
        session.execute(replace(command, schema=schema))


def test_partition_columns_need_a_plain_and_partitioned_by_a_transactional_table(
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


def test_a_snapshot_always_gives_the_same_files(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    old = session.open([table.name]).write_ids_of(table.name)
    write(session, table_id, data("b", file_id=2))
    assert paths(session.files(table_id, old)) == ["a"]
    assert paths_of(session, table.name) == ["a", "b"]


def test_a_snapshot_as_of_a_time_has_exactly_the_commits_up_to_that_time(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    first = session.transaction(write(session, table_id, data("a"))).commit_time
    write(session, table_id, data("b", file_id=2))
    assert first is not None
    assert session.open([table.name], at=AsOf(time=first)).time == first
    assert paths_of(session, table.name, at=AsOf(time=first)) == ["a"]
    assert paths_of(session, table.name, at=AsOf(time=Timestamp(first - 1))) == []


@pytest.mark.parametrize("of_kind", [TableKind.MANAGED, TableKind.EXTERNAL])
def test_a_dropped_table_can_be_read_as_of_a_time_before_the_drop(
    session: Session, schema: str, of_kind: TableKind, tmp_path: Path
) -> None:
    location = None if of_kind is TableKind.MANAGED else f"file://{tmp_path}"
    made = create(schema)
    definition = replace(made.definition, kind=of_kind, location=location)
    session.execute(replace(made, definition=definition))
    table = session.table(f"{schema}.t")
    time = session.transaction(write(session, table.descriptor.id, data("a"))).commit_time
    session.execute(DropTable(schema=schema, table="t"))
    past = session.open([table.name], at=AsOf(time=time))
    assert paths(session.files(table.descriptor.id, past.write_ids_of(table.name))) == ["a"]
    with pytest.raises(ObjectNotFound, match="no table has, or had, the id"):
        session.files(2**62, past.write_ids_of(table.name))


def test_a_snapshot_as_of_a_version_has_the_commits_before_the_next_version(
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


def test_a_transaction_sees_the_state_of_its_begin_and_its_own_writes(
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


def test_a_list_of_write_ids_has_the_open_and_the_aborted_writes(
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


def test_a_snapshot_of_several_tables_is_of_one_moment(session: Session, schema: str) -> None:
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


def test_a_snapshot_resolves_table_names_in_its_own_catalog(session: Session, schema: str) -> None:
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
    message = f"contains {schema}.t, not {schema}.u; name the table when"
    with pytest.raises(InvalidInput, match=message):
        new.table(f"{schema}.u")


def test_an_empty_list_of_write_ids_shows_nothing(session: Session, table: ResolvedTable) -> None:
    write(session, table.descriptor.id, data("a"))
    assert paths(session.files(table.descriptor.id, ValidWriteIdList(hwm=0))) == []
