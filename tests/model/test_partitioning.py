"""Partition transforms: their results match Iceberg's, and which types they accept."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput, ObjectNotFound, StrandlineError, UnsupportedOperation
from strandline.model.partitioning import (
    Partition,
    PartitionField,
    PartitionValue,
    Transform,
    TransformKind,
    misfit,
    murmur3,
    partition_fields,
)
from strandline.model.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    ArrayType,
    CharType,
    DataType,
    DecimalType,
    StringType,
    VarcharType,
)

YEAR, MONTH, DAY, HOUR = (
    Transform(kind)
    for kind in (TransformKind.YEAR, TransformKind.MONTH, TransformKind.DAY, TransformKind.HOUR)
)
DECIMAL = DecimalType(9, 2)
COLUMNS: dict[str, tuple[int, DataType]] = {
    "id": (1, BIGINT),
    "day": (2, DATE),
    "ts": (3, TIMESTAMP),
    "name": (4, STRING),
    "price": (5, DECIMAL),
    "a (b)": (6, INT),
    "f": (7, DOUBLE),
}


def bucket(width: int) -> Transform:
    return Transform(TransformKind.BUCKET, width)


def truncate(width: int) -> Transform:
    return Transform(TransformKind.TRUNCATE, width)


def signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((34).to_bytes(8, "little"), 2017239379),
        (b"\x05\x8c", -500754589),
        ((17486).to_bytes(8, "little"), -653330422),
        ((1510871468000000).to_bytes(8, "little"), -2047944441),
        (b"iceberg", 1210000089),
        (b"\x00\x01\x02\x03", -188683207),
        (UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
    ],
)
def test_murmur3_gives_the_hashes_of_icebergs_specification(data: bytes, expected: int) -> None:
    assert signed(murmur3(data)) == expected


INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
WIDTHS = st.integers(1, 1000)
TYPES: list[tuple[DataType, str, st.SearchStrategy[object]]] = [
    (INT, "int", INTS),
    (BIGINT, "long", LONGS),
    (DECIMAL, "decimal(9, 2)", st.integers(-(10**9) + 1, 10**9 - 1)),
    (DecimalType(38, 0), "decimal(38, 0)", st.integers(-(10**38), 10**38)),
    (STRING, "string", st.text()),
    (BINARY, "binary", st.binary()),
    (DATE, "date", INTS),
    (TIMESTAMP, "timestamptz", LONGS),
    (TIMESTAMP_NTZ, "timestamp", LONGS),
]
"""Our types, the names that PyIceberg has for them, and values."""


def iceberg_type(name: str) -> Any:
    # Imported late: each process of a run imports this module, and one of them needs PyIceberg.
    from pyiceberg.types import IcebergType

    return IcebergType.model_validate(name)


@given(st.data(), st.sampled_from(TYPES), WIDTHS)
def test_bucket_and_truncate_give_the_results_of_pyiceberg(
    data: st.DataObject,
    case: tuple[DataType, str, st.SearchStrategy[object]],
    width: int,
) -> None:
    from pyiceberg import transforms as iceberg

    of, name, values = case
    theirs = iceberg_type(name)
    value: Any = data.draw(values)
    with localcontext(prec=80):  # PyIceberg computes with decimals
        shown: Any = Decimal(value).scaleb(-of.scale) if isinstance(of, DecimalType) else value
        hashed: Any = iceberg.BucketTransform(width).transform(theirs)(shown)
        assert bucket(width).apply(value, of) == hashed
        if of in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            return
        expected: Any = iceberg.TruncateTransform(width).transform(theirs)(shown)
        if isinstance(of, DecimalType):
            expected = int(expected.scaleb(of.scale))
        if of in (INT, BIGINT):
            expected = max(expected, -(1 << (31 if of == INT else 63)))
        assert truncate(width).apply(value, of) == expected


@given(st.sampled_from([DATE, TIMESTAMP, TIMESTAMP_NTZ]), st.data())
def test_year_month_day_and_hour_give_the_results_of_pyiceberg(
    of: DataType, data: st.DataObject
) -> None:
    from pyiceberg import transforms as iceberg

    unit = 1 if of == DATE else 86_400_000_000
    value: Any = data.draw(st.integers(-719_162 * unit, 2_932_896 * unit))
    theirs = next(iceberg_type(name) for ours, name, _ in TYPES if ours == of)
    expected: iceberg.Transform[Any, Any]
    for ours, expected in (
        (YEAR, iceberg.YearTransform()),
        (MONTH, iceberg.MonthTransform()),
        (DAY, iceberg.DayTransform()),
        (HOUR, iceberg.HourTransform()),
    ):
        if ours.takes(of):
            assert ours.apply(value, of) == expected.transform(theirs)(value)


def test_times_before_1970_are_rounded_down_and_distant_years_are_computed() -> None:
    assert [t.apply(-1, TIMESTAMP) for t in (YEAR, MONTH, DAY, HOUR)] == [-1, -1, -1, -1]
    assert [t.apply(0, DATE) for t in (YEAR, MONTH, DAY)] == [0, 0, 0]
    assert YEAR.apply(-719_529, DATE) == -1971  # the last day of the year −1
    assert MONTH.apply(5_881_580 * 366, DATE) > 12 * 5_000_000


@pytest.mark.parametrize("data_type", [DATE, TIMESTAMP, TIMESTAMP_NTZ])
def test_the_day_is_taken_of_every_type_of_time(data_type: DataType) -> None:
    assert all(transform.takes(data_type) for transform in (YEAR, MONTH, DAY))
    assert HOUR.takes(data_type) is (data_type != DATE)


def test_truncate_stays_in_the_range_of_the_column_type() -> None:
    assert truncate(10).apply(-5, INT) == -10
    assert truncate(10).apply(-(1 << 63), BIGINT) == -(1 << 63)
    assert truncate(10).apply(-128, TINYINT) == -128


def test_partition_fields_are_parsed_from_texts() -> None:
    texts = ("day(ts)", "bucket(16, id)", "NAME", "truncate(4, `name`)", "months( day )", "`a (b)`")
    fields = partition_fields(texts, COLUMNS, table="t")
    assert fields == (
        PartitionField(1000, 3, DAY, "ts_day"),
        PartitionField(1001, 1, bucket(16), "id_bucket"),
        PartitionField(1002, 4, Transform(TransformKind.IDENTITY), "NAME"),
        PartitionField(1003, 4, truncate(4), "name_trunc"),
        PartitionField(1004, 2, MONTH, "day_month"),
        PartitionField(1005, 6, Transform(TransformKind.IDENTITY), "a (b)"),
    )


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["century(ts)"], InvalidInput, "transforms are"),
        (["bucket(id)"], InvalidInput, "takes a number before its column"),
        (["day(3, ts)"], InvalidInput, "takes a column alone"),
        (["bucket(0, id)"], InvalidInput, "a number from 1"),
        (["truncate(4294967296, id)"], InvalidInput, "a number from 1"),
        (["day(ts"], InvalidInput, "write a column, or"),
        ([""], InvalidInput, "write a column, or"),
        (["day(" + " " * 10**6], InvalidInput, "write a column, or"),
        (["day(" + " " * 990], InvalidInput, "write a column, or"),  # without slow backtracking
        ([" " * 990 + "("], InvalidInput, "write a column, or"),
        (["missing"], ObjectNotFound, "column 'missing' does not exist"),
        (["f"], UnsupportedOperation, "does not take values of the type double"),
        (["hour(day)"], UnsupportedOperation, "type date"),
        (["bucket(4, f)"], UnsupportedOperation, "type double"),
        (["day(ts)", "hour(ts)"], InvalidInput, "has two partition fields"),
        (["bucket(2, id)", "bucket(4, id)"], InvalidInput, "has two partition fields"),
        (["id"] * 101, InvalidInput, "100 fields"),
        ("id", InvalidInput, "must be a list of strings"),
    ],
)
def test_invalid_partitioning_is_refused(
    texts: list[str], error: type[StrandlineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        partition_fields(texts, COLUMNS, table="t")


def test_a_partitioning_at_its_limits_is_allowed() -> None:
    columns: dict[str, tuple[int, DataType]] = {f"c{n}": (n, INT) for n in range(100)}
    assert len(partition_fields(list(columns), columns, table="t")) == 100
    for text in (f"bucket({(1 << 31) - 1}, id)", "name".center(1000)):
        partition_fields([text], COLUMNS, table="t")
    for text in (f"bucket({1 << 31}, id)", "name".center(1001)):
        with pytest.raises(InvalidInput):
            partition_fields([text], COLUMNS, table="t")


def test_a_partition_field_cannot_have_the_name_of_a_column() -> None:
    with pytest.raises(InvalidInput, match="has the name of a column"):
        partition_fields(["day(ts)"], COLUMNS | {"ts_day": (9, INT)}, table="t")


@pytest.mark.parametrize(
    "data_type",
    [DOUBLE, CharType(3), StringType("UTF8_LCASE"), ArrayType(INT)],
)
def test_types_with_their_own_equality_cannot_partition_a_table(data_type: DataType) -> None:
    assert not any(Transform(kind, 1).takes(data_type) for kind in TransformKind)


@pytest.mark.parametrize(
    ("text", "data_type", "good", "bad"),
    [
        ("c", BOOLEAN, [True, False, None], [1, "true"]),
        ("c", TINYINT, [-128, 127], [128, True, "1"]),
        ("c", STRING, ["", "é"], [b"", 1]),
        ("c", VarcharType(3), ["", "é"], [b"", 1]),
        ("c", BINARY, [b""], [""]),
        ("c", INT, [-(1 << 31)], [1 << 31, 1 << 100_000]),
        ("c", DECIMAL, [-1234, 10**9 - 1], ["12.34", Decimal("12.34"), -(10**9)]),
        ("truncate(7, c)", DECIMAL, [7 * (-(10**9) // 7)], [7 * (-(10**9) // 7) - 7]),
        ("day(c)", TIMESTAMP, [-1, 20_000, None], ["2024-01-01", True, 1 << 63]),
        ("bucket(4, c)", STRING, [0, 3, None], [4, -1, "0"]),
        ("truncate(10, c)", INT, [-10, 0, 20], [5, "10"]),
        ("truncate(2, c)", STRING, ["ab", "a"], ["abc"]),
    ],
)
def test_misfit_refuses_partition_values_of_the_wrong_type_or_range(
    text: str, data_type: DataType, good: list[object], bad: list[object]
) -> None:
    fields = partition_fields([text], {"c": (1, data_type)}, table="t")

    def of(value: object) -> Partition:
        return (PartitionValue(1000, value),)  # type: ignore[arg-type]  # bad values too

    types = {1: data_type}
    assert [value for value in good if misfit(of(value), fields, types)] == []
    assert [value for value in bad if not misfit(of(value), fields, types)] == []
    assert misfit((), (), types) is None


def test_misfit_explains_an_invalid_partition_in_a_short_message() -> None:
    fields = partition_fields(["c"], {"c": (1, INT)}, table="t")

    def told(*values: int | None, not_null: tuple[int, ...] = ()) -> str | None:
        partition = tuple(PartitionValue(1000 + n, value) for n, value in enumerate(values))
        return misfit(partition, fields, {1: INT}, not_null=not_null)

    assert told() == "it has 0 values, of the fields [], the table has [1000]"
    assert told(*range(10_000)) == (
        "it has 10000 values, of the fields [1000, 1001], the table has [1000]"
    )
    assert told(1 << 100_000) == "a number of 100001 bits is not a valid value of c, identity"
    assert told(None, not_null=(2,)) is None
    assert told(None, not_null=(1,)) == "c is NULL, but its column is NOT NULL"
