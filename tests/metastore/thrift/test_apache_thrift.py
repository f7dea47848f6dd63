"""Our codec agrees with Apache Thrift's own library, used with the stubs that PyIceberg ships."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hive_metastore import ThriftHiveMetastore, ttypes
from hypothesis import HealthCheck, Phase, given, settings
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from strandline.metastore.thrift import HIVE_CODEC, HIVE_METASTORE
from tests.metastore.thrift.values import structs

NO_SHRINKING = (Phase.explicit, Phase.generate)
# Structs that only Hive 2.3 has; the stubs of Hive 4 do not define them.
ONLY_OLDER = {"Index", "IndexAlreadyExistsException"}
# Later releases of Hive 4 have structs and fields that the stubs do not define.
LATER = {
    "AlterDatabaseRequest",
    "AppendPartitionsRequest",
    "CreateDatabaseRequest",
    "DropPartitionRequest",
    "DropTableRequest",
    "GetPartitionsByFilterRequest",
}
LATER_FIELDS = {
    "AddPartitionsRequest",
    "AddPartitionsResult",
    "AlterPartitionsRequest",
    "AlterTableRequest",
    "FireEventRequest",
    "FireEventRequestData",
    "GetPartitionsPsWithAuthRequest",
    "NotificationEventRequest",
    "NotificationEventsCountRequest",
}
SHARED = [
    name
    for name, spec in HIVE_METASTORE.structs.items()
    if spec.kind not in {"args", "result"} and name not in ONLY_OLDER | LATER | LATER_FIELDS
]


def _stub(kind: Any, value: dict[str, Any], *, defaults: bool = False) -> Any:
    """The library's object for our fields; with ``defaults``, absent fields have their defaults."""
    return kind(
        **{
            name: _stub_value(wire, argument, value.get(name), defaults)
            for _, wire, name, argument, _ in filter(None, kind.thrift_spec)
            if not defaults or name in value
        }
    )


def _stub_value(wire: int, argument: Any, value: Any, defaults: bool) -> Any:
    if value is None:
        return None
    if wire == TType.STRUCT:
        return _stub(argument[0], value, defaults=defaults)
    if wire == TType.LIST:
        return [_stub_value(argument[0], argument[1], item, defaults) for item in value]
    if wire == TType.MAP:
        return {
            key: _stub_value(argument[2], argument[3], item, defaults)
            for key, item in value.items()
        }
    return value


def _fields(stub: Any) -> dict[str, Any]:
    """Our fields for the library's object."""
    return {
        entry[2]: _plain(getattr(stub, entry[2]))
        for entry in filter(None, stub.thrift_spec)
        if getattr(stub, entry[2]) is not None
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "thrift_spec"):
        return _fields(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _written(stub: Any, protocol: Any) -> bytes:
    buffer = TMemoryBuffer()
    stub.write(protocol(buffer))
    return bytes(buffer.getvalue())


@pytest.mark.parametrize("name", SHARED)
def test_our_codec_and_the_library_write_and_read_the_same_bytes(name: str) -> None:
    kind = getattr(ttypes, name)

    @settings(max_examples=4, phases=NO_SHRINKING, suppress_health_check=list(HealthCheck))
    @given(structs(HIVE_METASTORE, name, lists_as_keys=False))
    def agree(value: dict[str, Any]) -> None:
        theirs = _written(_stub(kind, value), TBinaryProtocol)
        ours = HIVE_CODEC.encode_struct(name, value)
        if any(field.is_sent_too for field in HIVE_METASTORE.structs[name].fields):
            read = kind()
            read.read(TBinaryProtocol(TMemoryBuffer(ours)))
            ours = _written(read, TBinaryProtocol)
        assert ours == theirs
        assert HIVE_CODEC.decode_struct(name, theirs) == value
        read = kind()
        # Exceptions are immutable in the library, and are read by a class method.
        read = read.read(TBinaryProtocol(TMemoryBuffer(theirs))) or read
        assert _fields(read) == _fields(_stub(kind, value, defaults=True))

    agree()


@pytest.mark.parametrize("name", ["Table", "Partition", "Database", "Function", "LockRequest"])
def test_our_codec_and_the_library_write_equal_json(name: str) -> None:
    kind = getattr(ttypes, name)

    @settings(max_examples=10, phases=NO_SHRINKING, suppress_health_check=list(HealthCheck))
    @given(structs(HIVE_METASTORE, name, lists_as_keys=False))
    def agree(value: dict[str, Any]) -> None:
        text = HIVE_CODEC.to_json_text(name, value)
        theirs = _written(_stub(kind, value), TJSONProtocol).decode()
        ours = json.loads(text)
        # The library does not escape some control characters, which `strict` refuses. It also pads
        # its base64, which Hive does not: the generated binaries have three bytes, so that there
        # is no padding.
        assert ours == json.loads(theirs, strict=False)

    agree()


def test_the_json_text_of_a_table_is_identical_to_the_librarys() -> None:
    table = {
        "tableName": "t",
        "createTime": 3,
        "sd": {
            "cols": [{"name": "a", "type": "int"}],
            "compressed": False,
            "parameters": {},
            "skewedInfo": {"skewedColValues": [["x"], []]},
        },
        "partitionKeys": [],
        "parameters": {"b": 'quote " and \\ and \n', "ä": "ö"},
        "temporary": True,
        "writeId": -1,
    }
    theirs = _written(_stub(ttypes.Table, table), TJSONProtocol).decode()
    assert HIVE_CODEC.to_json_text("Table", table) == theirs


@pytest.mark.parametrize("method", sorted(HIVE_METASTORE.methods))
def test_arguments_and_results_have_the_field_ids_and_types_of_the_stubs(method: str) -> None:
    spec = HIVE_METASTORE.methods[method]
    for part in (spec.args, spec.result):
        stub = getattr(ThriftHiveMetastore, part.name, None)
        if stub is None:
            continue  # a method that Hive 4 no longer has, or one of the base service
        theirs = {entry[0]: entry[1] for entry in stub.thrift_spec if entry is not None}
        ours = {field.id: field.type.wire for field in part.fields}
        if part.kind == "result":  # Hive 2.3 declares more exceptions here and there
            ours = {number: wire for number, wire in ours.items() if number in theirs}
        assert ours == theirs
