"""The service answers with fresh data, from memory where it can, and as the calling user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.config import Settings
from strandline.errors import Overloaded, Unavailable
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.registry import METHODS, Call, Request
from strandline.metastore.off_loop import off_loop
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.rows import NewRow, PartitionRow
from strandline.metastore.thrift import (
    HIVE_METASTORE,
    ApplicationException,
    ConnectionInfo,
    ThriftException,
)
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.dispatch import answer_error
from strandline.metastore.thrift.messages import CALL, encode_message
from strandline.metastore.workers import Workers
from strandline.model.types import INT
from strandline.node import Node
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
from tests.servers.thrift_client import decode_result


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
        service = HiveMetastoreService(other.metastore, notifications=other.notifications)
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


@pytest.mark.parametrize("parts", [10, 20_000])
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


class Blocked:
    """A handler of DDL that waits until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    async def __call__(self, call: Call) -> None:
        self.begun.release()
        assert self.go_on.wait(WAIT)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    """A handler that replaces the one of ``drop_function`` in a test."""
    handler = Blocked()
    monkeypatch.setitem(
        METHODS, "drop_function", replace(METHODS["drop_function"], handler=handler)
    )
    yield handler
    handler.go_on.set()


def test_ddl_that_waits_does_not_block_reads_that_need_a_thread(
    hive: HiveNode, blocked: Blocked
) -> None:
    async def main() -> None:
        workers = Workers(threads=4)
        service = HiveMetastoreService(
            hive.node.metastore, notifications=hive.node.notifications, workers=workers
        )
        ddl = [
            asyncio.ensure_future(service.handle(ConnectionInfo(n, "test"), "drop_function", {}))
            for n in range(20)
        ]
        await asyncio.to_thread(blocked.begun.acquire, timeout=WAIT)
        reader = ConnectionInfo(100, "test")
        async with asyncio.timeout(WAIT):
            await service.handle(reader, "get_current_notificationEventId", {})
        assert workers.statistics().running <= 3
        blocked.go_on.set()
        await asyncio.gather(*ddl)

    asyncio.run(main())


def test_a_full_node_refuses_a_call_and_says_that_nothing_was_done(
    hive: HiveNode, blocked: Blocked
) -> None:
    async def main() -> None:
        workers = Workers(threads=1, max_calls=2)
        service = HiveMetastoreService(
            hive.node.metastore, notifications=hive.node.notifications, workers=workers
        )
        first = asyncio.ensure_future(
            service.handle(ConnectionInfo(1, "test"), "drop_function", {})
        )
        with pytest.raises(Overloaded) as refused:
            service.handle(ConnectionInfo(2, "test"), "drop_function", {})
        answer = answer_error(HIVE_CODEC, "drop_function", refused.value)
        blocked.go_on.set()
        await first
        assert isinstance(answer.body, bytes)
        with pytest.raises(ThriftException, match="nothing was done, try again") as raised:
            decode_result("drop_function", answer.body)
        assert raised.value.name == "MetaException"

    asyncio.run(main())


def test_large_requests_are_decoded_within_the_share_of_large_calls(
    hive: HiveNode, blocked: Blocked
) -> None:
    async def main() -> None:
        workers = Workers(threads=1, max_calls=4)
        service = HiveMetastoreService(
            hive.node.metastore, notifications=hive.node.notifications, workers=workers
        )
        in_thread = service.dispatcher.in_thread
        assert in_thread is not None
        first = asyncio.ensure_future(
            service.handle(ConnectionInfo(1, "test"), "drop_function", {})
        )
        clients = [ConnectionInfo(number, "test") for number in range(3)]
        waiting = [in_thread(client, lambda: "decoded") for client in clients[:2]]
        with pytest.raises(Overloaded):
            in_thread(clients[2], lambda: "decoded")
        clients[0].on_leave()
        blocked.go_on.set()
        await first
        assert await waiting[1] == "decoded"
        assert waiting[0].cancelled()

    asyncio.run(main())


def test_a_call_is_never_started_if_its_client_disconnects_before_it_has_a_thread(
    hive: HiveNode, blocked: Blocked
) -> None:
    async def main() -> None:
        workers = Workers(threads=1)
        service = HiveMetastoreService(
            hive.node.metastore, notifications=hive.node.notifications, workers=workers
        )
        first = asyncio.ensure_future(
            service.handle(ConnectionInfo(1, "test"), "drop_function", {})
        )
        leaving = ConnectionInfo(2, "test")
        second = asyncio.ensure_future(service.handle(leaving, "drop_function", {}))
        leaving.on_leave()
        with pytest.raises(asyncio.CancelledError):
            await second
        blocked.go_on.set()
        await first
        assert workers.statistics().given_up == 1

    asyncio.run(main())


class Reading:
    """A handler that reads in a thread, where it waits until it is released, and counts its calls.

    Its answer is the number of the call.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.needs_proof = False
        self.on_begin: Callable[[], object] = lambda: None
        self.go_on = Permits()

    async def __call__(self, call: Call) -> list[str]:
        self.calls += 1
        self.on_begin()
        number = self.calls
        call.reader.needs_proof = self.needs_proof
        await off_loop()
        assert self.go_on.wait(number)
        return [str(number)]


class Permits:
    """Lets calls go on in their order: no call takes the permit of an earlier one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = 0

    def release(self, calls: int) -> None:
        with self._changed:
            self._released += calls
            self._changed.notify_all()

    def release_all(self) -> None:
        self.release(1_000)

    def wait(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: number <= self._released, WAIT)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """A handler that replaces the one of ``get_tables`` in a test."""
    handler = Reading()
    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))
    yield handler
    handler.go_on.release_all()


class ReadingClient:
    """A client of ``service`` that has sent the one request of `Reading`."""

    def __init__(
        self, service: HiveMetastoreService, *, user: str = "ann", is_large: bool = False
    ) -> None:
        args = {"db_name": "d1", "pattern": "*"}
        self.connection = ConnectionInfo(1, "test")
        self.connection.user = user
        message = encode_message(CALL, "get_tables", 0, HIVE_CODEC.encode_args("get_tables", args))
        self.connection.begin(message)
        self.connection.is_large = is_large
        self._asking = asyncio.ensure_future(service.handle(self.connection, "get_tables", args))

    def is_answered(self) -> bool:
        return bool(self._asking.done())

    async def answer(self) -> list[str]:
        answer = await self._asking
        names: list[str] = decode_result("get_tables", answer.body)
        return names


def test_the_same_request_of_a_user_is_read_once_at_a_time_until_the_next_commit(
    tmp_path: Path, reading: Reading
) -> None:
    async def main(node: Node) -> None:
        service = HiveMetastoreService(node.metastore, notifications=node.notifications)
        same = [ReadingClient(service) for _ in range(10)]
        other_user = ReadingClient(service, user="bob")
        await asyncio.to_thread(node.session(user="ann").execute, CreateSchema(name="d2"))
        later = [ReadingClient(service) for _ in range(10)]
        reading.go_on.release_all()
        assert [await client.answer() for client in same] == 10 * [["1"]]
        assert await other_user.answer() == ["2"]
        assert [await client.answer() for client in later] == 10 * [["3"]]
        assert await ReadingClient(service).answer() == ["4"]

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


@pytest.mark.parametrize("mark", [None, 7])
def test_without_proof_a_client_shares_only_a_read_that_begins_after_its_request(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch, mark: int | None
) -> None:
    reading.needs_proof = True

    async def main(node: Node) -> None:
        monkeypatch.setattr(NotificationLog, "mark_is_proof", False)
        monkeypatch.setattr(node.metastore, "mark", lambda: mark)
        service = HiveMetastoreService(node.metastore, notifications=node.notifications)
        first = ReadingClient(service)
        same = [ReadingClient(service) for _ in range(10)]
        gone, other_user = ReadingClient(service), ReadingClient(service, user="bob")
        gone.connection.on_leave()
        reading.go_on.release(2)
        assert await first.answer() == ["1"]  # and those that came meanwhile begin the next read
        assert await other_user.answer() == ["2"]
        while reading.calls < 3:
            assert not any(client.is_answered() for client in same)
            await asyncio.sleep(0)
        later = [ReadingClient(service) for _ in range(10)]
        reading.go_on.release(2)
        assert [await client.answer() for client in same] == 10 * [["3"]]
        assert [await client.answer() for client in later] == 10 * [["4"]]
        with pytest.raises(asyncio.CancelledError):
            await gone.answer()
        assert reading.calls == 4

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


def test_clients_that_waited_for_a_read_without_a_mark_share_what_is_kept_at_the_next_mark(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []

    async def main(node: Node) -> None:
        monkeypatch.setattr(node.metastore, "mark", lambda: marks[-1] if marks else None)
        service = HiveMetastoreService(node.metastore, notifications=node.notifications)
        clients = [ReadingClient(service) for _ in range(3)]
        marks.append(7)
        reading.go_on.release(2)
        assert [await client.answer() for client in clients] == [["1"], ["2"], ["2"]]
        later = ReadingClient(service)
        assert service.look_up(later.connection.request) is not None

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


def test_without_proof_an_answer_is_kept_at_the_mark_of_its_read_although_others_share_it_later(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []
    begun: list[int] = []

    def moved() -> int:
        marks.append(len(marks))
        return marks[-1]

    async def main(node: Node) -> None:
        monkeypatch.setattr(NotificationLog, "mark_is_proof", False)
        monkeypatch.setattr(node.metastore, "mark", moved)
        reading.on_begin = lambda: begun.append(marks[-1])
        service = HiveMetastoreService(node.metastore, notifications=node.notifications)
        clients = [ReadingClient(service) for _ in range(3)]
        reading.go_on.release(2)
        assert [await client.answer() for client in clients] == [["1"], ["2"], ["2"]]
        kept = []
        for mark in marks.copy():
            monkeypatch.setattr(node.metastore, "mark", lambda mark=mark: mark)
            if service.look_up(clients[0].connection.request) is not None:
                kept.append(mark)
        assert kept == begun[1:]

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


def test_a_client_that_leaves_does_not_take_the_answer_from_those_that_wait_for_the_same(
    tmp_path: Path, reading: Reading, blocked: Blocked
) -> None:
    async def main(node: Node) -> None:
        service = HiveMetastoreService(
            node.metastore, notifications=node.notifications, workers=Workers(threads=1)
        )
        before = asyncio.ensure_future(
            service.handle(ConnectionInfo(2, "test"), "drop_function", {})
        )
        gone = [ReadingClient(service) for _ in range(2)]
        for client in gone:
            client.connection.on_leave()
        first, second = ReadingClient(service), ReadingClient(service)
        first.connection.on_leave()
        await asyncio.sleep(0)  # the read of those that are gone is forgotten
        third = ReadingClient(service)
        blocked.go_on.set()
        reading.go_on.release_all()
        await before
        assert [await client.answer() for client in (second, third)] == 2 * [["2"]]
        for client in gone:
            with pytest.raises(asyncio.CancelledError):
                await client.answer()

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


class NoChildren:
    """Child processes that count the tasks that they get, and cannot start."""

    def __init__(self) -> None:
        self.tasks = 0

    async def run(self, *args: object, **options: object) -> object:
        self.tasks += 1
        raise Unavailable("no child can start")


def test_no_child_computes_a_long_read_whose_client_left_while_a_thread_gave_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def handler(call: Call) -> list[str]:
        await off_loop()
        begun.set()
        assert go_on.wait(WAIT)
        raise work.TooLong

    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))

    async def main(node: Node) -> None:
        children = NoChildren()
        service = HiveMetastoreService(
            node.metastore,
            notifications=node.notifications,
            children=children,  # type: ignore[arg-type]  # a stand-in
        )
        first, second = ReadingClient(service), ReadingClient(service)
        await asyncio.to_thread(begun.wait, WAIT)
        first.connection.on_leave()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first.answer()
        with pytest.raises(Unavailable):
            await second.answer()
        assert children.tasks == 1

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


@pytest.mark.parametrize("is_large", [False, True])
def test_a_read_begins_again_after_what_it_gave_way_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    made = Future[None]()
    runs: list[str] = []

    async def handler(call: Call) -> list[str]:
        await off_loop()
        runs.append(call.user)
        if not made.done():
            work.give_way(made)
        return runs

    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))

    async def main(node: Node) -> None:
        workers = Workers()
        service = HiveMetastoreService(
            node.metastore, notifications=node.notifications, workers=workers
        )
        clients = [ReadingClient(service, is_large=is_large) for _ in range(2)]
        while not (runs and workers.statistics().running == 0):
            await asyncio.sleep(0)
        clients[0].connection.on_leave()
        made.set_result(None)
        assert await clients[1].answer() == ["ann", "ann"]

    with Node.open(tmp_path / "store", background=False) as node:
        asyncio.run(main(node))


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
