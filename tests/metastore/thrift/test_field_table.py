"""The contents of the field table, and the errors of an invalid one."""

from __future__ import annotations

import pytest

from strandline.errors import CorruptData
from strandline.metastore.thrift import HIVE_METASTORE, load_field_table
from strandline.metastore.thrift.field_table import LIST, SET, STRING, STRUCT


def test_methods_of_hive_and_of_the_base_service_are_known() -> None:
    methods = HIVE_METASTORE.methods
    for name in (
        "get_table",
        "alter_table_with_environment_context",
        "get_index_names",
        "compact2",
        "set_ugi",
        "getCounters",
        "get_table_req",
        "get_valid_write_ids",
    ):
        assert name in methods
    assert [name for name, spec in methods.items() if spec.oneway] == ["reinitialize", "shutdown"]


def test_a_field_id_may_be_read_as_two_types() -> None:
    fields = [field for field in HIVE_METASTORE.structs["Table"].fields if field.id in (16, 17)]
    assert [(f.id, f.name, f.type.wire, f.sent) for f in fields] == [
        (16, "creationMetadata", STRUCT, True),
        (16, "catName", STRING, False),
        (17, "catName", STRING, True),
    ]
    open_txns = HIVE_METASTORE.structs["GetOpenTxnsResponse"].fields[1:3]
    assert [(f.id, f.type.wire, f.sent) for f in open_txns] == [(2, LIST, True), (2, SET, False)]


def test_a_method_declares_the_exceptions_it_throws() -> None:
    spec = HIVE_METASTORE.methods["get_database"]
    assert spec.declares("NoSuchObjectException")
    assert not spec.declares("AlreadyExistsException")
    assert not HIVE_METASTORE.methods["get_partition_names"].declares("MetaException")


def test_a_definition_may_span_lines_and_use_a_name_that_is_defined_later() -> None:
    table = load_field_table(
        "# comment\nstruct A = 1:b list<B>,\n    2:kind K\n\nstruct B =\nenum K = X 1, Y 2\n"
    )
    assert [str(field.type) for field in table.structs["A"].fields] == ["list<B>", "i32"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("struct A = 1:x i32, 3:y i32", r"field 3 follows 1: a gap is written `2:-`"),
        ("struct A = 2:x i32", "field 2 follows 0"),
        ("struct A = 1:x i32, 1:y i64", "field 1 follows 1"),
        ("struct A = 1:x i32, 1:y~ i32", "the same wire type"),
        ("struct A = 1:x i32, 1:x+ i32", "the same wire type"),
        ("struct A = 1:x+ i32, 1:x i64", "field 1 follows 1"),
        ("struct A = 1:x i32, 2:x i32", "two fields have the same name"),
        ("struct A = 1:x Unknown", "the type 'Unknown' is not known"),
        ("struct A = 1:x list<i32,i32>", "is not known"),
        ("struct A = 1:x map<i32>", "is not known"),
        ("struct A = x i32", "is not a field"),
        ("struct A = 1:x i32\nstruct A = 1:x i32", "line 2 .* the name A is defined twice"),
        ("struct i32 = 1:x i32", "the name i32 is defined twice"),
        ("struct E =\nmethod m() -> void throws 1:E", "E is not an exception"),
        ("exception E =\nmethod m() -> void throws 2:E", "is not exception number 1"),
        ("method m() -> void\nmethod m() -> void", "the method m is defined twice"),
        ("struct m_args =\nmethod m() -> void", "m_args is defined twice"),
        ("older A when 1 i32 = 1:x i32", "must follow the one definition of A"),
        ("struct A = 1:x i32\nolder A when 1 i32 = 1:y i32", "does not tell the two layouts apart"),
        ("service X", "it is not a definition"),
    ],
)
def test_an_invalid_field_table_does_not_load(text: str, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        load_field_table(text)


def test_an_explicit_gap_in_the_field_ids_loads() -> None:
    table = load_field_table("struct A = 1:x i32, 2:-, 3:y i32")
    assert [field.id for field in table.structs["A"].fields] == [1, 3]
