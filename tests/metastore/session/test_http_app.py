"""How the application handles requests that no `Session` would send."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from strandline import __version__, work
from strandline.clock import MIN_TIMESTAMP
from strandline.errors import InvalidInput, Overloaded, ProtocolError
from strandline.metastore.request_memory import ALLOWANCE
from strandline.metastore.session import HttpSession
from strandline.metastore.session.bodies import MAX_BODY_BYTES, Bodies, LongAnswer
from strandline.metastore.session.callers import basic
from strandline.metastore.session.calls import PROTOCOL, PROTOCOL_HEADER, STORE_HEADER
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.session.http_messages import (
    ADMITTED,
    ClientGone,
    Message,
    Receive,
    Request,
    Scope,
    Send,
)
from strandline.metastore.session.local_session import LocalSession
from strandline.metastore.workers import Workers
from strandline.node import Node
from strandline.work.contents import PIECE, Content, pieces_of, release
from tests.metastore.session.served import WAIT, monitored, serving

JSON = {"Content-Type": "application/json"}
POST = {"method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
MIB = 1 << 20


@pytest.fixture(scope="module")
def url(node: Node) -> Iterator[str]:
    with serving(monitored(node)) as served:
        yield served


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as made:
        yield made


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Return the status, code and message of an answer, which must be a problem document."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body.keys() == {"type", "title", "status", "detail", "code"}
    assert body["status"] == answer.status_code
    assert body["type"] == f"urn:strandline:error:{body['code']}"
    return answer.status_code, body["code"], body["detail"]


def table(**changes: Any) -> dict[str, Any]:
    definition = {"name": "t", "columns": [{"name": "k", "type": "long"}]} | changes
    return {"commands": [{"create_table": {"schema": "s", "definition": definition}}]}


BAD_BODIES: dict[str, tuple[str, object, str, str]] = {
    "empty": ("begin", b"", "invalid_input", "the body is not JSON"),
    "cut": ("begin", b'{"read_only": tr', "invalid_input", "the body is not JSON"),
    "not_utf8": ("begin", b'{"a\xff": 1}', "invalid_input", "not UTF-8 at byte 3"),
    "not_an_object": ("begin", [], "invalid_input", "the body: expected an object, found a list"),
    "nan": ("begin", b'{"read_only": NaN}', "invalid_input", "NaN is not a JSON number"),
    "twice": ("begin", b'{"read_only": true, "read_only": false}', "invalid_input", "duplicate"),
    "too_deep": ("begin", b"[" * 100_000, "invalid_input", "nested too deep"),
    "long_number": (
        "transaction", b'{"txn_id": ' + b"9" * 5000 + b"}", "invalid_input", "not JSON",
    ),
    "unknown_argument": (
        "begin", {"now": 1}, "invalid_input", "now: is not a member of this object",
    ),
    "missing_argument": ("transaction", {}, "invalid_input", "txn_id: is missing"),
    "text_for_number": ("transaction", {"txn_id": "1"}, "invalid_input", "txn_id: expected a"),
    "true_for_number": ("transaction", {"txn_id": True}, "invalid_input", "found true"),
    "fraction": ("transaction", {"txn_id": 1.5}, "invalid_input", "found 1.5"),
    "number_too_large": ("transaction", {"txn_id": 2**63}, "invalid_input", "does not fit 64 bits"),
    "number_for_true": ("begin", {"read_only": 1}, "invalid_input", "read_only: expected true or"),
    "null": ("tables", {"schema": None}, "invalid_input", "schema: expected a string, found null"),
    "half_a_character": (
        "tables", b'{"schema": "\\ud800"}', "invalid_input", "schema: contains half a surrogate",
    ),
    "unknown_command": (
        "execute", {"commands": [{"drop_everything": {}}]}, "invalid_input",
        "commands[0]: 'drop_everything' is not a kind of this value; the kinds are: add_columns",
    ),
    "two_commands_in_one": (
        "execute", {"commands": [{"drop_table": {}, "drop_schema": {}}]}, "invalid_input",
        "commands[0]: expected exactly one member, whose name is the kind of the value, found 2",
    ),
    "unknown_field_of_a_command": (
        "execute", table(colour="red"), "invalid_input",
        "commands[0].create_table.definition.colour: is not a member of this object",
    ),
    "missing_field_of_a_command": (
        "execute", {"commands": [{"create_table": {"schema": "s"}}]}, "invalid_input",
        "commands[0].create_table.definition: is missing",
    ),
    "wrong_field_deep_inside": (
        "execute", table(columns=[{"name": "k", "type": "long"}, {"name": 1, "type": "long"}]),
        "invalid_input", "commands[0].create_table.definition.columns[1].name: expected a string",
    ),
    "no_such_type": (
        "execute", table(columns=[{"name": "k", "type": "number"}]), "invalid_type",
        "commands[0].create_table.definition.columns[0].type: ",
    ),
    "no_such_kind": (
        "execute", table(kind="BORROWED"), "invalid_input",
        "definition.kind: expected one of MANAGED, EXTERNAL, found \"BORROWED\"",
    ),
    "properties_of_numbers": (
        "execute", table(properties={"a": 1}), "invalid_input", "definition.properties.a: expected",
    ),
    "two_points": (
        "tables", {"schema": "s", "at": {"version": 1, "time": 1}}, "invalid_input",
        "at: name a version or a time, not both",
    ),
    "pages_as_a_number": ("verify", {"pages": 1}, "invalid_input", "pages: expected true"),
    "one_kind_for_a_list": ("dump", {"ignore": "table"}, "invalid_input", "ignore: expected a"),
    "no_such_kind_of_object": (
        "dump", {"ignore": ["tables"]}, "invalid_input", "'tables' is not a kind of object; the",
    ),
    "cleaning_for_good": ("clean", {"yes": True}, "invalid_input", "yes: is not a member of this"),
    "a_setting_to_change": ("config", {"host": ""}, "invalid_input", "host: is not a member of"),
    "no_list_of_write_ids": (
        "files", {"table_id": 1, "write_ids": "everything"}, "invalid_input", "write_ids: ",
    ),
}  # fmt: skip


def counts(node: Node) -> tuple[object, object]:
    """The statistics that do not change with the time alone."""
    transactions = replace(node.transactions.statistics(), low_watermark=MIN_TIMESTAMP)
    return transactions, node.catalogs.statistics()


@pytest.mark.parametrize("case", BAD_BODIES)
def test_an_invalid_body_is_refused_with_the_position_of_the_error(
    node: Node, client: httpx.Client, case: str
) -> None:
    call, body, code, message = BAD_BODIES[case]
    before = counts(node)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = error_of(client.post(call, content=content))
    assert error[:2] == (400, code)
    assert message in error[2]
    assert counts(node) == before


def test_an_unknown_transaction_is_answered_with_404(client: httpx.Client) -> None:
    status, code, message = error_of(client.post("commit", json={"txn_id": 10**9}))
    assert (status, code) == (404, "transaction_not_found")
    assert "1000000000" in message


def test_arguments_with_defaults_may_be_left_out(client: httpx.Client) -> None:
    assert client.post("begin", json={}).json()["state"] == "OPEN"
    response = client.post("execute", json=table())
    assert response.json()["applied"] == [True]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/close", 404, "not_found"),
        ("POST", "/v1/begin/", 404, "not_found"),
        ("POST", "/v1/__init__", 404, "not_found"),
        ("GET", "/v1/begin", 405, "unsupported_operation"),
        ("POST", "/v1/health", 405, "unsupported_operation"),
    ],
)
def test_an_unknown_route_is_answered_with_a_typed_error(
    url: str, method: str, path: str, status: int, code: str
) -> None:
    answer = httpx.request(method, url + path, trust_env=False)
    assert error_of(answer)[:2] == (status, code)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", "/v1/begin", "POST"), ("TRACE", "/v1/health", "GET, HEAD")],
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(
    url: str, method: str, path: str, allowed: str
) -> None:
    answer = httpx.request(method, url + path, trust_env=False)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize("sent", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_with_a_content_type_that_web_pages_can_send_is_refused(
    url: str, sent: str | None
) -> None:
    headers = {} if sent is None else {"Content-Type": sent}
    answer = httpx.post(f"{url}/v1/begin", content=b"{}", headers=headers, trust_env=False)
    assert error_of(answer)[1:] == (
        "invalid_input",
        f"the body is sent as {sent or ''!r}; send it as application/json",
    )


def test_the_case_and_the_parameters_of_a_content_type_do_not_matter(client: httpx.Client) -> None:
    headers = {"Content-Type": "Application/JSON ; charset=utf-8"}
    assert client.post("begin", content=b"{}", headers=headers).status_code == 200


@pytest.mark.parametrize("user", ["", "%FF", "a%0Ab", "x" * 256])
def test_an_invalid_user_name_is_refused(client: httpx.Client, user: str) -> None:
    answer = client.post("begin", json={}, headers={"X-Strandline-User": user})
    assert "does not name a user" in error_of(answer)[2]


def test_a_caller_without_a_name_is_anonymous(client: httpx.Client) -> None:
    assert client.post("begin", json={}).json()["user"] == "anonymous"


@pytest.mark.slow
def test_a_body_of_a_hundred_megabytes_is_refused(client: httpx.Client) -> None:
    answer = client.post("begin", content=b" " * 100_000_000, timeout=60)
    assert error_of(answer)[:2] == (400, "invalid_input")
    assert str(MAX_BODY_BYTES) in error_of(answer)[2]


def test_a_body_without_a_content_length_is_limited_too(node: Node) -> None:
    with (
        serving(HttpApplication(node.metastore, max_body_bytes=1000)) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as client,
    ):
        assert client.post("begin", content=b"{}" + b" " * 998).status_code == 200
        parts = (b" " * 100 for _ in range(30))
        assert "at most 1000" in error_of(client.post("begin", content=parts))[2]


def test_a_body_that_is_far_too_large_is_refused_before_it_arrives(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
        assert b"400" in connection.recv(65536).split(b"\r\n")[0]


def test_a_body_that_is_too_large_takes_no_memory_and_is_read_only_up_to_four_times_the_limit() -> (
    None
):
    bodies = Bodies(max_bytes=MIB, seconds=60, memory_bytes=64 * MIB, answer_bytes=1, outside=False)
    taken: list[int] = []

    async def receive() -> Message:
        taken.append(bodies.memory.taken)
        return {"type": "http.request", "body": bytes(MIB), "more_body": len(taken) < 8}

    with pytest.raises(InvalidInput, match=f"at most {MIB}"):
        asyncio.run(bodies.read(Request(POST, receive), "owner", "application/json", user="ann"))
    assert [amount > 0 for amount in taken] == [False, True, False, False, False]


@pytest.mark.parametrize("outside", [False, True])
def test_a_long_body_that_arrives_in_parts_is_whole(*, outside: bool) -> None:
    bodies = Bodies(
        max_bytes=4 * MIB, seconds=60, memory_bytes=64 * MIB, answer_bytes=1, outside=outside
    )
    parts = [bytes([number]) * MIB for number in range(3)]
    left = parts.copy()

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    body = asyncio.run(bodies.read(Request(POST, receive), "owner", "application/json", user="ann"))
    assert isinstance(body, Content) == outside
    assert b"".join(pieces_of(body)) == b"".join(parts)
    release(body)


def test_a_body_of_a_client_that_disconnects_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(max_bytes=MIB, seconds=60, memory_bytes=64 * MIB, answer_bytes=1, outside=True)
    made: list[Content] = []
    messages: list[Message] = [
        {"type": "http.request", "body": bytes(MIB), "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    def kept(data: bytes, of: Callable[[bytes], Content] = Content.of) -> Content:
        made.append(of(data))
        return made[-1]

    monkeypatch.setattr(Content, "of", kept)
    with pytest.raises(ClientGone):
        asyncio.run(bodies.read(Request(POST, receive), "owner", "application/json", user="ann"))
    assert [content.fileno() for content in made] == [-1]


def test_a_client_that_disconnects_within_its_body_does_not_affect_others(
    client: httpx.Client, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"read'.encode())
    assert client.post("begin", json={}).status_code == 200
    assert caplog.records == []


@contextmanager
def sent(
    url: str | httpx.URL, body: bytes, *, length: int | None = None, call: str = "begin"
) -> Iterator[socket.socket]:
    """Yield a connection on which a request, or with ``length`` a part of it, was sent."""
    url, length = httpx.URL(url), len(body) if length is None else length
    with socket.create_connection((url.host, url.port or 0), timeout=WAIT) as connection:
        head = f"POST /v1/{call} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
        yield connection


def test_requests_whose_bodies_have_not_arrived_do_not_count_as_calls(node: Node) -> None:
    with (
        serving(HttpApplication(node.metastore, workers=Workers(max_calls=4))) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as client,
        ExitStack() as open_requests,
    ):
        for _ in range(20):
            open_requests.enter_context(sent(url, b"{", length=2))
        assert client.post("begin", json={}).status_code == 200


def test_a_request_whose_body_does_not_arrive_in_time_is_refused(node: Node) -> None:
    with serving(HttpApplication(node.metastore, body_seconds=0.05)) as url:
        with sent(url, b"{", length=2) as connection:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in answer.lower()
        assert b"deadline_exceeded" in answer


def test_the_memory_of_incomplete_bodies_is_bounded_and_small_requests_are_served(
    node: Node,
) -> None:
    pool = 4 << 20
    with (
        serving(monitored(node, body_memory_bytes=pool)) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as client,
    ):
        with sent(url, b" " * 1_000_000, length=1_000_001):
            while client.get("statistics").json()["http"]["body_memory"] < pool / 2:
                pass
            refused = client.post("begin", content=b" " * 1_000_000)
            assert error_of(refused)[:2] == (503, "overloaded")
            assert "nothing was done" in error_of(refused)[2]
            assert refused.headers["retry-after"] == "1"
            assert client.post("begin", json={}).status_code == 200
            counted = client.get("statistics").json()["http"]
            assert counted["body_memory"] <= pool
            assert counted["full"] == 1
        while client.get("statistics").json()["http"]["body_memory"]:
            pass
        assert client.post("begin", content=b" " * 1_000_000 + b"{}").status_code == 200


@pytest.mark.parametrize("size", ["Content-Length: 60000000", "Transfer-Encoding: chunked"])
def test_a_large_body_is_read_only_once_its_sender_is_authenticated(node: Node, size: str) -> None:
    head = f"POST /v1/begin HTTP/1.1\r\nContent-Type: application/json\r\n{size}\r\n\r\n"
    with (
        serving(monitored(node, authenticate=lambda user, secret: False)) as url,
        socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 0)) as connection,
    ):
        connection.settimeout(WAIT)
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("size", [2, MIB])
async def test_only_a_caller_with_valid_credentials_is_admitted(node: Node, size: int) -> None:
    application = HttpApplication(node.metastore, authenticate=lambda user, secret: secret == "x")
    body = b"{}".ljust(size)

    async def receive(parts: Iterator[bytes]) -> Message:
        for part in parts:
            return {"type": "http.request", "body": part}
        return await asyncio.Future()

    async def send(message: Message) -> None:
        pass

    for secret in ("x", "y"):
        headers = {
            "content-type": "application/json",
            "content-length": str(size),
            "authorization": basic("ann", secret),
        }
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = POST | {"path": "/v1/begin", "headers": sent}
        await application(scope, partial(receive, iter([body])), send)
        assert (ADMITTED in scope) == (secret == "x")


def test_if_too_many_answers_wait_only_the_answers_of_reads_are_refused() -> None:
    bodies = Bodies(max_bytes=1, seconds=1, memory_bytes=1, answer_bytes=1, outside=False)
    first, second = bytes(ALLOWANCE + 1), bytes(ALLOWANCE + 1)
    answered = bodies.answer(first, "application/json", user="ann", only_reads=True)
    with pytest.raises(Overloaded, match="nothing was changed"):
        bodies.answer(second, "application/json", user="ann", only_reads=True)
    outside = Content.of(second)
    with pytest.raises(Overloaded, match="nothing was changed"):
        bodies.answer(outside, "application/json", user="ann", only_reads=True)
    assert outside.fileno() == -1
    sent = bodies.answer(second, "application/json", user="ann", only_reads=False)
    assert sent is not answered
    assert bodies.answers.taken == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_long_answer_is_sent_in_pieces_and_then_released(fails: bool) -> None:
    data = bytes(range(256)) * 2_000
    sent: list[bytes] = []
    given_back: list[object] = []

    async def send(message: Message) -> None:
        if fails and len(sent) > 1:
            raise OSError("the client has gone")
        sent.append(message.get("body", b""))

    async def main(body: bytes | Content) -> None:
        answer = LongAnswer(body, "application/json", on_sent=given_back.append)
        with suppress(OSError):
            await answer.send(send)
        assert given_back.pop() is answer

    for body in (data, Content.of(data)):
        sent.clear()
        asyncio.run(main(body))
        assert fails or b"".join(sent) == data
        assert max(map(len, sent)) <= PIECE
        assert not isinstance(body, Content) or body.fileno() == -1


@pytest.mark.parametrize("length", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_long_answer_ends_with_its_last_bytes(length: int) -> None:
    """With them, the client may send its next request, before the loop sends anything else."""
    sent: list[tuple[int, bool]] = []

    async def send(message: Message) -> None:
        sent.append((len(message.get("body", b"")), message.get("more_body", False)))

    async def main() -> None:
        content = Content.of(bytes(length))
        await LongAnswer(content, "application/json", on_sent=lambda _: None).send(send)

    asyncio.run(main())
    _, *pieces = sent  # after the head
    assert sum(size for size, _ in pieces) == length
    assert [more for _, more in pieces] == [True] * (len(pieces) - 1) + [False]
    assert pieces[-1][0] or not length


def test_the_event_loop_runs_between_the_pieces_of_a_long_answer() -> None:
    pieces: list[int] = []
    turns: list[int] = []

    async def send(message: Message) -> None:  # a client that accepts every piece at once
        asyncio.get_running_loop().call_soon(lambda: turns.append(len(pieces)))
        pieces.append(len(message.get("body", b"")))

    async def main() -> None:
        answer = LongAnswer(bytes(5 * PIECE), "application/json", on_sent=lambda _: None)
        await answer.send(send)

    asyncio.run(main())
    assert len(set(turns)) >= 5


def test_a_request_with_a_foreign_host_or_origin_is_refused(client: httpx.Client) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, code, message = error_of(client.post("begin", json={}, headers=headers))
        assert (status, code) == (403, "permission_denied")
        assert "evil.example" in message
        assert "allowed_hosts" in message


def test_requests_beyond_max_calls_are_refused(node: Node) -> None:
    with (
        serving(monitored(node, workers=Workers(max_calls=0))) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as client,
    ):
        status, code, message = error_of(client.post("begin", json={}))
        assert (status, code) == (503, "overloaded")
        assert "nothing was done" in message
        assert client.post("begin", json={}).headers["retry-after"] == "1"
        assert client.get("statistics").json()["workers"]["refused"] == 2


def test_a_full_node_refuses_a_call_before_its_body_arrives(node: Node) -> None:
    application = HttpApplication(node.metastore, workers=Workers(max_calls=0), body_seconds=1)
    with serving(application) as url, sent(url, b"{", length=2) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert b'"overloaded"' in answer.read()


def test_a_call_that_reads_begins_again_after_what_it_gave_way_to(
    node: Node, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Future[None]()
    made.set_result(None)
    runs: list[str] = []
    begin = node.transactions.begin

    def tables(session: LocalSession, schema: str, at: object = None) -> list[str]:
        runs.append(schema)
        if len(runs) == 1:
            work.give_way(made)
        return runs

    def begin_and_give_way(**arguments: Any) -> object:
        runs.append("begin")
        work.give_way(made)
        return begin(**arguments)

    monkeypatch.setattr(LocalSession, "tables", tables)
    monkeypatch.setattr(node.transactions, "begin", begin_and_give_way)
    assert client.post("tables", json={"schema": "s"}).json() == ["s", "s"]
    assert client.post("begin", json={}).status_code == 200
    assert runs == ["s", "s", "begin"]


def test_an_internal_failure_is_logged_and_its_details_are_not_sent(
    node: Node,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(txn_id: int) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(node.transactions, "get", broken)
    status, code, message = error_of(client.post("transaction", json={"txn_id": 1}))
    assert (status, code) == (500, "internal")
    assert "secret" not in message
    assert "a secret" in caplog.text


def test_health_shows_the_release_and_the_versions(node: Node, client: httpx.Client) -> None:
    latest = node.catalogs.latest_catalog().version
    assert client.get("health").json() == {
        "status": "ok",
        "release": __version__,
        "catalog_version": latest,
        "earliest_version": 0,
        "problems": [],
    }


def test_statistics_have_every_part(node: Node, client: httpx.Client) -> None:
    before = client.get("statistics").json()
    assert before.keys() == {"log", *node.statistics, "workers", "http"}
    client.post("begin", json={})
    client.post("nothing", json={})
    client.post("transaction", json={})
    after = client.get("statistics").json()
    assert after["transactions"]["begun"] == before["transactions"]["begun"] + 1
    assert after["http"]["requests"] == before["http"]["requests"] + 2
    assert after["http"]["errors"] == before["http"]["errors"] + 1
    assert after["workers"]["calls"] == 0


def test_the_node_names_its_protocol_and_refuses_another(client: httpx.Client) -> None:
    assert client.get("health").headers["x-strandline-protocol"] == PROTOCOL
    older = client.post("tables", json={"schema": "s"}, headers={PROTOCOL_HEADER: "1"})
    assert older.headers["x-strandline-protocol"] == PROTOCOL
    status, code, message = error_of(older)
    assert (status, code) == (400, "unsupported_operation")
    assert "install the same release on both; nothing was done" in message
    gone = error_of(client.post("snapshot", json={"table_ids": []}))
    assert gone[:2] == (404, "not_found")
    assert "use a client of the node's release" in gone[2]
    wrong = error_of(client.post("stage", json={"txn_id": 1, "table_id": 1}))
    assert wrong[:2] == (400, "invalid_input")
    assert "send it as application/vnd.apache.arrow.stream" in wrong[2]


def test_the_node_names_its_store_and_refuses_a_request_for_another(
    node: Node, client: httpx.Client
) -> None:
    environment = client.post("status", json={}).json()["environment"]
    unknown = client.post("no_such_call", json={})
    assert client.get("health").headers[STORE_HEADER] == environment
    assert unknown.headers[STORE_HEADER] == environment
    version = node.catalogs.latest_catalog().version
    for used in ("5f0c2b1e-0000-4000-8000-000000000000", ""):
        answer = client.post(
            "execute",
            json={"commands": [{"create_schema": {"name": "other"}}]},
            headers={STORE_HEADER: used},
        )
        assert answer.headers[STORE_HEADER] == environment
        status, code, message = error_of(answer)
        assert (status, code) == (503, "store_moved")
        assert environment in message
        assert repr(used) in message
    assert node.catalogs.latest_catalog().version == version
    assert client.post("roles", json={}, headers={STORE_HEADER: environment}).status_code == 200


def test_a_session_reports_a_node_of_another_release(node: Node) -> None:
    async def older(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_bare(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = PROTOCOL_HEADER.lower().encode()
                message["headers"] = [pair for pair in message["headers"] if pair[0] != name]
            await send(message)

        await HttpApplication(node.metastore)(scope, receive, send_bare)

    with serving(older) as url, HttpSession(url, user="ann") as session:
        for call in (session.begin, lambda: session.tables("no_such_schema")):
            with pytest.raises(ProtocolError, match=r"node of another release: it speaks .* '1'"):
                call()
