"""Answers of etcd, or of a server in its place, that leave the outcome open."""

from __future__ import annotations

import gc
import json
import select
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore
import httpx
import pytest
from httpcore import _utils
from httpcore._backends.sync import SyncStream
from httpcore._sync.http11 import HTTP11Connection

from strandline import outage
from strandline.clock import HybridClock
from strandline.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastorage import Absent, Exists, Put, ValueIs, open_metastorage
from strandline.metastorage.etcd import gateway
from strandline.metastorage.etcd.access import parse_etcd_url
from strandline.metastorage.etcd.chunks import CHUNK_BYTES
from strandline.metastorage.etcd.gateway import EtcdGateway, FullOutcome
from strandline.metastorage.etcd.operations import Page, TxnAnswer, put_operation
from strandline.metastorage.etcd.store import EtcdMetastorage
from strandline.sql import StoreFull
from tests.interrupts import is_interrupted
from tests.metastorage.conftest import LONG, impatient, put
from tests.metastorage.etcd_place import EtcdPlace
from tests.servers.etcd import EtcdServer
from tests.servers.loopback import Cut, Proxy, ReservedPort


@pytest.fixture
def place() -> Iterator[EtcdPlace]:
    with ExitStack() as stack:
        yield EtcdPlace(stack)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[EtcdGateway]:
    """A gateway to a server that always gives the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        gateway = EtcdGateway(
            parse_etcd_url(f"etcd://127.0.0.1:{server.server_address[1]}"), timeout=60
        )
        try:
            yield gateway
        finally:
            gateway.close()
            server.shutdown()
            thread.join()


FULL = json.dumps({"code": 8, "message": "etcdserver: mvcc: database space exceeded"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (429, FULL, "Compact and defragment"),  # also the answer to the write that fills it
        (502, b"<html>Bad Gateway</html>", "status 502"),
        (400, b"Client sent an HTTP request to an HTTPS server.\n", "is it etcd .* without TLS"),
        (503, b'["no", "object"]', "status 503"),
        (200, b"{}", "is it etcd"),
        (200, b'{"header": null}', "is it etcd"),
        (200, b'"hello"', "is it etcd"),
        (500, b'{"code":14,"message":"etcdserver: leader changed"}', "leader changed"),
    ],
)
def test_after_an_unclear_answer_a_write_has_unknown_outcome_and_a_read_is_unavailable(
    status: int, body: bytes, reason: str
) -> None:
    with answering(status, body) as gateway:
        with pytest.raises(UnknownOutcome, match=reason):
            gateway.txn([], [], repeatable=False)
        for read in (lambda: gateway.txn([], [], repeatable=True), lambda: gateway.range(b"a")):
            with pytest.raises(Unavailable, match=reason) as refused:
                read()
            assert not isinstance(refused.value, UnknownOutcome)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (8, "etcdserver: too many requests"),
        (14, "etcdserver: no leader"),
        (14, "etcdserver: rpc not supported for learner"),
        (3, "etcdserver: user name is empty; name a user in the store"),
        (16, "etcdserver: invalid auth token; name a user in the store"),
    ],
)
def test_a_write_refused_before_it_was_executed_is_unavailable(
    code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "LONGEST_WAIT", 0.1)  # for a leader
    said, _, _ = message.partition(";")
    with answering(503, json.dumps({"code": code, "message": said}).encode()) as etcd:
        with pytest.raises(Unavailable, match=message) as refused:
            etcd.txn([], [], repeatable=False)
        assert not isinstance(refused.value, UnknownOutcome)
        # Each of several callers that share a failure gets an error of its own.
        assert type(refused.value)(refused.value.message).message == refused.value.message


def test_a_full_store_is_read_and_refuses_writes(place: EtcdPlace) -> None:
    store = place.node()
    put(store, "a", b"1")
    with place.server.full():
        writes: list[Callable[[], object]] = [
            lambda: store.invoke([], [Put("a", b"2")]),
            lambda: store.invoke([Absent("b")], [Put("b", b"x" * CHUNK_BYTES * 2)]),
            store.check,
        ]
        for write in writes:
            with pytest.raises(StoreFull, match=r"nothing was written\. Compact and defragment it"):
                write()
        assert [(entry.key, entry.value) for entry in store.range("", "~")] == [("a", b"1")]
        assert store.revision() == 1
        assert store.wait_for_change("a", 0, timeout=0)
        assert place.node().get("a") == store.get("a")  # as a process that starts now
    put(store, "a", b"2")
    assert store.check().revision == 2


@pytest.mark.parametrize("others", [1, 2])
def test_a_full_store_refuses_writes_of_a_node_that_missed_writes_of_others(
    place: EtcdPlace, others: int
) -> None:
    store, other = place.node(), place.node()
    put(store, "a", b"1")
    for _ in range(others):
        put(other, "a", b"2")
    with place.server.full():
        with pytest.raises(StoreFull, match="nothing was written"):
            store.invoke([], [Put("b", b"1")])
        assert store.get("b") is None


@pytest.mark.parametrize("read_fails", [False, True])
def test_the_write_that_fills_the_store_has_an_unknown_outcome_and_can_be_read(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch, read_fails: bool
) -> None:
    """The server carries it out, raises its alarm, and answers that there is no space."""
    store = place.node()
    txn, read = EtcdGateway.txn, EtcdGateway.range
    broken = [Unavailable("no answer")]

    def fail_once(self: EtcdGateway, *arguments: Any, **named: Any) -> Page:
        if broken:
            raise broken.pop()
        return read(self, *arguments, **named)

    def fill(self: EtcdGateway, *arguments: Any, repeatable: bool) -> TxnAnswer:
        answer = txn(self, *arguments, repeatable=repeatable)
        if repeatable:
            return answer
        full.enter_context(place.server.full())
        if read_fails:
            monkeypatch.setattr(EtcdGateway, "range", fail_once)
        raise FullOutcome("no space")

    with ExitStack() as full:
        monkeypatch.setattr(EtcdGateway, "txn", fill)
        with pytest.raises(UnknownOutcome, match="no space"):
            store.invoke([], [Put("a", b"1")])
        entry = store.get("a")
    assert entry is not None
    assert entry.value == b"1"


def test_calls_wait_until_the_members_have_elected_a_leader(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "_LONGEST_PAUSE", 0.0)
    store = place.node()
    post, left = EtcdGateway._post, 0

    def electing(self: EtcdGateway, endpoint: str, *arguments: str, **limits: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise gateway._AskAnother(
                f"{endpoint}: etcdserver: no leader", gateway._Trouble.ELECTING
            )
        return post(self, endpoint, *arguments, **limits)

    monkeypatch.setattr(EtcdGateway, "_post", electing)
    left = 10
    put(store, "a", b"1")
    left = 10
    assert store.revision() == 1


def test_a_member_that_hangs_delays_a_call_only_once(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "TRY_SECONDS", 0.2)
    asked: list[str] = []
    post = EtcdGateway._post

    def noted(self: EtcdGateway, endpoint: str, *arguments: str, **limits: Any) -> Any:
        asked.append(endpoint)
        if endpoint == own:  # a busy server may need longer
            limits |= {"connect": 60.0, "answer": 60.0}
        return post(self, endpoint, *arguments, **limits)

    monkeypatch.setattr(EtcdGateway, "_post", noted)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        own, other = f"127.0.0.1:{place.server.port}", f"127.0.0.1:{hung.getsockname()[1]}"
        etcd = EtcdGateway(parse_etcd_url(f"etcd://{other},{own}"), timeout=3600)
        assert etcd.range(b"a").pairs == []
        assert etcd.range(b"a").pairs == []
        etcd.close()
    assert asked == [other, own, own]


def test_a_check_ends_although_the_answer_to_its_first_try_comes_too_late(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try has raised the time to that of the second one."""
    store = place.node()
    written = put(store, "a")
    answer_late_at_first(monkeypatch)
    checked = store.check()
    monkeypatch.undo()
    assert checked.revision == written.revision
    assert put(store, "a").time > checked.time > written.time


def test_an_expired_lease_is_read_although_the_answers_to_the_first_tries_come_too_late(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = place.node(), place.node()
    lease = store.acquire_lease("lead", "me", ttl_ms=1)
    assert lease is not None
    while other.check().time <= lease.expires:
        pass
    answer_late_at_first(monkeypatch)
    assert store.lease("lead") is None
    monkeypatch.undo()
    taken = other.acquire_lease("lead", "you", ttl_ms=60_000)
    assert taken is not None
    with pytest.raises(Conflict):
        store.renew_lease(lease, ttl_ms=60_000)


def answer_late_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each second request be the repetition of one whose answer came too late."""
    tries: list[str] = []
    post = EtcdGateway._post

    def late_at_first(self: EtcdGateway, endpoint: str, *arguments: str, **limits: Any) -> Any:
        answer = post(self, endpoint, *arguments, **limits)
        tries.append(endpoint)
        assert len(tries) < 9
        if len(tries) % 2:
            raise gateway._AskAnother("timed out", gateway._Trouble.SLOW)
        return answer

    monkeypatch.setattr(EtcdGateway, "_post", late_at_first)


def test_calls_wait_for_a_connection_to_the_only_member_for_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, calls to a machine that is off would occupy the threads of a node."""
    waits: list[tuple[float, float]] = []

    def timed_out(*_: object, connect: float, answer: float, **__: object) -> None:
        waits.append((connect, answer))
        raise gateway._AskAnother("timed out", gateway._Trouble.SLOW)

    monkeypatch.setattr(EtcdGateway, "_post", timed_out)
    etcd = EtcdGateway(parse_etcd_url("etcd://127.0.0.1"), timeout=3600)
    with pytest.raises(DeadlineExceeded, match="timed out"):
        etcd.range(b"a")
    etcd.close()
    assert all(connect <= gateway.CONNECT_SECONDS for connect, _ in waits)
    assert max(answer for _, answer in waits) > 3000


def test_a_read_waits_for_seconds_once_the_only_member_has_hung_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if its machine were off: otherwise, calls would occupy the threads of a node."""
    waits: list[float] = []

    def timed_out(*_: object, answer: float, **__: object) -> None:
        waits.append(answer)
        raise gateway._AskAnother("timed out", gateway._Trouble.SLOW)

    monkeypatch.setattr(EtcdGateway, "_post", timed_out)
    etcd = EtcdGateway(parse_etcd_url("etcd://127.0.0.1"), timeout=3600)
    monkeypatch.setattr(etcd._outage, "is_long", lambda: True)
    with pytest.raises(DeadlineExceeded, match="timed out"):
        etcd.range(b"a")
    etcd.close()
    assert max(waits) <= gateway.CONNECT_SECONDS


def test_a_call_waits_for_members_that_hang_no_longer_than_its_thread_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, float]] = []

    def timed_out(_: object, endpoint: str, *__: object, answer: float, **___: object) -> None:
        asked.append((endpoint, answer))
        raise gateway._AskAnother("timed out", gateway._Trouble.SLOW)

    monkeypatch.setattr(EtcdGateway, "_post", timed_out)
    for endpoints in (["a:1"], ["a:1", "b:1"]):
        etcd = EtcdGateway(parse_etcd_url(f"etcd://{','.join(endpoints)}"), timeout=3600)
        asked.clear()
        with outage.waiting_until(time.monotonic() + 1.5), pytest.raises(DeadlineExceeded):
            etcd.range(b"a")
        etcd.close()
        assert {endpoint for endpoint, _ in asked} == set(endpoints)
        assert max(answer for _, answer in asked) <= 1.5
        if len(endpoints) > 1:
            assert max(answer for _, answer in asked[:2]) < 1.0  # time is left for the other one


def test_a_member_that_hangs_delays_a_write_for_seconds_if_there_are_others(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write may still be carried out, so it is not repeated at another member."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        hung_member = f"127.0.0.1:{hung.getsockname()[1]}"
        own = f"127.0.0.1:{place.server.port}"
        store = place.node(url=place.url.replace(own, f"{own},{hung_member}"), timeout=3600)
        put(store, "a", b"1")  # the next write needs no read, which would find the other member
        store._gateway._preferred = 1
        monkeypatch.setattr(gateway, "WRITE_SECONDS", 0.1)
        with pytest.raises(UnknownOutcome, match=f"to etcd {hung_member} but not acknowledged"):
            store.invoke([], [Put("a", b"2")])
        monkeypatch.undo()  # a busy server may need longer
        put(store, "a", b"3")
        assert store.revision() == 2


def test_a_watch_without_changes_is_no_reason_to_ask_another_member(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent_after_the_first_line(response: httpx.Response) -> Iterator[str]:
        yield next(lines(response))
        raise httpx.ReadTimeout("timed out")

    lines = httpx.Response.iter_lines
    monkeypatch.setattr(httpx.Response, "iter_lines", silent_after_the_first_line)
    with closing(ReservedPort()) as no_member:
        own = f"127.0.0.1:{place.server.port}"
        etcd = EtcdGateway(parse_etcd_url(f"etcd://{own},127.0.0.1:{no_member.number}"), timeout=60)
        with (
            pytest.raises(Unavailable, match="ended: timed out"),
            etcd.watch(b"a", b"b") as messages,
        ):
            list(messages)
        assert etcd.endpoints[etcd._preferred] == own
        etcd.close()


def test_an_etcd_that_took_the_address_of_the_stores_etcd_answers_no_call(place: EtcdPlace) -> None:
    other = EtcdServer()
    try:
        with Proxy(place.server.port, lambda _: None) as proxy:
            url = place.url.replace(str(place.server.port), str(proxy.port))
            there = place.node(url=url.replace(str(proxy.port), str(other.port)))
            there.invoke([], [Put("a", b"theirs")])
            store = place.node(url=url, timeout=5)
            store.invoke([], [Put("a", b"ours")])
            proxy.lead_to(other.port)
            for call in (
                lambda: store.get("a"),
                store.revision,
                store.check,
                lambda: store.invoke([], [Put("a", b"new")]),
            ):
                with pytest.raises(Unavailable, match="belongs to another etcd cluster"):
                    call()
            with (
                pytest.raises(Unavailable, match="belongs to another etcd cluster"),
                store._gateway.watch(b"a", b"b") as messages,
            ):
                next(messages)
            proxy.lead_to(place.server.port)
            assert store.get("a") == place.node().get("a")
            assert [pair.value for pair in there.range("a", "b")] == [b"theirs"]
    finally:
        other.remove()


def test_calls_that_no_member_answers_fail_with_one_message_in_whichever_order_it_asks() -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(closing(ReservedPort())) for _ in range(3)]
        address = ",".join(f"127.0.0.1:{port.number}" for port in ports)
        etcd = stack.enter_context(
            closing(EtcdGateway(parse_etcd_url(f"etcd://{address}"), timeout=60))
        )
        messages = set[str]()
        for first in range(len(ports)):
            etcd._preferred = first
            with pytest.raises(Unavailable) as unanswered:
                etcd.range(b"a")
            messages.add(unanswered.value.message)
    assert len(messages) == 1


def test_a_call_that_no_member_answers_leaves_no_objects_that_refer_to_each_other() -> None:
    with closing(ReservedPort()) as port:
        etcd = EtcdGateway(parse_etcd_url(f"etcd://127.0.0.1:{port.number}"), timeout=60)
        gc.disable()
        try:
            with suppress(Unavailable):
                etcd.range(b"a")
            left = [error for error in gc.get_objects() if isinstance(error, gateway._AskAnother)]
            assert left == []
        finally:
            gc.enable()
        etcd.close()


@pytest.mark.parametrize("line", [b"hello\n", b'["no", "object"]\n', b'{"error":{"code":14}}\n'])
def test_an_invalid_watch_answer_ends_the_watch_as_unavailable(line: bytes) -> None:
    with (
        answering(200, line) as gateway,
        pytest.raises(Unavailable, match="watch at"),
        gateway.watch(b"a", b"b") as messages,
    ):
        list(messages)


def test_a_watch_that_has_ended_leaves_no_objects_that_refer_to_each_other() -> None:
    def answers() -> set[int]:
        return {id(left) for left in gc.get_objects() if isinstance(left, httpx.Response)}

    with answering(200, b'{"result":{}}\n') as etcd:
        gc.disable()
        try:
            before = answers()
            with suppress(Unavailable), etcd.watch(b"a", b"b") as messages:
                list(messages)
            assert answers() <= before
        finally:
            gc.enable()


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "999.1.1.1", "xn--"])
def test_an_impossible_host_name_is_invalid_input(host: str) -> None:
    with pytest.raises(InvalidInput, match="is not a valid address of etcd"):
        open_metastorage(f"etcd://{host}:2379/p", HybridClock())


@pytest.mark.parametrize("end", ["two words", "one:2379/p?password=geheim", "one:2379/p?key=file"])
def test_an_address_with_a_password_is_refused_without_repeating_it(end: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_metastorage(f"etcd://user:geheim@{end}", HybridClock())
    assert "geheim" not in refused.value.message


def send(port: int, request: bytes) -> bytes:
    """The complete answer of the server to the bytes of a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def read(store: EtcdMetastorage) -> object:
    return store.get("mine")


def scan(store: EtcdMetastorage) -> object:
    return store.range("", "~") or None


def wait(store: EtcdMetastorage) -> object:
    return store.wait_for_change("mine", 0, timeout=0) or None


def refuse(store: EtcdMetastorage) -> object:
    return store.invoke([Exists("mine")], []).succeeded or None


@pytest.mark.parametrize("look", [read, scan, wait, refuse])
def test_a_write_that_a_read_did_not_see_does_not_happen_later(
    place: EtcdPlace, look: Callable[[EtcdMetastorage], object]
) -> None:
    """Its bytes are delayed, and reach the server after the read."""
    sent: list[bytes] = []
    plan: list[Cut] = []

    def keep(data: bytes) -> Cut | None:
        sent.append(data)
        return plan.pop() if plan and b"QUFBQUFBQUFB" in data else None

    with Proxy(place.server.port, keep) as proxy:
        store = place.node(url=place.url.replace(f":{place.server.port}/", f":{proxy.port}/"))
        plan.append(Cut.REQUEST)
        with pytest.raises(UnknownOutcome):
            store.invoke([], [Put("mine", b"A" * 30)])
        late = b"".join(sent)
        late = late[late.rindex(b"POST ") :]
        assert look(store) is None
        answer = send(place.server.port, late)
        assert b"200 OK" in answer
        sent.clear()
        assert look(store) is None
        assert b"request_put" not in b"".join(sent)  # the first look has settled it
        assert place.node().get("mine") is None
        store.close()


def test_an_interrupted_write_that_a_read_did_not_see_does_not_happen_later(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the call, but not the request that was sent."""
    store = place.node()
    put(store, "a", b"1")
    post, sent = EtcdGateway._post, list[Callable[[], Any]]()

    def interrupted(self: EtcdGateway, *arguments: str, **limits: Any) -> Any:
        sent.append(lambda: post(self, *arguments, **limits))
        raise KeyboardInterrupt

    monkeypatch.setattr(EtcdGateway, "_post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.invoke([], [Put("a", b"2")])
    monkeypatch.undo()
    before = store.get("a")
    assert "succeeded" not in sent[0]()
    assert store.get("a") == before


def test_a_write_waits_for_other_writers_of_its_process_until_its_deadline(
    place: EtcdPlace,
) -> None:
    store = place.node()
    put(store, "a", b"before")
    late = pytest.raises(DeadlineExceeded, match="waited for other writers of this process")
    with ThreadPoolExecutor(1) as other_thread:
        with impatient(store, 0.01), store._in_turn(time.monotonic() + LONG):
            for _ in range(2):
                with late:
                    other_thread.submit(put, store, "a", b"late").result()
        other_thread.submit(put, store, "a", b"after").result()


def test_an_interrupt_does_not_keep_the_turn_of_a_write(place: EtcdPlace) -> None:
    store = place.node()

    def take_turn() -> None:
        with store._in_turn(time.monotonic() + LONG):
            pass

    step = 0
    with ThreadPoolExecutor(1) as other_thread:
        while is_interrupted(take_turn, at_step=step):
            other_thread.submit(take_turn).result(timeout=LONG)
            step += 1
    assert step


def test_a_delayed_request_for_a_lease_that_was_read_as_free_has_no_effect(
    place: EtcdPlace,
) -> None:
    sent: list[bytes] = []
    plan: list[Cut] = []
    mark = b64encode(place.keys.lease("lead"))

    def keep(data: bytes) -> Cut | None:
        sent.append(data)
        return plan.pop() if plan and b"request_put" in data and mark in data else None

    with Proxy(place.server.port, keep) as proxy:
        store = place.node(url=place.url.replace(f":{place.server.port}/", f":{proxy.port}/"))
        plan.append(Cut.REQUEST)
        with pytest.raises(UnknownOutcome):
            store.acquire_lease("lead", "me", ttl_ms=60_000)
        late = b"".join(sent)
        assert store.lease("lead") is None
        assert b"200 OK" in send(place.server.port, late[late.rindex(b"POST ") :])
        assert place.node().lease("lead") is None
        store.close()


def test_closing_ends_a_call_whose_tls_handshake_the_server_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "TRY_SECONDS", 3600)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        address = parse_etcd_url(f"etcd://127.0.0.1:{server.getsockname()[1]}?cacert=system")
        waiting = EtcdGateway(address, timeout=3600)
        call = pool.submit(waiting.range, b"a")
        connection, _ = server.accept()
        with connection:  # closing it ends the call also if the gateway does not
            assert connection.recv(1)  # the handshake has begun
            waiting.close()
            with pytest.raises(Stopping):
                call.result(60)


def test_no_call_closes_the_connection_of_a_call_in_another_thread(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of httpx closes a connection that is idle and has bytes to read, in two steps.

    Another thread may begin a call on it in between.
    """
    of_first: list[socket.socket] = []
    begins, looked, ended = threading.Event(), threading.Event(), threading.Event()
    first, handle, read, is_readable = (
        threading.current_thread(),
        HTTP11Connection.handle_request,
        SyncStream.read,
        _utils.is_socket_readable,
    )

    def write(key: bytes) -> None:
        place.gateway.txn([], [put_operation(key, b"value")], repeatable=False)

    def write_meanwhile() -> None:
        begins.wait(LONG)
        try:
            write(b"/strandline/second")
        finally:
            looked.set()
            ended.set()

    def begin_after_the_look(self: HTTP11Connection, request: httpcore.Request) -> object:
        if threading.current_thread() is first:
            of_first.append(self._network_stream.get_extra_info("socket"))
            begins.set()
            looked.wait(LONG)
        return handle(self, request)

    def look_in_two_steps(connection: socket.socket) -> bool:
        if connection in of_first and threading.current_thread() is not first:
            looked.set()
            select.select([connection], [], [], LONG)
        return is_readable(connection)

    def read_at_last(self: SyncStream, *arguments: Any, **named: Any) -> bytes:
        if threading.current_thread() is first:
            ended.wait(LONG)
        return read(self, *arguments, **named)

    write(b"/strandline/before")  # leaves an idle connection
    monkeypatch.setattr(HTTP11Connection, "handle_request", begin_after_the_look)
    monkeypatch.setattr(SyncStream, "read", read_at_last)
    monkeypatch.setattr("httpcore._backends.sync.is_socket_readable", look_in_two_steps)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(write_meanwhile)
        write(b"/strandline/first")
        second.result()


def test_what_a_store_remembers_is_not_taken_for_the_content_of_an_etcd_that_was_restored() -> None:
    """Its writes get the revisions of those that it has lost."""
    server = EtcdServer()
    try:
        url = server.new_prefix()
        with (
            closing(open_metastorage(url, HybridClock())) as store,
            closing(open_metastorage(url, HybridClock())) as other,
        ):
            put(store, "a", b"before")
            with server.set_back():
                put(store, "a", b"lost")
            put(other, "a", b"after")
            assert not store.invoke([ValueIs("a", b"lost")], [Put("a", b"later")]).succeeded
            assert store.invoke([ValueIs("a", b"after")], [Put("a", b"later")]).succeeded
    finally:
        server.remove()
