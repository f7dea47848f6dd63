"""Keys of data files, and the values that the text of a view finds by them."""

from __future__ import annotations

import re
import zlib
from typing import Any

import pytest

from strandline.metastore.hive import file_keys as keys_module
from strandline.metastore.hive.file_keys import (
    FileKeys,
    distinguishable_groups,
    file_keys,
    value_by_key,
)
from strandline.metastore.store.file_scans import IdIn, IdPlace
from strandline.metastore.store.rows import DataFile
from strandline.model.type_parser import parse_type
from strandline.model.types import BIGINT, DATE, INT, STRING

FLAT = IdPlace(IdIn.NOWHERE, "_files")
FOLDERS = IdPlace(IdIn.FOLDER, "_data")
SAME_CHECKSUM = ("plumless", "buckeroo")


def files(*names: str) -> list[DataFile]:
    return [
        DataFile(file_id=number, path=f"_files/{name}", rows=1, bytes=1)
        for number, name in enumerate(names, start=1)
    ]


def ids(*groups: tuple[DataFile, ...]) -> list[list[int]]:
    return [[file.file_id for file in group] for group in groups]


def test_the_key_of_a_file_is_the_checksum_of_its_name() -> None:
    keys = file_keys(files("a.parquet", "b.parquet"), FLAT)
    assert keys is not None
    assert keys.of_file == {1: zlib.crc32(b"a.parquet"), 2: zlib.crc32(b"b.parquet")}
    assert "_metadata.file_name" in keys.of_row


def test_the_key_of_a_file_is_its_id_if_the_scan_knows_it() -> None:
    assert file_keys(files("a b"), FLAT) == FileKeys("CAST(1 AS BIGINT)", {1: 1})
    assert file_keys(files("a b", "c"), FOLDERS) == FileKeys("_file", {1: 1, 2: 2})


def test_files_with_unusual_names_have_no_keys() -> None:
    assert file_keys(files("a", "b c"), FLAT) is None


def test_files_that_need_no_keys_are_one_group() -> None:
    some = files(*SAME_CHECKSUM, "a b")
    assert ids(*distinguishable_groups(some, FLAT, set(), by_value=False)) == [[1, 2, 3]]


def test_files_with_the_same_checksum_are_in_different_groups() -> None:
    some = files("other", *SAME_CHECKSUM)
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    assert ids(*distinguishable_groups(some, FLAT, set(), by_value=True)) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("deleted", "groups"), [(set(), [[2, 4], [1, 3]]), ({1}, [[2], [4], [1, 3]])]
)
def test_unusual_names_are_kept_apart_only_if_deleted_rows_need_it(
    deleted: set[int], groups: list[list[int]]
) -> None:
    some = files("a", "b c", "d", "é")
    assert ids(*distinguishable_groups(some, FLAT, deleted, by_value=True)) == groups


VALUES: dict[str, tuple[str, list[Any], str]] = {
    "integers": ("int", [5, -7], "CAST(split('5,-7', ',') AS ARRAY<INT>)"),
    "booleans": ("boolean", [True, False], "CAST(split('true,false', ',') AS ARRAY<BOOLEAN>)"),
    "dates": ("date", [0, -719162], "CAST(split('0,-719162', ',') AS ARRAY<INT>)"),
    "strings": ("string", ["a,'", ""], "split(CAST(X'612c271f' AS STRING), CAST(X'1f' AS STRING))"),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_are_looked_up_by_key(what: str) -> None:
    data_type, values, array = VALUES[what]
    text = value_by_key(dict(enumerate(values, start=8)), parse_type(data_type), key="k")
    lookup = f"map_from_arrays(CAST(split('8,9', ',') AS ARRAY<BIGINT>), {array})[k]"
    assert text == (f"date_from_unix_date({lookup})" if data_type == "date" else lookup)


def test_null_is_a_key_without_an_entry() -> None:
    text = value_by_key({8: 1, 9: None}, INT, key="k")
    assert text is not None
    assert "split('8', ',')" in text


def test_a_value_of_all_files_is_a_constant() -> None:
    assert value_by_key({8: None, 9: None}, DATE, key="k") == "CAST(NULL AS DATE)"
    text = value_by_key({8: 3, 9: 3}, DATE, key="k")
    assert text == "date_from_unix_date(CAST(split('3', ',') AS ARRAY<INT>)[0])"


@pytest.mark.parametrize("data_type", ["timestamp", "timestamp_ntz", "decimal(5,2)", "binary"])
def test_values_of_other_types_are_read_from_the_files(data_type: str) -> None:
    assert value_by_key({8: 1, 9: 2}, parse_type(data_type), key="k") is None


def test_strings_that_do_not_fit_into_the_text_are_read_from_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert value_by_key({8: "a\x1f", 9: "b"}, STRING, key="k") is None
    monkeypatch.setattr(keys_module, "MAX_LENGTH", 5)
    assert value_by_key({8: "abc", 9: "de"}, STRING, key="k") is not None
    assert value_by_key({8: "abc", 9: "def"}, STRING, key="k") is None


@pytest.mark.parametrize(
    ("count", "is_padded"), [(20, False), (21, True), (999, True), (1000, False)]
)
def test_a_map_that_spark_would_search_gets_more_keys(count: int, *, is_padded: bool) -> None:
    text = value_by_key({key: key for key in range(count)}, BIGINT, key="k")
    assert text is not None
    assert (re.search(r"sequence\(-1000L, -1L\)", text) is not None) == is_padded
    assert ("array_repeat(CAST(NULL AS BIGINT), 1000)" in text) == is_padded
