"""The codec: bytes written by hand, round trips, and malformed bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hive_metastore.ttypes import GetOpenTxnsResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TMemoryBuffer

from strandline.errors import InvalidInput, ProtocolError
from strandline.metastore.thrift import (
    HIVE_CODEC,
    HIVE_METASTORE,
    ApplicationException,
    Codec,
    ThriftException,
    load_field_table,
    request_key,
)
from strandline.metastore.thrift.compiler import MAX_DEPTH, Compiler
from strandline.metastore.thrift.messages import CALL, REPLY, decode_head, encode_message
from tests.metastore.thrift.test_apache_thrift import SHARED
from tests.metastore.thrift.values import structs
from tests.servers.thrift_client import MISSING_RESULT, decode_application_exception, decode_result

EVERY_TYPE = Codec(
    load_field_table(
        """
struct Point = 1:x! i32, 2:y? i32
struct All = 1:flag bool, 2:tiny i8, 3:small i16, 4:medium i32, 5:large i64, 6:real double,
    7:text string, 8:raw binary, 9:point Point, 10:points list<Point>, 11:ids set<i64>,
    12:names map<string,string>, 13:places map<list<string>,string>, 14:rows list<list<i16>>,
    15:flags list<bool>
"""
    )
)

# (fields, the bytes of the struct): type, field id, value; 00 ends the struct.
GOLDEN: list[tuple[dict[str, Any], str]] = [
    ({}, "00"),
    ({"flag": True}, "02 0001 01 00"),
    ({"flag": False}, "02 0001 00 00"),
    ({"tiny": -2}, "03 0002 fe 00"),
    ({"small": -1}, "06 0003 ffff 00"),
    ({"medium": 258}, "08 0004 00000102 00"),
    ({"large": -(1 << 63)}, "0a 0005 8000000000000000 00"),
    ({"real": 1.0}, "04 0006 3ff0000000000000 00"),
    ({"real": -math.inf}, "04 0006 fff0000000000000 00"),
    ({"text": "ä"}, "0b 0007 00000002 c3a4 00"),
    ({"raw": b"\xff"}, "0b 0008 00000001 ff 00"),
    ({"point": {"x": 1}}, "0c 0009 08 0001 00000001 00 00"),
    ({"points": [{"x": 1}]}, "0f 000a 0c 00000001 08 0001 00000001 00 00"),
    ({"points": []}, "0f 000a 0c 00000000 00"),
    ({"ids": {7}}, "0e 000b 0a 00000001 0000000000000007 00"),
    ({"names": {"a": "b"}}, "0d 000c 0b 0b 00000001 00000001 61 00000001 62 00"),
    (
        {"places": {("a",): "b"}},
        "0d 000d 0f 0b 00000001 0b 00000001 00000001 61 00000001 62 00",
    ),
    ({"rows": [[1], []]}, "0f 000e 0f 00000002 06 00000001 0001 06 00000000 00"),
    ({"flags": [True, False]}, "0f 000f 02 00000002 01 00 00"),
    ({"flag": True, "text": "x"}, "02 0001 01 0b 0007 00000001 78 00"),
]


@pytest.mark.parametrize(("fields", "text"), GOLDEN)
def test_every_type_has_the_layout_of_the_protocol(fields: dict[str, Any], text: str) -> None:
    data = bytes.fromhex(text)
    assert EVERY_TYPE.encode_struct("All", fields) == data
    assert EVERY_TYPE.decode_struct("All", data) == fields


def test_a_get_database_request_has_the_bytes_that_hive_sends() -> None:
    golden = bytes.fromhex(
        "80010001 0000000c 6765745f6461746162617365 00000000 0b0001 00000002 6431 00"
    )
    body = HIVE_CODEC.encode_args("get_database", {"name": "d1"})
    assert encode_message(CALL, "get_database", 0, body) == golden
    head = decode_head(golden)
    assert (head.kind, head.name, head.sequence) == (CALL, "get_database", 0)
    assert HIVE_CODEC.decode_args("get_database", golden, at=head.body) == {"name": "d1"}


def test_a_result_is_field_0_and_an_exception_is_the_field_that_declares_it() -> None:
    result = bytes.fromhex("0c0000 0b0001 00000002 6431 00 00")
    assert HIVE_CODEC.encode_result("get_database", {"name": "d1"}) == result
    assert decode_result("get_database", result) == {"name": "d1"}

    missing = ThriftException("NoSuchObjectException", {"message": "d1"})
    thrown = bytes.fromhex("0c0001 0b0001 00000002 6431 00 00")
    assert HIVE_CODEC.encode_exception("get_database", missing) == thrown
    with pytest.raises(ThriftException, match="NoSuchObjectException: d1") as caught:
        decode_result("get_database", thrown)
    assert caught.value.value == {"message": "d1"}


def test_an_exception_that_the_method_does_not_declare_cannot_be_encoded() -> None:
    undeclared = ThriftException("AlreadyExistsException", {"message": "d1"})
    assert HIVE_CODEC.encode_exception("get_database", undeclared) is None


def test_a_void_method_answers_with_an_empty_struct() -> None:
    assert HIVE_CODEC.encode_result("drop_table", None) == b"\0"
    assert decode_result("drop_table", b"\0") is None
    with pytest.raises(InvalidInput, match="drop_table returns nothing, not int"):
        HIVE_CODEC.encode_result("drop_table", 1)


def test_a_method_that_is_not_void_must_return_a_value() -> None:
    with pytest.raises(InvalidInput, match="get_database must return a Database, not None"):
        HIVE_CODEC.encode_result("get_database", None)
    with pytest.raises(ApplicationException, match="no result") as caught:
        decode_result("get_database", b"\0")
    assert caught.value.kind == MISSING_RESULT


def test_an_application_exception_encodes_its_message_and_its_kind() -> None:
    error = ApplicationException.unknown_method("x")
    golden = bytes.fromhex("0b0001 00000018") + b"Invalid method name: 'x'"
    golden += bytes.fromhex("080002 00000001 00")
    assert error.encode() == golden
    decoded = decode_application_exception(golden)
    assert (decoded.kind, decoded.message) == (1, "Invalid method name: 'x'")


def test_requests_that_differ_only_in_their_sequence_id_have_the_same_key() -> None:
    def request(name: str, sequence: int) -> bytes:
        body = HIVE_CODEC.encode_args("get_database", {"name": name})
        return encode_message(CALL, "get_database", sequence, body)

    assert request_key(request("d1", 1)) == request_key(request("d1", -77))
    assert request_key(request("d1", 1)) != request_key(request("d2", 1))


OTHERS = [
    name
    for name, spec in HIVE_METASTORE.structs.items()
    if spec.kind != "result" and (name not in SHARED or name == "SkewedInfo")
]
"""For the other structs, `test_apache_thrift` compares the bytes with those of the library, in both
directions, except for maps whose keys are lists."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_struct_survives_a_round_trip(name: str) -> None:
    @settings(max_examples=5, suppress_health_check=list(HealthCheck))
    @given(structs(HIVE_METASTORE, name))
    def comes_back(value: dict[str, Any]) -> None:
        data = HIVE_CODEC.encode_struct(name, value)
        assert HIVE_CODEC.decode_struct(name, data) == value

    comes_back()


@given(st.data())
def test_field_order_and_unknown_fields_do_not_change_the_decoded_value(
    data: st.DataObject,
) -> None:
    value = data.draw(structs(EVERY_TYPE.table, "All"))
    pieces = [EVERY_TYPE.encode_struct("All", {name: value[name]})[:-1] for name in value]
    pieces += [bytes.fromhex(text) for text in UNKNOWN]
    shuffled = data.draw(st.permutations(pieces))
    assert EVERY_TYPE.decode_struct("All", b"".join(shuffled) + b"\0") == value


UNKNOWN = [
    "02 0100 01",
    "0b 0100 00000003 616263",
    "0c 0100 08 0001 00000001 0b 0002 00000000 00",
    "0f 0100 0b 00000002 00000000 00000001 61",
    "0f 0100 08 00000002 00000001 00000002",
    "0d 0100 0b 0c 00000001 00000001 61 02 0001 01 00",
    "0e 0100 0f 00000001 0a 00000001 0000000000000001",
    "10 0100 00112233445566778899aabbccddeeff",
    # Known field ids with other types are read as if the fields were absent.
    "0b 0001 00000000",
    "08 0007 00000001",
    "0f 000a 08 00000001 00000001",
    "0d 000c 08 0b 00000001 00000001 00000000",
    "0e 000b 0b 00000001 00000001 61",
]


def test_a_prepared_struct_generates_no_code_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = Codec(HIVE_METASTORE)
    codec.prepare("Database")
    monkeypatch.setattr(Compiler, "_execute", lambda *_: pytest.fail("generated late"))
    database = {"name": "shop", "parameters": {"a": "b"}}
    assert codec.decode_struct("Database", codec.encode_struct("Database", database)) == database


class WatchedLock:
    """A lock that counts the threads that come, and keeps what each leaves in ``names``."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.came = threading.Semaphore(0)
        self.left: list[dict[str, Any]] = []
        self._names = names
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.left.append(dict(self._names))
        self._lock.release()


@pytest.mark.parametrize(
    ("use", "part"),
    [
        (lambda codec: codec.encode_struct("Point", {"x": 1}), "_compiler"),
        (
            lambda codec: codec.decode_struct("Point", bytes.fromhex("08000100000001 00")),
            "_compiler",
        ),
        (lambda codec: codec.to_json_text("Point", {"x": 1}), "_writers"),
    ],
    ids=["encode", "decode", "json"],
)
def test_threads_that_first_use_a_struct_at_once_generate_its_code_once(
    use: Callable[[Codec], object], part: str
) -> None:
    codec = Codec(EVERY_TYPE.table)
    generator = getattr(codec, part)
    lock = generator._lock = WatchedLock(generator._names)
    with ThreadPoolExecutor(2) as threads:
        with lock:
            lock.came.acquire()
            uses = [threads.submit(use, codec) for _ in range(2)]
            for _ in uses:
                lock.came.acquire()  # both have found that there is no function yet
        for each in uses:
            each.result()
    _, first, second = lock.left
    assert first == second


def test_an_empty_container_may_declare_any_element_type() -> None:
    data = bytes.fromhex("0f 000a 00 00000000 0d 000c 00 00 00000000 00")
    assert EVERY_TYPE.decode_struct("All", data) == {"points": [], "names": {}}


def test_invalid_utf_8_is_decoded_as_replacement_characters() -> None:
    data = bytes.fromhex("0b 0007 00000003 61ff62 00")
    assert EVERY_TYPE.decode_struct("All", data) == {"text": "a\ufffdb"}


def test_none_means_absent_and_bytes_are_taken_as_an_encoded_struct() -> None:
    point = EVERY_TYPE.encode_struct("Point", {"x": 3, "y": None})
    assert point == EVERY_TYPE.encode_struct("Point", {"x": 3})
    kept = EVERY_TYPE.encode_struct("All", {"point": point, "points": [point, {"x": 4}]})
    assert EVERY_TYPE.decode_struct("All", kept) == {
        "point": {"x": 3},
        "points": [{"x": 3}, {"x": 4}],
    }
    assert EVERY_TYPE.encode_struct("All", kept) == kept


def test_the_catalog_of_a_table_is_read_from_field_16_of_hive_2_3_and_17_of_hive_4() -> None:
    old = bytes.fromhex("0b 0010 00000004 68697665 00")
    new = bytes.fromhex("0b 0011 00000004 68697665 00")
    assert HIVE_CODEC.decode_struct("Table", old) == {"catName": "hive"}
    assert HIVE_CODEC.decode_struct("Table", new) == {"catName": "hive"}
    assert HIVE_CODEC.encode_struct("Table", {"catName": "hive"}) == new


def test_the_type_of_field_2_selects_the_layout_of_dynamic_partitions() -> None:
    strings = "{} 00000001 64 {} 00000001 74 {} 0b 00000001 00000001 70 00"
    old = bytes.fromhex("0a0001 0000000000000005 " + strings.format("0b0002", "0b0003", "0f0004"))
    new = bytes.fromhex(
        "0a0001 0000000000000005 0a0002 0000000000000009 "
        + strings.format("0b0003", "0b0004", "0f0005")
    )
    common = {"txnid": 5, "dbname": "d", "tablename": "t", "partitionnames": ["p"]}
    assert HIVE_CODEC.decode_struct("AddDynamicPartitions", old) == common
    assert HIVE_CODEC.decode_struct("AddDynamicPartitions", new) == {**common, "writeid": 9}


def test_the_type_of_field_1_selects_the_layout_of_an_insert_event() -> None:
    files = "0f{} 0b 00000001 00000001 66"
    old = bytes.fromhex(files.format("0001") + "0f0002 0b 00000001 00000001 63 00")
    new = bytes.fromhex("020001 01" + files.format("0002") + "00")
    assert HIVE_CODEC.decode_struct("InsertEventRequestData", old) == {
        "filesAdded": ["f"],
        "filesAddedChecksum": ["c"],
    }
    assert HIVE_CODEC.decode_struct("InsertEventRequestData", new) == {
        "replace": True,
        "filesAdded": ["f"],
    }


def test_open_transactions_are_sent_as_the_set_of_hive_2_3_and_as_the_list_of_hive_4() -> None:
    """A reader skips a field that has another type than it expects, and reads the next one."""
    ids = "0a 00000001 0000000000000007"
    head = "0a0001 0000000000000009"
    tail = "0b0004 00000000 00"
    for kind, txns in (("0e", {7}), ("0f", [7])):
        data = bytes.fromhex(f"{head} {kind}0002 {ids} {tail}")
        fields = {"txn_high_water_mark": 9, "open_txns": txns, "abortedBits": b""}
        assert HIVE_CODEC.decode_struct("GetOpenTxnsResponse", data) == fields
        sent = HIVE_CODEC.encode_struct("GetOpenTxnsResponse", fields)
        assert sent == bytes.fromhex(f"{head} 0e0002 {ids} 0f0002 {ids} {tail}")
    assert HIVE_CODEC.decode_struct("GetOpenTxnsResponse", sent) == fields
    read_by_hive_4 = GetOpenTxnsResponse()
    read_by_hive_4.read(TBinaryProtocol(TMemoryBuffer(sent)))
    assert read_by_hive_4 == GetOpenTxnsResponse(9, [7], None, b"")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"medium": 1 << 31}, r"All\.medium: expected i32, found int 2147483648"),
        ({"text": b"x"}, r"All\.text: expected string, found bytes"),
        ({"text": "\ud800"}, r"All\.text: expected string"),
        ({"raw": "x"}, r"All\.raw: expected binary, found str 'x'"),
        ({"points": "abc"}, r"All\.points: expected a list<Point>, found str"),
        ({"points": [{"x": 1}, {"x": "1"}]}, r"All\.points\[1\]\.x: expected i32, found str '1'"),
        ({"point": {}}, r"All\.point: the required field x is missing"),
        ({"pint": 1}, r"All: All has no field 'pint'; it has flag"),
        ({"names": {"a": None}}, r"All\.names\['a'\]: expected string, found NoneType"),
        ({"names": [1]}, r"All\.names: expected a map<string,string>"),
        ({"real": "1"}, r"All\.real: expected double"),
        (7, "expected the fields of a All, found int 7"),
    ],
)
def test_an_invalid_value_is_refused_and_the_error_names_its_path(fields: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        EVERY_TYPE.encode_struct("All", fields)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "end before it does"),
        ("08 0004 000001", "end before it does"),
        ("0b 0007 00000005 61 00", "end before it does"),
        ("0b 0007 ffffffff 61 00", "end before it does"),
        ("0f 000a 0c 7fffffff 00", "required field x"),
        ("0f 000e 0f 00000001 06 ffffffff 00", "end before it does"),
        ("0c 0009 02 0002 00 00 00", "Point lacks its required field x"),
        ("00 00", "1 bytes follow the end of a All"),
        ("07 0100 00", "unknown type 7"),
        ("0f 000e 0f 00000001 08 00000001 00000001 00", "inside a container is of another type"),
    ],
)
def test_malformed_bytes_raise_protocol_error(text: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        EVERY_TYPE.decode_struct("All", bytes.fromhex(text))


def test_unknown_fields_nested_deeper_than_the_limit_are_refused() -> None:
    def nested(depth: int) -> bytes:
        return bytes.fromhex("0c0100") * depth + bytes(depth) + b"\0"

    assert EVERY_TYPE.decode_struct("All", nested(MAX_DEPTH)) == {}
    with pytest.raises(ProtocolError, match="deeper than 64"):
        EVERY_TYPE.decode_struct("All", nested(MAX_DEPTH + 1))


@given(st.data())
def test_damaged_bytes_either_decode_or_raise_protocol_error(data: st.DataObject) -> None:
    value = data.draw(structs(EVERY_TYPE.table, "All"))
    whole = bytearray(EVERY_TYPE.encode_struct("All", value))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = whole[: cut or None]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    outcome = decoded(lambda: EVERY_TYPE.decode_struct("All", bytes(damaged)))
    assert not isinstance(outcome, ProtocolError) or bytes(damaged) != bytes(whole)


def decoded(decode: Callable[[], dict[str, Any]]) -> dict[str, Any] | ProtocolError:
    try:
        return decode()
    except ProtocolError as error:
        return error


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes.fromhex("80010001 00000001"),
        bytes.fromhex("00000001 61 00000000 0000000000000000"),
        bytes.fromhex("80010001 ffffffff 00000000 00000000"),
    ],
)
def test_an_invalid_message_head_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_head(message)


def test_a_negative_sequence_id_is_kept() -> None:
    assert decode_head(encode_message(REPLY, "m", -5, b"\0")).sequence == -5
