"""The server over real sockets: order of answers, failures, foreign protocols, limits, stopping."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from strandline.errors import (
    AlreadyExists,
    ObjectNotFound,
    ProtocolError,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastore.thrift import (
    HIVE_CODEC,
    Answer,
    ApplicationException,
    ConnectionInfo,
    ServerSettings,
    ThriftException,
    request_key,
)
from strandline.metastore.thrift.messages import (
    CALL,
    EXCEPTION,
    MAX_NAME_BYTES,
    ONEWAY,
    REPLY,
    decode_head,
    encode_message,
    foreign_protocol,
)
from strandline.metastore.thrift.scanner import Scanner
from tests.log_lines import log_lines
from tests.servers.loopback import read_to_end
from tests.servers.thrift_client import ThriftClient, decode_application_exception

# The `serve` fixture is in conftest.py: a function that takes a handler and starts a server.
Serve = Callable[..., Any]

DATABASE = {"name": "d1", "description": "first", "parameters": {"a": "b"}}


def toy(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
    """A metastore with one database."""
    if method == "get_all_databases":
        return ["d1"]
    if method == "get_database":
        if args["name"] != "d1":
            raise ObjectNotFound(f"database {args['name']} does not exist")
        return DATABASE
    if method == "drop_table":
        return None
    if method == "get_all_tables":
        return [connection.user]
    raise ApplicationException.unknown_method(method)


def request(method: str, sequence: int = 1, **args: Any) -> bytes:
    return encode_message(CALL, method, sequence, HIVE_CODEC.encode_args(method, args))


def connect(running: Any) -> socket.socket:
    return socket.create_connection((running.host, running.port), timeout=60)


def read_messages(stream: socket.socket, count: int) -> list[bytes]:
    scanner, messages = Scanner(), list[bytes]()
    while len(messages) < count:
        message = scanner.next_message()
        if message is not None:
            messages.append(message)
            continue
        data = stream.recv(65536)
        assert data, f"the server closed after {len(messages)} answers"
        scanner.feed(data)
    return messages


def test_our_client_gets_values_and_declared_exceptions(serve: Serve) -> None:
    with serve(toy).client() as client:
        assert client.call("get_all_databases") == ["d1"]
        assert client.call("get_database", name="d1") == DATABASE
        assert client.call("drop_table", dbname="d", name="t") is None
        with pytest.raises(ThriftException, match="database d2 does not exist") as caught:
            client.call("get_database", name="d2")
        assert caught.value.name == "NoSuchObjectException"
        assert client.call("get_all_databases") == ["d1"]


def test_apache_thrifts_client_gets_values_and_declared_exceptions(serve: Serve) -> None:
    running = serve(toy)
    transport = TBufferedTransport(TSocket(running.host, running.port))
    transport.open()
    client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    assert client.set_ugi("ann", ["g"]) == ["g"]
    assert client.get_all_tables("d1") == ["ann"]
    assert client.get_database("d1").parameters == {"a": "b"}
    with pytest.raises(ttypes.NoSuchObjectException) as missing:
        client.get_database("d2")
    assert missing.value.message == "database d2 does not exist"
    with pytest.raises(TApplicationException) as unknown:
        client.get_all_functions()
    assert unknown.value.type == TApplicationException.UNKNOWN_METHOD
    client.drop_table("d1", "t", True)
    assert client.getStatus() == 2
    client.shutdown()
    transport.close()
    with running.client() as other:
        assert other.call("get_all_databases") == ["d1"]


def test_an_answer_has_the_bytes_that_the_protocol_defines(serve: Serve) -> None:
    golden = bytes.fromhex(
        "80010002 00000011 6765745f616c6c5f646174616261736573 fffffffe "
        "0f0000 0b 00000001 00000002 6431 00"
    )
    with connect(serve(toy)) as stream:
        stream.sendall(request("get_all_databases", -2))
        assert read_messages(stream, 1) == [golden]


def test_the_base_service_answers_as_hive_does(serve: Serve) -> None:
    with serve(toy).client() as client:
        assert client.call("getName") == "new db based metaserver"
        assert client.call("getVersion") == "3.0"
        assert client.call("getStatus") == 2
        assert client.call("aliveSince") == 1234
        assert client.call("getCounters")["connections"] == 1
        assert client.call("getCounter", key="connections") == 1
        assert client.call("getCounter", key="none") == 0
        assert client.call("getOptions") == {}
        assert client.call("setOption", key="a", value="b") is None
        assert client.call("shutdown") is None
        assert client.call("getStatusDetails") == ""


def test_set_ugi_sets_the_user_of_its_own_connection_only(serve: Serve) -> None:
    running = serve(toy)
    with running.client() as ann, running.client() as bob:
        assert ann.call("set_ugi", user_name="ann", group_names=["g", "h"]) == ["g", "h"]
        assert ann.call("get_all_tables", db_name="d") == ["ann"]
        assert bob.call("get_all_tables", db_name="d") == [""]


def test_a_user_name_that_is_too_long_is_refused(serve: Serve) -> None:
    with serve(toy).client() as client:
        client.call("set_ugi", user_name="ann", group_names=[])
        with pytest.raises(ThriftException, match="256 characters; give at most 255"):
            client.call("set_ugi", user_name="a" * 256, group_names=[])
        assert client.call("get_all_tables", db_name="d") == ["ann"]
        client.call("set_ugi", user_name="é" * 255, group_names=[])
        assert client.call("get_all_tables", db_name="d") == ["é" * 255]


def test_an_unknown_method_is_an_error_and_the_connection_stays_open(serve: Serve) -> None:
    with connect(serve(toy)) as stream:
        stream.sendall(encode_message(CALL, "no_such", 5, b"\0") + request("get_all_databases", 6))
        unknown, known = read_messages(stream, 2)
    head = decode_head(unknown)
    assert (head.kind, head.name, head.sequence) == (EXCEPTION, "no_such", 5)
    error = decode_application_exception(unknown, at=head.body)
    assert (error.kind, error.message) == (1, "Invalid method name: 'no_such'")
    assert decode_head(known).sequence == 6


def test_the_type_of_a_request_message_is_not_checked(serve: Serve) -> None:
    arguments = HIVE_CODEC.encode_args("get_database", {"name": "d1"})
    kinds = (CALL, REPLY, EXCEPTION, ONEWAY, 0)
    with connect(serve(toy)) as stream:
        stream.sendall(b"".join(encode_message(k, "get_database", 5, arguments) for k in kinds))
        answers = [decode_head(answer) for answer in read_messages(stream, len(kinds))]
    assert [(head.kind, head.sequence) for head in answers] == [(REPLY, 5)] * len(kinds)


def _raising(error: Exception) -> Callable[..., Any]:
    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        raise error

    return handler


def test_an_undeclared_exception_becomes_a_meta_exception(serve: Serve) -> None:
    with (
        serve(_raising(AlreadyExists("it is there"))).client() as client,
        pytest.raises(ThriftException, match="MetaException: it is there"),
    ):
        client.call("get_all_tables", db_name="d")


def test_an_error_is_an_internal_error_where_meta_exception_is_not_declared(
    serve: Serve,
) -> None:
    error = ThriftException("MetaException", {"message": "the store is away"})
    with serve(_raising(error)).client() as client:
        with pytest.raises(ApplicationException, match="the store is away") as caught:
            client.call("get_partition_names", db_name="d", tbl_name="t", max_parts=-1)
        assert caught.value.kind == ApplicationException.INTERNAL_ERROR


def test_an_unexpected_error_is_logged_and_its_text_is_not_sent_to_the_client(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(_raising(ZeroDivisionError("secret")))
    with running.client() as client:
        for _ in range(2):
            with pytest.raises(ApplicationException) as caught:
                client.call("get_all_databases")
            assert caught.value.kind == ApplicationException.INTERNAL_ERROR
            assert caught.value.message == "Internal error processing get_all_databases"
    logged = [repr(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["ZeroDivisionError('secret')"] * 2
    assert running.server.statistics().failures == 2


def test_an_answer_that_cannot_be_encoded_is_an_internal_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return {"nme": "d1"}

    with serve(handler).client() as client, pytest.raises(ApplicationException) as caught:
        client.call("get_database", name="d1")
    assert caught.value.kind == ApplicationException.INTERNAL_ERROR
    assert "Database has no field 'nme'" in caplog.text


def test_a_missing_required_field_fails_its_own_request_only(serve: Serve) -> None:
    with connect(serve(toy)) as stream:
        stream.sendall(encode_message(CALL, "lock", 1, bytes.fromhex("0c0001 00 00")))
        stream.sendall(request("get_all_databases", 2))
        refused, answered = read_messages(stream, 2)
    head = decode_head(refused)
    error = decode_application_exception(refused, at=head.body)
    assert error.kind == ApplicationException.PROTOCOL_ERROR
    assert error.message == "LockRequest lacks its required field component"
    assert decode_head(answered).sequence == 2


def test_pipelined_requests_are_answered_in_order_even_if_the_first_one_waits(
    serve: Serve,
) -> None:
    release = asyncio.Event()

    async def slowly() -> list[str]:
        await release.wait()
        return ["slow"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        if method == "get_databases":
            return slowly()
        if args["name"] == "release":
            release.set()
        return {"name": args["name"]}

    running = serve(handler)
    with connect(running) as stream, running.client() as other:
        names = [f"d{number}" for number in range(200)]
        stream.sendall(
            request("get_databases", 0, pattern="*")
            + b"".join(request("get_database", at, name=name) for at, name in enumerate(names, 1))
        )
        # Another connection is served while the first one waits.
        assert other.call("get_database", name="release") == {"name": "release"}
        answers = read_messages(stream, 201)
    assert [decode_head(answer).sequence for answer in answers] == list(range(201))


def test_an_awaited_handler_may_raise(serve: Serve) -> None:
    async def fail() -> None:
        raise ObjectNotFound("gone")

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return fail()

    with (
        serve(handler).client() as client,
        pytest.raises(ThriftException, match="NoSuchObjectException: gone"),
    ):
        client.call("get_database", name="d")


def test_a_kept_answer_is_written_without_calling_the_handler(serve: Serve) -> None:
    kept: dict[bytes, bytes] = {}
    calls = []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        calls.append(args)
        kept[connection.request] = HIVE_CODEC.encode_result(method, DATABASE)
        return Answer(REPLY, kept[connection.request])

    running = serve(handler, lookup=kept.get)
    with running.client() as client:
        for _ in range(3):
            assert client.call("get_database", name="d1") == DATABASE
    assert calls == [{"name": "d1"}]
    assert list(kept) == [request_key(request("get_database", 77, name="d1"))]
    assert running.server.statistics().fast_answers == 2
    assert running.server.statistics().kept == {"get_database": 2}


def test_a_lookup_that_fails_is_logged_and_the_handler_answers(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def lookup(request: bytes) -> bytes | None:
        raise RuntimeError("broken")

    with serve(toy, lookup=lookup).client() as client:
        assert client.call("get_all_databases") == ["d1"]
    assert "looking up a kept answer failed" in caplog.text


FOREIGN = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "SASL": b"\x01\x00\x00\x00\x06GSSAPI",
    "compact Thrift": bytes.fromhex("82210000 00"),
    "framed Thrift": bytes.fromhex("0000001d") + request("get_all_databases"),
    "framed compact Thrift": bytes.fromhex("00000012 8221 00"),
    "non-strict binary Thrift": b"\x00\x00\x00\x11get_all_databases\x01\x00\x00\x00\x00\x00",
    "an unknown protocol": b"hello, metastore",
}


@pytest.mark.parametrize("protocol", FOREIGN)
def test_a_foreign_protocol_is_logged_and_counted_and_its_connection_is_closed(
    serve: Serve, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    running = serve(toy)
    with connect(running) as stream:
        stream.sendall(FOREIGN[protocol].ljust(6, b"\0"))
        assert read_to_end(stream) == b""
    assert dict(running.server.statistics().foreign) == {protocol: 1}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert f"it speaks {protocol};" in lines[0]


def test_a_line_about_a_connection_does_not_name_the_client_of_another_one(serve: Serve) -> None:
    running = serve(toy)
    with log_lines() as lines, running.client() as client, connect(running) as stream:
        client.call("get_all_databases")
        stream.sendall(FOREIGN["SASL"])
        assert read_to_end(stream) == b""
        host, port = stream.getsockname()
        (line,) = lines.of("metastore.thrift.connection")
    assert line["client"] == f"{host}:{port}"


def test_a_framed_message_of_another_version_is_not_framed_thrift() -> None:
    assert foreign_protocol(b"\x00\x00\x00\x1d\x80\x02") == "non-strict binary Thrift"


def test_the_name_of_a_method_has_at_most_1024_bytes() -> None:
    longest = "m" * MAX_NAME_BYTES
    assert decode_head(encode_message(CALL, longest, 1, b"\0")).name == longest
    with pytest.raises(ProtocolError, match="has 1025 bytes, at most 1024"):
        decode_head(encode_message(CALL, f"{longest}m", 1, b"\0"))


def test_strict_binary_is_not_foreign() -> None:
    assert foreign_protocol(request("get_all_databases")[:6]) is None


def test_a_size_above_the_limit_is_a_protocol_error_and_closes_the_connection(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(toy, settings=ServerSettings(max_message_bytes=1000))
    with connect(running) as stream:
        stream.sendall(encode_message(CALL, "get_database", 8, bytes.fromhex("0b0001 7fffffff")))
        answer = read_to_end(stream)
    head = decode_head(answer)
    assert (head.kind, head.name, head.sequence) == (EXCEPTION, "get_database", 8)
    error = decode_application_exception(answer, at=head.body)
    assert error.kind == ApplicationException.PROTOCOL_ERROR
    assert "1000 are allowed" in error.message
    assert running.server.statistics().protocol_errors == 1


def test_damaged_requests_never_stop_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(toy)
    random_bits = random.Random(7)
    whole = request("create_table", tbl={"tableName": "t", "parameters": {"a": "b"}})
    for turn in range(150):
        damaged = bytearray(whole)
        for _ in range(turn % 4):
            damaged[random_bits.randrange(len(whole))] ^= 1 << random_bits.randrange(8)
        cut = random_bits.randrange(len(whole) + 1) if turn % 2 else len(whole)
        with connect(running) as stream:
            stream.sendall(damaged[:cut])
            stream.shutdown(socket.SHUT_WR)
            read_to_end(stream)
    with running.client() as client:
        assert client.call("get_all_databases") == ["d1"]


def test_what_an_answered_request_took_is_freed_although_its_client_stays(serve: Serve) -> None:
    class Call:
        """As the call in a thread, which has the result."""

        def withdraw(self) -> None: ...

    freed = threading.Event()

    async def answer() -> list[str]:
        return ["d1"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        call = Call()
        weakref.finalize(call, freed.set)
        connection.on_leave = call.withdraw
        return answer()

    with connect(serve(handler)) as stream:
        stream.sendall(request("get_all_databases"))
        assert read_messages(stream, 1)
        assert freed.wait(60)


def test_a_client_that_has_closed_its_sending_side_is_still_answered(
    serve: Serve,
) -> None:
    release = asyncio.Event()

    async def wait() -> list[str]:
        await release.wait()
        return ["d1"]

    running = serve(lambda *_: wait())
    with connect(running) as stream:
        stream.sendall(request("get_all_databases", 1) + request("get_all_databases", 2))
        stream.shutdown(socket.SHUT_WR)
        while not running.server.counters.requests:
            pass
        (connection,) = running.server._connections
        while not running.on_loop(lambda: connection._ended):
            pass
        running.on_loop(release.set)
        assert len(read_messages(stream, 2)) == 2
        assert stream.recv(1) == b""


def test_requests_that_wait_until_their_client_reads_are_answered_then(serve: Serve) -> None:
    result = HIVE_CODEC.encode_result("get_database", {"name": "x" * 60_000})
    answer, count = Answer(REPLY, result), 500
    running = serve(lambda *_: answer, settings=ServerSettings(max_pipelined_bytes=1_000))
    with connect(running) as stream:
        asked = request("get_database", name="d1") * (count // 2)
        stream.sendall(asked)
        while not running.server.counters.requests:
            pass
        (connection,) = running.server._connections
        while running.on_loop(lambda: connection._outgoing.writable):
            pass
        stream.sendall(asked)
        for _ in range(count):
            running.on_loop(bool)
        assert running.server.counters.requests < count
        assert len(read_messages(stream, count)) == count


def test_the_server_stops_reading_from_a_client_that_does_not_read(serve: Serve) -> None:
    big = HIVE_CODEC.encode_result("get_database", {"name": "x" * 1_000_000})
    limit = 64 * 1024

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return Answer(REPLY, big)

    running = serve(handler, settings=ServerSettings(max_pipelined_bytes=limit))
    asked = 1_000_000
    asking = request("get_database", name="d1")
    with connect(running) as stream:
        stream.settimeout(0.2)
        sent = 0
        try:
            while sent < asked:
                stream.sendall(asking * 1000)
                sent += 1000
        except TimeoutError:
            pass
        # Only a few requests were served, and most were not even read from the socket.
        statistics = running.on_loop(running.server.statistics)
        assert sent < asked
        assert statistics.requests < 100
        assert statistics.bytes_received < limit + 1024 * 1024
        stream.settimeout(60)
        head = decode_head(read_messages(stream, 1)[0])
        assert head.name == "get_database"


def test_an_idle_connection_is_closed_but_not_one_with_a_running_request(serve: Serve) -> None:
    release = asyncio.Event()

    async def wait() -> list[str]:
        await release.wait()
        return ["d1"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return wait()

    running = serve(handler)
    with connect(running) as busy, connect(running) as idle:
        busy.sendall(request("get_all_databases"))
        while not running.on_loop(running.server.statistics).running:
            pass
        running.server.settings = ServerSettings(idle_timeout=0.01)
        running.on_loop(running.server._watch_idle)
        assert read_to_end(idle) == b""
        running.on_loop(release.set)
        assert len(read_messages(busy, 1)) == 1
    assert running.server.statistics().idle_closed >= 1


def test_connections_above_the_maximum_are_refused(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(max_connections=1, turned_away_seconds=0.01)
    running = serve(toy, settings=settings)
    with running.client() as first:
        assert first.call("get_all_databases") == ["d1"]
        with connect(running) as second:
            assert read_to_end(second) == b""
        assert first.call("get_all_databases") == ["d1"]
    statistics = running.server.statistics()
    assert (statistics.accepted, statistics.refused) == (1, 1)
    assert "refused the connection" in caplog.text


def test_stopping_waits_for_a_running_request(serve: Serve) -> None:
    begun, release = threading.Event(), asyncio.Event()

    async def wait() -> list[str]:
        begun.set()
        await release.wait()
        return ["d1"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return wait()

    running = serve(handler)
    with connect(running) as stream, connect(running) as idle:
        stream.sendall(request("get_all_databases", 1) + request("get_all_databases", 2))
        assert begun.wait(60)
        stopping = asyncio.run_coroutine_threadsafe(running.server.stop(grace=60), running.loop)
        assert read_to_end(idle) == b""
        running.on_loop(release.set)
        stopping.result(60)
        # The first request is answered; the second was never started.
        answers = Scanner()
        answers.feed(read_to_end(stream))
    answer = answers.next_message()
    assert answer is not None
    assert decode_head(answer).sequence == 1
    assert answers.waiting == 0
    with pytest.raises(Unavailable, match="no metastore answers"):
        running.client()


def test_stopping_cancels_a_request_that_exceeds_the_grace_period(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()
    cancelled = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return wait()

    running = serve(handler)
    client = running.client()
    failed = []

    def ask() -> None:
        try:
            client.call("get_all_databases")
        except UnknownOutcome as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(60)
    running.stop(grace=0.05)
    asking.join(60)
    client.close()
    assert cancelled.is_set()
    assert len(failed) == 1
    assert "did not end within 0.05 s" in caplog.text


def test_statistics_count_connections_requests_exceptions_and_bytes(serve: Serve) -> None:
    running = serve(toy)
    with running.client() as client:
        client.call("get_all_databases")
        with pytest.raises(ApplicationException):
            client.call("get_all_functions")
        statistics = running.on_loop(running.server.statistics)
    assert (statistics.connections, statistics.accepted, statistics.requests) == (1, 1, 2)
    assert (statistics.exceptions, statistics.failures, statistics.running) == (1, 0, 0)
    assert statistics.bytes_received > 0
    assert statistics.bytes_sent > 0


def test_the_client_reports_a_lost_connection_and_a_port_that_nothing_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        client = ThriftClient("127.0.0.1", port, timeout=60)
        accepted, _ = listening.accept()
        accepted.close()
        with pytest.raises(UnknownOutcome, match="look whether it was done"):
            client.call("get_all_databases")
        client.close()
    with pytest.raises(Unavailable, match="no metastore answers"):
        ThriftClient("127.0.0.1", port)
