"""What a node logs about DDL and calls, over both protocols. After a child process wrote, memory
looks at the log again, even if the child ended early.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from strandline.catalog import update_priority
from strandline.catalog.commands import CreateSchema
from strandline.errors import (
    InvalidInput,
    NotFound,
    ObjectNotFound,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownOutcome,
    WriteConflict,
)
from strandline.metastore.call_log import CallLog
from strandline.metastore.served_calls import AnswerMemory, RequestMemory, delegate
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.thrift import ThriftException
from strandline.node import Node
from strandline.work.child_pool import ChildPool, Reply
from strandline.work.children import send_packet
from strandline.work.contents import Content
from tests.log_lines import NEVER_SLOW_MS, log_lines
from tests.metastore.hive.hive_node import HiveNode, hive_node
from tests.metastore.session.served import serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveNode]:
    with hive_node(tmp_path_factory.mktemp("log") / "store") as node:
        yield node


def test_ddl_over_thrift_is_logged_with_its_version_user_client_and_change(
    served: HiveNode,
) -> None:
    with log_lines() as lines, served.client() as client:
        client.call("set_ugi", user_name="bob", group_names=[])
        client.call("create_database", database={"name": "bobs"})
        client.call("get_all_databases")
    version = served.node.catalogs.latest_catalog().version
    (line,) = lines.of("ddl")
    assert line.pop("client").startswith("127.0.0.1:")
    assert line.pop("message").startswith(f"version {version}: create schema bobs")
    assert line == {"level": "info", "user": "bob", "catalog_version": version}
    assert lines.of("calls") == []


def test_ddl_over_http_is_logged_and_a_refusal_is_logged_with_its_caller(served: HiveNode) -> None:
    application = HttpApplication(served.node.metastore, calls=CallLog(NEVER_SLOW_MS))
    with (
        serving(application) as url,
        log_lines() as lines,
        HttpSession(url, user="ann") as session,
    ):
        version = session.execute(CreateSchema(name="anns")).version
        with pytest.raises(InvalidInput):
            session.execute(CreateSchema(name=" x"))
        session.tables("anns")
        with pytest.raises(ObjectNotFound):
            session.tables("nobodys")
        session.undo(version)
    made, undone = lines.of("ddl")
    assert (made["user"], made["message"]) == (
        "ann",
        f"version {version}: create schema anns",
    )
    assert made["client"].startswith("127.0.0.1:")
    assert undone["message"].startswith(f"version {version + 1}: drop schema anns")
    (refused,) = lines.of("calls")
    assert refused["message"].startswith("execute was refused: ")
    assert refused["user"] == "ann"
    assert refused["ms"] >= 0


def test_a_schema_with_an_invalid_version_is_logged_with_the_reason(served: HiveNode) -> None:
    with log_lines() as lines, served.client() as client:
        for name in ("default@nine", "default@2026-99-99", "default@99999", "none_such"):
            with suppress(ThriftException):
                client.call("get_database", name=name)
    messages = [line["message"] for line in lines.of("calls")]
    assert len(messages) == 3
    assert "default@nine" in messages[0]
    assert "2026-99-99" in messages[1]
    assert "version 99999 does not exist" in messages[2]


def test_a_slow_call_is_logged_as_a_warning(
    served: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(HttpApplication(served.node.metastore, calls=CallLog(0))) as url,
        log_lines() as lines,
        HttpSession(url, user="ann") as session,
    ):
        session.tables("default")
    (line,) = lines.of("calls")
    assert (line["level"], line["message"], line["user"]) == ("warning", "tables was slow", "ann")


@pytest.mark.parametrize(
    ("error", "ms", "level"),
    [
        (None, 999, None),
        (None, 1000, "warning"),
        (ObjectNotFound("x"), 5, "debug"),
        (NotFound("x"), 5, "info"),
        (WriteConflict("x"), 5, "info"),
        (PermissionDenied("x"), 5, "warning"),
        (Unavailable("x"), 5, "warning"),
        (RuntimeError("told elsewhere"), 5, None),
    ],
)
def test_the_log_level_of_a_call_depends_on_its_error_and_duration(
    error: Exception | None, ms: int, level: str | None
) -> None:
    with log_lines(level="debug") as lines:
        log = CallLog(1000)
        log.ended("http", "m", client="c", user="", seconds=ms / 1000, error=error)
    assert [line["level"] for line in lines.of("calls")] == ([level] if level else [])


def test_request_memory_beyond_the_allowance_is_bounded_in_total() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("a", 700, user="a")
    memory.reserve("b", 500, user="b")
    assert memory.taken == 1_000
    with pytest.raises(Overloaded, match="this node is full"):
        memory.reserve("b", 501, user="b")
    memory.reserve("c", 100, user="c")
    assert (memory.taken, memory.refused) == (1_000, 1)


def test_holding_less_and_releasing_give_memory_back() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("a", 1_100, user="a")
    memory.reserve("a", 150, user="a")
    assert memory.taken == 50
    memory.reserve("a", 100, user="a")
    assert memory.taken == 0
    memory.reserve("a", 600, user="a")
    memory.release("a")
    memory.release("a")
    assert memory.taken == 0


def test_an_answer_that_several_clients_share_takes_memory_once() -> None:
    memory = AnswerMemory(1_500, allowance=100)
    shared = bytes(1_100)
    for client in range(20):
        memory.reserve_answer(client, shared, user=f"user {client}", only_reads=True)
    assert memory.taken == 1_000
    with pytest.raises(Overloaded, match="have not read the answers"):
        memory.reserve_answer("other", bytes(1_100), user="ann", only_reads=True)
    for client in range(19):
        memory.release(client)
        memory.release(client)
    assert memory.taken == 1_000
    memory.reserve_answer(19, bytes(400), user="user 19", only_reads=True)
    assert (memory.taken, memory.refused) == (300, 1)
    memory.release(19)
    assert memory.taken == 0


def test_a_user_with_memory_of_its_own_gets_at_most_three_quarters() -> None:
    memory = RequestMemory(1_000, allowance=100)
    memory.reserve("first", 600, user="ann")
    memory.reserve("second", 350, user="ann")
    with pytest.raises(Overloaded, match="750 of 1000, 750 of them for this user"):
        memory.reserve("second", 351, user="ann")
    memory.reserve("first", 500, user="ann")
    memory.reserve("second", 450, user="ann")
    memory.reserve("other", 350, user="bob")
    assert (memory.taken, memory.refused) == (1_000, 1)
    for owner in ("first", "second", "other"):
        memory.release(owner)
    memory.reserve("alone", 1_100, user="ann")
    assert memory.taken == 1_000


def test_answers_of_one_user_leave_memory_for_those_of_others() -> None:
    memory = AnswerMemory(1_000, allowance=0)
    bodies = [bytes(400), bytes(400), bytes(200)]
    memory.reserve_answer("first", bodies[0], user="ann", only_reads=True)
    with pytest.raises(Overloaded):
        memory.reserve_answer("second", bodies[1], user="ann", only_reads=True)
    memory.reserve_answer("second", bodies[1], user="ann", only_reads=False)
    memory.reserve_answer("other", bodies[2], user="bob", only_reads=True)
    for owner in ("first", "second", "other"):
        memory.release(owner)
    assert memory.taken == 0


def test_the_copies_of_the_answer_of_a_child_take_memory_once() -> None:
    memory, reply = AnswerMemory(1_500, allowance=100), Reply({}, Content.of(bytes(1_100)))
    copy, other = reply.copy(), Content.of(bytes(1_100))
    with closing(reply.content), closing(copy.content), closing(other):
        memory.reserve_answer("a", reply.content, user="ann", only_reads=True)
        memory.reserve_answer("b", copy.content, user="ann", only_reads=True)
        assert memory.taken == 1_000
        memory.reserve_answer("c", other, user="ann", only_reads=False)
        assert memory.taken == 2_000


@pytest.mark.parametrize(("only_reads", "looks"), [(False, 1), (True, 0)])
def test_after_a_change_with_unknown_outcome_memory_looks_at_the_log_and_commands_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_reads: bool, looks: int
) -> None:
    threads: list[threading.Thread] = []

    def start(*, only_reads: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def end_without_a_reply() -> None:
            with theirs:
                send_packet(theirs, {"opened": True}, Content.of(b""))
                theirs.recv(1)
                if not only_reads:
                    send_packet(theirs, {"announces": True}, Content.of(b"an update"))
                    theirs.recv(1)  # the node has noted it

        threads.append(threading.Thread(target=end_without_a_reply))
        threads[-1].start()
        return ours

    async def run() -> None:
        priority = node.catalogs._commits.priority
        pool = ChildPool(
            start,
            on_announced=lambda update: priority.grant(),
            on_ended=node.catalogs.child_ended,
        )
        with pytest.raises(Unavailable if only_reads else UnknownOutcome):
            await delegate(node.metastore, pool, "change", {}, b"", only_reads=only_reads)
        pool.close()

    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", 3600.0)
    looked: list[int] = []
    with Node.open(tmp_path / "store", background=False) as node:
        monkeypatch.setattr(
            node.metastore.store.log_applier, "invalidate_level", lambda: looked.append(1)
        )
        asyncio.run(run())
        node.session(user="ann").execute(CreateSchema(name="s"))
    for thread in threads:
        thread.join()
    assert len(looked) == looks
