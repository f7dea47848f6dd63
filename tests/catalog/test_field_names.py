"""Names of struct fields follow the rules for column names, wherever a type comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from strandline.catalog import CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterTable,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    TableDefinition,
)
from strandline.errors import InvalidInput, InvalidName
from strandline.model.type_parser import parse_type
from strandline.model.types import DataType

PLAIN = TableDefinition(
    name="t", columns=(ColumnDefinition("k", parse_type("struct<a: int>")),), transactional=False
)


def created_with(data_type: DataType) -> Command:
    column = ColumnDefinition("c", data_type)
    return CreateTable(schema="s", definition=replace(PLAIN, name="u", columns=(column,)))


def added(data_type: DataType) -> Command:
    return AddColumns(schema="s", table="t", columns=(ColumnDefinition("c", data_type),))


def altered(data_type: DataType) -> Command:
    return AlterColumn(schema="s", table="t", column="k", type=data_type)


def redefined(data_type: DataType) -> Command:
    columns = (replace(PLAIN.columns[0], type=data_type),)
    return AlterTable(schema="s", table="t", definition=replace(PLAIN, columns=columns))


def redefined_with_more(data_type: DataType) -> Command:
    columns = (*PLAIN.columns, ColumnDefinition("c", data_type))
    return AlterTable(schema="s", table="t", definition=replace(PLAIN, columns=columns))


WAYS = [created_with, added, altered, redefined, redefined_with_more]


@pytest.fixture
def catalogs(manager: CatalogManager) -> CatalogManager:
    manager.execute([CreateSchema(name="s"), CreateTable(schema="s", definition=PLAIN)], author="a")
    return manager


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("struct<a: int, b: int, b: string>", InvalidInput, "duplicate field 'b' in a struct"),
        ("struct<a: int, A: int>", InvalidInput, "duplicate field 'A' in a struct"),
        ("struct<a: int, `straße`: int, STRASSE: int>", InvalidInput, "duplicate field 'STRASSE'"),
        ("struct<a: int, x: array<map<int, struct<y: int, Y: int>>>>", InvalidInput, "field 'Y'"),
        ("struct<a: int, ``: int>", InvalidName, "must not be empty"),
        ("struct<a: int, `b\nc`: int>", InvalidName, "control characters"),
        ("struct<a: int, " + "b" * 768 + ": int>", InvalidName, "767 characters"),
    ],
)
def test_an_invalid_field_name_is_refused(
    catalogs: CatalogManager,
    way: Callable[[DataType], Command],
    text: str,
    error: type[InvalidInput],
    says: str,
) -> None:
    before = catalogs.latest_catalog()
    with pytest.raises(error, match=says):
        catalogs.execute(way(parse_type(text)), author="ann")
    assert catalogs.latest_catalog() is before


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_different_structs_may_use_the_same_field_name(
    catalogs: CatalogManager, way: Callable[[DataType], Command]
) -> None:
    fine = parse_type("struct<a: int, b: struct<a: int, B: int>>")
    assert catalogs.execute(way(fine), author="ann").applied == (True,)
