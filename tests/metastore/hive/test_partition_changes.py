"""Changes of many partitions: their cost does not grow with each partition."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from strandline import work
from strandline.catalog import Applied
from strandline.config import Settings
from strandline.errors import IllegalChange, Unavailable, UnknownOutcome, WriteConflict
from strandline.metastore.cache import log_applier
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.hive import HiveMetastoreService, partition_alters, partition_values
from strandline.metastore.hive.registry import METHODS, Request
from strandline.metastore.metastore import Metastore
from strandline.metastore.store import warehouse
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.rows import NewRow, PartitionRow
from strandline.metastore.store.staging import Staging
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.messages import ThriftException
from strandline.metastore.unfinished_moves import UnfinishedMoves, finish_partition_moves
from strandline.node import Node
from strandline.wire import decode
from tests.node.conftest import before_the_next
from tests.servers.thrift_client import decode_result
from tests.sql.statements import recorded

SD = {
    "cols": [{"name": "a", "type": "int"}],
    "inputFormat": "in",
    "outputFormat": "out",
    "serdeInfo": {"serializationLib": "serde", "parameters": {}},
    "numBuckets": -1,
}
FEW, MANY = 20, 400


class Caller:
    """Calls handlers of the service in this thread."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._service = HiveMetastoreService(node.metastore)

    def __call__(self, method: str, **args: Any) -> Any:
        sent = HIVE_CODEC.decode_args(method, HIVE_CODEC.encode_args(method, args))
        request = Request(METHODS[method], sent, "ann", self.node.metastore)
        answer = self._service._result(request)
        return decode_result(method, HIVE_CODEC.encode_result(method, answer))


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Caller]:
    with Node.open(tmp_path / "store") as node:
        caller = Caller(node)
        create(caller, "few", partitions=FEW)
        yield caller


def create(call: Caller, name: str, *, partitions: int) -> None:
    table = {
        "tableName": name,
        "dbName": "default",
        "sd": SD,
        "partitionKeys": [{"name": "p", "type": "int"}],
        "tableType": "MANAGED_TABLE",
    }
    call("create_table", tbl=table)
    call("add_partitions", new_parts=[partition(name, n) for n in range(partitions)])


def partition(table: str, number: int, *, location: str | None = None, **parameters: str) -> Any:
    place = f"s3a://elsewhere/{table}/p={number}" if location is None else location
    return {
        "values": [str(number)],
        "dbName": "default",
        "tableName": table,
        "sd": {**SD, "location": place},
        "parameters": parameters,
    }


def alter(call: Caller, table: str, *partitions: Any) -> None:
    call("alter_partitions", db_name="default", tbl_name=table, new_parts=list(partitions))


def shown(call: Caller, table: str) -> dict[str, Any]:
    partitions = call("get_partitions", db_name="default", tbl_name=table, max_parts=-1)
    return {part["values"][0]: part for part in partitions}


def about_rows(statements: list[tuple[str, Any]]) -> int:
    """The number of statements about rows and events, without those that only follow a log."""
    return sum("store_row" in s or "store_removal" in s or "INTO notif" in s for s, _ in statements)


@pytest.mark.slow
def test_the_statements_of_alter_partitions_do_not_grow_with_each_partition(call: Caller) -> None:
    create(call, "many", partitions=MANY)
    counts = []
    for name, count in (("few", FEW), ("many", MANY)):
        with recorded() as statements:
            alter(call, name, *(partition(name, n, written="2") for n in range(count)))
        counts.append(about_rows(statements))
    # Twenty times the partitions need only a few more chunks of names and ids, and one more batch
    # of events.
    assert counts[1] < 2 * counts[0], counts
    assert all(part["parameters"]["written"] == "2" for part in shown(call, "many").values())


def test_each_altered_partition_has_its_own_event(call: Caller) -> None:
    head = call("get_current_notificationEventId")["eventId"]
    alter(call, "few", *(partition("few", n, written="2") for n in range(5)))
    answer = call("get_next_notification", rqst={"lastEvent": head, "maxEvents": 100})
    kinds = [event["eventType"] for event in answer["events"]]
    assert kinds == ["ALTER_PARTITION"] * 5 + ["COMMIT_TXN"]
    texts = [event["message"] for event in answer["events"][:5]]
    assert [f'"keyValues":{{"p":"{n}"}}' in text for n, text in enumerate(texts)] == [True] * 5


@pytest.mark.slow
def test_the_statements_of_reading_events_do_not_grow_with_each_event(call: Caller) -> None:
    create(call, "many", partitions=MANY)
    counts = []
    for name, count in (("few", FEW), ("many", MANY)):
        head = call("get_current_notificationEventId")["eventId"]
        alter(call, name, *(partition(name, n, written="2") for n in range(count)))
        with recorded() as statements:
            answer = call("get_next_notification", rqst={"lastEvent": head, "maxEvents": 1_000})
        assert len(answer["events"]) == count + 1
        counts.append(about_rows(statements))
    # Rows are read in chunks of 500 ids; each event has two ids.
    assert counts[1] <= counts[0] + 4, counts


def test_a_partition_named_twice_is_altered_twice(call: Caller) -> None:
    alter(
        call,
        "few",
        partition("few", 1, location="s3a://elsewhere/moved"),
        partition("few", 1, location="", again="yes"),
    )
    altered = shown(call, "few")["1"]
    assert altered["parameters"]["again"] == "yes"
    assert altered["sd"]["location"] == "s3a://elsewhere/moved"


def test_one_missing_partition_leaves_all_partitions_unchanged(call: Caller) -> None:
    with pytest.raises(Exception, match="alter is not possible"):
        alter(call, "few", partition("few", 1, written="2"), partition("few", FEW + 1))
    assert "written" not in shown(call, "few")["1"]["parameters"]


def test_many_partitions_are_answered_each_with_its_own_columns(call: Caller) -> None:
    create(call, "many", partitions=MANY)
    own = partition("many", 900)
    own["sd"]["cols"] = [{"name": "own", "type": "string"}]
    call("add_partitions", new_parts=[own])
    answered = shown(call, "many")
    assert [column["name"] for column in answered["900"]["sd"]["cols"]] == ["own"]
    assert [column["name"] for column in answered["1"]["sd"]["cols"]] == ["a"]


def test_a_renamed_partition_keeps_its_creation_time_and_has_a_folder(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ({**partition("few", number), "sd": SD} for number in (900, 901))
    call("add_partitions", new_parts=[old])
    before = shown(call, "few")["900"]
    warehouse.Warehouse().path(before["sd"]["location"]).rmdir()
    later = 1000 * (before["createTime"] + 60)
    monkeypatch.setattr(partition_values, "system_wall_clock", lambda: later)
    names = {"db_name": "default", "tbl_name": "few"}
    call("rename_partition", **names, part_vals=["900"], new_part=new)
    after = shown(call, "few")["901"]
    assert after["createTime"] == before["createTime"]
    assert warehouse.Warehouse().path(after["sd"]["location"]).is_dir()


def test_adding_many_partitions_syncs_the_folder_of_the_table_once(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(warehouse, "sync_folder", lambda folder: synced.append(folder.name))
    new = [partition("few", n, location="") for n in range(FEW, 2 * FEW)]
    call("add_partitions", new_parts=new)
    place = Path(call("get_table", dbname="default", tbl_name="few")["sd"]["location"][5:])
    assert len(list(place.iterdir())) == FEW
    assert synced == [place.name]


def test_a_partition_whose_folder_cannot_be_synced_to_disk_is_not_added(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(warehouse, "sync_folder", fail)
    before = set(shown(call, "few"))
    with pytest.raises(Unavailable, match="could not sync the folder"):
        call("add_partitions", new_parts=[partition("few", FEW, location="")])
    assert set(shown(call, "few")) == before


@pytest.mark.parametrize("external", [False, True])
def test_partitions_stay_where_they_are_if_their_table_gets_another_location(
    call: Caller, tmp_path: Path, *, external: bool
) -> None:
    table = _partitioned(call, location=f"file:{tmp_path}/first" if external else None)
    first = table["sd"]["location"]
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    call("add_partition", new_part=partition("t", 2, location=f"{first}/two"))
    version = call.node.metastore.catalogs.latest_catalog().version

    table["sd"]["location"] = f"file:{tmp_path}/second"
    call("alter_table", dbname="default", tbl_name="t", new_tbl=table)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["3"])

    places = {values: part["sd"]["location"] for values, part in shown(call, "t").items()}
    assert places == {"1": f"{first}/p=1", "2": f"{first}/two", "3": f"file:{tmp_path}/second/p=3"}
    past = call("get_partitions", db_name=f"default@{version}", tbl_name="t", max_parts=-1)
    assert [part["sd"]["location"] for part in past] == [f"{first}/p=1", f"{first}/two"]


def test_an_alter_with_an_empty_location_moves_no_table_and_rewrites_no_partition(
    call: Caller,
) -> None:
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    head = call.node.notifications.head()
    empty = {**table, "sd": {**table["sd"], "location": ""}, "parameters": {"k": "v"}}
    call("alter_table", dbname="default", tbl_name="t", new_tbl=empty)
    events = call.node.notifications.read(head, limit=10)
    assert [event.verb for event in events] == ["alter_table"]
    place = table["sd"]["location"]
    assert shown(call, "t")["1"]["sd"]["location"] == f"{place}/p=1"


def test_another_location_of_a_table_first_undoes_a_rename_whose_process_died(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node would undo it later: a table at a location that a user chose moves no folder."""
    table, place = _renamed_by_a_process_that_died(call, monkeypatch)
    table["sd"]["location"] = f"file:{tmp_path}/second"
    call("alter_table", dbname="default", tbl_name="t", new_tbl=table)
    assert shown(call, "t")["1"]["sd"]["location"] == f"file:{place}/p=1"
    assert (place / "p=1").is_dir()


def test_another_location_of_a_table_moves_no_folder_of_a_table_that_has_got_its_place(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, place = _renamed_by_a_process_that_died(call, monkeypatch)

    def replace() -> None:
        call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
        _partitioned(call)
        call("append_partition", db_name="default", tbl_name="t", part_vals=["2"])

    before_the_next(monkeypatch, CachedStore, "change", replace)
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    with pytest.raises(ThriftException, match="renamed or dropped meanwhile"):
        call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    assert [path.name for path in place.iterdir()] == ["p=2"]


def _renamed_by_a_process_that_died(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Path]:
    """A table ``t``, and its folder; that of its partition p=1 was moved to p=2."""
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
        patch.setattr(Staging, "record_moves", _refuse)
        new = {"values": ["2"], "dbName": "default", "tableName": "t", "sd": SD}
        call("rename_partition", db_name="default", tbl_name="t", part_vals=["1"], new_part=new)
    place = Path(table["sd"]["location"].removeprefix("file:"))
    (place / "p=1").rename(place / "p=2")
    return table, place


def test_a_partition_that_is_added_while_its_table_gets_another_location_keeps_its_files(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _partitioned(call)
    first = table["sd"]["location"]
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])

    def append_too(metastore: Metastore, *arguments: Any, **options: Any) -> Applied:
        with monkeypatch.context() as patch:
            patch.setattr(Metastore, "execute", execute)
            call("append_partition", db_name="default", tbl_name="t", part_vals=["2"])
            finish_partition_moves(metastore)  # as a node that starts does
        return execute(metastore, *arguments, **options)

    execute = Metastore.execute
    monkeypatch.setattr(Metastore, "execute", append_too)
    table["sd"]["location"] = f"file:{tmp_path}/second"
    call("alter_table", dbname="default", tbl_name="t", new_tbl=table)
    places = {values: part["sd"]["location"] for values, part in shown(call, "t").items()}
    assert places == {"1": f"{first}/p=1", "2": f"{first}/p=2"}


@pytest.mark.parametrize("change", ["append", "alter", "undrop"])
def test_a_change_of_a_partition_is_refused_if_its_table_has_got_another_location_meanwhile(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Otherwise its files would be looked for at the new location of the table."""
    table = _partitioned(call)
    for value in "13":
        call("append_partition", db_name="default", tbl_name="t", part_vals=[value])
    call("drop_partition", db_name="default", tbl_name="t", part_vals=["3"], deleteData=True)
    before = call("get_partition", db_name="default", tbl_name="t", part_vals=["1"])
    begin_change = CachedStore.change

    def relocate_first(*arguments: Any, **options: Any) -> AbstractContextManager[Staging]:
        monkeypatch.undo()
        table["sd"]["location"] = f"file:{tmp_path}/second"
        call("alter_table", dbname="default", tbl_name="t", new_tbl=table)
        return begin_change(*arguments, **options)

    monkeypatch.setattr(CachedStore, "change", relocate_first)
    named = {"db_name": "default", "tbl_name": "t"}
    with pytest.raises(WriteConflict, match="another location meanwhile"):
        match change:
            case "append":
                call("append_partition", **named, part_vals=["2"])
            case "alter":
                call("alter_partition", **named, new_part=before)
            case "undrop":
                call.node.session(user="ann").undrop_partitions("default.t")
    assert [part["sd"]["location"] for part in shown(call, "t").values()] == [
        before["sd"]["location"]
    ]


def test_partitions_of_an_external_table_stay_also_when_its_location_is_undone(
    call: Caller, tmp_path: Path
) -> None:
    table = _partitioned(call, location=f"file:{tmp_path}/first")
    table["sd"]["location"] = f"file:{tmp_path}/second"
    call("alter_table", dbname="default", tbl_name="t", new_tbl=table)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["3"])
    session = call.node.session(user="ann")
    session.undo(call.node.metastore.catalogs.latest_catalog().version)
    assert call("get_table", dbname="default", tbl_name="t")["sd"]["location"].endswith("/first")
    assert shown(call, "t")["3"]["sd"]["location"] == f"file:{tmp_path}/second/p=3"


def test_a_table_is_not_managed_again_while_partitions_would_not_follow_its_folder(
    call: Caller, tmp_path: Path
) -> None:
    table = _partitioned(call)
    first, second = table["sd"]["location"], f"file:{tmp_path}/second"
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    moved = {**table, "sd": {**table["sd"], "location": second}}
    call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    session, version = call.node.session(user="ann"), call.node.catalogs.present().version
    with pytest.raises(IllegalChange, match=r"partition p=1 of t, now in file:.*SET LOCATION"):
        session.undo(version)
    call("drop_partition", db_name="default", tbl_name="t", part_vals=["1"], deleteData=False)
    version = session.undo(version).version
    assert call("get_table", dbname="default", tbl_name="t")["sd"]["location"] == first
    call("append_partition", db_name="default", tbl_name="t", part_vals=["2"])
    with pytest.raises(IllegalChange, match=r"partition p=2 of t, now in file:.*SET LOCATION"):
        session.undo(version)


def test_a_partition_that_is_undropped_in_a_table_that_is_managed_again_follows_its_folder(
    call: Caller, tmp_path: Path
) -> None:
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    session, version = call.node.session(user="ann"), call.node.catalogs.present().version
    call("drop_partition", db_name="default", tbl_name="t", part_vals=["1"], deleteData=True)
    session.undo(version)
    session.undrop_partitions("default.t")
    call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
    place = call("get_table", dbname="default", tbl_name="u")["sd"]["location"]
    assert shown(call, "u")["1"]["sd"]["location"] == f"{place}/p=1"
    assert Path(f"{place}/p=1".removeprefix("file:")).is_dir()


def test_a_partition_that_kept_its_place_follows_its_table_in_the_past_and_when_it_is_undropped(
    call: Caller, tmp_path: Path
) -> None:
    """The new table of the former name has the folder in which the partition was then."""
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    session, version = call.node.session(user="ann"), call.node.catalogs.present().version
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    call("drop_partition", db_name="default", tbl_name="t", part_vals=["1"], deleteData=True)
    session.undo(call.node.catalogs.present().version)
    call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
    assert _partitioned(call)["sd"]["location"] == table["sd"]["location"]
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    place = f"{call('get_table', dbname='default', tbl_name='u')['sd']['location']}/p=1"
    names = {"db_name": f"default@{version}", "tbl_name": "t"}
    assert call("get_partition", **names, part_vals=["1"])["sd"]["location"] == place
    session.undrop_partitions("default.u")
    assert shown(call, "u")["1"]["sd"]["location"] == place
    assert Path(place.removeprefix("file:")).is_dir()
    assert session.verify().summary.errors == 0


def test_partitions_follow_a_renamed_table_after_another_location_was_refused(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(call.node.metastore, "execute", _refuse)
        call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
    place = call("get_table", dbname="default", tbl_name="u")["sd"]["location"]
    assert shown(call, "u")["1"]["sd"]["location"] == f"{place}/p=1"
    assert Path(f"{place}/p=1".removeprefix("file:")).is_dir()


def test_partitions_follow_a_table_that_was_dropped_while_it_got_another_location(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _partitioned(call)
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])

    def drop_first(metastore: Metastore, *arguments: Any, **options: Any) -> Applied:
        monkeypatch.undo()
        call("drop_table", dbname="default", name="t", deleteData=True)
        return execute(metastore, *arguments, **options)

    execute = Metastore.execute
    monkeypatch.setattr(Metastore, "execute", drop_first)
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    with pytest.raises(ThriftException, match="table not found"):
        call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    call.node.session(user="ann").undrop("default.t")
    finish_partition_moves(call.node.metastore)  # as a node does that starts, or runs for a while
    call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
    place = call("get_table", dbname="default", tbl_name="u")["sd"]["location"]
    assert shown(call, "u")["1"]["sd"]["location"] == f"{place}/p=1"


@pytest.mark.parametrize(("committed", "starting"), [(False, True), (True, False)])
def test_a_node_settles_the_places_of_partitions_whose_process_died_as_it_relocated_their_table(
    call: Caller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    committed: bool,
    starting: bool,
) -> None:
    table = _partitioned(call)
    first = table["sd"]["location"]
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    execute = Metastore.execute

    def execute_and_die(metastore: Metastore, *arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        if committed:
            call("append_partition", db_name="default", tbl_name="t", part_vals=["2"])
            execute(metastore, *arguments, **options)
        raise UnknownOutcome("the process died")  # after which the call does nothing more

    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    monkeypatch.setattr(Metastore, "execute", execute_and_die)
    with pytest.raises(UnknownOutcome):
        call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    if starting:
        database, begun = call.node.database, call.node.session(user="ann").begin()
        ((reserved,),) = database.rows("SELECT txn_id FROM txn_reserved")
        Node.open(tmp_path / "store").close()
        reused = "SELECT txn_id FROM txn WHERE txn_id > ? AND txn_id <= ?"
        assert database.rows(reused, (begun.txn_id, reserved)) == []  # a power cut may lose begins
        assert database.rows(reused, (reserved, reserved + 10))
    else:
        moves = UnfinishedMoves(call.node.metastore)
        moves.finish()  # the process may still be at work
        moves.finish()
    assert not call.node.metastore.store.sql_store.unfinished_moves()
    if committed:
        places = {values: part["sd"]["location"] for values, part in shown(call, "t").items()}
        assert places == {"1": f"{first}/p=1", "2": f"{first}/p=2"}
    else:
        call("alter_table", dbname="default", tbl_name="t", new_tbl={**table, "tableName": "u"})
        place = call("get_table", dbname="default", tbl_name="u")["sd"]["location"]
        assert place != first
        assert shown(call, "u")["1"]["sd"]["location"] == f"{place}/p=1"


def _refuse(*_: object, **__: object) -> None:
    raise Unavailable("nothing was done")


def _partitioned(call: Caller, *, location: str | None = None) -> Any:
    """A new table ``t``, external if it has a location."""
    sent = {
        "tableName": "t",
        "dbName": "default",
        "sd": SD if location is None else {**SD, "location": location},
        "partitionKeys": [{"name": "p", "type": "int"}],
        "parameters": {} if location is None else {"EXTERNAL": "TRUE"},
    }
    call("create_table", tbl=sent)
    return call("get_table", dbname="default", tbl_name="t")


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[tuple[Caller, Caller]]:
    """Callers of two nodes; what the first one remembers of the other's changes is old."""
    settings = Settings(metadata_staleness_ms=60_000)
    with (
        Node.open(tmp_path / "store", settings=settings) as node,
        Node.open(tmp_path / "store", settings=settings) as other,
    ):
        node.store.follower.stop()  # else it follows the other node
        yield Caller(node), Caller(other)


def test_changes_of_all_partitions_reach_those_that_another_node_has_just_added(
    callers: tuple[Caller, Caller], tmp_path: Path
) -> None:
    call, call_other = callers
    table = _partitioned(call)
    first, second = table["sd"]["location"], f"file:{tmp_path}/second"

    def add(number: int, **sd: Any) -> Path:
        assert len(shown(call, "t")) == number - 1  # from now on, its memory is fresh enough
        new = partition("t", number, location="")
        call_other("add_partition", new_part={**new, "sd": {**SD, **sd}})
        return Path(f"{first}/p={number}".removeprefix("file:"))

    file = add(1) / "a"
    file.write_bytes(b"x")
    call("truncate_table", dbName="default", tableName="t")
    assert not file.exists()

    add(2, cols=[{"name": "b", "type": "string"}])
    names = {"dbname": "default", "tbl_name": "t"}
    call("alter_table_with_cascade", **names, new_tbl=table, cascade=True)
    assert shown(call, "t")["2"]["sd"]["cols"] == SD["cols"]

    add(3)
    call("alter_table", **names, new_tbl={**table, "sd": {**table["sd"], "location": second}})
    assert shown(call, "t")["3"]["sd"]["location"] == f"{first}/p=3"


def test_an_alter_counts_the_files_where_another_node_has_just_moved_the_partition(
    callers: tuple[Caller, Caller],
) -> None:
    call, call_other = callers
    moved = f"{_partitioned(call)['sd']['location']}/moved"
    call("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
    assert len(shown(call, "t")) == 1  # from now on, its memory is fresh enough
    folder = Path(moved.removeprefix("file:"))
    folder.mkdir()
    (folder / "a").write_bytes(b"xyz")
    alter(call_other, "t", partition("t", 1, location=moved))
    unplaced = partition("t", 1, k="v")
    del unplaced["sd"]
    alter(call, "t", unplaced)
    part = shown(call, "t")["1"]
    assert part["sd"]["location"] == moved
    assert (part["parameters"]["numFiles"], part["parameters"]["totalSize"]) == ("1", "3")


def test_a_partition_that_another_node_adds_while_a_table_gets_another_location_stays(
    callers: tuple[Caller, Caller], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, call_other = callers
    table = _partitioned(call)
    execute = Metastore.execute

    def append_first(metastore: Metastore, *arguments: Any, **options: Any) -> Applied:
        monkeypatch.undo()
        call_other("append_partition", db_name="default", tbl_name="t", part_vals=["1"])
        return execute(metastore, *arguments, **options)

    monkeypatch.setattr(Metastore, "execute", append_first)
    moved = {**table, "sd": {**table["sd"], "location": f"file:{tmp_path}/second"}}
    call("alter_table", dbname="default", tbl_name="t", new_tbl=moved)
    assert shown(call, "t")["1"]["sd"]["location"] == f"{table['sd']['location']}/p=1"


def test_a_cascading_alter_changes_all_partitions(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_alters, "_PIECE", 2)
    table = _partitioned(call)
    own = {**SD, "cols": [{"name": "b", "type": "string"}]}
    parts = [{**partition("t", number), "sd": own} for number in range(5)]
    call("add_partitions", new_parts=parts)
    call("alter_table_with_cascade", dbname="default", tbl_name="t", new_tbl=table, cascade=True)
    columns = [part["sd"]["cols"] for part in shown(call, "t").values()]
    assert columns == [SD["cols"]] * len(parts)


def test_a_cascading_alter_keeps_what_another_node_changes_meanwhile(
    callers: tuple[Caller, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, call_other = callers
    table = _partitioned(call)
    own = {**SD, "cols": [{"name": "b", "type": "string"}]}
    call("add_partitions", new_parts=[{**partition("t", n), "sd": own} for n in (1, 2)])

    def alter_first(rows: object) -> None:
        monkeypatch.undo()
        alter(call_other, "t", {**partition("t", 1, k="v"), "sd": own})

    monkeypatch.setattr(work, "free_slowly", alter_first)
    call("alter_table_with_cascade", dbname="default", tbl_name="t", new_tbl=table, cascade=True)
    parts = shown(call, "t")
    assert [part["sd"]["cols"] for part in parts.values()] == [SD["cols"], SD["cols"]]
    assert parts["1"]["parameters"]["k"] == "v"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cols": [{"name": "a", "type": "int"}] * 2}, "duplicate column 'a' in partition p=1"),
        ({"serdeInfo": None}, "Invalid SerDeInfo object"),
    ],
)
def test_a_partition_with_a_wrong_format_is_refused_and_adds_none(
    call: Caller, wrong: Any, message: str
) -> None:
    _partitioned(call)
    added = [partition("t", 0), {**partition("t", 1), "sd": {**SD, **wrong}}]
    with pytest.raises(ThriftException, match=message):
        call("add_partitions", new_parts=added)
    assert shown(call, "t") == {}


def test_an_alter_of_a_table_without_a_serde_changes_nothing(call: Caller) -> None:
    table = _partitioned(call)
    with pytest.raises(ThriftException, match="Invalid SerDeInfo object"):
        altered = {**table, "sd": {**table["sd"], "serdeInfo": None}, "parameters": {"k": "v"}}
        call("alter_table", dbname="default", tbl_name="t", new_tbl=altered)
    assert call("get_table", dbname="default", tbl_name="t") == table


def test_a_cascading_alter_decodes_each_partition_once(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _partitioned(call)
    own = {**SD, "cols": [{"name": "b", "type": "string"}]}
    call("add_partitions", new_parts=[{**partition("t", n), "sd": own} for n in range(3)])
    decoded: list[bytes] = []

    def counted(body: bytes, *arguments: Any, **options: Any) -> Any:
        decoded.append(body)
        return decode(body, *arguments, **options)

    monkeypatch.setattr("strandline.metastore.store.rows.decode", counted)
    call("alter_table_with_cascade", dbname="default", tbl_name="t", new_tbl=table, cascade=True)
    assert len(decoded) == len(set(decoded)) == 3


@pytest.mark.slow
def test_names_and_filters_of_many_partitions_are_answered_from_memory(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in a thread of a serving node, which may not read so many rows from the database."""
    monkeypatch.setattr(log_applier, "SHORTEST_TIMEOUT", 60.0)  # else a slow look is a miss
    table = call.node.session(user="ann").table("default.few").descriptor
    with call.node.store.change(table.id, author="ann") as change:
        change.stage(
            add=[
                NewRow.of(PartitionRow(values=(f"{n}",), location=f"p={n}"), name=f"p={n}")
                for n in range(FEW, 5_000)
            ]
        )
    before = call.node.store.statistics()
    named = {"db_name": "default", "tbl_name": "few", "max_parts": -1}
    with work.budget(work.IN_THREAD):
        assert len(call("get_partition_names", **named)) == 5_000
    with work.budget(work.IN_THREAD):
        rows = call("get_partitions_by_filter", **named, filter="p >= 4998")
    assert [row["values"] for row in rows] == [["4998"], ["4999"]]
    with work.budget(work.IN_THREAD):
        rows = call("get_partitions_ps", **named, part_vals=["4321"])
    assert [row["values"] for row in rows] == [["4321"]]
    after = call.node.store.statistics()
    assert (after.hits - before.hits, after.misses) == (3, before.misses)
