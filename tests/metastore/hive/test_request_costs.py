"""What a request costs is charged before the work: a small one may ask for much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hive_metastore.ttypes import Database, FieldSchema, Partition

from strandline import work
from strandline.catalog.commands import CreateFunction
from strandline.durable.contents import Contents
from strandline.metastore.hive.hive_reader import units_of_record
from strandline.metastore.off_loop import finish
from strandline.model import descriptors
from strandline.model.identifiers import normalize
from tests.metastore.hive.differential.statistics import numbers, statistics
from tests.metastore.hive.hive_node import HiveNode, storage, table

KEYS = [FieldSchema("p", "string", None)]


def ask(hive: HiveNode, method: str, **args: Any) -> Any:
    """The result of a method, in a thread of a serving node."""
    call = hive.call(method, **args)
    with work.budget(work.IN_THREAD):
        return finish(call.method.handler(call))


@contextmanager
def is_too_long() -> Iterator[None]:
    with pytest.raises(work.TooLong):
        yield


def test_like_costs_the_characters_of_the_values_times_those_of_its_pattern(
    hive: HiveNode, stub: Any
) -> None:
    """No other thread runs while a regular expression compares them."""
    far = storage(location="s3://bucket/far")  # whose partitions have names of any length
    stub.create_table(table("far", sd=far, partitionKeys=KEYS, tableType="EXTERNAL_TABLE"))
    stub.add_partition(Partition(["a" * 100_000], "d1", "far", sd=far))
    args = {"db_name": "d1", "tbl_name": "far"}
    assert ask(hive, "get_num_partitions_by_filter", **args, filter='p like "a.*"') == 1
    with is_too_long():
        ask(hive, "get_num_partitions_by_filter", **args, filter=f'p like ".*{"a." * 300}b.*"')


def test_a_hidden_name_costs_as_much_as_its_table_whose_name_may_have_an_at_sign_itself() -> None:
    sizes = {"of@0.2": 1_000_000}  # older releases allowed it
    catalog = SimpleNamespace(relation_bytes=lambda _, name: sizes.get(name, 0))
    scope: Any = SimpleNamespace(catalog=catalog, schema=SimpleNamespace(id=1))
    cost = units_of_record(scope, "of@0.2")
    assert units_of_record(scope, "of@0.2@files_4_1a2b3c4d") == cost > 0


def test_a_repeated_key_of_partition_values_costs_as_much_as_its_values(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("few", partitionKeys=KEYS))
    stub.add_partitions([Partition([f"{n}"], "d1", "few", sd=storage()) for n in range(100)])
    request = {"dbName": "d1", "tblName": "few", "partitionKeys": [{"name": "p"}]}
    answer = ask(hive, "get_partition_values", request=request)
    assert len(answer["partitionValues"]) == 100
    with is_too_long():
        request["partitionKeys"] = [{"name": "p"}] * 500
        ask(hive, "get_partition_values", request=request)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.get_table("D1", "v"),
        lambda c: c.get_fields("D1", "v"),
        lambda c: c.get_table_objects_by_name("D1", ["v"]),
        lambda c: c.get_database("D2"),
    ],
    ids=["a view", "its columns", "several", "a schema"],
)
def test_an_object_with_many_parameters_is_answered_in_a_thread_even_from_memory(
    hive: HiveNode, stub: Any, call: Any
) -> None:
    many = {f"k{number}": "v" for number in range(20_000)}
    stub.create_database(Database("d2", parameters=many))
    stub.create_table(table("v", tableType="VIRTUAL_VIEW", viewExpandedText="x", parameters=many))
    before = hive.service.statistics()
    call(stub)
    assert hive.service.statistics().waited == before.waited + 1


def test_a_view_with_very_many_parameters_exceeds_the_budget_of_a_thread(
    hive: HiveNode, stub: Any
) -> None:
    many = {f"k{number}": "v" for number in range(100_000)}
    stub.create_table(table("v", tableType="VIRTUAL_VIEW", viewExpandedText="x", parameters=many))
    with is_too_long():
        ask(hive, "get_table", dbname="d1", tbl_name="v")
    with is_too_long():
        ask(hive, "get_table_objects_by_name", dbname="d1", tbl_names=["v"])


def test_statistics_with_bit_vectors_cost_their_bytes(hive: HiveNode, stub: Any) -> None:
    names = [f"c{number}" for number in range(100)]
    columns = [FieldSchema(name, "int", None) for name in names]
    stub.create_table(table("wide", sd=storage(columns=columns)))
    vectors = [numbers(name, bitVectors=bytes(60_000)) for name in names]
    with hive.client() as client:
        sent = statistics("d1", "wide", *vectors, part=None)
        client.call("update_table_column_statistics", stats_obj=sent)
    request = {"dbName": "d1", "tblName": "wide", "colNames": ["c1"]}
    with is_too_long():
        ask(hive, "get_table_statistics_req", request=request)


def test_a_hidden_table_costs_the_record_of_its_table(hive: HiveNode, stub: Any) -> None:
    many = {f"k{number}": "v" for number in range(100_000)}
    stub.create_table(table("v", parameters=many))
    schema = f"d1@{hive.node.catalogs.latest_catalog().version}"
    hidden = re.search(r"v@files_[0-9a-f_]*", stub.get_table(schema, "v").viewExpandedText)
    assert hidden is not None
    with is_too_long():
        ask(hive, "get_table", dbname=schema, tbl_name=hidden[0])


def test_long_comments_and_parameters_of_partitions_cost_their_bytes(
    hive: HiveNode, stub: Any
) -> None:
    """A list of a hundred tables or partitions may take gigabytes."""
    long = {"comment": "x" * 5_000_000}
    stub.create_table(table("t", parameters=long))
    stub.create_table(table("p", partitionKeys=KEYS))
    stub.add_partition(Partition(["1"], "d1", "p", sd=storage(), parameters=long))
    projection = {"fieldList": ["parameters"]}
    some_fields = {"dbName": "d1", "tblName": "p", "projectionSpec": projection}
    for method, args in (
        ("get_table_meta", {"db_patterns": "d1", "tbl_patterns": "t"}),
        ("get_partitions", {"db_name": "d1", "tbl_name": "p"}),
        ("get_partition", {"db_name": "d1", "tbl_name": "p", "part_vals": ["1"]}),
        ("get_partitions_with_specs", {"request": some_fields}),
    ):
        with is_too_long():
            ask(hive, method, **args)


def test_functions_with_many_files_cost_their_bytes(hive: HiveNode, stub: Any) -> None:
    assert ask(hive, "get_all_functions") == {"functions": []}
    files = [("JAR", f"s3://bucket/{number:040}.jar") for number in range(1_000)]
    hive.node.session(user="ann").execute(
        [
            CreateFunction(schema="d1", name=f"f{n}", class_name="C", resources=tuple(files))
            for n in range(10)
        ]
    )
    with is_too_long():
        ask(hive, "get_all_functions")


def test_a_schema_and_a_function_cost_their_bytes(hive: HiveNode, stub: Any) -> None:
    """A schema has a single property, and a function has few values but its files."""
    stub.create_database(Database("d2", parameters={"p": "x" * 5_000_000}))
    files = [("JAR", f"s3://bucket/{number:0500}.jar") for number in range(1_000)]
    hive.node.session(user="ann").execute(
        [CreateFunction(schema="d1", name="f", class_name="C", resources=tuple(files))]
    )
    for method, args in (
        ("get_database", {"name": "d2"}),
        ("get_function", {"dbName": "d1", "funcName": "f"}),
    ):
        with is_too_long():
            ask(hive, method, **args)


def test_an_alter_of_a_table_looks_at_each_column_a_few_times(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [FieldSchema(f"c{number}", "string", None) for number in range(200)]
    wide = table("wide", sd=storage(columns=columns))
    stub.create_table(wide)
    wide.parameters = {"note": "new"}
    looks: list[str] = []

    def look(name: str) -> str:
        looks.append(name)
        return normalize(name)

    monkeypatch.setattr(descriptors, "normalize", look)
    stub.alter_table("d1", "wide", wide)
    assert len(looks) <= 10 * len(columns)


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("list_roles", {"principal_name": "ann", "principal_type": 1}),
        ("get_role_grants_for_principal", {"request": {"principal_name": "ann"}}),
        ("get_principals_in_role", {"request": {"roleName": "ann"}}),
        ("get_privilege_set", {"hiveObject": {"objectType": 2, "dbName": "d1"}}),
    ],
)
def test_a_request_about_very_many_roles_leaves_the_event_loop(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch, method: str, args: dict[str, Any]
) -> None:
    monkeypatch.setattr(Contents, "count", lambda contents, kind: work.AT_ONCE + 1)
    call = hive.call(method, **args)
    reading = call.method.handler(call)
    assert reading.send(None) is None, "it was answered on the event loop"
    reading.close()
