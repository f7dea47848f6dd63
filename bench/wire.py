"""The binary format: the cost of writing and reading a table's definition.

The reference of the rows that read is `json.loads` of the same content, in the same run. A series
of calls is timed as a whole, and the best of several series counts, because external disturbances
can only make a series slower.
"""

from __future__ import annotations

import json
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
from strandline.model.type_text import ddl_text
from strandline.wire import Stored, encode
from strandline.wire.stored import RECENT

COLUMNS = 50
CALLS = 25
RUNS = 150
TYPES = (t.INT, t.STRING, t.DOUBLE, t.TIMESTAMP, t.DecimalType(18, 2))

ENCODE_LIMIT = 150.0
FIRST_TOUCH_RATIO = 3.0
SEEN_BEFORE_RATIO = 0.05


def table() -> TableDescriptor:
    """Return a table with `COLUMNS` columns, every second one with a comment."""
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


def best_microseconds(*calls: tuple[Callable[[bytes], object], bytes]) -> list[float]:
    """Return the microseconds of one call of each function. Each call gets a new copy of its data.

    The functions take turns, so that a long disturbance of the machine affects all of them.
    """
    best = [float("inf")] * len(calls)
    for _ in range(RUNS):
        for number, (call, data) in enumerate(calls):
            copies = [bytes(bytearray(data)) for _ in range(CALLS)]
            began = time.perf_counter()
            for copy in copies:
                call(copy)
            best[number] = min(best[number], (time.perf_counter() - began) / CALLS)
    return [seconds * 1e6 for seconds in best]


def as_json(value: TableDescriptor) -> bytes:
    """Return the table as JSON: each field and each column by name, types as text."""

    def plain(item: object) -> object:
        return ddl_text(item) if isinstance(item, t.DataType) else str(item)

    fields = {name: getattr(value, name) for name in value.__slots__}
    columns = [asdict_of(column) for column in value.schema_versions[0].columns]
    fields["schema_versions"] = [{"number": 1, "columns": columns}]
    return json.dumps(fields, default=plain).encode()


def asdict_of(column: ColumnDescriptor) -> dict[str, object]:
    return {name: getattr(column, name) for name in column.__slots__}


def read(data: bytes) -> TableDescriptor:
    """Return the table in a record, as the catalog reads it."""
    return Stored(data, TableDescriptor, has_id=True).value


def read_first(data: bytes) -> TableDescriptor:
    """Return the same, without the cache of recent values."""
    RECENT.forget()
    return read(data)


@benchmark(group="wire", name="table of 50 columns", unit="µs", better="lower")
def table_of_50_columns() -> list[Measured]:
    """Encode, decode on first access, and decode bytes that were decoded before."""
    value = table()
    record, text = encode(value), as_json(value)
    by_json, written, first, again = best_microseconds(
        (json.loads, text), (lambda _: encode(value), record), (read_first, record), (read, record)
    )
    return [
        Measured(written, label="encode", target=ENCODE_LIMIT),
        Measured(
            first,
            reference=by_json,
            label="decode at first touch",
            target=FIRST_TOUCH_RATIO * by_json,
        ),
        Measured(
            again,
            reference=by_json,
            label="decode of bytes seen before",
            target=SEEN_BEFORE_RATIO * by_json,
        ),
    ]
