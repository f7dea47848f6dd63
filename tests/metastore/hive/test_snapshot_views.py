"""Views over the rows of transactional tables, and their hidden tables, without Spark."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import Database

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    DropTable,
    RenameColumn,
    RenameTable,
    SetTableProperties,
)
from strandline.clock import Timestamp, system_wall_clock
from strandline.errors import VersionNotFound
from strandline.metastore import snapshot_holds
from strandline.metastore.hive import snapshot_parts
from strandline.metastore.hive.hive_reader import HiveReader
from strandline.metastore.interface import Session
from strandline.metastore.off_loop import finish
from strandline.metastore.store.file_scans import READER_OPTIONS
from strandline.model.type_parser import parse_type
from strandline.model.types import BIGINT, INT
from strandline.node import Node
from strandline.spark.folder import folder_path
from tests.metastore.hive import dml
from tests.metastore.hive.hive_node import HiveNode, hive_node, refusal
from tests.sql.statements import recorded
from tests.times import exact_text

HIDDEN = re.compile(r"`([^`]*@(?:data|deletes)_[^`]*)`")


def text(stub: Any, table: str = "orders", *, schema: str = "d1") -> str:
    answer: str = stub.get_table(schema, table).viewExpandedText
    return answer


def hidden(stub: Any, table: str = "orders", *, schema: str = "d1") -> list[Any]:
    """The hidden tables that the text of a view names, in order."""
    return [
        stub.get_table(schema, name) for name in HIDDEN.findall(text(stub, table, schema=schema))
    ]


def place(session: Session, name: str = "d1.orders") -> str:
    """The URI of a table's folder, as Hadoop writes it."""
    return session.table(name).location.replace("file://", "file:")


def _as_expression(part: re.Match[str]) -> str:
    """A part of a glob pattern of Hadoop, as a regular expression."""
    words = {"{": "(?:", "}": ")", ",": "|", "?": "."}
    return re.escape(part[1]) if part[1] else words.get(part[2], re.escape(part[2]))


def names(hidden_table: Any) -> list[str]:
    """The names of the files that Spark would read: those in the folder that match the pattern."""
    pattern = hidden_table.sd.serdeInfo.parameters["pathGlobFilter"]
    matches = re.compile(re.sub(r"\\(.)|(.)", _as_expression, pattern)).fullmatch
    folder = folder_path(hidden_table.sd.location)
    return sorted(path.name for path in folder.rglob("*.parquet*") if matches(path.name))


def listed(hidden_table: Any) -> list[str]:
    """The names that the pattern of a hidden table lists one by one."""
    pattern = hidden_table.sd.serdeInfo.parameters["pathGlobFilter"]
    return str(pattern)[1:-1].split(",")


def checksums_in(view_text: str) -> list[dict[int, int]]:
    """The checksums of files with deleted rows by file id, for each join in the text of a view."""
    arrays = re.findall(r"map_from_arrays\(CAST\(split\('(.*?)',.*?split\('(.*?)',", view_text)
    numbers = [[list(map(int, array.split(","))) for array in pair] for pair in arrays]
    return [dict(zip(*pair, strict=True)) for pair in numbers]


def test_a_table_without_rows_reads_no_file(session: Session, stub: Any) -> None:
    (hidden_table,) = hidden(stub)
    assert names(hidden_table) == []
    assert "SELECT CAST(NULL AS INT) AS `id`, CAST(NULL AS STRING) AS `item` FROM" in text(stub)


def test_a_hidden_name_means_the_same_columns_after_ddl_also_without_rows(
    session: Session, stub: Any
) -> None:
    before, hidden_before = text(stub), hidden(stub)
    # Spark 3.5 reads no variant, and may have the columns of an older release in its cache.
    assert not {"id", "item"} & {column.name for column in hidden_before[0].sd.cols}
    added = ColumnDefinition("more", INT)
    session.execute(AddColumns(schema="d1", table="orders", columns=(added,)))
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    assert HIDDEN.findall(text(stub)) == HIDDEN.findall(before)
    assert hidden(stub) == hidden_before
    assert "CAST(NULL AS STRING) AS `what`, CAST(NULL AS INT) AS `more` FROM" in text(stub)


def test_only_the_files_of_the_snapshot_are_read(session: Session, stub: Any) -> None:
    ids = [dml.append(session, "d1.orders", {"id": n, "item": "x"}) for n in range(3)]
    open_id = session.begin().txn_id
    (hidden_table,) = hidden(stub)
    folder = place(session)
    assert hidden_table.sd.location == f"{folder}/_files"
    assert hidden_table.tableType == "EXTERNAL_TABLE"
    assert [name.partition("-")[0] for name in names(hidden_table)] == [str(i) for i in sorted(ids)]
    assert hidden_table.parameters["spark.sql.sources.provider"] == "parquet"
    assert hidden_table.parameters["spark.sql.statistics.numRows"] == "3"
    assert hidden_table.sd.serdeInfo.parameters.items() >= READER_OPTIONS.items()
    session.abort(open_id)


def test_files_with_similar_names_are_not_read(session: Session, stub: Any) -> None:
    """Leftovers have the id of a file and other digits; a copy has a name like the file's."""
    ids = [dml.append(session, "d1.orders", {"id": n, "item": "x"}) for n in range(2)]
    dml.append(session, "d1.orders", {"id": 3, "item": "x"}, path="_files/own,{x}?.parquet")
    hidden_table, own = hidden(stub)
    listed = names(hidden_table)
    assert [name.partition("-")[0] for name in listed] == [*map(str, ids)]
    folder = folder_path(hidden_table.sd.location)
    first = listed[0]
    for similar in (f"{ids[0]}-{'0' * 32}", f"{ids[0]}1-{first[-40:-8]}", f"1{first[:-8]}"):
        (folder / f"{similar}.parquet").touch()
    for similar in (f"{first}.tmp", f"{first}.parquet", f"a{first}", "own,xx.parquet"):
        (folder / similar).touch()
    assert (names(hidden_table), names(own)) == (listed, ["own,{x}?.parquet"])


def test_a_partitioned_table_shows_all_columns_and_all_files(
    hive: HiveNode, session: Session, stub: Any
) -> None:
    hive.create_transactional(
        "d1", "visits", partitioned_by=["bucket(4, id)", "day"], id="int", day="date"
    )
    for number in range(3):
        dml.append(session, "d1.visits", {"id": number, "day": date(2024, 1, 1 + number)})
    view = stub.get_table("d1", "visits")
    assert [(c.name, c.type) for c in view.sd.cols] == [("id", "int"), ("day", "date")]
    (hidden_table,) = hidden(stub, "visits")
    assert (view.partitionKeys or [], hidden_table.partitionKeys or []) == ([], [])
    assert [(c.name, c.type) for c in hidden_table.sd.cols] == [("id", "int"), ("day", "date")]
    assert len(names(hidden_table)) == 3


@pytest.fixture
def visits(hive: HiveNode, session: Session) -> str:
    """A table that is partitioned by a column as it is and by a month, with two days in files."""
    hive.create_transactional(
        "d1", "visits", partitioned_by=["day", "month(seen)"], id="int", day="date", seen="date"
    )
    for n in range(2):
        row = {"id": n, "day": date(2024, 1, 1 + n), "seen": date(2024, 1, 1)}
        dml.append(session, "d1.visits", row)
    return "visits"


def test_the_values_that_partition_a_table_come_from_the_names_of_the_files(
    session: Session, stub: Any, visits: str
) -> None:
    (hidden_table,) = hidden(stub, visits)
    checksums = ",".join(
        str(zlib.crc32(name.encode()))
        for name in sorted(names(hidden_table), key=lambda n: int(n.split("-")[0]))
    )
    assert (
        f"SELECT t.`id` AS `id`, date_from_unix_date(map_from_arrays("
        f"CAST(split('{checksums}', ',') AS ARRAY<BIGINT>),"
        f" CAST(split('19723,19724', ',') AS ARRAY<INT>))[_strandline_file]) AS `day`,"
        " t.`seen` AS `seen` FROM (SELECT *, crc32(CAST(_metadata.file_name AS BINARY))"
        " AS _strandline_file FROM `d1`." in text(stub, visits)
    )
    # The files have the column too, for other readers.
    assert [column.name for column in hidden_table.sd.cols] == ["id", "day", "seen"]


def test_a_renamed_column_has_its_values_under_the_new_name(
    session: Session, stub: Any, visits: str
) -> None:
    session.execute(RenameColumn(schema="d1", table=visits, column="day", new_name="date"))
    assert "[_strandline_file]) AS `date`" in text(stub, visits)


def test_joined_files_have_their_values_by_the_same_key(
    session: Session, stub: Any, visits: str
) -> None:
    rows = [{"id": n, "day": date(2024, 2, 1), "seen": date(2024, 1, 1)} for n in range(9)]
    for _ in range(2):
        dml.delete(session, "d1.visits", dml.append(session, "d1.visits", *rows), [3])
    (joined,) = text(stub, visits).split(" UNION ALL ")
    assert "[_strandline_file]) AS `day`" in joined
    assert joined.count("crc32(") == 1


def test_a_table_without_such_columns_is_read_without_the_names_of_its_files(
    hive: HiveNode, session: Session, stub: Any
) -> None:
    hive.create_transactional("d1", "buckets", partitioned_by=["bucket(4, id)"], id="int")
    for table in ("d1.orders", "d1.buckets"):
        for n in range(2):
            dml.append(session, table, {"id": n})
    for table in ("orders", "buckets"):
        assert "_metadata" not in text(stub, table)
        assert f"FROM `d1`.`{hidden(stub, table)[0].tableName}` AS t" in text(stub, table)


def test_files_whose_names_spark_may_escape_are_one_part_that_is_read_as_before(
    session: Session, stub: Any, visits: str
) -> None:
    for n in range(3):
        row = {"id": n, "day": date(2024, 1, 1 + n), "seen": date(2024, 1, 1)}
        dml.append(session, "d1.visits", row, path=f"_files/a {n}.parquet")
    by_name, as_before = text(stub, visits).split(" UNION ALL ")
    assert ("t.`day`" in by_name, "t.`day` AS `day`" in as_before) == (False, True)
    assert [len(names(part)) for part in hidden(stub, visits)] == [2, 3]


def test_the_text_of_a_view_stays_the_same_until_the_next_commit(
    session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    before = text(stub)
    session.abort(session.begin().txn_id)
    hidden_before = HIDDEN.findall(before)
    assert text(stub) == before
    dml.append(session, "d1.orders", {"id": 2, "item": "x"})
    assert HIDDEN.findall(text(stub)) != hidden_before
    # A reader that has the old text still finds the old rows.
    assert len(names(stub.get_table("d1", hidden_before[0]))) == 1


def test_a_view_of_the_present_writes_nothing_and_its_answer_is_kept(
    hive: HiveNode, session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    before = text(stub)
    mark = hive.node.metastore.mark()
    hits = hive.service.statistics().kept.hits
    assert mark is not None
    assert text(stub) == before
    assert hive.node.metastore.mark() == mark
    assert hive.service.statistics().kept.hits == hits + 1


def test_a_hidden_name_changes_with_the_location_and_an_old_name_finds_the_files(
    session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (old,) = HIDDEN.findall(text(stub))
    session.execute(RenameTable(schema="d1", table="orders", new_name="sold"))
    (new,) = HIDDEN.findall(text(stub, "sold"))
    assert old.rpartition("@")[2] != new.rpartition("@")[2]
    moved = f"{place(session, 'd1.sold')}/_files"
    assert {stub.get_table("d1", name).sd.location for name in (old, new)} == {moved}


def test_a_hidden_table_does_not_change_when_its_table_is_altered(tmp_path: Path) -> None:
    now_ms = [system_wall_clock()]
    with hive_node(tmp_path / "store", wall=lambda: now_ms[0]) as node, node.stub() as stub:
        node.create_transactional("default", "orders", id="int", item="string")
        session = node.node.session(user="ann")
        dml.append(session, "default.orders", {"id": 1, "item": "x"})
        (hidden_before,) = hidden(stub, schema="default")
        now_ms[0] += 10_000
        changed = SetTableProperties(
            schema="default", table="orders", set=(("k", "v"),), comment="all"
        )
        session.execute(changed)
        altered = stub.get_table("default", "orders")
        assert int(altered.parameters["transient_lastDdlTime"]) == now_ms[0] // 1000
        assert hidden(stub, schema="default") == [hidden_before]


def test_a_hidden_name_changes_if_a_file_without_a_version_gets_another_one(
    session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"}, versioned=False)
    dml.append(session, "d1.orders", {"id": 2, "item": "y"})
    (old,) = HIDDEN.findall(text(stub))
    (hidden_before,) = hidden(stub)
    session.execute(AlterColumn(schema="d1", table="orders", column="id", type=BIGINT))
    assert old not in HIDDEN.findall(text(stub))
    assert len(hidden(stub)) == 2
    # A reader that had the old text before the change reads both files by it.
    assert stub.get_table("d1", old) == hidden_before
    assert len(names(hidden_before)) == 2


def test_a_file_without_a_version_and_without_rows_does_not_prevent_a_read(
    session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    newer = dml.append(session, "d1.orders", {"id": 2, "what": "y"}, versioned=False)
    dml.delete(session, "d1.orders", newer, [0])
    (hidden_table,) = hidden(stub)
    assert len(names(hidden_table)) == 1


def test_a_file_with_the_path_of_a_dropped_one_has_its_own_columns(
    hive: HiveNode, session: Session, stub: Any
) -> None:
    path = "own/a.parquet"
    dml.append(session, "d1.orders", {"id": 1, "item": "x"}, path=path, versioned=False)
    assert "t.`item` AS `item`" in text(stub)
    session.execute(DropTable(schema="d1", table="orders", purge=True))
    hive.create_transactional("d1", "orders", item="string", number="int")
    dml.append(session, "d1.orders", {"item": "y", "number": 2}, path=path, versioned=False)
    assert "t.`item` AS `item`, t.`number` AS `number`" in text(stub)


def test_files_of_different_schema_versions_have_separate_hidden_tables(
    session: Session, stub: Any
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    session.execute(AlterColumn(schema="d1", table="orders", column="id", type=BIGINT))
    added = ColumnDefinition("item", INT)
    session.execute(AddColumns(schema="d1", table="orders", columns=(added,)))
    dml.append(session, "d1.orders", {"id": 2, "what": "y", "item": 5})
    first, second = text(stub).split(" UNION ALL ")
    assert "CAST(t.`id` AS BIGINT) AS `id`, t.`item` AS `what`" in first
    assert "CAST(NULL AS INT) AS `item`" in first
    assert "t.`id` AS `id`, t.`what` AS `what`, t.`item` AS `item`" in second
    old, new = hidden(stub)
    assert [(c.name, c.type) for c in old.sd.cols] == [("id", "int"), ("item", "string")]
    assert [(c.name, c.type) for c in new.sd.cols] == [
        ("id", "bigint"),
        ("what", "string"),
        ("item", "int"),
    ]


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("n_1", [("id", "int"), ("nested", "array<struct<n_1:int>>")]),
        ("a b", [("col", "array<string>")]),
        ("größe", [("col", "array<string>")]),
        ("1", [("col", "array<string>")]),
    ],
)
def test_spark_3_5_gets_no_type_whose_field_names_it_cannot_parse(
    hive: HiveNode, session: Session, stub: Any, field: str, shown: list[tuple[str, str]]
) -> None:
    nested = f"array<struct<`{field}`: int>>"
    hive.create_transactional("d1", "deep", id="int", nested=nested)
    dml.append(session, "d1.deep", {"id": 1, "nested": [{field: 2}]})
    for table in (stub.get_table("d1", "deep"), *hidden(stub, "deep")):
        assert [(column.name, column.type) for column in table.sd.cols] == shown
        assert f'"name":"{field}"' in table.parameters["spark.sql.sources.schema"]


def test_a_view_has_the_columns_of_the_rows_that_are_committed_while_it_is_made(
    hive: HiveNode, session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = hive.node.metastore.transactions
    last_commit = transactions.last_commit

    def overtaken(table_id: int, **named: Any) -> Timestamp | None:
        monkeypatch.undo()
        added = ColumnDefinition("added", INT)
        session.execute(AddColumns(schema="d1", table="orders", columns=(added,)))
        dml.append(session, "d1.orders", {"id": 1, "item": "x", "added": 2})
        return last_commit(table_id, **named)

    monkeypatch.setattr(transactions, "last_commit", overtaken)
    assert "`added`" in text(stub)


def test_a_view_is_made_with_few_questions_to_the_database(
    hive: HiveNode, session: Session
) -> None:
    """A client may ask for thousands of them, and on a server each question is a round trip."""
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    with Node.open(hive.node.folder, background=False) as child:
        reader = HiveReader(child.metastore, child.catalogs.present(), user="ann")
        scope, table = finish(reader.relation("d1", "orders"))
        with recorded(of_this_thread=True) as statements:
            assert finish(reader.struct(scope, table))["tableName"] == "orders"
    texts = [text for text, _ in statements]
    assert len(texts) == 7, texts


def test_deleted_rows_are_removed_by_an_anti_join_of_only_the_files_that_have_some(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    touched = dml.append(session, "d1.orders", *many)
    dml.append(session, "d1.orders", *many, *many)
    dml.delete(session, "d1.orders", touched, [3])
    plain, joined = text(stub).split(" UNION ALL ")
    assert "JOIN" not in plain
    assert "/*+ BROADCAST(d0) */" in joined
    assert "LEFT ANTI JOIN" in joined
    assert (
        " ON t._strandline_file = d0._strandline_file AND getbit(get(d0.bitmap, CAST(shiftright("
        "_strandline_position, 6) AS INT)), CAST(_strandline_position & 63 AS INT)) = 1" in joined
    )
    _, files, deletes = hidden(stub)
    assert [name.partition("-")[0] for name in names(files)] == [str(touched)]
    assert deletes.sd.location.endswith("/_deletes")
    assert [(c.name, c.type) for c in deletes.sd.cols] == [
        ("file_id", "bigint"),
        ("bitmap", "array<bigint>"),
    ]


def test_a_delete_file_counts_although_another_of_its_data_files_has_no_rows_left(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(3)]
    kept, emptied = (dml.append(session, "d1.orders", *many) for _ in range(2))
    dml.delete(session, "d1.orders", kept, [1], also={emptied: range(3)})
    data, deletes = hidden(stub)
    assert [name.partition("-")[0] for name in names(data)] == [str(kept)]
    assert len(names(deletes)) == 1


def test_a_delete_file_whose_size_was_not_recorded_is_read(session: Session, stub: Any) -> None:
    file_id = dml.append(session, "d1.orders", *({"id": n, "item": "x"} for n in range(3)))
    dml.delete(session, "d1.orders", file_id, [1], sized=False)
    assert len(names(hidden(stub)[1])) == 1


def test_all_files_are_joined_if_half_of_the_rows_are_in_files_with_deleted_rows(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    touched = dml.append(session, "d1.orders", *many)
    dml.append(session, "d1.orders", *many)
    dml.delete(session, "d1.orders", touched, [3])
    assert "UNION ALL" not in text(stub)
    assert len(names(hidden(stub)[0])) == 2


def test_deleted_rows_are_matched_to_their_file_by_the_checksum_of_its_name(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    ids = [dml.append(session, "d1.orders", *many) for _ in range(3)]
    for file_id in ids[1:]:
        dml.delete(session, "d1.orders", file_id, [3])
    joined, _ = hidden(stub)
    assert len(names(joined)) == 3
    checksums = {int(name.split("-")[0]): zlib.crc32(name.encode()) for name in names(joined)}
    assert checksums_in(text(stub)) == [{file_id: checksums[file_id] for file_id in ids[1:]}]
    assert "crc32(CAST(_metadata.file_name AS BINARY)) AS _strandline_file" in text(stub)


def test_files_whose_names_have_the_same_checksum_are_joined_separately(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    for name in ("plumless", "between", "buckeroo", "other"):
        path = f"_files/{name}.parquet"
        file_id = dml.append(session, "d1.orders", *many, path=path)
        dml.delete(session, "d1.orders", file_id, [3])
    data = [part for part in hidden(stub) if "@data_" in part.tableName]
    first = ["between.parquet", "other.parquet", "plumless.parquet"]
    assert [sorted(listed(part)) for part in data] == [first, ["buckeroo.parquet"]]


def test_a_file_whose_name_spark_may_escape_is_joined_separately(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    for name in ("a b", "ab", "b"):
        file_id = dml.append(session, "d1.orders", *many, path=f"_files/{name}.parquet")
        dml.delete(session, "d1.orders", file_id, [3])
    first = next(n for n, part in enumerate(hidden(stub)) if listed(part) == ["a b.parquet"])
    alone = text(stub).split(" UNION ALL ")[first]
    assert checksums_in(alone) == []
    assert re.search(r"CAST\(\d+ AS BIGINT\) AS _strandline_file", alone)


def test_files_without_deleted_rows_in_another_hidden_table_are_not_joined(
    session: Session, stub: Any
) -> None:
    many = [{"id": n, "item": "x"} for n in range(10)]
    touched = dml.append(session, "d1.orders", *many)
    dml.delete(session, "d1.orders", touched, [3])
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    dml.append(session, "d1.orders", {"id": 1, "what": "x"})
    joined, plain = text(stub).split(" UNION ALL ")
    assert ("JOIN" in joined, "JOIN" in plain) == (True, False)


def test_files_in_the_layout_of_older_releases_are_read_where_they_are(
    session: Session, stub: Any
) -> None:
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    old = dml.append(session, "d1.orders", {"id": 1, "what": "x"}, old_layout=True)
    session.execute(RenameColumn(schema="d1", table="orders", column="what", new_name="why"))
    (hidden_table,) = hidden(stub)
    assert "t.`what` AS `why`" in text(stub)
    parameters = hidden_table.sd.serdeInfo.parameters
    folder = place(session)
    assert parameters["basePath"] == f"{folder}/_data"
    assert parameters["path"] == f"{folder}/_data/{{_file={old}}}"
    assert [c.name for c in hidden_table.sd.cols] == ["id", "what", "_file"]


def test_a_past_schema_shows_the_rows_of_its_version(session: Session, stub: Any) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    version = session.history()[-1].version
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    dml.append(session, "d1.orders", {"id": 2, "what": "y"})
    past_schema = f"d1@{version}"
    assert f"FROM `{past_schema}`." in text(stub, schema=past_schema)
    (hidden_table,) = hidden(stub, schema=past_schema)
    assert len(names(hidden_table)) == 1
    assert hidden_table.dbName == past_schema


def test_a_snapshot_of_the_past_is_held_for_its_client(
    hive: HiveNode, session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An earlier hold of the node, which other tests share, would serve this client too.
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    moment = session.open(["d1.orders"]).time
    past = f"d1@{exact_text(moment)}"
    before = {hold.hold_id for hold in hive.node.transactions.holds.list()}

    def held() -> list[tuple[str, Timestamp]]:
        holds = hive.node.transactions.holds.list()
        return [(hold.kind, hold.at) for hold in holds if hold.hold_id not in before]

    stub.get_table(past, "orders")
    assert held() == []  # its files are those of the present, which cleaning keeps long enough
    dml.append(session, "d1.orders", {"id": 2, "item": "y"})
    stub.get_table(past, "orders")
    assert held() == [("snapshot", moment)]
    # When the hold runs out, the same request takes another one, though nothing was committed.
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    stub.get_table(past, "orders")
    assert held() == [("snapshot", moment)] * 2


def test_a_past_snapshot_is_held_at_its_last_time_and_up_to_the_present_if_its_table_is_dropped(
    hive: HiveNode, session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = hive.node.transactions.holds
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    moment = session.open(["d1.orders"]).time
    past = f"d1@{exact_text(moment)}"
    acquire, before = holds.acquire, {hold.hold_id for hold in holds.list()}

    def refuse(*arguments: Any, at: Timestamp, **options: Any) -> Any:
        if at == moment:  # history is kept from a later time on
            raise VersionNotFound("read at a later time")
        return acquire(*arguments, at=at, **options)

    def held() -> list[Timestamp]:
        return [hold.at for hold in holds.list() if hold.hold_id not in before]

    session.execute(DropTable(schema="d1", table="orders"))
    assert refusal(lambda: stub.get_table("d1", "orders"))[0] == "NoSuchObjectException"
    stub.get_table(past, "orders")
    assert held() == [moment]
    session.undrop("d1.orders")
    dml.append(session, "d1.orders", {"id": 2, "item": "y"})
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    monkeypatch.setattr(holds, "acquire", refuse)
    stub.get_table(past, "orders")
    first, last = held()
    table_id = session.table("d1.orders").descriptor.id
    last_commit = hive.node.transactions.last_commit(table_id)
    assert last_commit is not None
    assert first < last == last_commit - 1


def test_an_answer_about_a_past_version_is_not_kept_longer_than_its_hold(
    hive: HiveNode, session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = f"d1@{hive.node.catalogs.present().version}"
    stub.create_database(Database(name="later"))
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    for _ in range(2):  # the second answer commits nothing
        stub.get_table(past, "orders")
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    before = hive.node.transactions.holds.list()
    stub.get_table(past, "orders")
    assert len(hive.node.transactions.holds.list()) == len(before) + 1


def test_a_snapshot_that_cannot_be_held_is_not_answered(
    hive: HiveNode, session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    past = f"d1@{session.history()[-1].version}"
    session.execute(RenameColumn(schema="d1", table="orders", column="item", new_name="what"))
    dml.append(session, "d1.orders", {"id": 2, "what": "y"})
    monkeypatch.setattr(hive.node.metastore.snapshot_holds, "_kept_until", {})
    monkeypatch.setattr(snapshot_holds, "TIMEOUT", 0.01)
    with hive.node.database.write():
        kind, said = refusal(lambda: stub.get_table(past, "orders"))
    assert kind == "MetaException"
    assert "the store is busy; try again" in said

    def refuse(*_: object, **__: object) -> None:
        raise VersionNotFound("history is kept from later on; read at a later time")

    monkeypatch.setattr(hive.node.transactions.holds, "acquire", refuse)
    assert refusal(lambda: stub.get_table(past, "orders")) == (
        "NoSuchObjectException",
        "history is kept from later on; read at a later time",
    )


@pytest.mark.parametrize("damage", ["missing", "longer"])
def test_a_missing_or_changed_file_is_an_error(session: Session, stub: Any, damage: str) -> None:
    file_id = dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (name,) = HIDDEN.findall(text(stub))
    (path,) = _files(session, f"{file_id}-*")
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"x")
    kind, said = refusal(lambda: stub.get_table("d1", name))
    assert kind == "MetaException"
    assert str(path) in said
    assert "strandline verify" in said


def test_a_changed_delete_file_is_an_error(session: Session, stub: Any) -> None:
    file_id = dml.append(session, "d1.orders", *({"id": n, "item": "x"} for n in range(3)))
    dml.delete(session, "d1.orders", file_id, [1])
    (name,) = (
        listed_name for listed_name in HIDDEN.findall(text(stub)) if "@deletes" in listed_name
    )
    (path,) = (folder_path(session.table("d1.orders").location) / "_deletes").iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    kind, said = refusal(lambda: stub.get_table("d1", name))
    assert kind == "MetaException"
    assert str(path) in said


FORGED: dict[str, Callable[[str], str]] = {
    "a time to come": lambda name: re.sub(r"_[0-9a-f]+_", "_fffffffffffffff_", name, count=1),
    "a part that is not there": lambda name: f"{name}7",
    "the part after the last": lambda name: re.sub("0$", "1", name),
    "another table": lambda name: re.sub(r"_(\d+)_([0-9a-f]{8})_", r"_999_\2_", name),
    "a table that is not transactional": lambda name: re.sub(
        r"_(\d+)_([0-9a-f]{8})_", lambda m: f"_{int(m[1]) + 1}_{m[2]}_", name
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_hidden_name_finds_nothing(
    hive: HiveNode, session: Session, stub: Any, what: str
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (name,) = HIDDEN.findall(text(stub))
    kind, said = refusal(lambda: stub.get_table("d1", FORGED[what](name)))
    assert kind in ("NoSuchObjectException", "MetaException")
    assert "part" not in what or "does not have this part; read the table again" in said
    kind, _ = refusal(lambda: stub.get_table("default", name))
    assert kind == "NoSuchObjectException"


def test_a_dropped_table_cannot_be_read_by_its_hidden_name(session: Session, stub: Any) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (name,) = HIDDEN.findall(text(stub))
    session.execute(DropTable(schema="d1", table="orders"))
    kind, _ = refusal(lambda: stub.get_table("d1", name))
    assert kind == "NoSuchObjectException"


def test_the_fields_of_nested_values_are_matched_by_their_ids(hive: HiveNode, stub: Any) -> None:
    hive.create_transactional("d1", "nested", s="struct<a:int,b:array<struct<c:int>>>")
    session = hive.node.session(user="ann")
    dml.append(session, "d1.nested", {"s": {"a": 1, "b": [{"c": 2}]}})
    wider = parse_type("struct<a:bigint,b:array<struct<c:int,d:string>>>")
    session.execute(AlterColumn(schema="d1", table="nested", column="s", type=wider))
    assert (
        "IF(t.`s` IS NULL, NULL, named_struct('a', CAST(t.`s`.`a` AS BIGINT), 'b',"
        " transform(t.`s`.`b`, x0 -> IF(x0 IS NULL, NULL, named_struct('c', x0.`c`, 'd',"
        " CAST(NULL AS STRING)))))) AS `s`" in text(stub, "nested")
    )


def test_fields_that_changed_places_are_matched_by_their_ids(hive: HiveNode, stub: Any) -> None:
    hive.create_transactional("d1", "nested", s="struct<a:int,b:int>")
    session = hive.node.session(user="ann")
    dml.append(session, "d1.nested", {"s": {"a": 1, "b": 2}})
    swapped = parse_type("struct<b:int,a:int>")
    session.execute(AlterColumn(schema="d1", table="nested", column="s", type=swapped))
    assert "named_struct('b', t.`s`.`b`, 'a', t.`s`.`a`)" in text(stub, "nested")


def test_a_char_is_shown_as_a_string_and_spark_casts_the_other_types(
    hive: HiveNode, stub: Any
) -> None:
    hive.create_transactional("d1", "texts", c="char(3)", v="varchar(5)")
    view = stub.get_table("d1", "texts")
    assert [(c.name, c.type) for c in view.sd.cols] == [("c", "string"), ("v", "varchar(5)")]
    assert view.parameters["view.schemaMode"] == "COMPENSATION"


def test_delete_files_in_several_folders_are_all_read(session: Session, stub: Any) -> None:
    file_id = dml.append(session, "d1.orders", *({"id": n, "item": "x"} for n in range(9)))
    dml.delete(session, "d1.orders", file_id, [1])
    dml.delete(session, "d1.orders", file_id, [2], folder="own")
    assert text(stub).count("LEFT ANTI JOIN") == 2
    _, standard, own = hidden(stub)
    assert standard.sd.location == f"{place(session)}/_deletes"
    pattern = own.sd.serdeInfo.parameters["path"]
    assert pattern.startswith(f"{place(session)}/own/{{")


def test_files_in_a_folder_that_a_client_chose_are_listed_one_by_one(
    session: Session, stub: Any
) -> None:
    for n, path in enumerate(("own/a.parquet", "own/{b}.parquet")):
        dml.append(session, "d1.orders", {"id": n, "item": "x"}, path=path)
    (hidden_table,) = hidden(stub)
    parameters = hidden_table.sd.serdeInfo.parameters
    assert parameters["path"] == rf"{place(session)}/own/{{a.parquet,\{{b\}}.parquet}}"
    assert "pathGlobFilter" not in parameters


def test_a_view_with_too_many_parts_is_refused(
    session: Session, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_parts, "MAX_PARTS", 1)
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    assert text(stub)
    dml.append(session, "d1.orders", {"id": 2, "item": "x"}, path="own/a.parquet")
    kind, said = refusal(lambda: text(stub))
    assert kind == "MetaException"
    assert "strandline.spark.Tables" in said


def _files(session: Session, pattern: str) -> list[Path]:
    return list((folder_path(session.table("d1.orders").location) / "_files").glob(pattern))
