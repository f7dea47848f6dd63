"""The service answers with fresh data, from memory where it can, and as the calling user."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    EnvironmentContext,
    FieldSchema,
    NotificationEventRequest,
    NotificationEventsCountRequest,
    Partition,
    PrimaryKeysRequest,
)

from strandline import work
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.config import Settings
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.registry import METHODS, Call, Request
from strandline.metastore.off_loop import off_loop
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.rows import NewRow, PartitionRow
from strandline.metastore.thrift import HIVE_METASTORE, ApplicationException, ConnectionInfo
from strandline.model.types import INT
from tests.metastore.hive.dml import append
from tests.metastore.hive.hive_node import (
    WAIT,
    HiveNode,
    hive_node,
    outcome,
    refusal,
    storage,
    table,
)
from tests.servers import stores


def statistics(hive: HiveNode) -> Any:
    async def on_loop() -> Any:
        return hive.service.statistics()

    return asyncio.run_coroutine_threadsafe(on_loop(), hive.loop).result(WAIT)


def answer(service: HiveMetastoreService, method: str, args: dict[str, Any]) -> None:
    """Let a service answer a request that waits, without a connection."""

    async def on_loop() -> None:
        await service.handle(ConnectionInfo(1, "test"), method, args)

    asyncio.run(on_loop())


def test_every_method_of_the_service_is_in_the_protocol() -> None:
    assert set(METHODS) <= set(HIVE_METASTORE.methods)


def test_an_answer_is_kept_until_the_next_commit(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1"))
    stub.get_table("d1", "t1")
    before = statistics(hive)
    for _ in range(10):
        stub.get_table("d1", "t1")
    # The node itself commits now and then, so most answers are from memory, but not all.
    assert statistics(hive).kept.hits >= before.kept.hits + 5
    new = stub.get_table("d1", "t1")
    new.parameters["k"] = "v"
    stub.alter_table("d1", "t1", new)
    assert stub.get_table("d1", "t1").parameters["k"] == "v"


def test_a_kept_answer_does_not_outlive_a_commit_of_another_node(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    ours = Partition(["ours"], "d1", "t1", sd=storage())
    stub.add_partition(ours)
    assert stub.get_partition_names("d1", "t1", -1) == ["p=ours"]
    with hive.another_node() as other:
        service = HiveMetastoreService(other.metastore)
        for number in range(20):
            partition = {"values": [f"{number:02d}"], "dbName": "d1", "tableName": "t1"}
            answer(service, "add_partition", {"new_part": partition})
            names = stub.get_partition_names("d1", "t1", -1)
            assert len(names) == number + 2
            new = {"tableName": f"x{number}", "dbName": "d1", "sd": {"serdeInfo": {}, "cols": []}}
            answer(service, "create_table", {"tbl": new})
            assert len(stub.get_all_tables("d1")) == number + 2


def test_rows_of_another_node_are_seen_at_once_even_if_metadata_may_be_stale_for_long(
    tmp_path: Path,
) -> None:
    settings = Settings(metadata_staleness_ms=60_000)
    store = tmp_path / "store"
    with hive_node(store, settings=settings) as running, running.stub() as client:
        client.create_database(Database(name="d1"))
        client.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
        running.node.store.follower.stop()
        assert client.get_partition_names("d1", "t1", -1) == []
        with running.another_node() as other:
            table_id = other.session(user="ann").table("d1.t1").descriptor.id
            with other.store.change(table_id, author="ann") as change:
                row = PartitionRow(values=("a",), location="p=a")
                change.stage(add=[NewRow.of(row, name="p=a")])
            assert client.get_partition_names("d1", "t1", -1) == ["p=a"]


def test_while_a_notification_is_on_its_way_the_rows_of_transactional_tables_and_events_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NotificationLog, "mark_is_proof", False)
    settings = Settings(metadata_staleness_ms=600_000)
    with hive_node(tmp_path / "store", settings=settings) as running, running.stub() as client:
        client.create_database(Database(name="d1"))
        running.create_transactional("d1", "t", k="bigint")
        running.node.store.follower.stop()
        monkeypatch.setattr(running.node.notifications, "mark", lambda: 7)
        running.node.store.log_applier.catch_up()
        with running.another_node() as other:
            schemas = ("d1", f"d1@{other.catalogs.present().version}")
            texts = {client.get_table(schema, "t").viewExpandedText for schema in schemas}
            for number in range(2):
                append(other.session(user="ann"), "d1.t", {"k": number})
                texts |= {client.get_table(schema, "t").viewExpandedText for schema in schemas}
                head = client.get_current_notificationEventId().eventId
                assert head == other.notifications.head()
                events = client.get_next_notification(NotificationEventRequest(lastEvent=0)).events
                assert events[-1].eventId == head
                since = NotificationEventsCountRequest(fromEventId=0, dbName="d1")
                assert client.get_notification_events_count(since).eventsCount == number + 3
    assert len(texts) == 6


def test_on_a_server_without_a_delay_a_change_of_another_node_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(delay_ms=0, clock_skew_ms=0, metadata_staleness_ms=600_000)
    store = stores.new_store("postgresql", tmp_path, settings=settings)
    with hive_node(store.address, settings=store.settings) as running, running.stub() as client:
        client.create_database(Database(name="d1"))
        monkeypatch.setattr(running.node.notifications, "mark", lambda: 7)  # it is on its way
        running.node.store.log_applier.catch_up()
        assert client.get_all_tables("d1") == []
        with running.another_node() as other:
            definition = TableDefinition(name="new", columns=(ColumnDefinition("a", INT),))
            other.session(user="ann").execute(CreateTable(schema="d1", definition=definition))
            assert client.get_all_tables("d1") == ["new"]


@pytest.mark.parametrize("patient", [False, True])
def test_an_answer_during_which_another_commit_happened_is_not_kept(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    method = METHODS["get_tables"]

    async def overtaken(call: Call) -> Any:
        if patient:
            await off_loop()
        answered = await method.handler(call)
        definition = TableDefinition(name="new", columns=(ColumnDefinition("a", INT),))
        command = CreateTable(schema="d1", definition=definition, if_not_exists=True)
        hive.node.session(user="ann").execute(command)
        return answered

    monkeypatch.setitem(METHODS, "get_tables", replace(method, handler=overtaken))
    assert stub.get_tables("d1", "*") == []
    assert stub.get_tables("d1", "*") == ["new"]


def test_an_alter_by_a_hive_client_keeps_defaults_that_hive_clients_never_see(
    hive: HiveNode, stub: Any
) -> None:
    column = ColumnDefinition("a", INT, default="7")
    definition = TableDefinition(name="t1", columns=(column,))
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    new = stub.get_table("d1", "t1")
    new.parameters["k"] = "v"
    stub.alter_table("d1", "t1", new)
    altered = session.table("d1.t1").descriptor
    assert (altered.columns[0].default, dict(altered.properties)["k"]) == ("7", "v")


def test_a_request_that_needs_only_the_catalog_is_answered_at_once(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1"))
    is_undisturbed = False
    while not is_undisturbed:
        mark = hive.node.database.mark()
        stub.get_all_databases()
        before = statistics(hive)
        stub.get_database("d1")
        stub.get_tables("d1", "*")
        outcome(lambda: stub.get_table("d1", "nope"))
        after = statistics(hive)
        is_undisturbed = hive.node.database.mark() == mark  # the node itself commits now and then
    assert (after.at_once - before.at_once, after.waited - before.waited) == (2, 0)


def test_a_request_for_a_table_in_memory_is_answered_at_once(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("abcd"))
    stub.get_table("d1", "abcd")
    before = statistics(hive)
    # The same request in other spellings, so that no kept answer exists. The node itself commits
    # now and then, and the next request is not answered at once: so some of them are, not all.
    for spelling in product("aA", "bB", "cC", "dD"):
        stub.get_table("D1", "".join(spelling))
    assert statistics(hive).at_once > before.at_once


@pytest.mark.parametrize(("tables", "width"), [(20, 1), (1, 500), (3, 100)])
def test_a_request_that_takes_long_is_answered_in_a_thread_even_from_memory(
    hive: HiveNode, stub: Any, tables: int, width: int
) -> None:
    names = [f"t{number}" for number in range(tables)]
    columns = [FieldSchema(f"c{n}", "int", None) for n in range(width)]
    for name in names:
        stub.create_table(table(name, sd=storage(columns=columns)))
    stub.get_table_objects_by_name("d1", names)
    before = statistics(hive)
    stub.get_table_objects_by_name("D1", names)
    assert statistics(hive).waited == before.waited + 1


@pytest.mark.parametrize(("columns", "partitions"), [(300, 1), (30, 10)])
def test_partitions_with_many_columns_are_answered_in_a_thread_even_from_memory(
    hive: HiveNode, stub: Any, columns: int, partitions: int
) -> None:
    sd = storage(columns=[FieldSchema(f"c{n}", "int", None) for n in range(columns)])
    stub.create_table(table("t1", sd=sd, partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partitions([Partition([f"{n}"], "d1", "t1", sd=sd) for n in range(partitions)])
    stub.get_partitions("d1", "t1", -1)
    before = statistics(hive)
    assert len(stub.get_partitions("D1", "t1", -1)) == partitions
    assert statistics(hive).waited == before.waited + 1


@pytest.mark.parametrize("parts", [10, 4_000, 20_000])
def test_a_large_request_that_needs_no_store_is_answered_in_a_thread(
    stub: Any, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    threads: list[str] = []
    method = METHODS["partition_name_to_vals"]

    def noted(request: Request) -> Any:
        threads.append(threading.current_thread().name)
        return method.handler(request)

    monkeypatch.setitem(METHODS, method.name, replace(method, handler=noted))
    assert stub.partition_name_to_vals("/".join(["k=1"] * parts)) == ["1"] * parts
    assert threads[0].startswith("call_") == (parts > 10)


def test_a_long_filter_of_many_partitions_is_evaluated_in_a_thread_even_from_memory(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "int", None)]))
    stub.add_partitions([Partition([f"{n}"], "d1", "t1", sd=storage()) for n in range(100)])
    text = " and ".join(f"p > {-n}" for n in range(1, 20))
    stub.get_num_partitions_by_filter("d1", "t1", text)
    before = statistics(hive)
    assert stub.get_num_partitions_by_filter("D1", "t1", text) == 100
    assert statistics(hive).waited == before.waited + 1


def test_constraints_of_a_table_with_many_columns_are_answered_in_a_thread(
    hive: HiveNode, stub: Any
) -> None:
    columns = [FieldSchema(f"c{n}", "int", None) for n in range(300)]
    stub.create_table(table("t1", sd=storage(columns=columns)))
    before = statistics(hive)
    stub.get_primary_keys(PrimaryKeysRequest("d1", "t1"))
    assert statistics(hive).waited == before.waited + 1


def test_the_author_of_a_change_is_the_calling_user(hive: HiveNode, stub: Any) -> None:
    session = hive.node.session(user="ann")
    stub.create_table(table("t1"))
    stub.set_ugi("bob", [])
    stub.create_table(table("t2"))
    assert [version.author for version in session.history()[-2:]] == ["anonymous", "bob"]


def test_changing_statistics_creates_no_version(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1"))
    version = hive.node.metastore.catalogs.present().version
    new = stub.get_table("d1", "t1")
    new.parameters.update({"numRows": "7", "spark.sql.statistics.totalSize": "9"})
    stub.alter_table("d1", "t1", new)
    parameters = stub.get_table("d1", "t1").parameters
    assert (parameters["numRows"], parameters["spark.sql.statistics.totalSize"]) == ("7", "9")
    assert hive.node.metastore.catalogs.present().version == version
    new = stub.get_table("d1", "t1")
    del new.parameters["numRows"]
    stub.alter_table("d1", "t1", new)
    assert "numRows" not in stub.get_table("d1", "t1").parameters


def test_counted_parameters_of_a_new_table_are_kept(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1", parameters={"numRows": "3"}))
    assert stub.get_table("d1", "t1").parameters["numRows"] == "3"


def test_exactly_one_of_several_concurrent_alters_that_expect_the_same_value_succeeds(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1", parameters={"metadata_location": "m0"}))
    start = threading.Barrier(8)

    def commit(number: int) -> object:
        with hive.stub() as client:
            new = client.get_table("d1", "t1")
            new.parameters["metadata_location"] = f"m{number}"
            expected = {"expected_parameter_key": "metadata_location"}
            expected["expected_parameter_value"] = "m0"
            start.wait(WAIT)
            context = EnvironmentContext(expected)
            return outcome(
                lambda: client.alter_table_with_environment_context("d1", "t1", new, context)
            )

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(commit, range(1, 9)))
    winners = [number for number, ended in enumerate(outcomes, start=1) if ended is None]
    assert len(winners) == 1
    assert stub.get_table("d1", "t1").parameters["metadata_location"] == f"m{winners[0]}"
    refusals = [ended for ended in outcomes if isinstance(ended, tuple)]
    assert {kind for kind, _ in refusals} == {"MetaException"}
    assert all(text.startswith("The table has been modified.") for _, text in refusals)


def test_the_name_of_an_owner_is_limited_when_a_table_is_created_and_altered(stub: Any) -> None:
    owner = "o" * 256
    kind, text = refusal(lambda: stub.create_table(table("t", owner=owner)))
    assert (kind, "at most 255 characters" in text) == ("InvalidObjectException", True)
    stub.create_table(table("t"))
    kind, text = refusal(lambda: stub.alter_table("d1", "t", table("t", owner=owner)))
    assert (kind, "at most 255 characters" in text) == ("InvalidOperationException", True)


def test_dropping_a_schema_with_its_tables_creates_one_version(hive: HiveNode, stub: Any) -> None:
    for name in ("t1", "t2"):
        stub.create_table(table(name))
    before = hive.node.catalogs.present().version
    stub.drop_database("d1", True, True)
    catalog = hive.node.catalogs.present()
    assert (catalog.version, catalog.schema("d1")) == (before + 1, None)


def test_dropping_a_schema_without_its_data_leaves_the_files(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1"))
    folder = Path(stub.get_table("d1", "t1").sd.location.removeprefix("file:"))
    (folder / "part-0").write_text("rows")
    stub.drop_database("d1", False, True)
    assert (folder / "part-0").read_text() == "rows"


def test_calling_a_method_that_does_not_exist_is_an_unknown_method_error(hive: HiveNode) -> None:
    with pytest.raises(ApplicationException) as raised:
        hive.service.handle(ConnectionInfo(1, "test"), "add_index", {})
    assert (raised.value.kind, raised.value.message) == (1, "Invalid method name: 'add_index'")


def test_names_may_have_the_catalog_prefix_that_clients_of_hive_3_send(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1", schema="@hive#d1"))
    assert stub.get_all_tables("@hive#d1") == ["t1"]
    assert stub.get_table("@hive#D1", "t1").dbName == "d1"
    assert stub.get_databases("@hive#d*") == ["d1", "default"]
    assert refusal(lambda: stub.get_database("@spark#d1"))[0] == "NoSuchObjectException"


def test_the_dispatcher_knows_which_methods_only_read(
    hive: HiveNode,
) -> None:
    only_reads = hive.service.dispatcher.only_reads
    assert all(map(only_reads, ("get_table", "get_partitions", "getCounters")))
    assert not any(map(only_reads, ("add_partitions_req", "drop_partitions_req", "alter_table")))


@pytest.mark.slow
def test_many_partitions_are_shown_exactly_as_each_one_is_alone(hive: HiveNode, stub: Any) -> None:
    keys = [FieldSchema("p", "string", None)]
    stub.create_table(table("many", partitionKeys=keys))
    others = [
        storage(),
        storage(columns=[FieldSchema("a", "bigint", "\u00e9t\u00e9")]),
        storage(location="s3a://elsewhere/\u00e9"),
    ]
    others[0].outputFormat = "another"
    added = [
        Partition([f"{n:03d}"], "d1", "many", sd=others[n] if n < len(others) else storage())
        for n in range(work.AT_ONCE + 1)
    ]
    assert stub.add_partitions(added) == len(added)
    shown = stub.get_partitions("d1", "many", -1)
    assert shown == [stub.get_partition("d1", "many", partition.values) for partition in added]
    assert [partition.sd.outputFormat for partition in shown[:4]] == [
        "another",
        "out",
        "out",
        "out",
    ]
    assert [len(partition.sd.cols) for partition in shown[:4]] == [2, 1, 2, 2]
    assert shown[2].sd.location == "s3a://elsewhere/\u00e9"
    assert len({partition.sd.location for partition in shown}) == len(added)
