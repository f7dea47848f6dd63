"""The Hive protocol while privileges are enforced: which users are refused, and the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    AbortTxnRequest,
    AbortTxnsRequest,
    AddForeignKeyRequest,
    AddPrimaryKeyRequest,
    AddUniqueConstraintRequest,
    AllocateTableWriteIdsRequest,
    AlterPartitionsRequest,
    CheckLockRequest,
    ColumnStatistics,
    ColumnStatisticsData,
    ColumnStatisticsDesc,
    ColumnStatisticsObj,
    CommitTxnRequest,
    Database,
    DropConstraintRequest,
    DropPartitionsRequest,
    EnvironmentContext,
    FieldSchema,
    FireEventRequest,
    FireEventRequestData,
    ForeignKeysRequest,
    Function,
    GetPartitionsRequest,
    GetValidWriteIdsRequest,
    HeartbeatRequest,
    HeartbeatTxnRangeRequest,
    InsertEventRequestData,
    LockComponent,
    LockLevel,
    LockRequest,
    LockType,
    LongColumnStatsData,
    NotificationEventRequest,
    NotificationEventsCountRequest,
    OpenTxnRequest,
    Partition,
    PartitionListComposingSpec,
    PartitionSpec,
    RenamePartitionRequest,
    RequestPartsSpec,
    SetPartitionsStatsRequest,
    ShowLocksRequest,
    SQLForeignKey,
    SQLPrimaryKey,
    SQLUniqueConstraint,
    UnlockRequest,
)

from strandline.catalog.commands import (
    ColumnDefinition,
    CommentOn,
    CreateRole,
    CreateTable,
    DropTable,
    GrantPrivileges,
    RenameTable,
    RevokePrivileges,
    SetConfiguration,
    TableDefinition,
)
from strandline.metastore.hive import transactions
from strandline.metastore.metastore import Metastore
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from strandline.transactions import Transactions, TransactionState
from strandline.transactions.locks import Locks
from tests.metastore.hive.hive_node import HiveNode, hive_node, outcome, refusal, storage, table

DROP_ONE = DropPartitionsRequest("sales", "orders", RequestPartsSpec(names=["day=1"]))
SPECS = GetPartitionsRequest(dbName="sales", tblName="orders")
READ_ONLY_METHODS = [
    ("get_table", lambda c: c.get_table("sales", "orders")),
    ("get_fields", lambda c: c.get_fields("sales", "orders")),
    ("get_schema", lambda c: c.get_schema("sales", "orders")),
    ("get_partitions", lambda c: c.get_partitions("sales", "orders", -1)),
    ("get_partition_names", lambda c: c.get_partition_names("sales", "orders", -1)),
    ("get_partition", lambda c: c.get_partition("sales", "orders", ["1"])),
    ("get_partitions_pspec", lambda c: c.get_partitions_pspec("sales", "orders", -1)),
    ("get_partitions_with_specs", lambda c: c.get_partitions_with_specs(SPECS)),
    ("as of then", lambda c: c.get_table("sales@{version}", "orders")),
]


def partition(day: str, **parameters: str) -> Any:
    return Partition([day], "sales", "orders", 0, 0, storage(), parameters)


def spec(day: str) -> Any:
    listed = PartitionListComposingSpec([partition(day)])
    return PartitionSpec("sales", "orders", partitionList=listed)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveNode]:
    """A node on which alice owns sales.orders, and privileges are enforced."""
    with hive_node(tmp_path_factory.mktemp("guarded") / "store") as node:
        root = node.node.session(user="root")
        root.execute(
            [
                CreateRole(name="root", superuser=True),
                *(CreateRole(name=name) for name in ("alice", "bob")),
                GrantPrivileges(
                    kind=ObjectKind.DATABASE,
                    name="hive",
                    privileges=Privilege.CREATE,
                    grantee="alice",
                ),
            ]
        )
        enforce(node, on=True)
        with as_user(node, "alice") as alice:
            make(alice)
        yield node


def make(client: Any) -> None:
    client.create_database(Database("sales"))
    keys = [FieldSchema("day", "string", None)]
    comment = {"comment": "c"}
    client.create_table(table("orders", schema="sales", partitionKeys=keys, parameters=comment))
    client.add_partition(partition("1"))


def enforce(node: HiveNode, *, on: bool) -> None:
    text = "true" if on else "false"
    node.node.session(user="root").execute(SetConfiguration(name="enforce_privileges", value=text))


@contextmanager
def as_user(node: HiveNode, user: str | None) -> Iterator[Any]:
    with node.stub() as client:
        if user is not None:
            client.set_ugi(user, [])
        yield client


@contextmanager
def granted(node: HiveNode, *several: tuple[ObjectKind, str, Privilege]) -> Iterator[None]:
    """Grant privileges to bob while the block runs."""
    root = node.node.session(user="root")
    names = [{"kind": k, "name": n, "privileges": p, "grantee": "bob"} for k, n, p in several]
    root.execute([GrantPrivileges(**name) for name in names])  # type: ignore[arg-type]  # its own fields
    try:
        yield
    finally:
        root.execute([RevokePrivileges(**name) for name in names])  # type: ignore[arg-type]  # its own fields


USAGE = (ObjectKind.SCHEMA, "sales", Privilege.USAGE)


def on_table(privilege: Privilege) -> tuple[ObjectKind, str, Privilege]:
    return ObjectKind.TABLE, "sales.orders", privilege


@pytest.mark.parametrize(
    ("method", "call"), READ_ONLY_METHODS, ids=[name for name, _ in READ_ONLY_METHODS]
)
def test_reading_needs_usage_and_select(guarded: HiveNode, method: str, call: Any) -> None:
    version = guarded.node.catalogs.present().version

    def read(client: Any) -> Any:
        if method == "as of then":
            return client.get_table(f"sales@{version}", "orders")
        return call(client)

    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        assert not isinstance(outcome(lambda: read(alice)), tuple)
        # One method declares no suitable exception; its client gets the text nevertheless.
        declared = "TApplicationException" if method == "get_partition_names" else "MetaException"
        kind, text = refusal(lambda: read(bob))
        assert kind == declared
        assert "user bob lacks USAGE on schema sales" in text
        with granted(guarded, USAGE):
            kind, text = refusal(lambda: read(bob))
            assert kind == declared
            assert text.endswith(
                "user bob lacks SELECT on table sales.orders; alice or a superuser can grant it"
            )
            with granted(guarded, on_table(Privilege.SELECT)):
                assert not isinstance(outcome(lambda: read(bob)), tuple)
            assert "lacks SELECT" in refusal(lambda: read(bob))[1]


def test_a_kept_answer_is_not_given_to_a_user_who_lacks_the_privilege(guarded: HiveNode) -> None:
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        for _ in range(3):
            assert alice.get_table("sales", "orders").owner == "alice"
            assert refusal(lambda: bob.get_table("sales", "orders"))[0] == "MetaException"


def test_lists_show_only_schemas_and_tables_that_the_user_may_access(guarded: HiveNode) -> None:
    with as_user(guarded, "bob") as bob, as_user(guarded, "root") as root:
        assert bob.get_all_databases() == ["default"]
        assert bob.get_databases("*") == ["default"]
        assert [meta.dbName for meta in bob.get_table_meta("*", "*", [])] == []
        assert "lacks USAGE" in refusal(lambda: bob.get_all_tables("sales"))[1]
        assert "lacks USAGE" in refusal(lambda: bob.get_database("sales"))[1]
        assert root.get_all_databases() == ["default", "sales"]
        with granted(guarded, USAGE):
            assert bob.get_all_databases() == ["default", "sales"]
            assert bob.get_all_tables("sales") == ["orders"]
            assert bob.get_table_objects_by_name("sales", ["orders"]) == []
            (unread,) = bob.get_table_meta("sales", "*", [])
            assert (unread.tableName, unread.comments) == ("orders", None)
            with granted(guarded, on_table(Privilege.SELECT)):
                assert [meta.comments for meta in bob.get_table_meta("sales", "*", [])] == ["c"]
                tables = bob.get_table_objects_by_name("sales", ["orders"])
                assert [meta.tableName for meta in tables] == ["orders"]


@pytest.mark.parametrize(
    ("needed", "call"),
    [
        (Privilege.INSERT, lambda c: c.add_partition(partition("2"))),
        (Privilege.INSERT, lambda c: c.append_partition("sales", "orders", ["2"])),
        (Privilege.INSERT, lambda c: c.add_partitions_pspec([spec("2")])),
        (Privilege.UPDATE, lambda c: c.alter_partition("sales", "orders", partition("1", k="v"))),
        (Privilege.DELETE, lambda c: c.truncate_table("sales", "orders", ["day=1"])),
        (Privilege.DELETE, lambda c: c.drop_partition("sales", "orders", ["1"], False)),
        (Privilege.DELETE, lambda c: c.drop_partition_by_name("sales", "orders", "day=1", False)),
        (Privilege.DELETE, lambda c: c.drop_partitions_req(DROP_ONE)),
        (
            Privilege.UPDATE,
            lambda c: c.rename_partition("sales", "orders", ["1"], partition("2")),
        ),
        (
            Privilege.UPDATE,
            lambda c: c.rename_partition_req(
                RenamePartitionRequest(
                    dbName="sales", tableName="orders", partVals=["1"], newPart=partition("2")
                )
            ),
        ),
        (
            Privilege.UPDATE,
            lambda c: c.alter_partitions_req(
                AlterPartitionsRequest(
                    dbName="sales", tableName="orders", partitions=[partition("1", k="v")]
                )
            ),
        ),
    ],
    ids=[
        *("add", "append", "add a spec", "alter", "truncate", "drop", "drop by name"),
        *("drop several", "rename", "rename in a request", "alter several"),
    ],
)
def test_writing_partitions_needs_the_matching_privilege(
    guarded: HiveNode, needed: Privilege, call: Any
) -> None:
    """The table has the partition 1 before, and afterwards again."""
    others = (Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE | Privilege.SELECT) & ~needed
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(others)):
            assert refusal(lambda: call(bob)) == (
                "MetaException",
                f"user bob lacks {needed.name} on table sales.orders; alice or a superuser can "
                "grant it",
            )
        with granted(guarded, USAGE, on_table(needed)):
            assert not isinstance(outcome(lambda: call(bob)), tuple)
        for name in alice.get_partition_names("sales", "orders", -1):
            alice.drop_partition_by_name("sales", "orders", name, False)
        alice.add_partition(partition("1"))


def test_an_answer_to_a_change_of_partitions_shows_a_table_only_to_those_who_may_read_it(
    guarded: HiveNode,
) -> None:
    changing = on_table(Privilege.INSERT | Privilege.DELETE)
    unplaced = partition("2")
    unplaced.sd = None
    drop = DropPartitionsRequest("sales", "orders", RequestPartsSpec(names=["day=2"]))

    def answers(client: Any) -> Iterator[Any]:
        adds: list[Callable[[], Any]] = [
            lambda: client.append_partition("sales", "orders", ["2"]),
            lambda: client.append_partition_by_name("sales", "orders", "day=2"),
            lambda: client.add_partition(unplaced),
        ]
        for add in adds:
            yield add()
            yield from client.drop_partitions_req(drop).partitions

    with as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, changing):
            blind = list(answers(bob))
        with granted(guarded, USAGE, changing, on_table(Privilege.SELECT)):
            seeing = list(answers(bob))
    assert [(each.values, each.sd) for each in blind] == [(["2"], None)] * 6
    assert not any(each.parameters for each in blind)
    assert all(each.sd.location.endswith("/orders/day=2") for each in seeing)
    assert [[column.name for column in each.sd.cols] for each in seeing] == [["a", "b"]] * 6


def statistics(part: str | None = None, *, column: str = "a") -> ColumnStatistics:
    described = ColumnStatisticsDesc(part is None, "sales", "orders", partName=part)
    values = ColumnStatisticsData(longStats=LongColumnStatsData(1, 9, 1, 3))
    return ColumnStatistics(described, [ColumnStatisticsObj(column, "int", values)])


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.update_table_column_statistics(statistics()),
        lambda c: c.update_partition_column_statistics(statistics("day=1")),
        lambda c: c.set_aggr_stats_for(SetPartitionsStatsRequest([statistics("day=1")])),
        lambda c: c.delete_table_column_statistics("sales", "orders", None, "hive"),
        lambda c: c.delete_partition_column_statistics("sales", "orders", "day=1", None, "hive"),
    ],
    ids=["of the table", "of a partition", "set", "delete", "delete of a partition"],
)
def test_changing_statistics_of_columns_needs_a_privilege_to_write(
    guarded: HiveNode, call: Any
) -> None:
    with as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(Privilege.SELECT)):
            assert "lacks INSERT or UPDATE or DELETE on table" in refusal(lambda: call(bob))[1]
        with granted(guarded, USAGE, on_table(Privilege.INSERT)):
            assert not isinstance(outcome(lambda: call(bob)), tuple)


def test_ddl_needs_ownership_of_the_table_or_create_on_the_schema(guarded: HiveNode) -> None:
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(Privilege.SELECT | Privilege.UPDATE)):
            changed = alice.get_table("sales", "orders")  # bob would get a view
            changed.parameters["k"] = "v"
            for call in (
                lambda: bob.alter_table("sales", "orders", changed),
                lambda: bob.drop_table("sales", "orders", True),
            ):
                assert "user bob does not own table sales.orders" in refusal(call)[1]
            moved = alice.get_table("sales", "orders")
            moved.sd.location = f"{guarded.warehouse}/elsewhere"
            before = alice.get_table("sales", "orders").sd.location
            refused = refusal(lambda: bob.alter_table("sales", "orders", moved))
            assert "does not own" in refused[1]
            assert alice.get_table("sales", "orders").sd.location == before
            place = guarded.folder / "made"
            wanted = table("new", schema="sales", sd=storage(location=f"file:{place}"))
            wanted.tableType, wanted.parameters = "EXTERNAL_TABLE", {"EXTERNAL": "TRUE"}
            assert "lacks CREATE on schema sales" in refusal(lambda: bob.create_table(wanted))[1]
            assert not place.exists()
        alice.alter_table("sales", "orders", changed)
        assert alice.get_table("sales", "orders").parameters["k"] == "v"


def test_a_schema_is_dropped_with_its_tables_only_by_its_owner(guarded: HiveNode) -> None:
    with as_user(guarded, "bob") as bob, granted(guarded, USAGE):
        for delete_data in (False, True):
            refused = refusal(lambda data=delete_data: bob.drop_database("sales", data, True))
            assert "user bob does not own schema sales" in refused[1]


def refusals_to_a_reader(guarded: HiveNode, asks: list[Callable[[Any], Any]]) -> list[str]:
    """Why a writer who may read the table is refused; one who may not is told only that."""
    with as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(Privilege.INSERT)):
            blind = {refusal(lambda ask=ask: ask(bob))[1] for ask in asks}
        with granted(guarded, USAGE, on_table(Privilege.INSERT | Privilege.SELECT)):
            seeing = [refusal(lambda ask=ask: ask(bob))[1] for ask in asks]
    assert blind == {
        "user bob lacks SELECT on table sales.orders; alice or a superuser can grant it"
    }
    return seeing


def test_refused_statistics_tell_nothing_of_columns_to_a_writer_who_may_not_read_them(
    guarded: HiveNode,
) -> None:
    asks: list[Callable[[Any], Any]] = [
        lambda c: c.update_table_column_statistics(statistics(column="b")),
        lambda c: c.update_table_column_statistics(statistics(column="missing")),
    ]
    seeing = refusals_to_a_reader(guarded, asks)
    assert "send stringStats for a column of its type" in seeing[0]
    assert "Column missing doesn't exist" in seeing[1]


def test_changing_counted_parameters_needs_a_privilege_to_write(guarded: HiveNode) -> None:
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(Privilege.SELECT)):
            counted = alice.get_table("sales", "orders")
            counted.parameters["numRows"] = "17"
            refused = refusal(lambda: bob.alter_table("sales", "orders", counted))
            assert "lacks INSERT or UPDATE or DELETE on table" in refused[1]
            counted_partition = partition("1", numRows="17")
            several = AlterPartitionsRequest(
                dbName="sales", tableName="orders", partitions=[counted_partition]
            )
            for alter in (
                lambda: bob.alter_partition("sales", "orders", counted_partition),
                lambda: bob.alter_partitions("sales", "orders", [counted_partition]),
                lambda: bob.alter_partitions_req(several),
            ):
                assert "lacks INSERT or UPDATE or DELETE on table" in refusal(alter)[1]
        with granted(guarded, USAGE, on_table(Privilege.SELECT | Privilege.INSERT)):
            bob.alter_table("sales", "orders", counted)
            # Hive's client does so after an INSERT into a partition that exists.
            bob.alter_partition("sales", "orders", counted_partition)
            assert bob.get_partition("sales", "orders", ["1"]).parameters["numRows"] == "17"
            assert bob.get_table("sales", "orders").parameters["numRows"] == "17"


def test_a_refused_alter_tells_nothing_of_a_table_to_a_writer_who_may_not_read_it(
    guarded: HiveNode,
) -> None:
    keys = [FieldSchema("day", "string", None)]
    changed = table("orders", schema="sales", partitionKeys=keys, parameters={"comment": "d"})
    other_keys = table("orders", schema="sales", partitionKeys=[FieldSchema("h", "int", None)])
    guess = {"expected_parameter_key": "comment", "expected_parameter_value": "x"}
    asks: list[Callable[[Any], Any]] = [
        lambda c: c.alter_table("sales", "orders", other_keys),
        lambda c: c.alter_table_with_environment_context(
            "sales", "orders", changed, EnvironmentContext(guess)
        ),
    ]
    seeing = refusals_to_a_reader(guarded, asks)
    assert "partition keys can not be changed" in seeing[0]
    assert "value for key 'comment' is 'c'" in seeing[1]


def test_a_cascading_alter_needs_the_privilege_to_redefine_partitions(guarded: HiveNode) -> None:
    cascade = EnvironmentContext({"CASCADE": "true"})
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        same = "sales", "orders", alice.get_table("sales", "orders"), cascade
        with granted(guarded, USAGE, on_table(Privilege.INSERT)):
            says = refusal(lambda: bob.alter_table_with_environment_context(*same))[1]
            assert "bob lacks UPDATE on table sales.orders" in says
        alice.alter_table_with_environment_context(*same)


def test_a_table_that_is_created_without_an_owner_belongs_to_its_creator(guarded: HiveNode) -> None:
    with as_user(guarded, "bob") as bob:
        bob.create_table(table("mine", schema="default"))
        assert bob.get_table("default", "mine").owner == "bob"
        bob.drop_table("default", "mine", True)


def test_a_client_without_a_user_is_anonymous_and_the_user_system_is_not_privileged(
    guarded: HiveNode,
) -> None:
    with as_user(guarded, None) as nobody, as_user(guarded, "system") as system:
        assert (
            "user anonymous lacks USAGE" in refusal(lambda: nobody.get_table("sales", "orders"))[1]
        )
        assert "user system lacks USAGE" in refusal(lambda: system.get_table("sales", "orders"))[1]


def test_only_superusers_may_read_events(guarded: HiveNode) -> None:
    request = NotificationEventRequest(lastEvent=0)
    with as_user(guarded, "bob") as bob, as_user(guarded, "root") as root:
        assert "only superusers" in refusal(lambda: bob.get_next_notification(request))[1]
        assert root.get_next_notification(request).events
        count = NotificationEventsCountRequest(0, "sales")
        assert "only superusers" in refusal(lambda: bob.get_notification_events_count(count))[1]
        assert root.get_notification_events_count(count).eventsCount > 0


def test_reporting_an_insert_needs_insert(guarded: HiveNode) -> None:
    data = FireEventRequestData(insertData=InsertEventRequestData(filesAdded=[]))
    report = FireEventRequest(True, data, "sales", "orders")
    with as_user(guarded, "bob") as bob:
        with granted(guarded, USAGE, on_table(Privilege.SELECT | Privilege.DELETE)):
            text = refusal(lambda: bob.fire_listener_event(report))[1]
            assert "user bob lacks INSERT on table sales.orders" in text
        with granted(guarded, USAGE, on_table(Privilege.INSERT)):
            assert not isinstance(outcome(lambda: bob.fire_listener_event(report)), tuple)


def test_answers_kept_while_enforcement_was_off_are_not_given_after_it_is_on_again(
    guarded: HiveNode,
) -> None:
    with as_user(guarded, "bob") as bob:
        enforce(guarded, on=False)
        try:
            for _ in range(3):
                assert bob.get_table("sales", "orders").owner == "alice"
        finally:
            enforce(guarded, on=True)
        assert "lacks USAGE" in refusal(lambda: bob.get_table("sales", "orders"))[1]


def test_a_store_in_a_folder_does_not_enforce_privileges_by_default(tmp_path: Path) -> None:
    with hive_node(tmp_path / "store") as node, as_user(node, "alice") as alice:
        make(alice)
        with as_user(node, "bob") as bob:
            assert bob.get_table("sales", "orders").tableName == "orders"
            bob.drop_table("sales", "orders", True)


# -- locks


def lock_request(
    kind: int, *, table: str | None = "orders", schema: str = "sales", txn_id: int | None = None
) -> Any:
    level = LockLevel.DB if table is None else LockLevel.TABLE
    wanted = LockComponent(type=kind, level=level, dbname=schema, tablename=table)
    return LockRequest(component=[wanted], txnid=txn_id, user="somebody", hostname="h")


def test_a_lock_needs_the_privilege_for_what_it_protects(guarded: HiveNode) -> None:
    shared, exclusive = lock_request(LockType.SHARED_READ), lock_request(LockType.EXCLUSIVE)
    of_schema = lock_request(LockType.EXCLUSIVE, table=None)
    new = lock_request(LockType.EXCLUSIVE, table="to_be_created")
    with as_user(guarded, "bob") as bob:

        def taken(request: Any) -> bool:
            answer = outcome(lambda: bob.lock(request))
            if isinstance(answer, tuple):
                return False
            bob.unlock(UnlockRequest(lockid=getattr(answer, "lockid", 0)))
            return True

        several = (shared, exclusive, of_schema, new)
        assert [taken(level) for level in several] == [False, False, False, False]
        with granted(guarded, USAGE, on_table(Privilege.SELECT)):
            assert [taken(level) for level in several] == [True, False, False, False]
        with granted(guarded, USAGE, on_table(Privilege.INSERT)):
            assert [taken(level) for level in several] == [False, True, False, False]
        create = (ObjectKind.SCHEMA, "sales", Privilege.USAGE | Privilege.CREATE)
        with granted(guarded, create):
            assert [taken(level) for level in several] == [False, False, True, True]
    assert guarded.node.transactions.locks.list() == []


def test_a_refusal_does_not_tell_a_user_without_usage_whether_a_table_exists(
    guarded: HiveNode,
) -> None:
    there, nowhere = "orders", "nowhere"
    session = guarded.node.session(user="bob")

    select: dict[str, Any] = {
        "kind": ObjectKind.TABLE,
        "privileges": Privilege.SELECT,
        "grantee": "bob",
    }

    def into_sales(name: str) -> RenameTable:
        return RenameTable(schema="default", table="mine", new_name=name, new_schema="sales")

    def unique(name: str) -> Any:
        column = SQLUniqueConstraint("hive", "sales", name, "none", 1, "u")
        return AddUniqueConstraintRequest([column])

    with as_user(guarded, "bob") as bob:
        calls: list[Callable[[str], Any]] = [
            lambda name: bob.lock(lock_request(LockType.SHARED_READ, table=name)),
            lambda name: bob.lock(lock_request(LockType.EXCLUSIVE, table=name)),
            lambda name: bob.get_table("sales", name),
            lambda name: bob.drop_table("sales", name, True),
            lambda name: bob.alter_table("sales", name, table(name, schema="sales")),
            lambda name: bob.alter_table("default", "mine", table(name, schema="sales")),
            lambda name: bob.get_function("sales", name),
            lambda name: bob.drop_function("sales", name),
            lambda name: bob.add_unique_constraint(unique(name)),
            lambda name: bob.drop_constraint(DropConstraintRequest("sales", name, "u")),
            lambda name: session.execute(DropTable(schema="sales", table=name)),
            lambda name: session.execute(RenameTable(schema="sales", table=name, new_name="x")),
            lambda name: session.execute(into_sales(name)),
            lambda name: session.execute(GrantPrivileges(name=f"sales.{name}", **select)),
            lambda name: session.execute(RevokePrivileges(name=f"sales.{name}", **select)),
            lambda name: session.execute(
                CommentOn(kind=ObjectKind.TABLE, name=f"sales.{name}", text="mine")
            ),
        ]
        bob.create_table(table("mine", schema="default"))
        assert "lacks USAGE" in refusal(lambda: bob.drop_database("sales", False, False))[1]
        for call in calls:
            _, refused = refusal(lambda call=call: call(there))
            assert "user bob lacks USAGE on schema sales" in refused
            _, missing = refusal(lambda call=call: call(nowhere))
            assert missing == refused
        bob.drop_table("default", "mine", True)


def test_a_lock_of_another_user_can_be_neither_seen_nor_changed(guarded: HiveNode) -> None:
    with as_user(guarded, "Alice") as alice, as_user(guarded, "bob") as bob:
        lock_id = alice.lock(lock_request(LockType.EXCLUSIVE)).lockid
        for call in (
            lambda: bob.check_lock(CheckLockRequest(lockid=lock_id)),
            lambda: bob.heartbeat(HeartbeatRequest(lockid=lock_id)),
            lambda: bob.unlock(UnlockRequest(lockid=lock_id)),
        ):
            assert "belongs to another user" in refusal(call)[1]
            assert "alice" not in refusal(call)[1].lower()
        assert bob.show_locks(ShowLocksRequest()).locks == []
        assert [lock.lockid for lock in alice.show_locks(ShowLocksRequest()).locks] == [lock_id]
        with as_user(guarded, "alice") as same:
            assert [lock.lockid for lock in same.show_locks(ShowLocksRequest()).locks] == [lock_id]
            assert same.check_lock(CheckLockRequest(lockid=lock_id)).lockid == lock_id
        with as_user(guarded, "root") as root:
            assert [lock.lockid for lock in root.show_locks(ShowLocksRequest()).locks] == [lock_id]
            root.unlock(UnlockRequest(lockid=lock_id))
    assert guarded.node.transactions.locks.list() == []


def test_a_user_who_may_not_insert_gets_a_view_that_spark_does_not_write_to(
    guarded: HiveNode,
) -> None:
    reading = (USAGE, on_table(Privilege.SELECT))
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        owned = alice.get_table("sales", "orders")
        with granted(guarded, *reading):
            view = bob.get_table("sales", "orders")
            assert (view.tableType, view.sd.location) == ("VIRTUAL_VIEW", None)
            hidden = view.viewExpandedText.rpartition("`.`")[2].removesuffix("`")
            assert "@files_" in hidden
            guarded.node.session(user="root").execute(CreateRole(name="another"))
            files = bob.get_table("sales", hidden)
            assert files.sd.location == owned.sd.location
            assert bob.get_partition_names("sales", hidden, -1) == ["day=1"]
            # The name does not exist for users who may write, and it is refused without SELECT.
            assert refusal(lambda: alice.get_table("sales", hidden))[0] == "NoSuchObjectException"
        with granted(guarded, USAGE):
            assert "lacks SELECT" in refusal(lambda: bob.get_table("sales", hidden))[1]
        iceberg = {"table_type": "ICEBERG", "metadata_location": "file:/m.json"}
        alice.create_table(table("ice", schema="sales", parameters=iceberg))
        with granted(guarded, USAGE, (ObjectKind.TABLE, "sales.ice", Privilege.SELECT)):
            # An Iceberg client writes nothing that a reader sees before its alter of the table.
            assert bob.get_table("sales", "ice").parameters["metadata_location"] == "file:/m.json"
            assert bob.get_table("sales", "ice").tableType == owned.tableType
        alice.drop_table("sales", "ice", True)
        with granted(guarded, *reading, on_table(Privilege.INSERT)):
            assert bob.get_table("sales", "orders").tableType == owned.tableType


def test_a_user_who_may_not_create_tables_gets_no_location_to_which_spark_writes_their_rows(
    guarded: HiveNode,
) -> None:
    create = ObjectKind.SCHEMA, "sales", Privilege.CREATE
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        place = alice.get_database("sales").locationUri
        assert place.startswith("file:/")
        with granted(guarded, USAGE):
            assert bob.get_database("sales").locationUri == "create-is-not-granted-in:/sales"
        with granted(guarded, USAGE, create):
            assert bob.get_database("sales").locationUri == place


# -- transactions


def test_another_users_transaction_cannot_be_ended_or_kept_alive_and_shows_only_its_id(
    guarded: HiveNode,
) -> None:
    opening = OpenTxnRequest(num_txns=2, user="alice", hostname="h")
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        first, second = alice.open_txns(opening).txn_ids
        for call in (
            lambda: bob.commit_txn(CommitTxnRequest(txnid=first)),
            lambda: bob.abort_txn(AbortTxnRequest(txnid=first)),
            lambda: bob.abort_txns(AbortTxnsRequest(txn_ids=[10**12, second])),
            lambda: bob.heartbeat(HeartbeatRequest(txnid=first)),
            lambda: bob.heartbeat_txn_range(HeartbeatTxnRangeRequest(min=first, max=second)),
        ):
            assert "belongs to another user" in refusal(call)[1]
        assert bob.get_open_txns_info().open_txns == []
        assert [t.id for t in alice.get_open_txns_info().open_txns] == [first, second]
        assert bob.get_open_txns().open_txns == [first, second]
        alice.abort_txns(AbortTxnsRequest(txn_ids=[first, second]))


def test_the_open_transactions_of_others_take_no_place_in_a_users_list(
    guarded: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_SHOWN", 1)
    asked = OpenTxnRequest(num_txns=1, user="", hostname="h")
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        opened = [client.open_txns(asked).txn_ids for client in (alice, bob)]
        infos = [client.get_open_txns_info().open_txns for client in (alice, bob)]
        assert [[each.id for each in of_user] for of_user in infos] == opened
        for client, txn_ids in zip((alice, bob), opened, strict=True):
            client.abort_txns(AbortTxnsRequest(txn_ids=txn_ids))


@pytest.mark.parametrize(
    ("within", "step", "call"),
    [
        (Metastore, "commit", lambda c, t: c.commit_txn(CommitTxnRequest(txnid=t))),
        (Metastore, "abort", lambda c, t: c.abort_txn(AbortTxnRequest(txnid=t))),
        (Metastore, "abort_all", lambda c, t: c.abort_txns(AbortTxnsRequest(txn_ids=[t]))),
        (Transactions, "heartbeat", lambda c, t: c.heartbeat(HeartbeatRequest(txnid=t))),
        (
            Transactions,
            "heartbeat",
            lambda c, t: c.heartbeat_txn_range(HeartbeatTxnRangeRequest(min=t, max=t)),
        ),
        (Locks, "acquire", lambda c, t: c.lock(lock_request(LockType.SHARED_READ, txn_id=t))),
    ],
    ids=["commit_txn", "abort_txn", "abort_txns", "heartbeat", "heartbeat_txn_range", "lock"],
)
def test_an_id_of_a_transaction_that_another_user_begins_meanwhile_is_refused(
    guarded: HiveNode,
    monkeypatch: pytest.MonkeyPatch,
    within: type,
    step: str,
    call: Callable[[Any, int], Any],
) -> None:
    """The transaction begins while a call with its id waits for the write lock."""
    opening = OpenTxnRequest(num_txns=1, user="alice", hostname="h")
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        following = alice.open_txns(opening).txn_ids[0] + 1
        original = getattr(within, step)

        def after_the_begin(*arguments: Any, **options: Any) -> Any:
            assert alice.open_txns(opening).txn_ids == [following]
            return original(*arguments, **options)

        with granted(guarded, USAGE, on_table(Privilege.SELECT)), monkeypatch.context() as patched:
            patched.setattr(within, step, after_the_begin)
            refused = refusal(lambda: call(bob, following))
        assert "belongs to another user" in refused[1]
        assert guarded.node.transactions.get(following).state is TransactionState.OPEN
        assert guarded.node.transactions.locks.list() == []
        alice.abort_txns(AbortTxnsRequest(txn_ids=[following - 1, following]))


def test_a_node_that_has_not_applied_the_enforcement_yet_ends_no_transaction_of_another_user(
    guarded: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node has switched it on."""
    enforce(guarded, on=False)
    catalogs = guarded.node.catalogs
    before = catalogs.latest_catalog()
    enforce(guarded, on=True)
    opening = OpenTxnRequest(num_txns=1, user="alice", hostname="h")
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        (txn_id,) = alice.open_txns(opening).txn_ids
        with monkeypatch.context() as patched:
            patched.setattr(catalogs, "latest_catalog", lambda: before)
            refused = refusal(lambda: bob.commit_txn(CommitTxnRequest(txnid=txn_id)))
        assert "belongs to another user" in refused[1]
        alice.abort_txn(AbortTxnRequest(txnid=txn_id))


def test_a_foreign_key_needs_select_on_its_parent_and_is_listed_with_select_on_its_table(
    guarded: HiveNode,
) -> None:
    key = SQLForeignKey("sales", "orders", "a", "default", "child", "a", 1, fk_name="fk")
    to_orders = ForeignKeysRequest(parent_db_name="sales", parent_tbl_name="orders")
    of_bob = ObjectKind.TABLE, "default.child", Privilege.SELECT
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        alice.add_primary_key(AddPrimaryKeyRequest([SQLPrimaryKey("sales", "orders", "a", 1, "k")]))
        alice.create_table(table("child", schema="default"))
        with granted(guarded, USAGE, on_table(Privilege.SELECT)):
            alice.add_foreign_key(AddForeignKeyRequest([key]))
            assert bob.get_foreign_keys(to_orders).foreignKeys == []
            with granted(guarded, of_bob):
                assert len(bob.get_foreign_keys(to_orders).foreignKeys) == 1
            with granted(guarded, of_bob):
                of_child = ForeignKeysRequest(foreign_db_name="default", foreign_tbl_name="child")
                assert len(bob.get_foreign_keys(of_child).foreignKeys) == 1
        with granted(guarded, of_bob):  # and does not reach the schema of its parent
            assert bob.get_foreign_keys(of_child).foreignKeys == []
        alice.drop_table("default", "child", True)
        bob.create_table(table("child", schema="default"))
        with granted(guarded, USAGE):
            _, text = refusal(lambda: bob.add_foreign_key(AddForeignKeyRequest([key])))
            assert "lacks SELECT on table sales.orders" in text
        bob.drop_table("default", "child", True)
        alice.drop_constraint(DropConstraintRequest("sales", "orders", "k"))


def test_functions_are_listed_with_the_privilege_to_execute_them(guarded: HiveNode) -> None:
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        alice.create_function(Function("f", "sales", "a.b.C"))
        with granted(guarded, USAGE):
            assert bob.get_all_functions().functions in (None, [])
            with granted(guarded, (ObjectKind.FUNCTION, "sales.f", Privilege.EXECUTE)):
                assert [f.functionName for f in bob.get_all_functions().functions] == ["f"]
        alice.drop_function("sales", "f")


def test_what_was_revoked_stays_unreadable_in_a_past_schema_after_it_is_dropped(
    guarded: HiveNode,
) -> None:
    on_table_and_function = (
        (ObjectKind.TABLE, "sales.gone", Privilege.SELECT),
        (ObjectKind.FUNCTION, "sales.f", Privilege.EXECUTE),
    )
    with as_user(guarded, "alice") as alice, as_user(guarded, "bob") as bob:
        alice.create_table(table("gone", schema="sales"))
        alice.create_function(Function("f", "sales", "a.b.C"))
        with granted(guarded, USAGE, *on_table_and_function):
            past = f"sales@{guarded.node.catalogs.present().version}"
            assert bob.get_table(past, "gone").tableName == "gone"
            assert bob.get_function(past, "f").functionName == "f"
        alice.drop_table("sales", "gone", True)
        alice.drop_function("sales", "f")
        with granted(guarded, USAGE):
            assert "lacks SELECT" in refusal(lambda: bob.get_table(past, "gone"))[1]
            assert bob.get_table_objects_by_name(past, ["gone"]) == []
            assert "lacks EXECUTE" in refusal(lambda: bob.get_function(past, "f"))[1]


def test_the_write_of_another_user_is_neither_read_nor_continued(
    guarded: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    privileges = USAGE, (ObjectKind.TABLE, "sales.rows", Privilege.SELECT)
    alice = guarded.node.session(user="alice")
    definition = TableDefinition(
        name="rows", columns=(ColumnDefinition("k", INT),), transactional=True
    )
    alice.execute(CreateTable(schema="sales", definition=definition))
    with as_user(guarded, "alice") as alice_client, as_user(guarded, "bob") as bob:
        asked = OpenTxnRequest(num_txns=1, user="alice", hostname="h")
        (txn_id,) = alice_client.open_txns(asked).txn_ids
        own = AllocateTableWriteIdsRequest(dbName="sales", tableName="rows", txnIds=[txn_id])
        (pair,) = alice_client.allocate_table_write_ids(own).txnToWriteIds
        names = GetValidWriteIdsRequest(fullTableNames=["sales.rows"], writeId=pair.writeId)
        assert len(alice_client.get_valid_write_ids(names).tblValidWriteIds) == 1
        with granted(guarded, *privileges):
            assert "another user" in refusal(lambda: bob.get_valid_write_ids(names))[1]
        with granted(guarded, USAGE, (ObjectKind.TABLE, "sales.rows", Privilege.INSERT)):
            assert "another user" in refusal(lambda: bob.allocate_table_write_ids(own))[1]
            enforce(guarded, on=False)
            before = guarded.node.catalogs.latest_catalog()
            enforce(guarded, on=True)  # on another node; this one has not applied it yet
            with monkeypatch.context() as patched:
                patched.setattr(guarded.node.catalogs, "latest_catalog", lambda: before)
                refused = refusal(lambda: bob.allocate_table_write_ids(own))
            assert "another user" in refused[1]
        alice_client.abort_txn(AbortTxnRequest(txnid=txn_id))
    alice.execute(DropTable(schema="sales", table="rows"))


def test_allocating_and_listing_write_ids_needs_a_privilege_on_the_table(guarded: HiveNode) -> None:
    with as_user(guarded, "bob") as bob:
        (own,) = bob.open_txns(OpenTxnRequest(num_txns=1, user="bob", hostname="h")).txn_ids
        asked = AllocateTableWriteIdsRequest(dbName="sales", tableName="orders", txnIds=[own])
        kind, text = refusal(lambda: bob.allocate_table_write_ids(asked))
        assert kind == "MetaException"
        assert "bob" in text
        names = GetValidWriteIdsRequest(fullTableNames=["sales.orders"])
        assert refusal(lambda: bob.get_valid_write_ids(names)) == (
            kind,
            text.replace("INSERT, UPDATE or DELETE", "SELECT"),
        )
        bob.abort_txn(AbortTxnRequest(txnid=own))
