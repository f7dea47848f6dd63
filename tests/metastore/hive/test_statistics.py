"""Statistics of columns: they follow what they describe through time, and they are validated.

`differential.statistics` compares the answers to such calls with those of Hive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline import work
from strandline.errors import InvalidInput
from strandline.metastore.hive import accuracy, statistics_changes
from strandline.metastore.hive.statistics_values import capped, combined, read_summary
from strandline.metastore.off_loop import finish
from strandline.metastore.store.rows import RowKind
from strandline.model.descriptors import ColumnDescriptor
from strandline.model.types import DecimalType
from tests.metastore.hive.differential.scenario import partition, table
from tests.metastore.hive.differential.statistics import numbers, of, statistics, texts
from tests.metastore.hive.hive_node import HiveNode, refusal
from tests.servers.thrift_client import ThriftClient
from tests.times import exact_text

COLUMNS = "a int, b string"


@pytest.fixture
def client(hive: HiveNode) -> Iterator[ThriftClient]:
    """A client of a node with the tables d1.t, and d1.parted with the partitions p=1 and p=2."""
    with hive.client() as client:
        client.call("create_table", tbl=table("d1", "t", COLUMNS))
        client.call("create_table", tbl=table("d1", "parted", COLUMNS, keys="p int"))
        parts = [partition("d1", "parted", value) for value in "12"]
        client.call("add_partitions", new_parts=parts)
        yield client


def store(client: ThriftClient, *objects: Any, part: str | None = None) -> None:
    method = f"update_{'table' if part is None else 'partition'}_column_statistics"
    name = "t" if part is None else "parted"
    client.call(method, stats_obj=statistics("d1", name, *objects, part=part))


def of_table(client: ThriftClient, *columns: str, schema: str = "d1", **more: str) -> list[Any]:
    request = {"dbName": schema, "tblName": "t", "colNames": list(columns), **more}
    answer = client.call("get_table_statistics_req", request=request)
    return list(answer["tableStats"])


def of_parts(client: ThriftClient, *parts: str, schema: str = "d1") -> dict[str, list[str]]:
    """The columns that have statistics, by partition."""
    request = {"dbName": schema, "tblName": "parted", "colNames": ["a", "b"]}
    request["partNames"] = list(parts)
    answer = client.call("get_partitions_statistics_req", request=request)
    return {name: [o["colName"] for o in known] for name, known in answer["partStats"].items()}


def alter(client: ThriftClient, columns: str) -> None:
    sent = client.call("get_table", dbname="d1", tbl_name="t")
    sent["sd"]["cols"] = table("d1", "t", columns)["sd"]["cols"]
    sent["parameters"] = {
        name: value for name, value in sent["parameters"].items() if "spark" not in name
    }
    # Counting the files would forget which statistics are accurate.
    client.call(
        "alter_table_with_environment_context",
        dbname="d1",
        tbl_name="t",
        new_tbl=sent,
        environment_context={"properties": {"DO_NOT_UPDATE_STATS": "true"}},
    )


def accurate(client: ThriftClient) -> str | None:
    table = client.call("get_table", dbname="d1", tbl_name="t")
    parameters: dict[str, str] = table["parameters"]
    return parameters.get("COLUMN_STATS_ACCURATE")


# -- through time


def test_a_changed_column_has_no_statistics_until_the_change_is_undone(
    hive: HiveNode, client: ThriftClient
) -> None:
    store(client, numbers(), texts())
    alter(client, "b string")
    assert of_table(client, "a", "b") == [texts()]
    assert accurate(client) == '{"COLUMN_STATS":{"b":"true"}}'
    hive.node.session(user="ann").undo(hive.node.metastore.catalogs.present().version)
    assert of_table(client, "a", "b") == [numbers(), texts()]
    alter(client, "a bigint, b string")
    assert of_table(client, "a", "b") == [texts()]


def test_statistics_stay_accurate_if_the_files_are_first_counted_by_a_rename(
    hive: HiveNode, client: ThriftClient
) -> None:
    external: dict[str, Any] = {"tableType": "EXTERNAL_TABLE", "parameters": {"EXTERNAL": "TRUE"}}
    client.call("create_table", tbl=table("d1", "t1", COLUMNS, **external))
    (hive.folder / "warehouse/d1.db/t1/rows").write_bytes(b"1")
    client.call("update_table_column_statistics", stats_obj=statistics("d1", "t1", numbers()))
    renamed = client.call("get_table", dbname="d1", tbl_name="t1") | {"tableName": "t2"}
    client.call("alter_table", dbname="d1", tbl_name="t1", new_tbl=renamed)
    parameters = client.call("get_table", dbname="d1", tbl_name="t2")["parameters"]
    assert parameters["COLUMN_STATS_ACCURATE"] == '{"COLUMN_STATS":{"a":"true"}}'
    assert parameters["numFiles"] == "1"


def test_statistics_are_not_merged_into_those_of_a_partition_whose_column_has_changed(
    client: ThriftClient,
) -> None:
    store(client, numbers(), texts(), part="p=1")
    sent = client.call("get_table", dbname="d1", tbl_name="parted")
    sent["sd"]["cols"] = table("d1", "parted", "a bigint, b string")["sd"]["cols"]
    client.call("alter_table", dbname="d1", tbl_name="parted", new_tbl=sent)
    for merged in ([texts()], [numbers(), texts()], [numbers()]):
        listed = [statistics("d1", "parted", *merged, part="p=1")]
        client.call("set_aggr_stats_for", request={"colStats": listed, "needMerge": True})
        # Those of the new rows alone would be taken for those of all rows.
        assert of_parts(client, "p=1") == {"p=1": ["b"]}
    found = client.call("get_partition", db_name="d1", tbl_name="parted", part_vals=["1"])
    assert found["parameters"]["COLUMN_STATS_ACCURATE"] == '{"COLUMN_STATS":{"b":"true"}}'
    store(client, numbers(), part="p=1")
    assert of_parts(client, "p=1") == {"p=1": ["a", "b"]}


def test_statistics_can_be_read_as_of_a_time_and_are_restored_with_their_partition(
    hive: HiveNode, client: ThriftClient
) -> None:
    store(client, numbers(), part="p=1")
    store(client, texts(), part="p=1")
    store(client, numbers(), part="p=2")
    past_schema = f"d1@{exact_text(hive.node.metastore.catalogs.complete_now())}"
    parts = {"names": ["p=1", "p=2"]}
    drop = {"dbName": "d1", "tblName": "parted", "parts": parts, "deleteData": True}
    client.call("drop_partitions_req", req=drop)
    assert of_parts(client, "p=1", "p=2") == {}
    assert of_parts(client, "p=1", schema=past_schema) == {"p=1": ["a", "b"]}
    hive.node.session(user="ann").undrop_partitions("d1.parted", partitions=["p=1"])
    assert of_parts(client, "p=1", "p=2") == {"p=1": ["a", "b"]}


def test_a_partition_that_exists_again_does_not_get_the_statistics_of_a_dropped_one(
    hive: HiveNode, client: ThriftClient
) -> None:
    for part in ("p=1", "p=2"):
        store(client, numbers(), part=part)
    drop = {"dbName": "d1", "tblName": "parted", "parts": {"names": ["p=1", "p=2"]}}
    client.call("drop_partitions_req", req={**drop, "deleteData": True})
    client.call("add_partitions", new_parts=[partition("d1", "parted", "1")])
    assert hive.node.session(user="ann").undrop_partitions("d1.parted") == ["p=2"]
    assert of_parts(client, "p=1", "p=2") == {"p=2": ["a"]}


def test_another_node_sees_statistics_and_they_are_not_loaded_into_memory(
    hive: HiveNode, client: ThriftClient
) -> None:
    client.call("get_partitions", db_name="d1", tbl_name="parted", max_parts=-1)  # into memory
    rows = hive.node.store.statistics().rows
    store(client, numbers(), texts(), part="p=1")
    with hive.another_node() as other:
        catalog = other.metastore.catalogs.present()
        parted = catalog.table("d1", "parted")
        assert parted is not None
        (row,) = other.metastore.store.rows(parted.id, RowKind.STATISTICS, write_ids=None)
        assert row.name == "p=1"
    assert of_parts(client, "p=1") == {"p=1": ["a", "b"]}
    assert hive.node.store.statistics().rows == rows + 1  # the partition with new parameters


def test_columns_are_answered_in_the_order_of_the_request_each_once(client: ThriftClient) -> None:
    store(client, numbers(), texts())
    assert of_table(client, "b", "A", "a") == [texts(), numbers()]
    store(client, numbers(), part="p=1")
    request = {"dbName": "d1", "tblName": "parted", "colNames": ["a", "A"], "partNames": ["p=1"]}
    assert client.call("get_aggr_stats_for", request=request)["partsFound"] == 1


def test_statistics_in_two_forms_are_not_combined(client: ThriftClient) -> None:
    client.call("create_table", tbl=table("d1", "days", "g date", keys="p int"))
    parts = [partition("d1", "days", value) for value in "12"]
    client.call("add_partitions", new_parts=parts)
    days = {"lowValue": {"daysSinceEpoch": 1}, "highValue": {"daysSinceEpoch": 2}}
    forms = [
        of("g", "date", "dateStats", **days, numNulls=0, numDVs=2),
        of("g", "date", "longStats", lowValue=1, highValue=2, numNulls=0, numDVs=2),
    ]
    for number, form in enumerate(forms, 1):
        sent = statistics("d1", "days", form, part=f"p={number}")
        client.call("update_partition_column_statistics", stats_obj=sent)
    request = {"dbName": "d1", "tblName": "days", "colNames": ["g"], "partNames": ["p=1", "p=2"]}
    assert client.call("get_aggr_stats_for", request=request)["colStats"] == forms
    other = [statistics("d1", "days", forms[1], part="p=1")]
    client.call("set_aggr_stats_for", request={"colStats": other, "needMerge": True})
    answer = client.call("get_partitions_statistics_req", request=request)
    assert answer["partStats"]["p=1"] == [forms[1]]


def test_statistics_of_one_partition_sent_twice_are_merged_with_each_other(
    client: ThriftClient,
) -> None:
    store(client, numbers(), part="p=1")
    parts = [statistics("d1", "parted", numbers(numNulls=n), part="p=1") for n in (10, 100)]
    request = {"colStats": parts, "needMerge": True}
    nulls = numbers()["statsData"]["longStats"]["numNulls"] + 110
    client.call("set_aggr_stats_for", request=request)
    asked = {"dbName": "d1", "tblName": "parted", "colNames": ["a"], "partNames": ["p=1"]}
    (merged,) = client.call("get_partitions_statistics_req", request=asked)["partStats"]["p=1"]
    assert merged["statsData"]["longStats"]["numNulls"] == nulls


# -- engines, and Hive 4


def test_each_engine_has_its_own_statistics_and_bit_vectors_are_kept(
    client: ThriftClient,
) -> None:
    sent = of("a", "int", "longStats", numNulls=1, numDVs=2, bitVectors=b"HL\x00\xff")
    impala = {**statistics("d1", "t", sent), "engine": "impala"}
    assert client.call("update_table_column_statistics_req", req={"colStats": [impala]}) == {
        "result": True
    }
    store(client, numbers())
    assert of_table(client, "a") == [numbers()]
    assert of_table(client, "a", engine="impala") == [sent]
    client.call("delete_table_column_statistics", db_name="d1", tbl_name="t", engine="hive")
    assert of_table(client, "a") == []
    assert of_table(client, "a", engine="impala") == [sent]


def test_a_table_is_returned_with_its_statistics_if_hive_4_asks_for_them(
    client: ThriftClient,
) -> None:
    asked = {"dbName": "d1", "tblName": "t", "getColumnStats": True}
    assert "colStats" not in client.call("get_table_req", req=asked)["table"]
    store(client, numbers(), texts())
    table = client.call("get_table_req", req=asked)["table"]
    assert table["colStats"]["statsObj"] == [numbers(), texts()]
    assert table["colStats"]["statsDesc"]["tableName"] == "t"
    assert "colStats" not in client.call("get_table_req", req={**asked, "engine": "x"})["table"]


def test_an_update_request_of_hive_4_takes_one_partition_and_does_not_merge(
    client: ThriftClient,
) -> None:
    stored = statistics("d1", "parted", numbers(), part="p=1")
    for request in ({"colStats": [stored, stored]}, {"colStats": [stored], "needMerge": True}):
        kind, message = refusal(
            lambda: client.call("update_partition_column_statistics_req", req=request)  # noqa: B023 - called at once
        )
        assert (kind, "set_aggr_stats_for" in message) == ("InvalidObjectException", True)
    client.call("update_partition_column_statistics_req", req={"colStats": [stored]})
    assert of_parts(client, "p=1", "p=2") == {"p=1": ["a"]}


def test_a_sum_of_counts_is_capped_at_the_largest_number_of_the_protocol(
    client: ThriftClient,
) -> None:
    most = (1 << 63) - 1
    for value in "12":
        store(client, numbers(numNulls=most), part=f"p={value}")
    request = {"dbName": "d1", "tblName": "parted", "colNames": ["a"]}
    answer = client.call("get_aggr_stats_for", request=request | {"partNames": ["p=1", "p=2"]})
    (of_both,) = answer["colStats"]
    assert of_both["statsData"]["longStats"]["numNulls"] == most


def test_statistics_of_dates_and_timestamps_are_merged(client: ThriftClient) -> None:
    columns = "a int, g date, h timestamp"
    client.call("create_table", tbl=table("d1", "dated", columns))
    for low in (1, 3):
        days = {"lowValue": {"daysSinceEpoch": low}, "highValue": {"daysSinceEpoch": low + 1}}
        times = {"lowValue": {"secondsSinceEpoch": low}}
        sent = statistics(
            *("d1", "dated"),
            of("g", "date", "dateStats", **days, numNulls=low, numDVs=9),
            of("h", "timestamp", "timestampStats", **times, numNulls=-1, numDVs=2),
        )
        request = {"colStats": [sent], "needMerge": low > 1}
        client.call("set_aggr_stats_for", request=request)
    asked = {"dbName": "d1", "tblName": "dated", "colNames": ["g", "h"]}
    dates, moments = client.call("get_table_statistics_req", request=asked)["tableStats"]
    assert dates["statsData"]["dateStats"] == {
        "lowValue": {"daysSinceEpoch": 1},
        "highValue": {"daysSinceEpoch": 4},
        "numNulls": 4,
        "numDVs": 4,
    }
    known = {"lowValue": {"secondsSinceEpoch": 1}, "numNulls": -1, "numDVs": 2}
    assert moments["statsData"]["timestampStats"] == known


# -- bad input


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (texts("a"), "the statistics of column a are stringStats; send longStats"),
        ({"colName": "a", "colType": "int", "statsData": {}}, "are empty; send longStats"),
        (numbers(numNulls=-2), "numNulls of column a is -2"),
        (texts(avgColLen=float("nan")), "avgColLen of column b is nan"),
        (numbers(bitVectors=bytes(10 << 20)), "send them without bit vectors"),
    ],
    ids=["form", "none", "negative", "nan", "10 MB"],
)
def test_invalid_statistics_are_refused_and_nothing_is_stored(
    client: ThriftClient, sent: Any, said: str
) -> None:
    kind, message = refusal(lambda: store(client, texts(), sent))
    assert kind == "InvalidObjectException"
    assert said in message
    assert of_table(client, "a", "b") == []
    assert accurate(client) is None


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"numNulls": 3}, {"numNulls": -1}, {"numNulls": -1}),
        ({"lowValue": 1.0}, {"lowValue": float("nan")}, {"lowValue": 1.0}),
        ({"highValue": 1.0}, {"highValue": float("nan")}, {"highValue": 1.0}),
    ],
)
def test_an_unknown_count_stays_unknown_and_nan_is_no_bound(
    first: dict[str, float], second: dict[str, float], both: dict[str, float]
) -> None:
    for left, right in ((first, second), (second, first)):
        parts = (of("f", "double", "doubleStats", **values) for values in (left, right))
        assert combined(*parts) == of("f", "double", "doubleStats", **both)


def test_bounds_in_the_wrong_order_have_no_values_between_them() -> None:
    assert capped("longStats", {"lowValue": 9, "highValue": 1, "numDVs": 3})["numDVs"] == 0


@pytest.mark.parametrize("scale", [-1, 39])
def test_a_bound_with_a_scale_that_no_decimal_has_is_refused(scale: int) -> None:
    bound = {"unscaled": b"\x01", "scale": scale}
    sent = of("c", "decimal(5,2)", "decimalStats", lowValue=bound, numNulls=0, numDVs=1)
    with pytest.raises(InvalidInput, match=f"has the scale {scale}; send one from 0 to 38"):
        read_summary(sent, ColumnDescriptor(1, "c", DecimalType(5, 2)))


def test_the_total_size_of_the_statistics_of_all_columns_is_bounded(
    client: ThriftClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_changes, "MAX_ROW_BYTES", 100)
    store(client, numbers())
    kind, message = refusal(lambda: store(client, texts()))
    assert (kind, "at most 100 are allowed" in message) == ("InvalidObjectException", True)
    assert of_table(client, "a", "b") == [numbers()]


def test_statistics_of_several_partitions_are_refused_if_one_does_not_exist(
    client: ThriftClient,
) -> None:
    parts = [statistics("d1", "parted", numbers(), part=part) for part in ("p=1", "p=9")]
    kind, _ = refusal(lambda: client.call("set_aggr_stats_for", request={"colStats": parts}))
    assert kind == "NoSuchObjectException"
    other = [parts[0], statistics("d1", "t", numbers(), part="p=1")]
    kind, message = refusal(lambda: client.call("set_aggr_stats_for", request={"colStats": other}))
    assert (kind, "send those of one table" in message) == ("InvalidObjectException", True)
    engines = [{**parts[0], "engine": engine} for engine in ("hive", "impala")]
    kind, said = refusal(lambda: client.call("set_aggr_stats_for", request={"colStats": engines}))
    assert (kind, "send those of one engine" in said) == ("InvalidObjectException", True)
    assert of_parts(client, "p=1", "p=9") == {}


def test_deleting_all_statistics_succeeds_if_there_are_none(client: ThriftClient) -> None:
    names = {"db_name": "d1", "tbl_name": "t"}
    assert client.call("delete_table_column_statistics", **names) is True
    kind, _ = refusal(lambda: client.call("delete_table_column_statistics", **names, col_name="a"))
    assert kind == "NoSuchObjectException"


def test_the_statistics_of_transactional_and_past_tables_cannot_be_changed(
    hive: HiveNode, client: ThriftClient
) -> None:
    hive.create_transactional("d1", "own", a="int")
    for schema, name in (("d1", "own"), ("d1@2", "t")):
        sent = statistics(schema, name, numbers())
        kind, _ = refusal(lambda: client.call("update_table_column_statistics", stats_obj=sent))  # noqa: B023 - called at once
        assert kind in ("MetaException", "InvalidObjectException", "NoSuchObjectException")
    request = {"dbName": "d1", "tblName": "own", "colNames": ["a"]}
    assert client.call("get_table_statistics_req", request=request) == {"tableStats": []}


def test_a_request_for_many_partitions_exceeds_the_budget_of_a_thread(
    hive: HiveNode, client: ThriftClient
) -> None:
    """A thread of the node gives up the request before it goes through the names."""
    request = {"dbName": "d1", "tblName": "parted", "colNames": ["a"]}
    request["partNames"] = [f"p={n}" for n in range(100_000)]
    for method in ("get_partitions_statistics_req", "get_aggr_stats_for"):
        call = hive.call(method, request=request)
        with work.budget(work.IN_THREAD), pytest.raises(work.TooLong):
            finish(call.method.handler(call))


class Name(str):
    """The name of a column that counts how often it was looked up."""

    looked_up = 0

    def lower(self) -> Name:
        return self

    def __hash__(self) -> int:
        Name.looked_up += 1
        return super().__hash__()


def test_the_requested_columns_are_not_looked_up_again_for_each_partition(
    hive: HiveNode, client: ThriftClient
) -> None:
    numbers_of_parts = range(3, 103)
    parts = [partition("d1", "parted", str(number)) for number in numbers_of_parts]
    client.call("add_partitions", new_parts=parts)
    names = [f"p={number}" for number in numbers_of_parts]
    sent = [statistics("d1", "parted", numbers(), texts(), part=name) for name in names]
    client.call("set_aggr_stats_for", request={"colStats": sent})
    asked = ["b", *(Name(f"c{number}") for number in range(100)), "a"]
    request = {"dbName": "d1", "tblName": "parted", "colNames": asked, "partNames": names}
    call = hive.call("get_aggr_stats_for", request=request)
    Name.looked_up = 0
    answer = finish(call.method.handler(call))
    assert Name.looked_up < 10 * len(asked)
    assert answer["partsFound"] == 0
    assert [known["colName"] for known in answer["colStats"]] == ["b", "a"]


# -- which statistics are accurate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{"COLUMN_STATS":{"a":"true"}}'),
        ("true", '{"BASIC_STATS":"true","COLUMN_STATS":{"a":"true"}}'),
        ("nonsense", '{"COLUMN_STATS":{"a":"true"}}'),
        ("[" * 100_000, '{"COLUMN_STATS":{"a":"true"}}'),
        ('{"COLUMN_STATS":7}', '{"COLUMN_STATS":{"a":"true"}}'),
        (
            '{"BASIC_STATS":"true","COLUMN_STATS":{"b":"true"}}',
            '{"BASIC_STATS":"true","COLUMN_STATS":{"a":"true","b":"true"}}',
        ),
    ],
)
def test_stored_statistics_are_recorded_as_accurate_in_the_parameters(
    text: str, expected: str
) -> None:
    noted = accuracy.with_accurate((("COLUMN_STATS_ACCURATE", text),), ["a"])
    assert dict(noted)["COLUMN_STATS_ACCURATE"] == expected
    taken = dict(accuracy.without_accurate(noted, {"a"}))["COLUMN_STATS_ACCURATE"]
    assert "a" not in accuracy.accurate_columns({"COLUMN_STATS_ACCURATE": taken})
