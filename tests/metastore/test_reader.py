"""What a request reads: once, from memory if memory can prove it, and as of one point."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from strandline import work
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    DropTable,
    TableDefinition,
    ViewDefinition,
)
from strandline.clock import Timestamp, add_milliseconds, format_timestamp
from strandline.errors import ObjectNotFound, VersionNotFound
from strandline.metastore.interface import PRESENT, AsOf
from strandline.metastore.off_loop import finish
from strandline.metastore.reader import Reader, present_catalog
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.rows import NewRow, PartitionRow, RowKind
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.types import INT
from strandline.node import Node
from tests.sql.statements import recorded

T = TypeVar("T")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.open(tmp_path / "store") as opened:
        opened.session(user="ann").execute(CreateSchema(name="sales"))
        yield opened


def create(node: Node, name: str, *, location: str | None = None) -> TableDescriptor:
    definition = TableDefinition(
        name=name,
        columns=(ColumnDefinition("a", INT), ColumnDefinition("p", INT)),
        partition_columns=("p",),
        kind=TableKind.MANAGED if location is None else TableKind.EXTERNAL,
        location=location,
    )
    session = node.session(user="ann")
    session.execute(CreateTable(schema="sales", definition=definition))
    return session.table(f"sales.{name}").descriptor


def add_partition(node: Node, table: TableDescriptor, value: str) -> None:
    name = f"p={value}"
    with node.store.change(table.id, author="ann") as change:
        change.stage(add=[NewRow.of(PartitionRow(values=(value,), location=name), name=name)])


def reader(node: Node, *, user: str | None = None) -> Reader:
    return Reader(node.metastore, finish(present_catalog(node.metastore)), user=user)


def waits(request: Coroutine[Any, Any, T]) -> bool:
    """Return whether a request would leave the event loop."""
    try:
        request.send(None)
    except StopIteration:
        return False
    finally:
        request.close()
    return True


def names(node: Node, table: TableDescriptor, at: AsOf = PRESENT) -> list[str]:
    own = reader(node)
    rows = finish(own.rows(finish(own.point(at)), table, RowKind.PARTITION))
    return [row.name for row in rows]


@pytest.mark.parametrize("location", [None, "file:/data/orders"])
def test_a_table_that_memory_holds_is_read_without_waiting(
    node: Node, location: str | None
) -> None:
    table = create(node, "orders", location=location)
    names(node, table)
    finish(reader(node).location(table))
    node.store.log_applier.catch_up()
    own = reader(node)
    point = finish(own.point(PRESENT))
    questions: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: present_catalog(node.metastore),
        lambda: own.table("sales.orders"),
        lambda: own.location(table),
        lambda: own.rows(point, table, RowKind.PARTITION),
        lambda: own.counted(point, table),
        lambda: own.relation_names(point, node.catalogs.present().schema("sales")),  # type: ignore[arg-type]  # it is there
    ]
    for question in questions:
        # The node itself commits now and then, so each question gets a few attempts.
        for _ in range(5):
            if not waits(question()):
                break
            node.store.log_applier.catch_up()
        else:
            pytest.fail("it waits each time")


def test_questions_that_only_the_store_can_answer_wait(node: Node) -> None:
    create(node, "orders")
    own = reader(node)
    version = own.catalog.version
    assert waits(own.point(AsOf(version=version)))
    assert waits(own.dated(PRESENT))
    assert waits(own.open(["sales.orders"]))


def test_a_snapshot_of_several_tables_asks_for_all_their_places_at_once(
    node: Node, tmp_path: Path
) -> None:
    node.store.follower.stop(wake=node.database.wake)  # it would bring the places into memory
    places = {name: f"file://{tmp_path}/store/warehouse/sales.db/{name}" for name in "abc"}
    for name in places:
        create(node, name)
    create(node, "outside", location="file:/data/outside")
    own = reader(node)
    with recorded(of_this_thread=True) as statements:
        snapshot = finish(own.open(["sales.outside", *(f"sales.{name}" for name in places)]))
    opened = {table.descriptor.name: table.location for table in snapshot.tables.values()}
    assert opened == {**places, "outside": "file:/data/outside"}
    assert len([text for text, _ in statements if "table_location" in text]) == 1


def test_a_snapshot_has_the_place_of_a_table_that_was_not_projected_yet(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(node, "first")
    definition = TableDefinition(name="later", columns=(ColumnDefinition("a", INT),))
    with monkeypatch.context() as patch:
        patch.setattr(Projector, "project_appended", lambda *_: None)
        node.catalogs.execute(CreateTable(schema="sales", definition=definition), author="ann")
    snapshot = finish(reader(node).open(["sales.first", "sales.later"]))
    later = snapshot.table("sales.later")
    assert later.location == node.store.location(later.descriptor.id)


def test_rows_are_read_as_of_the_time_of_the_point(node: Node) -> None:
    table = create(node, "orders")
    created = node.catalogs.present().version
    add_partition(node, table, "1")
    node.session(user="ann").execute(CreateSchema(name="later"))
    add_partition(node, table, "2")
    assert names(node, table) == ["p=1", "p=2"]
    assert names(node, table, AsOf(version=created)) == ["p=1"]
    _, moment = finish(reader(node).dated(PRESENT))
    add_partition(node, table, "3")
    assert names(node, table, AsOf(time=moment)) == ["p=1", "p=2"]


def test_a_point_in_the_future_is_refused(node: Node) -> None:
    """Commits would still get earlier times: the next read as of it would have other rows."""
    future = add_milliseconds(node.catalogs.complete_now(), 3_600_000)
    with pytest.raises(VersionNotFound, match="is in the future"):
        finish(reader(node).point(AsOf(time=future)))


def test_rows_are_as_recent_as_the_request_even_if_memory_lags(node: Node) -> None:
    table = create(node, "orders")
    assert names(node, table) == []
    node.store.follower.stop()
    with Node.open(node.folder) as other:
        add_partition(other, table, "1")
    assert names(node, table) == ["p=1"]


def test_a_version_in_a_name_is_refused_with_where_it_belongs(node: Node) -> None:
    """In SQL, a version follows the name of the schema."""
    create(node, "orders")
    with pytest.raises(ObjectNotFound, match=r"; give its version or time apart from its name$"):
        finish(reader(node).table("sales@2.orders"))


def test_a_name_is_resolved_in_the_catalog_of_its_point(node: Node) -> None:
    table = create(node, "orders")
    version = node.catalogs.present().version
    node.session(user="ann").execute(DropTable(schema="sales", table="orders"))
    with pytest.raises(ObjectNotFound, match=r"sales\.orders does not exist in version"):
        finish(reader(node).table("sales.orders"))
    now = node.catalogs.complete_now()
    with pytest.raises(ObjectNotFound, match=re.escape(format_timestamp(now))):
        finish(reader(node).table("sales.orders", at=AsOf(time=now)))
    with pytest.raises(ObjectNotFound, match=r"table default\.orders does not exist"):
        finish(reader(node).table("orders"))
    resolved = finish(reader(node).table("sales.orders", at=AsOf(version=version)))
    assert (resolved.descriptor.id, resolved.catalog_version) == (table.id, version)
    with pytest.raises(VersionNotFound):
        finish(reader(node).point(AsOf(version=version + 100)))


def test_the_error_for_a_view_says_that_it_is_one(node: Node) -> None:
    text, columns = "SELECT 1 AS a", (ColumnDefinition("a", INT),)
    view = ViewDefinition(name="orders", columns=columns, original_text=text, expanded_text=text)
    node.session(user="ann").execute(CreateView(schema="sales", definition=view))
    with pytest.raises(ObjectNotFound, match=r"sales\.orders is a view in version \d"):
        finish(reader(node).table("sales.orders"))


def test_a_reader_keeps_the_catalog_that_it_was_made_with(node: Node) -> None:
    own = reader(node)
    create(node, "orders")
    with pytest.raises(ObjectNotFound):
        finish(own.table("sales.orders"))
    assert finish(reader(node).table("sales.orders")).schema == "sales"


def test_a_snapshot_of_the_present_writes_nothing(node: Node) -> None:
    create(node, "t")
    session = node.session(user="ann")
    last = node.transactions.latest_time()
    with recorded(of_this_thread=True) as statements:
        snapshot = session.open(["sales.t"])
    assert [text for text, _ in statements if not text.startswith(("SELECT", "PRAGMA"))] == []
    assert last <= snapshot.time <= node.transactions.latest_time()


def test_a_snapshot_of_the_present_is_not_earlier_than_its_catalog(node: Node) -> None:
    create(node, "t")
    last = node.transactions.latest_time()
    present = replace(finish(present_catalog(node.metastore)), time=Timestamp(last + 1))
    _, moment = finish(Reader(node.metastore, present, user=None).dated(PRESENT))
    assert moment > last


def test_a_table_costs_the_bytes_of_its_record(node: Node) -> None:
    """It may have few columns and a million parameters."""
    many = tuple((f"k{number}", "v") for number in range(100_000))
    definition = TableDefinition(name="t", columns=(ColumnDefinition("a", INT),), properties=many)
    session = node.session(user="ann")
    session.execute(CreateTable(schema="sales", definition=definition))
    reads: list[Callable[[], object]] = [
        lambda: session.table("sales.t"),
        lambda: session.open(["sales.t"]),
    ]
    for read in reads:
        with work.budget(work.IN_THREAD), pytest.raises(work.TooLong):
            read()
