"""Hive's events for changes of column statistics, from the rows that a staging added and removed.

A row has the statistics of all columns of a table or partition. A comparison of the removed row
with the added one shows which columns were analyzed, or which lost their statistics. Hive has an
event for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.metastore.hive.partition_values import partition_values
from strandline.metastore.hive.statistics import described
from strandline.metastore.hive.statistics_values import decode_summary
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.store.rows import (
    TABLE_STATISTICS,
    AnalyzedColumn,
    PartitionRow,
    Row,
    RowKind,
    StatisticsRow,
    TableParametersRow,
)
from strandline.metastore.thrift.codec import HIVE_CODEC

_HOLDERS = (RowKind.PARTITION, RowKind.TABLE_PARAMETERS)
_STATISTICS = frozenset((RowKind.STATISTICS, *_HOLDERS))


class StatisticsEvent(NamedTuple):
    """The type and the message of an event. ``needs_table``: the message must show the table."""

    kind: str
    message: Struct
    needs_table: bool


def statistics_event(
    added: Sequence[Row],
    removed: Sequence[Row],
    *,
    schema: str,
    table: str,
    keys: Sequence[str],
) -> StatisticsEvent | None:
    """Return the event for these rows, or None if they changed something else.

    ``keys`` are the names of the partition keys.
    """
    rows = (*added, *removed)
    names = {row.name for row in rows if row.kind is not RowKind.TABLE_PARAMETERS}
    if len(names) != 1 or not {row.kind for row in rows} <= _STATISTICS:
        return None  # a partition that is renamed keeps its statistics
    partitions = [
        {row.name for row in changed if row.kind is RowKind.PARTITION}
        for changed in (added, removed)
    ]
    if partitions[0] != partitions[1]:
        return None  # so does one that is dropped and restored
    (name,) = names
    old, new = _columns(removed), _columns(added)
    part = None if name == TABLE_STATISTICS else name
    level = "TBL" if part is None else "PART"
    message: Struct = {"database": schema}
    analyzed = [column for key, column in new.items() if old.get(key) != column]
    if analyzed:
        structs = [decode_summary(column.summary) for column in analyzed]
        statistics = described(schema, table, analyzed, part=part, summaries=structs)
        message |= {
            "writeId": -1,
            "colStatsJson": HIVE_CODEC.to_json_text("ColumnStatistics", statistics),
            "parameters": _parameters(added),
        }
        if part is not None:
            message["partVals"] = partition_values(part, keys)
        return StatisticsEvent(f"UPDATE_{level}_COL_STAT_EVENT", message, needs_table=True)
    lost = {column.name for key, column in old.items() if key not in new}
    if not lost or any(row.kind is not RowKind.STATISTICS for row in rows):
        return None
    message["colName"] = lost.pop() if len(lost) == 1 else None  # None: several, or all
    if part is not None:
        message |= {"partName": part, "partValues": partition_values(part, keys)}
    return StatisticsEvent(f"DELETE_{level}_COL_STAT_EVENT", message, needs_table=False)


def _columns(rows: Sequence[Row]) -> dict[tuple[str, str], AnalyzedColumn]:
    return {
        (column.engine, column.name): column
        for row in rows
        if row.kind is RowKind.STATISTICS
        for column in row.as_(StatisticsRow).columns
    }


def _parameters(added: Sequence[Row]) -> dict[str, str]:
    """Return the parameters of the table or partition, if they were stored with the statistics."""
    for row in added:
        if row.kind is RowKind.PARTITION:
            return dict(row.as_(PartitionRow).parameters)
        if row.kind is RowKind.TABLE_PARAMETERS:
            return dict(row.as_(TableParametersRow).parameters)
    return {}
