"""The binary format: what it costs to write a table's definition and to read it again.

A run of calls is timed as one, and the best of several runs counts: what disturbs a run from
outside only ever adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.registry import Measured, benchmark
from strandline.model import types as t
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaVersion,
    TableDescriptor,
    TableKind,
    properties,
)
from strandline.wire import Stored, encode
from strandline.wire.stored import RECENT

COLUMNS = 50
CALLS = 25
RUNS = 150
TYPES = (t.INT, t.STRING, t.DOUBLE, t.TIMESTAMP, t.DecimalType(18, 2))

ENCODE_LIMIT = 150.0
FIRST_TOUCH_LIMIT = 250.0
SEEN_BEFORE_LIMIT = 3.0


def table() -> TableDescriptor:
    """A table of `COLUMNS` columns, every second one with a comment."""
    columns = tuple(
        ColumnDescriptor(
            number + 1,
            f"column_{number}",
            TYPES[number % len(TYPES)],
            nullable=number % 3 > 0,
            comment=f"what stands in column {number}" if number % 2 else None,
        )
        for number in range(COLUMNS)
    )
    return TableDescriptor(
        id=7,
        schema_id=5,
        name="orders",
        owner="bench",
        kind=TableKind.MANAGED,
        transactional=True,
        provider="parquet",
        schema_versions=(SchemaVersion(1, columns),),
        next_column_id=COLUMNS + 1,
        zone_id=3,
        properties=properties({"department": "sales", "source": "bench"}),
        created=1_700_000_000,
    )


def best_microseconds(call: Callable[[bytes], object], data: bytes) -> float:
    """Microseconds of one ``call`` on bytes equal to ``data`` that no call has had before."""
    found = []
    for _ in range(RUNS):
        copies = [bytes(bytearray(data)) for _ in range(CALLS)]
        began = time.perf_counter()
        for copy in copies:
            call(copy)
        found.append((time.perf_counter() - began) / CALLS)
    return min(found) * 1e6


def read(data: bytes) -> TableDescriptor:
    """The table in a record, as the catalog reads it."""
    return Stored(data, TableDescriptor, has_id=True).value


def read_first(data: bytes) -> TableDescriptor:
    """The same, of bytes that were never seen."""
    RECENT.forget()
    return read(data)


@benchmark(group="wire", name="table of 50 columns", unit="µs", better="lower")
def table_of_50_columns() -> list[Measured]:
    """Encode, decode at the first touch, decode of bytes that were decoded before."""
    value = table()
    record = encode(value)
    return [
        Measured(
            best_microseconds(lambda _: encode(value), record),
            label="encode",
            target=ENCODE_LIMIT,
        ),
        Measured(
            best_microseconds(read_first, record),
            label="decode at first touch",
            target=FIRST_TOUCH_LIMIT,
        ),
        Measured(
            best_microseconds(read, record),
            label="decode of bytes seen before",
            target=SEEN_BEFORE_LIMIT,
        ),
    ]
