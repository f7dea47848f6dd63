"""Partitions as specs: what HCatalog and the Java clients of Hive 3 and 4 request."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import (
    GetPartitionsFilterSpec,
    GetPartitionsRequest,
    GetProjectionsSpec,
    PartitionFilterMode,
    PartitionListComposingSpec,
    PartitionsByExprRequest,
    PartitionSpec,
    PartitionSpecWithSharedSD,
    PartitionWithoutSD,
)

from tests.metastore.hive.contract import given, partition
from tests.metastore.hive.hive_node import HiveNode, plain, refusal, storage

SERDE = {"serialization.format": "1"}
STORES = ("folder", "postgresql")
BY_NAMES, BY_VALUES = PartitionFilterMode.BY_NAMES, PartitionFilterMode.BY_VALUES
BY_EXPR = PartitionFilterMode.BY_EXPR


@pytest.fixture
def parted(hive: HiveNode, stub: Any) -> Any:
    """A client of the table ps.parted with three partitions."""
    given(stub, "ps")
    stub.add_partitions([partition("ps", p, q) for p, q in (("1", "x"), ("1", "y"), ("2", "x"))])
    return stub


def values(specs: Any) -> list[list[str]]:
    return [part.values for spec in specs for part in spec.partitionList.partitions]


def test_the_partitions_of_a_table_are_one_spec(hive: HiveNode, parted: Any) -> None:
    (spec,) = parted.get_partitions_pspec("PS", "Parted", -1)
    root = f"{hive.warehouse}/ps.db/parted"
    assert (spec.dbName, spec.tableName, spec.rootPath) == ("ps", "parted", root)
    assert spec.partitionList.partitions == parted.get_partitions("ps", "parted", -1)
    assert values(parted.get_partitions_pspec("ps", "parted", 1)) == [["1", "x"]]
    specs = parted.get_part_specs_by_filter("ps", "parted", "p = 1", -1)
    assert values(specs) == [["1", "x"], ["1", "y"]]
    assert parted.get_partitions_pspec("ps", "v1", -1) == []
    missing = refusal(lambda: parted.get_partitions_pspec("ps", "none", -1))
    assert missing == ("NoSuchObjectException", "ps.none table not found")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["1x", "1y", "2x"]),
        (GetPartitionsFilterSpec(), ["1x", "1y", "2x"]),
        (GetPartitionsFilterSpec(filterMode=BY_NAMES, filters=["p=2/q=x", "p=9/q=x"]), ["2x"]),
        (GetPartitionsFilterSpec(filterMode=BY_VALUES, filters=["1"]), ["1x", "1y"]),
        (GetPartitionsFilterSpec(filterMode=BY_VALUES, filters=["", "x"]), ["1x", "2x"]),
        (GetPartitionsFilterSpec(filterMode=BY_EXPR, filters=["p = 1", 'q = "y"']), ["1y"]),
        (GetPartitionsFilterSpec(filterMode=BY_EXPR, filters=[]), ["1x", "1y", "2x"]),
    ],
)
def test_a_request_chooses_partitions_by_names_values_or_filters(
    parted: Any, chosen: Any, expected: list[str]
) -> None:
    request = GetPartitionsRequest(dbName="ps", tblName="parted", filterSpec=chosen)
    listed = values(parted.get_partitions_with_specs(request).partitionSpec)
    assert ["".join(own) for own in listed] == expected


@pytest.mark.parametrize(
    ("projection", "expected"),
    [
        (GetProjectionsSpec(["values"]), {"values": ["1", "x"]}),
        (
            GetProjectionsSpec(["values", "sd.location", "sd.serdeInfo.serializationLib", "no.x"]),
            {
                "values": ["1", "x"],
                "sd": {
                    "location": "{root}/p=1/q=x",
                    "serdeInfo": {"serializationLib": "serde"},
                },
            },
        ),
        (
            GetProjectionsSpec(["sd.serdeInfo.name", "sd.serdeInfo", "sd.serdeInfo.name.x"]),
            {"sd": {"serdeInfo": {"serializationLib": "serde", "parameters": SERDE}}},
        ),
        (GetProjectionsSpec(["parameters"], "k%", None), {"parameters": {"k": "v"}}),
        (GetProjectionsSpec(["parameters"], "_", "k"), {"parameters": {}}),
    ],
)
def test_a_request_chooses_fields(
    hive: HiveNode, parted: Any, projection: Any, expected: dict[str, Any]
) -> None:
    request = GetPartitionsRequest(dbName="ps", tblName="parted", projectionSpec=projection)
    (spec,) = parted.get_partitions_with_specs(request).partitionSpec
    if "location" in expected.get("sd", ()):
        expected["sd"]["location"] = f"{hive.warehouse}/ps.db/parted/p=1/q=x"
    answer = plain(spec.partitionList.partitions[0])
    assert answer.pop("writeId") == -1  # the client's default
    assert answer == expected


def test_a_request_that_cannot_be_read_is_refused(parted: Any) -> None:
    for fields, text in (
        ({"tblName": "parted"}, "the argument dbName is missing"),
        (
            {"projectionSpec": GetProjectionsSpec(None, "x" * 9_000, None)},
            "a pattern of 'like' has at most",
        ),
        ({"filterSpec": GetPartitionsFilterSpec(filterMode=7)}, "the filter mode is 7"),
        (
            {"filterSpec": GetPartitionsFilterSpec(filterMode=BY_EXPR, filters=["p = "])},
            "",
        ),
    ):
        named = {} if "tblName" in fields else {"dbName": "ps", "tblName": "parted"}
        request = GetPartitionsRequest(**named, **fields)
        kind, message = refusal(lambda request=request: parted.get_partitions_with_specs(request))
        assert (kind, message[: len(text)]) == ("MetaException", text)


def test_partitions_are_added_from_specs_of_both_forms(hive: HiveNode, parted: Any) -> None:
    root = f"{hive.warehouse}/ps.db/parted"
    named = {"dbName": "ps", "tableName": "parted", "rootPath": root}
    shared = PartitionSpecWithSharedSD(
        [PartitionWithoutSD(["3", "x"], 0, 0, "/p=3/q=x", {"k": "3"})], storage(location=root)
    )
    whole = PartitionListComposingSpec([partition("ps", "3", "y")])
    specs = [
        PartitionSpec(**named, sharedSDPartitionSpec=shared),
        PartitionSpec(**named, partitionList=whole),
    ]
    assert parted.add_partitions_pspec(specs) == 2
    added = parted.get_partition("ps", "parted", ["3", "x"])
    assert (added.sd.location, added.parameters["k"]) == (f"{root}/p=3/q=x", "3")
    assert parted.get_partition("ps", "parted", ["3", "y"]).parameters["k"] == "v"
    assert refusal(lambda: parted.add_partitions_pspec(specs))[0] == "AlreadyExistsException"
    assert parted.add_partitions_pspec([]) == 0
    elsewhere = PartitionSpec(**{**named, "tableName": "none"}, partitionList=whole)
    assert refusal(lambda: parted.add_partitions_pspec([elsewhere])) == (
        "InvalidObjectException",
        "Unable to add partitions because database or table ps.none does not exist",
    )


def test_partitions_cannot_be_exchanged_between_tables(parted: Any) -> None:
    for method in (parted.exchange_partition, parted.exchange_partitions):
        kind, text = refusal(lambda method=method: method({"p": "1"}, "ps", "parted", "ps", "t1"))
        assert kind == "MetaException"
        assert text.startswith("partitions cannot be exchanged between two tables")


def test_a_condition_in_serialized_java_is_an_unknown_method(parted: Any) -> None:
    """Only then does Hive evaluate the condition itself."""
    request = PartitionsByExprRequest(dbName="ps", tblName="parted", expr=b"x")
    refused = refusal(lambda: parted.get_partitions_by_expr(request))
    assert refused == ("TApplicationException", "Invalid method name: 'get_partitions_by_expr'")


def test_a_store_has_an_id_of_its_own(hive: HiveNode, stub: Any) -> None:
    assert stub.get_metastore_db_uuid() == hive.node.catalogs.state.environment
    assert len(stub.get_metastore_db_uuid()) == 36


def test_there_are_no_delegation_tokens_without_kerberos(stub: Any) -> None:
    for call in (
        lambda: stub.get_delegation_token("ann", "spark"),
        lambda: stub.renew_delegation_token("t"),
        lambda: stub.cancel_delegation_token("t"),
    ):
        kind, text = refusal(call)
        assert kind == "MetaException"
        assert "does not use Kerberos" in text
