"""The format of the partition values of a data file, as one byte string.

Each value is the field's id (``UINT``), a kind (one byte) and its content. The kinds are 0 NULL, 1
false, 2 true (all without content); 3 a number (``BYTES``: its shortest two's complement, high byte
first), 4 a text (``TEXT``), 5 bytes (``BYTES``). A file of an unpartitioned table has no bytes.
Equal values always have equal bytes, so the bytes may be compared and sent in place of the values.
"""

from __future__ import annotations

from strandline.errors import InvalidInput
from strandline.model.partitioning import Partition, PartitionValue, Physical, shortest_bytes
from strandline.wire.codecs import BYTES, TEXT, Codec, Reader, write_uint

_NULL, _FALSE, _TRUE, _NUMBER, _STRING, _BINARY = range(6)


def encode_partition(partition: Partition) -> bytes:
    """Return a partition's values as bytes.

    Raises `InvalidInput` for text that is not valid Unicode and for values of other types.
    """
    out = bytearray()
    for value in partition:
        write_uint(out, value.field_id)
        _write_value(out, value.value)
    return bytes(out)


def decode_partition(data: bytes) -> Partition:
    """Return the values that `encode_partition` wrote. Raises `CorruptData` for other bytes."""
    reader = Reader(data)
    values = []
    while reader.position < reader.end:
        values.append(PartitionValue(reader.uint(), _read_value(reader)))
    return tuple(values)


def _write_value(out: bytearray, value: Physical | None) -> None:
    match value:
        case None:
            out.append(_NULL)
        case bool():
            out.append(_TRUE if value else _FALSE)
        case int():
            out.append(_NUMBER)
            BYTES.write(out, shortest_bytes(value))
        case str():
            out.append(_STRING)
            TEXT.write(out, value)
        case bytes():
            out.append(_BINARY)
            BYTES.write(out, value)
        case _:
            raise InvalidInput(
                f"{value!r:.80} is not a valid partition value: give a bool, int, str, bytes or "
                "None"
            )


def _read_value(reader: Reader) -> Physical | None:
    kind = reader.take(1)[0]
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind == _NUMBER:
        data = BYTES.read(reader)
        number = int.from_bytes(data, "big", signed=True)
        if data != shortest_bytes(number):
            raise reader.corrupt("a number that is not in its shortest form")
        return number
    if kind == _STRING:
        return TEXT.read(reader)
    if kind == _BINARY:
        return BYTES.read(reader)
    raise reader.corrupt(f"partition value of the unknown kind {kind}")


_CONSTANTS: dict[int, bool | None] = {_NULL: None, _FALSE: False, _TRUE: True}

PARTITION: Codec[Partition] = Codec(
    lambda out, value: BYTES.write(out, encode_partition(value)),
    lambda reader: decode_partition(BYTES.read(reader)),
)
"""Partition values, prefixed with the number of their bytes."""
