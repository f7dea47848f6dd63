"""Which default expressions a column of each type accepts."""

from __future__ import annotations

import pytest

from strandline.catalog.commands.defaults import checked_default, is_constant, same_default
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.model.type_parser import parse_type

LITERALS = {
    "boolean": ["TRUE", "false"],
    "tinyint": ["127", "-128", "0Y"],
    "smallint": ["-32768", "7S"],
    "int": ["2147483647", "+5", "- 5"],
    "bigint": ["-9223372036854775808", "9223372036854775807L"],
    "float": ["1", "1.5", "-2.5E-3", "3.4e38", "1.5F"],
    "double": ["1.7e308", ".5", "2BD", "1.D"],
    "decimal(5,2)": ["999.99", "-0.5", "1.50000", "1e2", "0"],
    "string": ["'a'", '"a"', r"'a\'b'", "''"],
    "char(2)": ["'ab'"],
    "varchar(2)": ["'ab'", "'ü'"],
    "binary": ["X'00fF'", "x''"],
    "date": ["DATE '2024-02-29'", "current_date", "CURRENT_DATE()"],
    "timestamp": [
        "TIMESTAMP '2026-11-20 10:00:00'",
        "timestamp_ltz '2026-11-20T10:00:00.123456+01:00'",
        "current_timestamp()",
        "now()",
    ],
    "timestamp_ntz": ["TIMESTAMP_NTZ '2026-11-20'", "localtimestamp"],
    "array<int>": ["NULL"],
    "variant": ["null"],
}

MISFITS = {
    "boolean": ["1", "'true'"],
    "tinyint": ["128", "1.0", "300S", "'1'", "TRUE"],
    "smallint": ["32768"],
    "int": ["2147483648", "1e2", "1.5", "5F", "9" * 5000],
    "bigint": ["9223372036854775808"],
    "float": ["3.5e38", "'1'"],
    "double": ["1e999"],
    "decimal(5,2)": ["1000", "0.001", "'1'"],
    "string": ["1", "X'00'", "DATE '2024-01-01'", "current_date()"],
    "char(2)": ["'abc'"],
    "varchar(2)": ["'abc'", r"'\'\'\''", "uuid()"],
    "binary": ["X'0'", "X'zz'", "'a'"],
    "date": ["DATE '2023-02-29'", "'2024-01-01'", "current_timestamp()", "DATE '2024-1-1'"],
    "timestamp": ["TIMESTAMP_NTZ '2026-11-20'", "DATE '2026-11-20'", "TIMESTAMP '10:00'"],
    "timestamp_ntz": ["TIMESTAMP '2026-11-20'", "TIMESTAMP_NTZ '2026-11-20 10:00:00Z'"],
    "array<int>": ["1"],
    "int ": ["uuid()", "current_user()"],
}

NO_DEFAULTS = ["1 + 1", "abs(-1)", "(SELECT 1)", "a", "rand()", "uuid", "", "array(1)", "1;", "'a"]


def check(data_type: str, default: str | None, *, nullable: bool = True) -> str | None:
    return checked_default(default, parse_type(data_type), column="c", nullable=nullable)


@pytest.mark.parametrize(
    ("data_type", "text"), [(of, text) for of, several in LITERALS.items() for text in several]
)
def test_a_value_of_the_column_type_is_accepted_as_default(data_type: str, text: str) -> None:
    kept = check(data_type, f"  {text} ")
    assert kept is not None
    assert check(data_type, kept) == kept
    assert kept == text or not is_constant(kept) or kept == "NULL"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("'it''s'", r"'it\'s'"),
        (r"'\\''\''", r"'\\\'\''"),
        ('"a""b"', r'"a\"b"'),
        ("\"it''s\"", "\"it''s\""),
    ],
)
def test_a_doubled_quote_in_a_default_is_stored_as_each_release_of_spark_reads_it(
    text: str, kept: str
) -> None:
    assert check("string", text) == kept
    assert check("string", kept) == kept


@pytest.mark.parametrize(
    ("data_type", "text"),
    [(of, text) for of, several in MISFITS.items() for text in several],
    ids=lambda text: text[:20],
)
def test_a_default_of_another_type_is_refused(data_type: str, text: str) -> None:
    with pytest.raises(InvalidInput, match="does not match its type"):
        check(data_type, text)


@pytest.mark.parametrize("text", NO_DEFAULTS)
def test_other_expressions_are_refused_as_defaults(text: str) -> None:
    with pytest.raises(
        UnsupportedOperation, match=r"a default must be a literal or one of current_da"
    ):
        check("int", text)


@pytest.mark.parametrize("text", ["NULL", " null "])
def test_a_not_null_column_cannot_have_default_null(text: str) -> None:
    with pytest.raises(InvalidInput, match="NOT NULL"):
        check("int", text, nullable=False)
    assert check("int", None, nullable=False) is None


def test_a_missing_default_equals_null_and_only_literals_are_constant() -> None:
    assert same_default(None, "NULL")
    assert not same_default(None, "1")
    assert not is_constant(None)
    assert [is_constant(text) for text in ("1", "now()", "current_user")] == [True, False, False]
