"""How `HttpSession` handles connections that break and nodes that are away."""

from __future__ import annotations

import math
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from strandline.catalog.commands import CreateSchema
from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    ProtocolError,
    Stopping,
    StoreMoved,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastore.session import HttpSession, http_app, http_session
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.session.http_messages import Receive, Scope, Send
from strandline.metastore.session.http_transport import HttpTransport, Lost
from strandline.metastore.workers import Workers
from strandline.model.identifiers import MAX_USER_LENGTH
from strandline.node import Node
from strandline.transactions import TransactionState
from tests.metastore.session.scene import SHORT, Scene, data
from tests.metastore.session.served import listening_socket, serving
from tests.metastore.snapshots import files_of

# -- what is sent once, and what is repeated -----------------------------------------------------


def test_ddl_whose_answer_is_lost_is_sent_once_and_its_outcome_is_unknown(scene: Scene) -> None:
    scene.proxy.cut_answer("execute")
    with pytest.raises(UnknownOutcome, match="history"):
        scene.session.execute(CreateSchema(name="lost"))
    assert scene.proxy.seen["execute"] == 1
    assert scene.session.tables("lost") == []


def test_the_outcome_of_ddl_is_unknown_if_a_gateway_answers_with_a_page_of_its_own(
    scene: Scene,
) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n"
    scene.proxy.replace_answer("execute", f"{head}hi".encode())
    with pytest.raises(UnknownOutcome, match=r"text/html.*may or may not have happened"):
        scene.session.execute(CreateSchema(name="behind_a_page"))
    assert scene.session.tables("behind_a_page") == []


def test_the_longest_timeouts_are_accepted(url: str) -> None:
    with HttpSession(url, user="ann", timeout=math.inf) as session:
        for number, timeout in enumerate((math.inf, 1e300)):
            schema = CreateSchema(name=f"patient{number}")
            assert session.execute(schema, timeout=timeout).version


@pytest.mark.parametrize("timeout", [math.nan, True, None, "30"])
def test_a_session_refuses_a_timeout_that_is_no_number(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match=f"a timeout is a number of seconds, not {timeout!r}"):
        HttpSession("http://127.0.0.1:1", user="ann", timeout=timeout)


def test_a_timeout_below_zero_is_zero(url: str) -> None:
    with (
        HttpSession(url, user="ann") as session,
        pytest.raises(DeadlineExceeded, match="will not take effect"),
    ):
        session.execute(CreateSchema(name="never"), timeout=-math.inf)


def test_another_hold_is_taken_if_the_answer_is_lost(scene: Scene) -> None:
    scene.proxy.cut_answer("hold")
    hold = scene.session.hold("reader", "ann", at=None)
    assert scene.proxy.seen["hold"] == 2
    assert scene.session.renew_hold(hold.hold_id).hold_id == hold.hold_id


def test_a_transaction_is_begun_again_if_the_answer_is_lost(scene: Scene) -> None:
    scene.proxy.cut_answer("begin")
    scene.session.commit(scene.written("once"))
    assert scene.proxy.seen["begin"] == 2
    assert [file.path for file in files_of(scene.local, scene.name).data_files] == ["once"]


def test_a_request_that_was_never_sent_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.proxy.stop_listening()
    pause = http_session._Attempts.pause

    def back_at_the_first_pause(self: http_session._Attempts, loss: Lost) -> None:
        assert not loss.sent
        monkeypatch.setattr(http_session._Attempts, "pause", pause)
        scene.proxy.listen_again()
        pause(self, loss)

    monkeypatch.setattr(http_session._Attempts, "pause", back_at_the_first_pause)
    assert scene.session.begin().state is TransactionState.OPEN
    assert scene.proxy.seen["begin"] == 1


@pytest.mark.parametrize("cut", ["answer", "request"])
def test_reads_heartbeats_and_calls_on_existing_holds_are_repeated(scene: Scene, cut: str) -> None:
    session, proxy = scene.session, scene.proxy
    txn_id = session.begin().txn_id
    taken = session.open([scene.name])
    hold = session.hold("reader", "ann", at=taken.time)
    cutting = proxy.cut_answer if cut == "answer" else proxy.cut_request
    for call in ("tables", "history", "open", "files", "transaction", "heartbeat"):
        cutting(call)
    for call in ("renew_hold", "release_hold"):
        cutting(call)
    assert scene.local.tables("s") == session.tables("s")
    assert session.history() == scene.local.history()
    assert session.open([scene.name], txn_id=txn_id).write_ids == taken.write_ids
    assert session.files(scene.table_id, taken.write_ids[scene.table_id]).data_files == ()
    assert session.transaction(txn_id).state is TransactionState.OPEN
    session.heartbeat(txn_id)
    assert session.renew_hold(hold.hold_id).hold_id == hold.hold_id
    session.release_hold(hold.hold_id)


@pytest.mark.parametrize(
    ("call", "is_whole"), [("clean", True), ("dump", True), ("verify", True), ("status", False)]
)
def test_an_attempt_at_a_call_that_takes_long_has_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch, call: str, *, is_whole: bool
) -> None:
    given: list[float] = []
    monkeypatch.setattr(HttpTransport, "send", lambda *sent: given.append(sent[-1]))
    with HttpSession("http://127.0.0.1:1", user="ann", timeout=1000) as session:
        getattr(session, call)()
    assert given == [pytest.approx(1000 if is_whole else 500, abs=100)]


def test_calls_to_a_node_that_is_away_raise_unavailable(scene: Scene) -> None:
    with scene.impatient() as session:
        scene.proxy.stop_listening()
        create = partial(session.execute, CreateSchema(name="away"))
        for call in (session.history, session.begin, create):
            with pytest.raises(
                Unavailable, match=f"within {SHORT} s .*is it running, and is this its HTTP address"
            ) as caught:
                call()
            assert caught.type is Unavailable


def test_a_read_that_is_taken_and_not_answered_refers_to_the_health_of_the_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        with (
            HttpSession(url, user="ann", timeout=SHORT) as session,
            pytest.raises(Unavailable, match="page /health/ready says what it waits for"),
        ):
            session.history()


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_calls_to_a_stopping_node_raise_stopping(tmp_path: Path) -> None:
    with Node.open(tmp_path) as node, serving(HttpApplication(node.metastore)) as url:
        node.catalogs.stop()
        with HttpSession(url, user="ann") as session:
            with pytest.raises(Stopping):
                session.execute(CreateSchema(name="s"))
            with pytest.raises(Stopping):
                session.compact(1)  # repeatable: sent again until the deadline


# -- addresses, users, threads -------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "localhost:1", "ftp://localhost", "http://", "http://h:x", None, b"http://h:1", 1]
)
def test_an_invalid_node_address_is_refused(url: Any) -> None:
    with pytest.raises(InvalidInput, match="is not the address of a node"):
        HttpSession(url, user="ann")


@pytest.mark.parametrize("user", [None, "", "a" * (MAX_USER_LENGTH + 1)])
def test_a_session_without_the_name_of_its_user_is_refused(node: Node, user: Any) -> None:
    for session in (node.session, partial(HttpSession, "http://127.0.0.1:1")):
        with pytest.raises(InvalidInput, match="needs the name of its user as a text") as refusal:
            session(user=user)
        assert refusal.value.message.endswith(f"characters, not {user!r:.80}")


@pytest.mark.parametrize(
    ("arguments", "named", "reason"),
    [
        ((1,), {}, "missing 1 required positional argument: 'write_ids'"),
        ((1, 2, ()), {}, "takes 3 positional arguments but 4 were given"),
        ((1, 2), {"write_ids": 3}, "multiple values for argument 'write_ids'"),
        ((1, 2), {"bound": ()}, "unexpected keyword argument 'bound'"),
    ],
)
def test_a_call_with_other_arguments_than_its_own_is_refused(
    arguments: tuple[Any, ...], named: dict[str, Any], reason: str
) -> None:
    with (
        HttpSession("http://127.0.0.1:1", user="ann") as session,
        pytest.raises(TypeError, match=rf"Session\.files\(\) .*{reason}"),
    ):
        session.files(*arguments, **named)


def test_a_snapshot_of_a_list_among_the_names_is_refused() -> None:
    names: list[Any] = ["s.t", ["s.u"]]
    expected = r"expected names, each a text, found \['s.t', \["
    with (
        HttpSession("http://127.0.0.1:1", user="ann") as session,
        pytest.raises(InvalidInput, match=expected),
    ):
        session.open(names)


def test_an_answer_of_another_kind_of_server_raises_protocol_error() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"
    with listening_socket() as listening:

        def answer_once() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(65536)
                client.sendall(answer)
                client.recv(65536)

        thread = threading.Thread(target=answer_once)
        thread.start()
        session = HttpSession(f"http://127.0.0.1:{listening.getsockname()[1]}", user="ann")
        with pytest.raises(ProtocolError, match="text/html"):
            session.history()
        session.close()
        thread.join()


def test_a_node_without_tls_and_a_node_that_is_not_trusted_are_reported_at_once(
    url: str,
) -> None:
    session = HttpSession(url.replace("http:", "https:"), user="ann")
    with pytest.raises(ProtocolError, match=r"does not speak TLS.*write http://"):
        session.history()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with listening_socket() as listening, ThreadPoolExecutor(1) as pool:

        def refused() -> None:
            client, _ = listening.accept()
            with client, suppress(ssl.SSLError, ConnectionError):
                context.wrap_socket(client, server_side=True)

        serving_once = pool.submit(refused)
        session = HttpSession(f"https://127.0.0.1:{listening.getsockname()[1]}", user="ann")
        with pytest.raises(ProtocolError, match=r"CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE"):
            session.begin()
        serving_once.result()


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_a_commit_without_an_answer_has_an_unknown_outcome_if_the_next_connection_fails_for_good(
    scene: Scene,
) -> None:
    with HttpSession(scene.proxy.url, user="ann") as session:
        txn_id = session.begin().txn_id
        scene.proxy.cut_answer("commit")
        # The next connection goes to a node without TLS.
        session._transport._address = urlsplit(scene.url)
        session._transport._security = ssl.create_default_context()
        with pytest.raises(UnknownOutcome, match=r"SSL.*may or may not have happened"):
            session.commit(txn_id)
    assert scene.local.transaction(txn_id).state is TransactionState.COMMITTED


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_a_session_that_goes_on_trying_says_so_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_session, "WARN_AFTER", 0.0)
    scene.proxy.stop_listening()
    with pytest.raises(Unavailable):
        scene.session.history()
    (warning,) = [record for record in caplog.records if record.name == http_session.__name__]
    assert warning.getMessage().startswith(f"{scene.proxy.url} did not answer history yet (")
    assert "Connection refused" in warning.getMessage()


def test_calls_on_a_closed_session_raise_stopping(scene: Scene) -> None:
    scene.session.close()
    with pytest.raises(Stopping, match="closed"):
        scene.session.begin()


# -- a node of another store ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """A node of another store, where the schema of the scene is too."""
    with (
        Node.open(tmp_path_factory.mktemp("other")) as opened,
        serving(HttpApplication(opened.metastore)) as served,
    ):
        opened.session(user="ann").execute(CreateSchema(name="s"))
        yield opened, served


def test_calls_of_a_session_whose_address_leads_to_another_store_are_refused(
    scene: Scene, other_node: tuple[Node, str]
) -> None:
    txn_id = scene.written("a")
    node, url = other_node
    version = node.catalogs.latest_catalog().version
    began = node.transactions.statistics().begun
    scene.proxy.lead_to(url)
    session = scene.session
    for call in (
        lambda: session.execute(CreateSchema(name="new")),
        lambda: session.tables("s"),
        lambda: session.stage(txn_id, scene.table_id, add=[data("b")]),
        lambda: session.commit(txn_id),
        session.begin,
    ):
        with pytest.raises(StoreMoved, match="nothing was done; correct the address of the node"):
            call()
    assert node.catalogs.latest_catalog().version == version
    assert node.transactions.statistics().begun == began
    scene.proxy.lead_to(scene.url)
    session.commit(txn_id)
    assert scene.paths() == ["a"]


def test_the_outcome_of_a_commit_is_not_asked_of_another_store(
    scene: Scene, other_node: tuple[Node, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other store has a transaction of the same id, which is open."""
    node, url = other_node
    txn_id = scene.written("a")
    other = node.session(user="ann")
    while (other_id := other.begin().txn_id) < txn_id:
        pass
    addresses = iter([url, url, scene.url])
    pause = http_session._Attempts.pause

    def lead_elsewhere(attempts: http_session._Attempts, loss: Lost) -> None:
        scene.proxy.lead_to(next(addresses))
        pause(attempts, loss)

    monkeypatch.setattr(http_session._Attempts, "pause", lead_elsewhere)
    scene.proxy.cut_answer("commit")
    committed = scene.session.commit(txn_id)
    assert committed == scene.local.transaction(txn_id)
    assert committed.state is TransactionState.COMMITTED
    assert other_id == txn_id
    assert other.transaction(txn_id).state is TransactionState.OPEN


@pytest.mark.slow
def test_many_threads_can_share_a_session(scene: Scene) -> None:
    def write(number: int) -> int:
        txn_id = scene.written(f"f{number:02d}")
        return scene.session.commit(txn_id).txn_id

    with ThreadPoolExecutor(8) as pool:
        committed = list(pool.map(write, range(24)))
    assert len(set(committed)) == 24
    assert scene.paths() == [f"f{number:02d}" for number in range(24)]


class FullAtFirst:
    """A node that is full for its first ``times`` requests."""

    def __init__(self, node: Node, times: int) -> None:
        self._node = HttpApplication(node.metastore)
        self._full = HttpApplication(node.metastore, workers=Workers(max_calls=0))
        self.left = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.left:
            self.left -= 1
            await self._full(scope, receive, send)
        else:
            await self._node(scope, receive, send)


def test_calls_refused_by_a_full_node_are_sent_again_even_if_not_repeatable(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "RETRY_SECONDS", 0)
    full = FullAtFirst(node, times=6)
    with serving(full) as url, HttpSession(url, user="ann") as session:
        begun = session.begin()
        full.left = 3
        assert session.transaction(begun.txn_id).state is TransactionState.OPEN
        full.left = 3
        assert session.commit(begun.txn_id).state is TransactionState.COMMITTED
    assert full.left == 0


@pytest.mark.usefixtures("deadline_at_a_pause")
def test_a_node_that_stays_full_raises_overloaded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "RETRY_SECONDS", 0)
    full = FullAtFirst(node, times=1_000)
    with serving(full) as url, HttpSession(url, user="ann") as session:
        with pytest.raises(Overloaded, match="nothing was done"):
            session.begin()
        with pytest.raises(Overloaded, match="nothing was done"):
            session.tables("s")


def test_a_snapshot_of_too_many_tables_is_refused(scene: Scene) -> None:
    with pytest.raises(LimitExceeded, match="10000 tables, not 10001"):
        scene.session.open([f"s.t{number}" for number in range(10_001)])
    assert scene.session.open([scene.name] * 20_000).write_ids.keys() == {scene.table_id}


class Waits(threading.Event):
    """An event that records how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return self.is_set()


def test_a_client_waits_as_long_as_the_node_asks_and_gives_up_when_it_is_closed() -> None:
    closed = Waits()
    attempts = http_session._Attempts(
        "no answer", look="", seconds=60, closed=closed, always_unknown=False
    )
    attempts.pause(Lost("full", sent=False, answer=Overloaded("full"), wait=8.0))
    assert 4.0 <= closed.seconds.pop() <= 12.0
    closed.set()
    with pytest.raises(Overloaded, match="full"):
        attempts.pause(Lost("away", sent=False))
    assert closed.seconds == []
