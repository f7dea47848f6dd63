from __future__ import annotations

import json

import pytest

from strandline.errors import InvalidInput
from strandline.metastore.hive.parameters import MAX_PARAMETER, schema_parameters, take_schema
from strandline.model.descriptors import ColumnDescriptor
from strandline.model.types import INT

SCHEMA = "spark.sql.sources.schema"


def columns(count: int) -> list[ColumnDescriptor]:
    return [ColumnDescriptor(n + 1, f"column_{n:03d}", INT) for n in range(count)]


def test_a_short_schema_is_one_parameter() -> None:
    parameters = schema_parameters(columns(2), ["column_001"])
    assert set(parameters) == {SCHEMA, f"{SCHEMA}.numPartCols", f"{SCHEMA}.partCol.0"}


@pytest.mark.parametrize("count", [1, 2, 60, 300])
def test_a_written_schema_can_be_read_again(count: int) -> None:
    parameters = schema_parameters(columns(count), [f"column_{count - 1:03d}"])
    schema, rest = take_schema(parameters | {"k": "v"})
    assert schema is not None
    assert [c.name for c in schema.columns] == [c.name for c in columns(count)]
    assert schema.partition_columns == (f"column_{count - 1:03d}",)
    assert rest == {"k": "v"}


def test_a_long_schema_is_split_into_parts_of_at_most_4000_characters() -> None:
    parameters = schema_parameters(columns(300), [])
    number = int(parameters[f"{SCHEMA}.numParts"])
    parts = [parameters[f"{SCHEMA}.part.{n}"] for n in range(number)]
    assert SCHEMA not in parameters
    assert [len(part) for part in parts[:-1]] == [MAX_PARAMETER] * (number - 1)
    assert len(json.loads("".join(parts))["fields"]) == 300


def test_a_schema_of_exactly_4000_characters_is_one_parameter() -> None:
    (shortest,) = schema_parameters([ColumnDescriptor(1, "c", INT)], []).values()
    for more, parts in ((0, 0), (1, 2)):
        name = "c" * (1 + MAX_PARAMETER - len(shortest) + more)
        parameters = schema_parameters([ColumnDescriptor(1, name, INT)], [])
        assert int(parameters.get(f"{SCHEMA}.numParts", 0)) == parts


def test_a_number_of_parts_above_the_number_of_parameters_is_refused_as_a_number() -> None:
    with pytest.raises(InvalidInput, match="'3', which is not a number of parts"):
        take_schema({f"{SCHEMA}.numParts": "3", f"{SCHEMA}.part.0": "{}"})


def test_a_default_that_is_no_text_stays_in_the_metadata() -> None:
    metadata = '{"CURRENT_DEFAULT":7}'
    schema, _ = take_schema(
        schema_parameters([ColumnDescriptor(1, "a", INT, metadata=metadata)], [])
    )
    assert schema is not None
    assert [(read.default, read.metadata) for read in schema.columns] == [(None, metadata)]


def test_partition_columns_are_moved_to_the_end() -> None:
    written = schema_parameters(columns(3), ["column_000"])
    schema, _ = take_schema(written)
    assert schema is not None
    assert [c.name for c in schema.columns] == ["column_001", "column_002", "column_000"]


def test_without_parameters_of_spark_there_is_no_schema() -> None:
    assert take_schema({"a": "b"}) == (None, {"a": "b"})


@pytest.mark.parametrize(
    "parameters",
    [
        {SCHEMA: "{"},
        {SCHEMA: '"integer"'},
        {f"{SCHEMA}.numParts": "2", f"{SCHEMA}.part.0": "{"},
        {f"{SCHEMA}.numParts": "-1"},
        {f"{SCHEMA}.numParts": "99999999999"},
        {f"{SCHEMA}.numParts": "9" * 5000},
        {
            SCHEMA: '{"type":"struct","fields":[]}',
            f"{SCHEMA}.numPartCols": "1",
            f"{SCHEMA}.partCol.0": "a",
        },
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        take_schema(parameters)


def test_a_default_is_column_metadata_in_spark_and_a_field_of_the_column_here() -> None:
    column = ColumnDescriptor(1, "a", INT, default="7", metadata='{"unit":"m"}')
    written = schema_parameters([column], [])
    (field,) = json.loads(written[SCHEMA])["fields"]
    assert field["metadata"] == {"CURRENT_DEFAULT": "7", "unit": "m"}
    schema, _ = take_schema(written)
    assert schema is not None
    (read,) = schema.columns
    assert (read.default, read.metadata) == ("7", '{"unit":"m"}')
    (hidden,) = json.loads(schema_parameters([column], [], defaults=False)[SCHEMA])["fields"]
    assert hidden["metadata"] == {"unit": "m"}
