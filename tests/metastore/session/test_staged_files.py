"""Files that a session refuses to stage. Nothing is staged in these cases."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.errors import AlreadyExists, InvalidInput, StrandlineError, WriteConflict
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.session import HttpSession, LocalSession, staged_files
from strandline.metastore.session.staged_files import check_path, check_staging
from strandline.metastore.store import rows
from strandline.metastore.store.file_columns import FEW
from strandline.metastore.store.rows import FILE_NUMBER_BITS as BITS
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile, Row, RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import MAX_PART_BYTES, MAX_PATH_BYTES
from strandline.model.partitioning import MAX_VALUE_BYTES, PartitionValue
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.wire import decode, encode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        columns = (ColumnDefinition("k", BIGINT),)
        for name in ("t", "u", "linked"):
            definition = TableDefinition(name=name, columns=columns, transactional=True)
            command = CreateTable(schema="default", definition=definition)
            opened.session(user="ann").execute(command)
        yield opened


@pytest.fixture
def session(node: Node) -> LocalSession:
    return node.session(user="ann")


def table_id(session: LocalSession, name: str = "t") -> int:
    return session.table(name).descriptor.id


def data(path: str = "f", *, file_id: int, rows: int = 10) -> DataFile:
    return DataFile(file_id=file_id, path=path, rows=rows, bytes=1)


def with_statistics(**values: Any) -> DataFile:
    return replace(data(file_id=1), statistics=(ColumnStatistics(**values),))


def deletes(path: str, *counts: tuple[int, int]) -> DeleteFile:
    ids, numbers = zip(*counts, strict=True)
    return DeleteFile(path=path, file_ids=ids, counts=numbers)


def refused(
    session: LocalSession,
    *files: DataFile | DeleteFile,
    name: str = "t",
    kind: type[StrandlineError] = InvalidInput,
    match: str,
) -> None:
    txn = session.begin().txn_id
    with pytest.raises(kind, match=match):
        session.stage(txn, table_id(session, name), add=files)
    session.abort(txn)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../u/f",
        "a/../../u/f",
        "..",
        ".",
        "./f",
        "a//f",
        "a/",
        "/",
        "file:/etc/passwd",
        "s3://bucket/f",
        "a/./f",
        "_files/in/f",
        "_deletes/in/f",
        "a\x00b",
        "a\nb",
        "\ud800",
        "a" * 256,
        "a/" * 2100 + "f",
        # Spark ignores such files silently.
        "_f",
        "own/.f",
        "own/f._COPYING_",
    ],
)
def test_a_path_outside_the_table_folder_or_that_spark_does_not_read_is_refused(
    session: LocalSession, path: str
) -> None:
    refused(session, data(path, file_id=1), match=r"the path .* of a file")
    txn = session.begin().txn_id
    with pytest.raises(InvalidInput, match=r"the path .* of a file"):
        session.stage(txn, table_id(session), add=[deletes(path, (1, 1))])
    session.abort(txn)


def test_a_path_through_a_symbolic_link_is_refused_where_the_table_is_now(
    session: LocalSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(session.table("linked").location.removeprefix("file://"))
    (folder / "moved").symlink_to(tmp_path)
    # The table moves before its files are staged.
    monkeypatch.setattr(CachedStore, "last_known_location", lambda *_: f"file://{tmp_path}")
    refused(session, data("moved/f", file_id=1), name="linked", match="symbolic link")


def test_a_path_through_a_symbolic_link_is_refused(session: LocalSession, tmp_path: Path) -> None:
    folder = Path(session.table("linked").location.removeprefix("file://"))
    (tmp_path / "f").touch()
    (folder / "out").symlink_to(tmp_path)
    (folder / "link").symlink_to(tmp_path / "f")
    for path in ("out/f", "out/sub/f", "out", "link"):
        refused(session, data(path, file_id=1), name="linked", match="symbolic link")
    (folder / "in").mkdir()
    (folder / "in" / "a").symlink_to(tmp_path)
    both = data("a/f", file_id=1), data("in/a/f", file_id=2)
    refused(session, *both, name="linked", match="symbolic link")
    (folder / "_data").mkdir()
    txn = session.begin().txn_id
    session.stage(txn, table_id(session, "linked"), add=[data("_data/_file=1/f", file_id=1)])
    session.abort(txn)


def test_two_files_with_one_id_are_refused(session: LocalSession) -> None:
    refused(session, data("a", file_id=5), data("b", file_id=5), match="two data files")


@pytest.mark.parametrize("numbered", ["by hand", "in its range"])
@pytest.mark.parametrize("when", ["before", "in the same transaction"])
def test_the_id_of_another_file_is_refused(session: LocalSession, numbered: str, when: str) -> None:
    target = table_id(session)
    txn = session.begin().txn_id
    first = (txn << BITS) + 1 if numbered == "in its range" else 70 + (when == "before")
    session.stage(txn, target, add=[data(f"first{first}", file_id=first)])
    if when == "before":
        session.commit(txn)
        txn = session.begin().txn_id
    message = "another data file of the table already has the id|belongs to transaction"
    with pytest.raises(InvalidInput, match=message):
        session.stage(txn, target, add=[data(f"second{first}", file_id=first)])
    session.abort(txn)


def test_a_later_stage_of_a_transaction_does_not_decode_the_files_of_the_earlier(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn, id_ = session.begin().txn_id, table_id(session)
    files = [data(f"f{number}", file_id=(txn << BITS) + number) for number in range(FEW + 2)]
    session.stage(txn, id_, add=files[:-1])
    with monkeypatch.context() as patch:
        patch.setattr(Row, "content", None)
        session.stage(txn, id_, add=files[-1:])
    with pytest.raises(InvalidInput, match="another data file of the table already has the id"):
        session.stage(txn, id_, add=[data("other", file_id=files[0].file_id)])
    session.abort(txn)


def test_an_id_in_the_range_of_another_transaction_is_refused(session: LocalSession) -> None:
    earlier = session.begin().txn_id
    for txn in (earlier, 1 << 30):
        refused(session, data(file_id=txn << BITS), match=f"belongs to transaction {txn};")


def test_deletes_from_files_that_the_transaction_does_not_see_are_refused(
    session: LocalSession,
) -> None:
    other = session.begin().txn_id
    session.stage(other, table_id(session), add=[data("unseen", file_id=90)])
    for file_id in (90, 12345):
        refused(session, deletes("d", (file_id, 1)), kind=WriteConflict, match=str(file_id))
    session.abort(other)


@pytest.mark.parametrize("touches", [True, False])
def test_deleting_more_rows_than_a_file_has_is_refused(
    session: LocalSession, touches: bool
) -> None:
    target = table_id(session, "u")
    txn = session.begin().txn_id
    file_id = 200 + touches
    session.stage(txn, target, add=[data(f"u{file_id}", file_id=file_id)])
    session.commit(txn)
    touch = [f"u{file_id}"] if touches else []
    txn = session.begin().txn_id
    with pytest.raises(InvalidInput, match="11 rows of data file"):
        session.stage(txn, target, add=[deletes("d", (file_id, 11))], touch=touch)
    with pytest.raises(InvalidInput, match="names a data file twice"):
        session.stage(txn, target, add=[deletes("d", (file_id, 1), (file_id, 1))], touch=touch)
    session.stage(txn, target, add=[deletes(f"d{file_id}", (file_id, 6))], touch=touch)
    with pytest.raises(InvalidInput, match="12 rows of data file"):
        session.stage(txn, target, add=[deletes("e", (file_id, 6))], touch=touch)
    session.stage(txn, target, add=[deletes(f"e{file_id}", (file_id, 4))], touch=touch)
    session.commit(txn)


def test_a_replaced_delete_file_does_not_count(session: LocalSession) -> None:
    target = table_id(session, "u")
    txn = session.begin().txn_id
    session.stage(txn, target, add=[data("r", file_id=300), deletes("r1", (300, 10))])
    session.stage(txn, target, add=[deletes("r2", (300, 9))], remove=["r1"], touch=["r"])
    session.commit(txn)


@pytest.mark.parametrize("few", [0, 1])
def test_only_delete_files_that_may_name_the_same_data_files_are_decoded(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    target, txn = table_id(session, "u"), session.begin().txn_id
    ids = range(txn << BITS, (txn << BITS) + 5)
    session.stage(txn, target, add=[data(f"named{n}", file_id=n) for n in ids])
    touch = [f"named{n}" for n in ids]
    session.stage(txn, target, add=[deletes(f"names{n}", (n, 6)) for n in ids], touch=touch)
    session.commit(txn)
    decoded = []

    def noted(body: bytes, of: type[Any], *, context: bytes) -> object:
        content = decode(body, of, context=context)
        if isinstance(content, DeleteFile):
            decoded.append(content.file_ids)
        return content

    monkeypatch.setattr(rows, "decode", noted)
    monkeypatch.setattr(staged_files, "_FEW_IDS", few)
    txn = session.begin().txn_id
    with pytest.raises(InvalidInput, match=f"11 rows of data file {ids[2]} would be deleted"):
        session.stage(txn, target, add=[deletes("x", (ids[2], 5))], touch=[f"named{ids[2]}"])
    session.abort(txn)
    assert (decoded == [(ids[2],)]) is (few == 1)


def test_no_other_writer_waits_while_all_delete_files_of_a_table_are_read(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, txn = table_id(session, "u"), session.begin().txn_id
    session.stage(txn, target, add=[data("v", file_id=350), deletes("v1", (350, 9))])
    session.commit(txn)
    visible = Staging.visible

    def visible_of(staging: Staging, kind: RowKind, names: Collection[str] | None = None) -> Any:
        assert names is not None
        return visible(staging, kind, names)

    monkeypatch.setattr(Staging, "visible", visible_of)
    txn = session.begin().txn_id
    with pytest.raises(InvalidInput, match="11 rows of data file 350"):
        session.stage(txn, target, add=[deletes("v2", (350, 2))], touch=["v"])
    session.stage(txn, target, add=[deletes("v2", (350, 1))], touch=["v"])
    with pytest.raises(InvalidInput, match="11 rows of data file 350"):
        session.stage(txn, target, add=[deletes("v3", (350, 1))], touch=["v"])
    session.stage(txn, target, remove=["v1"])
    session.stage(txn, target, add=[deletes("v3", (350, 9))], touch=["v"])
    session.commit(txn)


def test_a_file_id_of_an_aborted_transaction_can_be_used_again(session: LocalSession) -> None:
    target = table_id(session)
    for end in (session.abort, session.commit):
        txn = session.begin().txn_id
        session.stage(txn, target, add=[data("again", file_id=400)])
        end(txn)


@pytest.mark.parametrize("change", ["remove", "touch"])
@pytest.mark.parametrize("path", ["never", "unseen", "", "a" * 5000])
def test_removing_or_touching_a_path_that_the_transaction_does_not_see_is_refused(
    session: LocalSession, change: str, path: str
) -> None:
    target = table_id(session)
    other, txn = session.begin().txn_id, session.begin().txn_id
    session.stage(other, target, add=[data("unseen", file_id=500)])
    with pytest.raises(WriteConflict, match=r"does not see such a file; read again"):
        session.stage(txn, target, **{change: [path]})  # type: ignore[arg-type]  # one of the two
    session.abort(txn)
    session.abort(other)


def test_a_repeated_staging_changes_nothing(session: LocalSession) -> None:
    target = table_id(session, "u")
    before = session.begin().txn_id
    session.stage(before, target, add=[data("old", file_id=600), data("left", file_id=601)])
    session.commit(before)
    txn = session.begin().txn_id
    add: list[DataFile | DeleteFile] = [data("new", file_id=txn << BITS), deletes("d600", (601, 6))]
    first = session.stage(txn, target, add=add, remove=["old"], touch=["left"])
    assert session.stage(txn, target, add=add, remove=["old"], touch=["left"]) == first
    with pytest.raises(AlreadyExists):
        session.stage(txn, target, add=[data("new", file_id=txn << BITS, rows=11)])
    with pytest.raises(WriteConflict):
        session.stage(txn, target, add=add, remove=["left", "never"])
    session.commit(txn)


def in_partition(value: Any) -> DataFile:
    return replace(data(file_id=1), partition=(PartitionValue(1000, value),))


@pytest.mark.parametrize("value", [None, True, "x" * MAX_VALUE_BYTES, b"x" * MAX_VALUE_BYTES])
def test_a_value_of_a_partition_may_have_as_many_bytes_as_the_limit(value: Any) -> None:
    check_staging([in_partition(value)], remove=(), touch=())


@pytest.mark.parametrize(
    "path", ["_x=1", "a/_x=_", "a" * MAX_PART_BYTES, ("a/" * MAX_PATH_BYTES)[:MAX_PATH_BYTES]]
)
def test_a_path_that_spark_reads_is_accepted_up_to_the_limits_of_a_file_system(path: str) -> None:
    check_path(path)


def test_staging_nothing_announces_no_write(session: LocalSession, node: Node) -> None:
    txn = session.begin().txn_id
    before = node.notifications.head()
    session.stage(txn, table_id(session))
    assert node.notifications.head() == before
    session.abort(txn)


def test_no_other_writer_waits_while_staged_files_are_encoded(
    session: LocalSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = node._opened_store.database

    def encode_beside_a_write(value: DataFile) -> bytes:
        with database.write():  # refused within a write of this thread
            return encode(value)

    txn, id_ = session.begin().txn_id, table_id(session)
    monkeypatch.setattr(rows, "encode", encode_beside_a_write)
    session.stage(txn, id_, add=[data("encoded", file_id=txn << BITS)])
    session.abort(txn)


def test_no_other_writer_waits_while_the_folder_of_staged_files_is_looked_at(
    session: LocalSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def look_beside_a_write(place: str, *, path: str) -> None:
        with node.database.write():  # refused within a write of this thread
            looked_at.append(path)

    txn, id_ = session.begin().txn_id, table_id(session)
    monkeypatch.setattr(staged_files, "_refuse_link", look_beside_a_write)
    node.store._locations.forget(None)
    for number, path in enumerate(("unknown", "known")):  # memory has the place from then on
        session.stage(txn, id_, add=[data(path, file_id=(txn << BITS) + number)])
    session.abort(txn)
    assert looked_at == ["unknown", "known"]


def test_a_file_of_a_schema_version_that_the_table_does_not_have_is_refused(
    session: LocalSession,
) -> None:
    refused(session, replace(data(file_id=1), schema_version=2), match="latest version is 1; name")


WRONG_NUMBER: Any = "5"
NO_TEXT: Any = 5
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"add": [data(file_id=1, rows=-1)]}, "not whole numbers, 0 to"),
    ({"add": [data(file_id=1 << 63)]}, "not whole numbers, 0 to"),
    ({"add": [replace(data(file_id=1), rows=WRONG_NUMBER)]}, "not whole numbers, 0 to"),
    ({"add": [replace(data(file_id=1), rows=True)]}, "not whole numbers, 0 to"),
    ({"add": [data(file_id=1, rows=1 << 43)]}, "at most 8796093022207 of each"),
    ({"add": [replace(data(file_id=1), bytes=1 << 43)]}, "at most 8796093022207 of each"),
    ({"add": [deletes("d", (1, -1))]}, "not whole numbers, 0 to"),
    ({"add": [data("", file_id=1)]}, "needs a path"),
    ({"add": [in_partition("\ud800")]}, "half a surrogate pair"),
    ({"add": [in_partition(1.5)]}, "give a bool, int, str, bytes or None"),
    ({"add": [in_partition("x" * 65_537)]}, "a value of 65537 bytes in the field 1000"),
    ({"add": [in_partition("é" * 32_769)]}, "a value of 65538 bytes in the field 1000"),
    ({"add": [in_partition(1 << 600_000)]}, "a value of 75000 bytes"),
    ({"add": [replace(data(file_id=1), partition=(PartitionValue(-1, 1),))]}, "in the field -1"),
    ({"add": [replace(data(file_id=1), partition=NO_TEXT)]}, "give a PartitionValue for each"),
    ({"add": [replace(data(file_id=1), partition=(NO_TEXT,))]}, "give a PartitionValue for each"),
    ({"add": ["f"]}, "is not a file; give a DataFile or a DeleteFile"),
    ({"add": [replace(deletes("d", (1, 1)), form=WRONG_NUMBER)]}, "give a DeleteForm"),
    ({"add": [with_statistics(column_id=-1)]}, "not whole numbers, 0 to"),
    ({"add": [with_statistics(column_id=1, nulls=-1)]}, "not whole numbers, 0 to"),
    ({"add": [with_statistics(column_id=1, lower="\ud800")]}, "half a surrogate pair"),
    ({"add": [with_statistics(column_id=1, upper=NO_TEXT)]}, "a string of file 'f' is not a str"),
    (
        {"add": [replace(data(file_id=1), statistics=(ColumnStatistics(column_id=1),) * 2)]},
        "statistics of one column twice",
    ),
    ({"remove": "f"}, "as a list of paths"),
    ({"remove": [1]}, "as a list of paths"),
    ({"touch": ["\ud800"]}, "half a surrogate pair"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_invalid_attributes_of_a_file_are_refused_before_they_are_sent(
    session: LocalSession, number: int
) -> None:
    arguments, says = WRONG[number]
    txn = session.begin().txn_id
    with HttpSession("http://127.0.0.1:9", user="ann") as far:
        for each in (session, far):
            with pytest.raises(InvalidInput, match=says):
                each.stage(txn, table_id(session), **arguments)
    session.abort(txn)
