"""Commands with values of wrong types, as a program without type checks sends them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddColumns,
    AlterZone,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropColumns,
    DropTable,
    GrantPrivileges,
    SetOwner,
    SetTableProperties,
    TableDefinition,
)
from strandline.errors import InvalidInput, StrandlineError
from strandline.metastore.interface import AsOf, Session
from strandline.metastore.session import HttpSession, LocalSession
from strandline.model.privileges import ObjectKind
from strandline.model.types import BIGINT, ArrayType, AtomicType, DataType, StructField, StructType
from strandline.node import Node
from tests.catalog.sample_commands import COMMANDS, sample_fields

WRONG = (5, 1.5, "text", True, None, b"x", ["a"], ("a",), {"a": "b"}, 1 << 70, "\ud800")
MISSING = DropTable(schema="s", table="missing")
"""Undoes a batch: it cannot be carried out."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSession]:
    with Node.open(tmp_path_factory.mktemp("store")) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        columns = ColumnDefinition("a", BIGINT), ColumnDefinition("b", BIGINT)
        table = TableDefinition(name="t", columns=columns)
        session.execute(CreateTable(schema="s", definition=table))
        yield session


def changed(value: Any) -> Iterator[Any]:
    """The value with each of its fields, and of the fields of its parts, set to a wrong value."""
    if isinstance(value, tuple):
        for number, element in enumerate(value):
            for wrong in (*WRONG, *changed(element)):
                yield (*value[:number], wrong, *value[number + 1 :])
    elif is_dataclass(value) and not isinstance(value, DataType | type):
        for field in fields(value):
            for wrong in (*WRONG, *changed(getattr(value, field.name))):
                yield replace(value, **{field.name: wrong})


@pytest.mark.parametrize("of", COMMANDS, ids=lambda command: command.__name__)
def test_no_value_of_a_field_causes_a_foreign_error(session: LocalSession, of: type) -> None:
    refused = 0
    for command in changed(of(**sample_fields(of))):
        with pytest.raises(StrandlineError) as caught:
            session.execute([command, MISSING])
        refused += caught.type is InvalidInput
    assert refused > len(WRONG) // 2


def untyped(value: Any) -> Any:
    """A value that the checks of types let pass."""
    return value


def one_column(type_: Any) -> AddColumns:
    return AddColumns(schema="s", table="t", columns=(ColumnDefinition("c", type_),))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            DropTable(schema="s", table=untyped(5)),
            "DropTable.table must be a text of whole characters, not 5",
        ),
        (
            DropTable(schema="s", table="t", purge=untyped("no")),
            "DropTable.purge must be True or False, not 'no'",
        ),
        (
            AlterZone(name="z", partitions=True),
            "AlterZone.partitions must be a whole number of 64 bits or None, not True",
        ),
        (
            DropColumns(schema="s", table="t", names=untyped("ab")),
            "DropColumns.names must be a tuple, not 'ab'",
        ),
        (
            SetOwner(kind=untyped("TABLE"), name="s.t", owner="bob"),
            "SetOwner.kind must be like ObjectKind.SYSTEM of strandline.model.privileges, not"
            " 'TABLE'",
        ),
        (
            GrantPrivileges(
                kind=ObjectKind.TABLE, name="s.t", privileges=untyped("all"), grantee="public"
            ),
            "GrantPrivileges.privileges must be like Privilege.SELECT of"
            " strandline.model.privileges, not 'all'",
        ),
        (
            one_column("bigint"),
            "AddColumns.columns[0].type must be a data type of strandline.model.types, not"
            " 'bigint'",
        ),
        (
            one_column(ArrayType(StructType((StructField("f", AtomicType("number")),)))),
            "AddColumns.columns[0].type.element.fields[0].type must be a data type of"
            " strandline.model.types, not AtomicType(name='number')",
        ),
        (
            CreateSchema(name="s2", properties=untyped((("a", "1", "2"),))),
            "CreateSchema.properties[0] must be a tuple of 2, not ('a', '1', '2')",
        ),
        (
            CreateSchema(name="s2", properties=untyped({"a": "1"})),
            "CreateSchema.properties must be a tuple of pairs, like (('a', '1'),), not {'a': '1'}",
        ),
        (None, "None is not a command; give commands of strandline.catalog.commands"),
        (
            "DROP TABLE t",
            "'DROP TABLE t' is not a command; give commands of strandline.catalog.commands",
        ),
    ],
)
def test_the_error_names_the_field_and_what_it_takes(
    session: LocalSession, command: Any, message: str
) -> None:
    for of_client in (session, HttpSession("http://127.0.0.1:1", user="ann")):
        with pytest.raises(InvalidInput) as refused:
            of_client.execute(command)
        assert refused.value.message == message


@pytest.mark.parametrize(
    "command",
    [
        CreateSchema(name="s2", comment="\ud800"),
        AlterZone(name="z", partitions=1 << 63),
        AlterZone(name="z", partitions=-1 << 64),
    ],
    ids=["half a character", "a large number", "a small number"],
)
def test_a_value_that_no_log_can_keep_is_refused(session: LocalSession, command: Command) -> None:
    with pytest.raises(InvalidInput, match=r"whole characters|64 bits"):
        session.execute(command)


def test_the_largest_number_and_a_whole_number_as_a_fraction_fit(session: LocalSession) -> None:
    for command in (
        AlterZone(name="z", partitions=(1 << 63) - 1),
        SetTableProperties(schema="s", table="missing", stale_rows_fraction=1),
    ):
        with pytest.raises(StrandlineError, match=r"^(?!.*must be)"):
            session.execute(command)


@pytest.mark.parametrize("of_columns", [list, tuple])
def test_a_list_may_stand_for_a_tuple(session: LocalSession, of_columns: type) -> None:
    column = ColumnDefinition("a", StructType(untyped([StructField("f", BIGINT)])))
    definition = TableDefinition(name="lists", columns=of_columns([column]))
    session.execute(CreateTable(schema="s", definition=definition))
    assert [column.name for column in session.table("s.lists").descriptor.columns] == ["a"]
    session.execute(DropTable(schema="s", table="lists"))


MISTAKES: list[tuple[Callable[[Session], object], str]] = [
    (lambda s: s.commit(untyped(s)), "txn_id of commit must be a whole number of 64 bits, not <"),
    (lambda s: s.table("s.t", at=untyped(1)), "at of table must be of the class AsOf, not 1"),
    (lambda s: s.heartbeat(untyped(s)), "txn_id of heartbeat must be a whole number of 64 bits"),
    (lambda s: s.undo(untyped("1")), "version of undo must be a whole number of 64 bits, not '1'"),
    (
        lambda s: s.hold("job", at=untyped("now")),
        "at of hold must be a whole number of 64 bits or None, not 'now'",
    ),
    (lambda s: s.compact(True), "version of compact must be a whole number of 64 bits, not True"),
    (
        lambda s: s.hold("job", at=None, ttl_ms=True),
        "ttl_ms of hold must be a whole number of 64 bits, not True",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_an_argument_of_a_wrong_type_is_named(
    session: LocalSession, call: Callable[[Session], object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^the argument {re.escape(message)}"):
        call(session)


@pytest.mark.parametrize(("call", "message"), MISTAKES[:3])
def test_an_argument_that_cannot_be_sent_is_named(
    call: Callable[[Session], object], message: str
) -> None:
    with (
        HttpSession("http://127.0.0.1:1", user="ann") as remote,
        pytest.raises(InvalidInput, match=f"^the argument {re.escape(message)}"),
    ):
        call(remote)


def test_a_point_in_history_is_no_truth_value() -> None:
    points: tuple[dict[str, Any], ...] = ({"version": True}, {"time": False})
    for point in points:
        with pytest.raises(InvalidInput, match=r"not (True|False)"):
            AsOf(**point)


def test_an_error_that_no_argument_explains_stays_as_it_is(session: LocalSession) -> None:
    call: Any = session.commit
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'txn_id'"):
        call()
