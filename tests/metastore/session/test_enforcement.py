"""Sessions with enforced privileges, in process and over HTTP, and how HTTP names the caller."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterTable,
    ColumnDefinition,
    CreateCluster,
    CreateDatabase,
    CreateFunction,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropSchema,
    DropTable,
    GrantPrivileges,
    RevokePrivileges,
    SetConfiguration,
    SetOwner,
    SetTableProperties,
    TableDefinition,
)
from strandline.errors import (
    AlreadyExists,
    InvalidInput,
    PermissionDenied,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.metastore.interface import AsOf, Session
from strandline.metastore.session import HttpSession
from strandline.metastore.session.callers import Caller, basic, caller_of
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.model.descriptors import TableKind
from strandline.model.identifiers import MAX_USER_LENGTH
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from strandline.node import Node
from strandline.transactions import ValidWriteIdList
from strandline.transactions.holds import BACKUP
from tests.metastore.session.served import serving

SECRETS = {"alice": "a:b", "root": "é"}


def table(name: str) -> CreateTable:
    definition = TableDefinition(
        name=name, columns=(ColumnDefinition("k", INT),), transactional=True, provider="strandline"
    )
    return CreateTable(schema="s", definition=definition)


@dataclass
class Guarded:
    node: Node
    url: str

    def open(self, kind: str, user: str) -> Session:
        return self.node.session(user=user) if kind == "local" else HttpSession(self.url, user=user)

    @contextmanager
    def granted(self, *several: tuple[ObjectKind, str, Privilege]) -> Iterator[None]:
        """Grant bob these privileges while the block runs."""
        root = self.node.session(user="root")
        for kind, name, privileges in several:
            root.execute(
                GrantPrivileges(kind=kind, name=name, privileges=privileges, grantee="bob")
            )
        try:
            yield
        finally:
            for kind, name, privileges in several:
                root.execute(
                    RevokePrivileges(kind=kind, name=name, privileges=privileges, grantee="bob")
                )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with (
        Node.open(tmp_path_factory.mktemp("store")) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        setup: Sequence[Command] = [
            CreateRole(name="root", superuser=True),
            *(CreateRole(name=name) for name in ("alice", "bob")),
            CreateSchema(name="s", owner="alice"),
        ]
        root = node.session(user="root")
        root.execute(setup)
        node.session(user="alice").execute(table("t"))
        root.execute(SetConfiguration(name="enforce_privileges", value="on"))
        yield Guarded(node, url)


@pytest.fixture(params=["local", "http"])
def bob(guarded: Guarded, request: pytest.FixtureRequest) -> Iterator[Session]:
    session = guarded.open(request.param, "bob")
    yield session
    session.close()


USAGE = (ObjectKind.SCHEMA, "s", Privilege.USAGE)


def on_table(privileges: Privilege) -> tuple[ObjectKind, str, Privilege]:
    return ObjectKind.TABLE, "s.t", privileges


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(PermissionDenied) as caught:
        call()
    return caught.value.message


def test_the_storage_usage_of_a_table_is_shown_to_users_who_may_read_it(
    guarded: Guarded, bob: Session
) -> None:
    guarded.node.storage.measure()
    alice = guarded.node.session(user="alice")
    assert "s.t" in {usage.table for usage in alice.storage_usage()}
    assert bob.storage_usage() == []
    refusal(lambda: bob.storage_usage("s.t"))
    with guarded.granted(USAGE, on_table(Privilege.SELECT)):
        assert [usage.table for usage in bob.storage_usage()] == ["s.t"]
        assert bob.storage_usage("s.t") == alice.storage_usage("s.t") != []


def test_schemas_are_listed_for_users_who_may_use_them(guarded: Guarded, bob: Session) -> None:
    assert guarded.node.session(user="alice").schemas() == ["default", "s"]
    assert bob.schemas() == ["default"]
    with guarded.granted(USAGE):
        assert bob.schemas() == ["default", "s"]


def test_reading_needs_usage_and_select(guarded: Guarded, bob: Session) -> None:
    alice = guarded.node.session(user="alice")
    orders = alice.table("s.t")
    write_ids = alice.open(["s.t"]).write_ids_of("s.t")
    past = AsOf(version=orders.catalog_version)
    reads: list[Callable[[], object]] = [
        lambda: bob.table("s.t"),
        lambda: bob.table("s.t", at=past),
        lambda: bob.open(["s.t"]),
        lambda: bob.open(["s.t"], at=past),
        lambda: bob.files(orders.descriptor.id, write_ids),
    ]
    by_name: list[Callable[[], object]] = [*reads[:4], lambda: bob.table("s.never")]
    by_id: list[Callable[[], object]] = [
        *reads[4:],
        lambda: bob.files(10**9, write_ids),
    ]
    for read in by_name:
        assert refusal(read).startswith("user bob lacks USAGE on schema s; ")
    texts = {re.sub(r"\b\d+\b", "…", refusal(read)) for read in by_id}
    assert texts == {"user bob cannot see a table with the id …; look up the table by its name"}
    assert "lacks USAGE on schema s" in refusal(lambda: bob.tables("s"))
    with guarded.granted(USAGE):
        assert bob.tables("s") == ["t"]
        for read in reads:
            assert refusal(read) == (
                "user bob lacks SELECT on table s.t; alice or a superuser can grant it"
            )
        with guarded.granted(on_table(Privilege.SELECT)):
            for read in reads:
                read()


def test_the_last_owner_and_grants_of_a_dropped_table_decide_who_reads_its_files(
    guarded: Guarded, bob: Session
) -> None:
    alice = guarded.node.session(user="alice")
    alice.execute(table("gone"))
    made, snapshot = alice.table("s.gone"), alice.open(["s.gone"])
    table_id, write_ids = made.descriptor.id, snapshot.write_ids_of("s.gone")
    select = GrantPrivileges(
        kind=ObjectKind.TABLE, name="s.gone", privileges=Privilege.SELECT, grantee="bob"
    )
    alice.execute(select)
    alice.execute(DropTable(schema="s", table="gone"))
    for session in (alice, guarded.node.session(user="root")):
        session.open(["s.gone"], at=AsOf(version=made.catalog_version))
        session.files(table_id, write_ids)
    assert "cannot see a table with the id" in refusal(lambda: bob.files(table_id, write_ids))
    with guarded.granted(USAGE):
        bob.files(table_id, write_ids)


@pytest.mark.parametrize("kind", ["local", "http"])
def test_a_writer_of_a_table_that_was_dropped_meanwhile_gets_a_conflict(
    guarded: Guarded, kind: str
) -> None:
    alice = guarded.open(kind, "alice")
    alice.execute(table("gone"))
    table_id, txn_id = alice.table("s.gone").descriptor.id, alice.begin().txn_id
    alice.execute(DropTable(schema="s", table="gone"))
    with pytest.raises(WriteConflict, match="dropped"):
        alice.stage(txn_id, table_id, add=[DATA])
        alice.commit(txn_id)
    alice.close()


INSERT, UPDATE, DELETE = Privilege.INSERT, Privilege.UPDATE, Privilege.DELETE
DATA = DataFile(file_id=1, path="f", rows=1, bytes=1)
SEEN = replace(DATA, file_id=2, path="seen")
DELETES = DeleteFile(path="d", file_ids=(SEEN.file_id,), counts=(1,))


@pytest.mark.parametrize(
    ("change", "enough", "missing", "too_little"),
    [
        ({"add": [DATA]}, INSERT, "INSERT", UPDATE | DELETE),
        ({"add": [DELETES]}, DELETE, "DELETE", UPDATE | INSERT),
        ({"remove": ["seen"]}, DELETE, "DELETE", UPDATE | INSERT),
        ({"touch": ["seen"]}, DELETE, "DELETE", UPDATE | INSERT),
        ({"add": [DATA, DELETES]}, UPDATE, "UPDATE", Privilege.SELECT | INSERT),
        ({"add": [DATA, DELETES]}, INSERT | DELETE, "UPDATE", DELETE),
        ({"add": [DATA], "remove": ["seen"]}, UPDATE, "UPDATE", INSERT),
    ],
)
def test_staging_needs_the_privilege_for_what_it_changes(
    guarded: Guarded,
    bob: Session,
    change: dict[str, Any],
    enough: Privilege,
    missing: str,
    too_little: Privilege,
) -> None:
    alice = guarded.node.session(user="alice")
    table_id = alice.table("s.t").descriptor.id
    before = alice.begin().txn_id
    with suppress(AlreadyExists):
        alice.stage(before, table_id, add=[SEEN])
    alice.commit(before)
    txn_id = bob.begin().txn_id
    with guarded.granted(USAGE, on_table(too_little)):
        refused = refusal(lambda: bob.stage(txn_id, table_id, **change))
        assert refused.startswith(f"user bob lacks {missing} on table s.t")
    with guarded.granted(USAGE, on_table(enough)):
        bob.stage(txn_id, table_id, **change)
    bob.abort(txn_id)


def test_only_its_user_or_a_superuser_can_use_a_transaction(guarded: Guarded, bob: Session) -> None:
    alice = guarded.node.session(user="alice")
    txn_id = alice.begin().txn_id

    def read(txn_id: int) -> object:
        return bob.open([], txn_id=txn_id)

    for call in (bob.transaction, read, bob.heartbeat, bob.commit, bob.abort):
        refused = refusal(lambda call=call: call(txn_id))  # type: ignore[misc]  # bound for this round
        assert "belongs to another user" in refused
        assert "alice" not in refused
    table_id = alice.table("s.t").descriptor.id
    with guarded.granted(USAGE, on_table(INSERT)):
        refused = refusal(lambda: bob.stage(txn_id, table_id, add=[DATA]))
        assert "belongs to another user" in refused
    guarded.node.session(user="root").heartbeat(txn_id)
    alice.commit(txn_id)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_list_of_write_ids_that_a_client_made_up_shows_no_write_of_another_user(
    guarded: Guarded, bob: Session, is_aborted: bool
) -> None:
    alice, name = guarded.node.session(user="alice"), f"made_up_{is_aborted}"
    alice.execute(table(name))
    table_id, txn_id = alice.table(f"s.{name}").descriptor.id, alice.begin().txn_id
    write_id = alice.stage(txn_id, table_id, add=[DATA])
    beyond, made_up = ValidWriteIdList(hwm=write_id + 9), ValidWriteIdList(hwm=write_id)
    own = alice.open([f"s.{name}"], txn_id=txn_id).write_ids_of(f"s.{name}")
    assert len(alice.files(table_id, own).data_files) == 1
    if is_aborted:
        alice.abort(txn_id)
    with guarded.granted(USAGE, (ObjectKind.TABLE, f"s.{name}", Privilege.SELECT)):
        for write_ids in (made_up, beyond, own):
            refused = refusal(lambda ids=write_ids: bob.files(table_id, ids))  # type: ignore[misc]  # bound
            assert "belongs to another user" in refused
        seen = bob.open([f"s.{name}"]).write_ids_of(f"s.{name}")
        assert not bob.files(table_id, seen).data_files
    alice.execute(DropTable(schema="s", table=name))


def test_only_its_user_or_a_superuser_can_use_a_hold(guarded: Guarded, bob: Session) -> None:
    alice, root = (guarded.node.session(user=user) for user in ("alice", "root"))
    now = alice.open([]).time
    hers = alice.hold("reader", at=now)
    assert hers.owner == "alice"
    for call in (
        lambda: bob.renew_hold(hers.hold_id),
        lambda: bob.release_hold(hers.hold_id),
    ):
        assert "belongs to another user" in refusal(call)
        assert "alice" not in refusal(call)
    assert alice.renew_hold(hers.hold_id).owner == "alice"
    root.release_hold(hers.hold_id)
    bob.release_hold(hers.hold_id)


def test_a_user_sees_only_its_own_holders(guarded: Guarded, bob: Session) -> None:
    alice, root = (guarded.node.session(user=user) for user in ("alice", "root"))
    hers, his = alice.begin(), bob.begin()
    assert [holder.id for holder in bob.holders().holders] == [his.txn_id]
    assert bob.holders().transactions == 1
    assert {hers.txn_id, his.txn_id} <= {holder.id for holder in root.holders().holders}
    alice.abort(hers.txn_id)
    bob.abort(his.txn_id)


def test_only_a_superuser_can_take_a_hold_for_another_user(guarded: Guarded, bob: Session) -> None:
    root = guarded.node.session(user="root")
    now = root.open([]).time
    assert "cannot make alice the owner of a hold" in refusal(
        lambda: bob.hold("reader", "alice", at=now)
    )
    for session, owner in ((bob, "bob"), (bob, "job 7"), (root, "alice")):
        hold = session.hold("reader", owner, at=now)
        assert hold.owner == owner
        assert session.renew_hold(hold.hold_id).owner == owner
        session.release_hold(hold.hold_id)


def test_only_a_superuser_can_take_a_hold_that_stops_cleaning(
    guarded: Guarded, bob: Session
) -> None:
    root = guarded.node.session(user="root")
    now = root.open([]).time
    assert "only superusers may take a hold of a backup" in refusal(
        lambda: bob.hold(BACKUP, at=now)
    )
    root.release_hold(root.hold(BACKUP, at=now).hold_id)


def test_ddl_needs_ownership_and_users_see_only_their_own_history(
    guarded: Guarded, bob: Session
) -> None:
    with guarded.granted(USAGE):
        drop = DropTable(schema="s", table="t")
        assert "user bob does not own table s.t" in refusal(lambda: bob.execute(drop))
        assert "lacks CREATE on schema s" in refusal(lambda: bob.execute(table("u")))
        with guarded.granted((ObjectKind.SCHEMA, "s", Privilege.CREATE)):
            made = bob.execute(table("u")).version
            assert bob.table("s.u").descriptor.owner == "bob"
            bob.execute(DropTable(schema="s", table="u"))
    records = bob.history()
    assert {record.author for record in records} == {"bob"}
    assert made in [record.version for record in records]
    assert {record.author for record in guarded.node.session(user="root").history()} > {"bob"}
    assert "only superusers may trim" in refusal(lambda: bob.compact(made))


def test_a_user_sees_only_its_own_commits_however_its_name_is_written(
    guarded: Guarded, bob: Session
) -> None:
    alice, root = (guarded.node.session(user=user) for user in ("alice", "root"))
    orders, since = alice.table("s.t").descriptor.id, alice.open([]).time
    with guarded.granted(USAGE, on_table(Privilege.SELECT | Privilege.INSERT)):
        made: list[int] = []
        for writer in (alice, bob, guarded.node.session(user="BOB")):
            made.append(txn_id := writer.begin().txn_id)
            file = replace(DATA, file_id=1000 + txn_id, path=f"of {txn_id}")
            writer.stage(txn_id, orders, add=[file])
            writer.commit(txn_id)
        for reader, seen in ((bob, made[1:]), (alice, made[:1]), (root, made)):
            assert [commit.txn_id for commit in reader.data_history(since=since)] == seen
            of_table = reader.data_history(since=since, table="s.t")
            assert [commit.txn_id for commit in of_table] == seen


def test_a_parameter_that_no_session_may_set_does_not_tell_whether_a_table_has_it(
    guarded: Guarded, bob: Session
) -> None:
    stored = ("EXTERNAL", "FALSE")  # as Hive clients store it
    definition = replace(table("from_hive").definition, properties=(stored,))
    guarded.node.catalogs.execute(CreateTable(schema="s", definition=definition), author="alice")
    for name in ("from_hive", "missing"):
        guess = SetTableProperties(schema="s", table=name, set=(stored,))
        with pytest.raises(InvalidInput, match="'EXTERNAL' cannot be set"):
            bob.execute(guess)
    alice = guarded.node.session(user="alice")
    sent_back = SetTableProperties(schema="s", table="from_hive", set=(stored,))
    assert alice.execute(sent_back).applied == (False,)
    alice.execute(DropTable(schema="s", table="from_hive"))


def test_what_is_wrong_with_a_place_is_told_only_to_a_user_who_may_make_the_change(
    guarded: Guarded, bob: Session, tmp_path: Path
) -> None:
    columns = (ColumnDefinition("k", INT), ColumnDefinition("day", INT))
    parted = TableDefinition(name="parted", columns=columns, partition_columns=("day",))
    moved = replace(parted, location=tmp_path.as_uri())
    alice = guarded.node.session(user="alice")
    alice.execute(CreateTable(schema="s", definition=parted))
    alter = AlterTable(schema="s", table="parted", definition=moved)
    with pytest.raises(UnsupportedOperation, match="has partitions"):
        alice.execute(alter)
    assert "lacks USAGE on schema s" in refusal(lambda: bob.execute(alter))
    with guarded.granted(USAGE):
        assert "does not own table s.parted" in refusal(lambda: bob.execute(alter))
    alice.execute(DropTable(schema="s", table="parted"))
    warehouse = Path(guarded.node.metastore.warehouse.removeprefix("file://"))
    (warehouse / "taken.db").touch()
    create = CreateSchema(name="taken")
    with pytest.raises(InvalidInput, match=r"taken\.db"):
        guarded.node.session(user="root").execute(create)
    assert "lacks CREATE on database" in refusal(lambda: bob.execute(create))


def test_a_table_is_placed_only_in_the_folders_of_schemas_where_its_user_may_create(
    guarded: Guarded, bob: Session, tmp_path: Path
) -> None:
    warehouse = guarded.node.metastore.warehouse
    definition = TableDefinition(
        name="x",
        columns=(ColumnDefinition("k", INT),),
        kind=TableKind.EXTERNAL,
        location=f"{warehouse}/s.db/t",
    )
    elsewhere = replace(definition, location=tmp_path.as_uri())
    root = guarded.node.session(user="root")
    root.execute([CreateSchema(name="own", owner="bob")])
    create = CreateTable(schema="own", definition=definition)
    assert "lacks CREATE and USAGE on schema s" in refusal(lambda: bob.execute(create))
    bob.execute(CreateTable(schema="own", definition=elsewhere))
    alter = AlterTable(schema="own", table="x", definition=definition)
    assert "lacks CREATE and USAGE on schema s" in refusal(lambda: bob.execute(alter))
    with guarded.granted(USAGE, (ObjectKind.SCHEMA, "s", Privilege.CREATE)):
        assert bob.execute(alter).applied == (True,)
    private = CreateTable(schema="private", definition=elsewhere)
    root.execute([CreateSchema(name="private"), private])
    hidden = replace(alter, schema="private")
    assert "lacks USAGE on schema private" in refusal(lambda: bob.execute(hidden))
    commented = replace(definition, comment="it stays where it is")
    bob.execute(AlterTable(schema="own", table="x", definition=commented))
    root.execute([DropSchema(name=name, cascade=True) for name in ("own", "private")])


def test_a_place_in_no_folder_of_another_schema_is_in_that_of_the_schema_default(
    guarded: Guarded, bob: Session
) -> None:
    root = guarded.node.session(user="root")
    taken = SetOwner(kind=ObjectKind.SCHEMA, name="default", owner="alice")
    root.execute([CreateSchema(name="own", owner="bob"), taken])
    warehouse = guarded.node.metastore.warehouse

    def place(path: str) -> None:
        columns, location = (ColumnDefinition("k", INT),), f"{warehouse}/{path}"
        definition = TableDefinition(
            name="x", columns=columns, kind=TableKind.EXTERNAL, location=location
        )
        bob.execute(CreateTable(schema="own", definition=definition))

    try:
        for path in ("t", "", "t/k=1"):
            assert "lacks CREATE and USAGE on schema default" in refusal(partial(place, path))
        place("own.db/y")
    finally:
        root.execute([replace(taken, owner="public"), DropSchema(name="own", cascade=True)])


OPERATING: dict[str, tuple[Callable[[Session], object], str]] = {
    "config": (lambda of: of.config(), "see the settings of the node"),
    "clean": (lambda of: of.clean(), "see what cleaning would remove"),
    "dump": (lambda of: of.dump(), "dump the catalog"),
    "dump of nothing": (lambda of: of.dump(ignore=["none"]), "dump the catalog"),
    "verify": (lambda of: of.verify(), "verify the store"),
    "differences": (lambda of: of.differences(AsOf(version=1)), "compare whole versions"),
}


@pytest.mark.parametrize("call", OPERATING)
def test_only_superusers_read_what_is_for_the_operator(
    guarded: Guarded, bob: Session, call: str
) -> None:
    read, what = OPERATING[call]
    assert f"only superusers may {what}" in refusal(lambda: read(bob))


def test_a_superuser_reads_what_is_for_the_operator(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.node.verification.SETTLING_SECONDS", 0.0)
    with HttpSession(guarded.url, user="root") as root:
        assert root.verify().summary.tables
        assert root.clean().limit
        assert root.config()
        assert b'"enforce_privileges"' in root.dump()
        assert root.differences(AsOf(version=1))


def test_a_dropped_table_is_readable_by_users_who_could_read_it_last(
    guarded: Guarded, bob: Session
) -> None:
    alice = guarded.node.session(user="alice")
    alice.execute(table("gone"))
    hers = alice.table("s.gone").descriptor
    grant = GrantPrivileges(
        kind=ObjectKind.TABLE, name="s.gone", privileges=Privilege.SELECT, grantee="bob"
    )
    granted = AsOf(version=alice.execute(grant).version)
    alice.execute(DropTable(schema="s", table="gone"))
    with guarded.granted(USAGE):
        assert bob.open(["s.gone"], at=granted).table("s.gone").descriptor.id == hers.id


def test_a_revoked_table_stays_unreadable_in_older_versions_after_it_is_dropped(
    guarded: Guarded, bob: Session
) -> None:
    alice = guarded.node.session(user="alice")
    alice.execute(table("gone"))
    select: dict[str, Any] = {
        "kind": ObjectKind.TABLE,
        "name": "s.gone",
        "privileges": Privilege.SELECT,
        "grantee": "bob",
    }
    granted = AsOf(version=alice.execute(GrantPrivileges(**select)).version)
    alice.execute(RevokePrivileges(**select))
    with guarded.granted(USAGE):
        assert "lacks SELECT" in refusal(lambda: bob.open(["s.gone"], at=granted))
        alice.execute(DropTable(schema="s", table="gone"))
        assert "lacks SELECT" in refusal(lambda: bob.open(["s.gone"], at=granted))
        assert "lacks SELECT" in refusal(lambda: bob.table("s.gone", at=granted))


def test_a_revoked_schema_stays_unlisted_in_older_versions_after_it_is_dropped(
    guarded: Guarded, bob: Session
) -> None:
    root = guarded.node.session(user="root")
    usage: dict[str, Any] = {
        "kind": ObjectKind.SCHEMA,
        "name": "gone",
        "privileges": Privilege.USAGE,
        "grantee": "bob",
    }
    granted = AsOf(
        version=root.execute([CreateSchema(name="gone"), GrantPrivileges(**usage)]).version
    )
    assert bob.schemas(at=granted) == ["default", "gone"]
    root.execute(RevokePrivileges(**usage))
    root.execute(DropSchema(name="gone"))
    assert bob.schemas(at=granted) == ["default"]


def test_several_privileges_can_be_granted_and_revoked_at_once_over_http(guarded: Guarded) -> None:
    both = Privilege.SELECT | Privilege.INSERT
    with HttpSession(guarded.url, user="alice") as alice:
        for command in (GrantPrivileges, RevokePrivileges):
            alice.execute(
                command(kind=ObjectKind.TABLE, name="s.t", privileges=both, grantee="bob")
            )
            actions = guarded.node.session(user="root").history()[-1].actions
            assert [said["privileges"] for _, said in actions] == [["SELECT", "INSERT"]]
    answer = httpx.post(
        f"{guarded.url}/v1/execute",
        json={
            "commands": [
                {"grant_privileges": {"kind": "TABLE", "privileges": ["READ"], "grantee": "bob"}}
            ]
        },
        trust_env=False,
    )
    assert "privileges[0]: expected one of SELECT" in answer.json()["detail"]


# -- the caller ------------------------------------------------------------------------------------


def test_without_a_verifier_the_user_of_basic_credentials_is_not_verified(guarded: Guarded) -> None:
    answer = httpx.post(
        f"{guarded.url}/v1/table",
        json={"name": "s.t"},
        auth=("bob", "whatever"),
        trust_env=False,
    )
    assert answer.status_code == 403
    error = answer.json()
    assert error["code"] == "permission_denied"
    assert error["detail"].startswith("user bob lacks USAGE")
    answer = httpx.post(
        f"{guarded.url}/v1/table", json={"name": "s.t"}, auth=("alice", ""), trust_env=False
    )
    assert answer.status_code == 200


@pytest.fixture(scope="module")
def proving(guarded: Guarded) -> Iterator[str]:
    def authenticate(user: str, secret: str) -> bool:
        return SECRETS.get(user) == secret

    with serving(HttpApplication(guarded.node.metastore, authenticate=authenticate)) as url:
        yield url


def test_a_node_with_a_verifier_accepts_the_right_secret(proving: str) -> None:
    for user, secret in SECRETS.items():
        with HttpSession(proving, user=user, secret=secret) as session:
            assert session.tables("s") == ["t"]


@pytest.mark.parametrize(
    ("secret", "message"),
    [(None, "authenticates"), ("", "is wrong"), ("wrong", "is wrong")],
)
def test_a_node_with_a_verifier_refuses_a_missing_or_wrong_secret(
    proving: str, secret: str | None, message: str
) -> None:
    with HttpSession(proving, user="alice", secret=secret) as session:
        assert message in refusal(lambda: session.tables("s"))
    headers = {} if secret is None else {"Authorization": basic("alice", secret)}
    answer = httpx.post(
        f"{proving}/v1/tables", json={"schema": "s"}, headers=headers, trust_env=False
    )
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert (answer.json()["code"], answer.json()["status"]) == ("permission_denied", 401)


USER = "x-strandline-user"


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({}, Caller("anonymous")),
        ({USER: "ann%20%C3%A9"}, Caller("ann é")),
        ({"authorization": basic("ann é", "a:b")}, Caller("ann é", "a:b")),
        ({"authorization": basic("ann", ""), USER: "ann"}, Caller("ann", "")),
        ({"authorization": basic("ann é", ""), USER: "ann%20%C3%A9"}, Caller("ann é", "")),
        ({"authorization": basic("ann", "x").replace("Basic", "basic")}, Caller("ann", "x")),
        ({USER: "a" * MAX_USER_LENGTH}, Caller("a" * MAX_USER_LENGTH)),
    ],
)
def test_the_caller_is_read_from_the_headers(headers: dict[str, str], caller: Caller) -> None:
    assert caller_of(headers) == caller


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({USER: ""}, "does not name a user"),
        ({USER: "%ff"}, "does not name a user"),
        ({USER: "a" * (MAX_USER_LENGTH + 1)}, "does not name a user"),
        ({"authorization": "Bearer abc"}, "cannot be read"),
        ({"authorization": "Basic ???"}, "cannot be read"),
        ({"authorization": basic("ann", "x") + "*"}, "cannot be read"),
        ({"authorization": "Basic " + b64encode(b"no colon").decode()}, "cannot be read"),
        ({"authorization": "Basic " + b64encode(b"\xff:x").decode()}, "cannot be read"),
        ({"authorization": basic("", "x")}, "does not name a user"),
        ({"authorization": basic("a\nb", "x")}, "does not name a user"),
        ({"authorization": basic("ann", "x"), USER: "bob"}, "name two users"),
    ],
)
def test_headers_that_do_not_name_exactly_one_valid_user_are_refused(
    headers: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        caller_of(headers)


def test_a_user_name_with_a_colon_is_refused(guarded: Guarded) -> None:
    with pytest.raises(InvalidInput, match="colon"):
        HttpSession(guarded.url, user="a:b", secret="x")


def test_objects_created_without_an_owner_belong_to_the_user_of_the_session(
    guarded: Guarded,
) -> None:
    privileges = Privilege.CREATE_ZONE | Privilege.CREATE_CLUSTER | Privilege.CREATE_DATABASE
    made: Sequence[Command] = [
        CreateZone(name="z"),
        CreateCluster(name="c"),
        CreateDatabase(name="d"),
        CreateFunction(schema="default", name="f", class_name="com.example.F"),
    ]
    with guarded.granted((ObjectKind.SYSTEM, "", privileges)):
        guarded.node.session(user="bob").execute(made)
    catalog = guarded.node.catalogs.present()
    records = [
        catalog.zone_named("z"),
        catalog.cluster("c"),
        catalog.database("d"),
        catalog.function("default", "f"),
    ]
    assert [record.owner for record in records if record is not None] == ["bob"] * len(made)
