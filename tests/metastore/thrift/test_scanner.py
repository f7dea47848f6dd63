"""The scanner finds the same message boundaries however the bytes arrive, and scans them once."""

from __future__ import annotations

import struct

import pytest

from strandline.errors import ProtocolError
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift import scanner as scanner_module
from strandline.metastore.thrift.messages import CALL, encode_message
from strandline.metastore.thrift.scanner import Scanner

TABLE = {
    "tableName": "t",
    "dbName": "d",
    "createTime": 1,
    "sd": {
        "cols": [{"name": "a", "type": "int"}, {"name": "b", "type": "string", "comment": ""}],
        "compressed": False,
        "skewedInfo": {
            "skewedColNames": ["a"],
            "skewedColValues": [["1"], []],
            "skewedColValueLocationMaps": {("1",): "x", (): "y"},
        },
    },
    "partitionKeys": [],
    "parameters": {"k": "v", "": ""},
    "colStats": {
        "statsDesc": {"isTblLevel": True, "dbName": "d", "tableName": "t"},
        "statsObj": [
            {
                "colName": "a",
                "colType": "double",
                "statsData": {"doubleStats": {"lowValue": 0.5, "numNulls": 0, "numDVs": 1}},
            }
        ],
    },
}


def _messages() -> list[bytes]:
    # Unknown fields: a map with i64 keys, a set of i64, and a map and a list of one-byte values.
    unknown = bytes.fromhex(
        "0d0100 0a 0b 00000002 0000000000000001 00000001 61 0000000000000002 00000000"
        "0e0101 0a 00000002 0000000000000001 0000000000000002"
        "0d0102 02 03 00000001 01 05"
        "0f0103 02 00000003 010001 00"
    )
    return [
        encode_message(
            CALL, "create_table", 1, HIVE_CODEC.encode_args("create_table", {"tbl": TABLE})
        ),
        encode_message(CALL, "get_all_databases", 2, b"\0"),
        encode_message(CALL, "unknown", 3, unknown),
    ]


def _read_all(scanner: Scanner) -> list[bytes]:
    messages = []
    while (message := scanner.next_message()) is not None:
        messages.append(message)
    return messages


def test_every_split_of_the_stream_gives_the_same_messages() -> None:
    messages = _messages()
    stream = b"".join(messages)
    for cut in range(len(stream) + 1):
        scanner = Scanner()
        scanner.feed(stream[:cut])
        first = _read_all(scanner)
        scanner.feed(stream[cut:])
        assert first + _read_all(scanner) == messages
        assert scanner.waiting == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_pieces_of_any_size_give_the_same_messages(size: int) -> None:
    messages = _messages() * 3
    stream = b"".join(messages)
    scanner = Scanner()
    received = []
    for at in range(0, len(stream), size):
        scanner.feed(stream[at : at + size])
        received += _read_all(scanner)
    assert received == messages


def test_messages_are_buffered_until_they_are_taken() -> None:
    messages = _messages() * 2
    scanner = Scanner()
    for message in messages:
        scanner.feed(message[:5])
        scanner.feed(message[5:])
    assert _read_all(scanner) == messages


def test_a_message_in_many_pieces_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x" * 50] * 2000
    body = HIVE_CODEC.encode_args("get_partitions_by_names", {"names": names})
    message = encode_message(CALL, "get_partitions_by_names", 1, body)
    walked = 0
    plain = scanner_module._size_at

    def counted(data: bytes, at: int) -> tuple[int]:
        nonlocal walked
        walked += 1
        return plain(data, at)

    monkeypatch.setattr(scanner_module, "_size_at", counted)
    scanner = Scanner()
    for at in range(0, len(message), 100):
        scanner.feed(message[at : at + 100])
        received = scanner.next_message()
    assert received == message
    pieces = len(message) // 100
    # The size of each string is read once, and so are the sizes of the method name and the list.
    assert walked <= len(names) + 3
    assert pieces > 1000


def test_a_message_of_50_mb_in_pieces_of_64_kb_is_returned_whole() -> None:
    body = HIVE_CODEC.encode_args("get_partitions_by_names", {"names": ["x" * 500_000] * 100})
    message = encode_message(CALL, "get_partitions_by_names", 1, body)
    assert len(message) > 50_000_000
    scanner = Scanner()
    view = memoryview(message)
    received = None
    for at in range(0, len(message), 65536):
        assert received is None
        scanner.feed(bytes(view[at : at + 65536]))
        received = scanner.next_message()
    assert received == message


def _head(name: str = "m") -> bytes:
    return encode_message(CALL, name, 9, b"")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("0b0001 ffffffff", "1000 are allowed"),
        ("0b0001 000003e9", "1000 are allowed"),
        ("0f0001 0b ffffffff", "1000 are allowed"),
        ("0f0001 0c 000003e9", "1000 are allowed"),
        ("0d0001 0b0b 00000100", "1000 are allowed"),
        ("0f0001 0b 00000001 7fffffff", "1000 are allowed"),
        ("0f0001 02 00000065", "holds more than 100 values"),
        ("0f0001 02 00000033 " + "00" * 51 + "0f0002 02 00000033", "holds more than 100 values"),
        ("070001", "unknown type 7"),
        ("0f0001 07 00000001", r"unknown types \[7\]"),
        ("0c0001" * 65, "deeper than 64"),
    ],
)
def test_an_invalid_message_is_refused_before_it_is_complete(body: str, reason: str) -> None:
    scanner = Scanner(max_message_bytes=1000, max_values=100)
    scanner.feed(_head() + bytes.fromhex(body))
    with pytest.raises(ProtocolError, match=reason):
        scanner.next_message()
    assert scanner.broken() == ("m", (9).to_bytes(4, "big"))


def test_the_size_limit_applies_to_a_message_of_many_small_fields() -> None:
    scanner = Scanner(max_message_bytes=1000)
    scanner.feed(_head() + struct.pack(">bhi", 8, 1, 1) * 200)
    with pytest.raises(ProtocolError, match="1000 are allowed"):
        scanner.next_message()


def test_a_method_name_that_is_too_long_is_refused_and_leaves_no_head_to_answer() -> None:
    scanner = Scanner()
    scanner.feed(bytes.fromhex("80010001 00000401"))
    with pytest.raises(ProtocolError, match="1024 are allowed"):
        scanner.next_message()
    assert scanner.broken() is None


def test_a_second_message_without_a_valid_head_is_refused() -> None:
    scanner = Scanner()
    scanner.feed(_head() + b"\0" + b"GET / HTTP/1.1")
    assert scanner.next_message() == _head() + b"\0"
    with pytest.raises(ProtocolError, match="does not begin with 80 01"):
        scanner.next_message()
