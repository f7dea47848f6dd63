from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given

from strandline.catalog import Command, VersionInfo, commands
from strandline.catalog.commands import AlterColumn, CreateFunction, CreateTable, DropTable
from strandline.clock import Timestamp
from strandline.errors import InvalidInput, InvalidType
from strandline.metastore.interface import ResolvedTable, Snapshot
from strandline.metastore.session import json_forms
from strandline.metastore.session.json_forms import arguments_form, form_of, snake_case
from strandline.metastore.session.json_values import Misfit
from strandline.metastore.session.wire_json import read_json, write_json
from strandline.model.descriptors import (
    ColumnDescriptor,
    FunctionDescriptor,
    Properties,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
)
from strandline.model.type_changes import assign_ids
from strandline.model.type_json import parse_type_json
from strandline.model.types import BIGINT, ArrayType, DataType, DecimalType, StructType
from strandline.transactions import Hold, Transaction, TransactionState, ValidWriteIdList
from tests.catalog.sample_commands import COMMANDS, sample_fields
from tests.catalog.scenario import Refused
from tests.catalog.test_scenarios import ALL
from tests.model.type_strategies import structs, types


def there_and_back(value: object, hint: Any) -> object:
    return read_json(write_json(value, hint), hint)


@pytest.mark.parametrize("of", COMMANDS, ids=lambda command: command.__name__)
def test_every_command_is_read_back(of: type) -> None:
    assert is_dataclass(of)
    given_fields = sample_fields(of)
    command = of(**given_fields)
    written = write_json(command, Command)
    assert list(json.loads(written)) == [snake_case(of.__name__)]
    assert read_json(written, Command) == command
    defaults = of(**{k: v for k, v in given_fields.items() if k not in ("owner_type", "type")})
    assert there_and_back([command, defaults], Sequence[Command]) == (command, defaults)


def scenario_commands() -> Iterator[Command]:
    for _, scenario in ALL:
        bad = isinstance(scenario.expect, Refused)
        for run in (*scenario.setup, *([] if bad else [scenario.run])):
            for step in run if isinstance(run, Sequence) else [run]:
                if type(step) in COMMANDS:
                    yield step  # type: ignore[misc]  # functions of a catalog are excluded above


@pytest.mark.slow
def test_every_command_of_the_scenarios_is_read_back_unchanged() -> None:
    several = tuple(scenario_commands())
    assert len({type(value) for value in several}) > 40
    for command in several:
        assert there_and_back(command, Command) == command


def test_resources_of_a_function_are_read_back_in_their_order() -> None:
    resources = (("JAR", "file:/b.jar"), ("FILE", "file:/c"), ("JAR", "file:/a.jar"))
    command = CreateFunction(schema="s", name="f", class_name="a.B", resources=resources)
    assert there_and_back(command, Command) == command
    function = FunctionDescriptor(1, 2, "f", "ann", "a.B", resources=resources)
    assert there_and_back(function, FunctionDescriptor) == function


def test_the_collected_commands_include_tables_schemas_and_views() -> None:
    assert {"CreateTable", "DropSchema", "AlterView"} <= {command.__name__ for command in COMMANDS}
    assert len(COMMANDS) >= 14


@pytest.mark.slow
@given(types())
def test_every_data_type_is_read_back(data_type: DataType) -> None:
    assert there_and_back(data_type, DataType) == data_type
    assert there_and_back(data_type, DataType | None) == data_type


@pytest.mark.slow
def test_equal_data_types_of_many_columns_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str, *, field_ids: bool) -> DataType:
        parsed.append(text)
        return parse_type_json(text, field_ids=field_ids)

    monkeypatch.setattr(json_forms, "parse_type_json", parse)
    column = {"name": "c", "type": "decimal(37,29)"}
    definition = {"name": "t", "columns": [column] * 50}
    form_of(Command).read({"create_table": {"schema": "s", "definition": definition}})
    assert parsed == ['"decimal(37,29)"']


@given(structs(types()))
def test_ids_of_nested_fields_are_read_back(struct: StructType) -> None:
    with_ids, _ = assign_ids(struct, 100)
    assert there_and_back(with_ids, DataType) == with_ids


def test_a_data_type_is_written_as_sparks_json() -> None:
    assert json.loads(write_json(DecimalType(5, 2), DataType)) == "decimal(5,2)"
    assert json.loads(write_json(BIGINT, DataType)) == "long"


TABLE = TableDescriptor(
    id=1,
    schema_id=2,
    name="t",
    owner="ann",
    kind=TableKind.EXTERNAL,
    transactional=False,
    provider="parquet",
    schema_versions=(SchemaVersion(1, (ColumnDescriptor(1, "k", BIGINT, False, "c"),)),),
    next_column_id=2,
    zone_id=1,
    partition_columns=(1,),
    storage=StorageFormat(
        serde_properties=(("a", "b"),),
        buckets=-1,
        sort_columns=(("k", 1),),
        hive_columns=(("k", "bigint", None),),
    ),
    location="s3://b/t",
    properties=(("x", ""),),
)

VALUES: dict[str, tuple[object, Any]] = {
    "transaction": (
        Transaction(
            1, TransactionState.COMMITTED, Timestamp(5), Timestamp(1 << 62), 3, 7, "é", "", "a",
            True, 300,
        ),
        Transaction,
    ),
    "open_transaction": (
        Transaction(1, TransactionState.OPEN, Timestamp(5), None, 3, 7, "", "", "", False, 300),
        Transaction,
    ),
    "hold": (Hold(1, "reader", "ann", Timestamp(5), Timestamp(6)), Hold),
    "snapshot": (
        Snapshot(
            3,
            Timestamp(9),
            {"s.t": ResolvedTable("s", TABLE, 3, "file:/s/t")},
            {
                5: ValidWriteIdList.of(9, open_ids=[3, 8], aborted=[4]),
                6: ValidWriteIdList(hwm=9, min_open=4, table="s.t"),
            },
        ),
        Snapshot,
    ),
    "version": (
        VersionInfo(
            3, Timestamp(9), "ann", "m",
            (("create_table", {"a": "x", "b": 1, "c": True, "d": ["y", "z"], "e": None}),),
            trimmed=True,
        ),
        VersionInfo,
    ),
    "table": (
        TABLE,
        TableDescriptor,
    ),
    "fractions": ([1.5, 2.0], list[float]),
    "numbers": ([0, -(2**63), 2**63 - 1], list[int]),
    "nothing": (None, type(None)),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_a_value_is_read_back_unchanged(case: str) -> None:
    value, hint = VALUES[case]
    back = there_and_back(value, hint)
    assert back == value
    assert type(back) is type(value)


def test_maps_of_texts_are_read_in_canonical_order() -> None:
    assert read_json(b'{"b": "2", "a": "1"}', Properties) == (("a", "1"), ("b", "2"))


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Part:
    count: int
    names: tuple[str, ...] = ()
    by_id: Mapping[int, Colour] | None = None
    pair: tuple[str, int] = ("", 0)

    def __post_init__(self) -> None:
        if self.count > 100:
            raise InvalidType("too many")


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"parts": {}}', "parts: expected a list, found an object"),
        ('{"parts": [{"count": 1}, {}]}', "parts[1].count: is missing"),
        (
            '{"parts": [{"count": 1, "nam": 2}]}',
            "parts[0].nam: is not a member of this object;"
            " its members are: count, names, by_id, pair",
        ),
        ('{"parts": [{"count": 1, "names": ["a", 2]}]}', "parts[0].names[1]: expected a string"),
        ('{"parts": [{"count": 1, "by_id": {"a": "RED"}}]}', "parts[0].by_id.a: the name of this"),
        ('{"parts": [{"count": 1, "by_id": {"1": "BLUE"}}]}', "parts[0].by_id.1: expected one of"),
        ('{"parts": [{"count": 1, "pair": ["a"]}]}', "parts[0].pair: expected 2 elements, found 1"),
        ('{"parts": [{"count": 1, "pair": ["a", "b"]}]}', "parts[0].pair[1]: expected a whole"),
        ('{"parts": [{"count": 101}]}', "parts[0]: too many"),
        (f'{{"parts": [{{"count": 1, "{"x" * 500}": 2}}]}}', f"parts[0].{'x' * 80}…: is not"),
        (f'{{"parts": "{"x" * 500}"}}', f'expected a list, found "{"x" * 79}…'),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path(body: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_json(body.encode(), Whole)
    assert message in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1e400", "true", '"1"'])
def test_an_invalid_fraction_is_refused(number: str) -> None:
    with pytest.raises(InvalidInput, match="number"):
        read_json(number.encode(), float)


def test_an_error_raised_by_a_value_class_keeps_its_class() -> None:
    with pytest.raises(InvalidType, match=r"^parts\[0\]: too many$"):
        read_json(b'{"parts": [{"count": 101}]}', Whole)


def test_a_value_that_is_not_a_member_of_a_union_cannot_be_sent() -> None:
    class Unheard:
        def plan(self, planning: object) -> None: ...

    with pytest.raises(InvalidInput, match="Unheard cannot be sent"):
        write_json(Unheard(), Command)


def test_a_type_that_is_still_a_text_cannot_be_sent() -> None:
    wider: Any = "bigint"
    for text_type in (wider, ArrayType(wider)):
        command = commands.AlterColumn(schema="s", table="t", column="c", type=text_type)
        with pytest.raises(InvalidType, match="'bigint' is not a data type"):
            write_json(command, Command)


def test_a_type_hint_without_a_json_form_raises_type_error() -> None:
    for hint in (object, set[int], complex):
        with pytest.raises(TypeError, match="no JSON form"):
            form_of(hint)


def test_the_arguments_of_a_method_are_read_by_its_signature() -> None:
    class Face:
        def call(self, number: int, *, commands: Command | Sequence[Command] = ()) -> None: ...

    form = arguments_form(Face.call)
    drop = DropTable(schema="s", table="t")
    written = form.write({"number": 1, "commands": drop})
    assert form.read(written) == {"number": 1, "commands": (drop,)}
    assert form.read({"number": 2}) == {"number": 2}
    with pytest.raises(Misfit):
        form.read({"commands": []})


def test_a_class_name_is_converted_to_snake_case() -> None:
    names = ["CreateTable", "AlterColumn", "T"]
    assert [snake_case(name) for name in names] == ["create_table", "alter_column", "t"]


def test_a_definition_that_is_written_by_hand_is_read() -> None:
    body = {
        "create_table": {
            "schema": "nyc",
            "definition": {
                "name": "flights",
                "columns": [
                    {"name": "id", "type": "long", "nullable": False},
                    {"name": "delays", "type": {
                        "type": "array", "elementType": "integer", "containsNull": True,
                    }},
                ],
                "transactional": True,
            },
        }
    }  # fmt: skip
    command = read_json(json.dumps(body).encode(), Command)
    assert isinstance(command, CreateTable)
    assert [c.nullable for c in command.definition.columns] == [False, True]
    assert command == there_and_back(command, Command)
    assert AlterColumn(schema="s", table="t", column="c") == there_and_back(
        AlterColumn(schema="s", table="t", column="c"), Command
    )


def test_a_type_that_python_can_parse_but_not_write_again_is_refused_with_a_typed_error() -> None:
    """Each of the two reaches the limit of recursion at another depth."""
    for depth in range(900, 1_000):
        body = b'{"type":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(InvalidInput):
            read_json(body, DataType)
