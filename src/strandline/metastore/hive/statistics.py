"""Methods that read the column statistics of plain tables and their partitions.

A table or partition has one row of statistics in the object store, with those of all columns. So
statistics can be read as of a time, follow a rename, and are dropped and restored with the object
that they describe. They are valid for the column as it was when they were stored: a column with
another name or type has none, and if the change of the column is undone it has them again.

Views have no statistics. Nor have transactional tables, which clients see as views.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from strandline import work
from strandline.catalog import DEFAULT_DATABASE, Relation
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.hive_reader import Scope
from strandline.metastore.hive.partition_values import partition_name, partition_values
from strandline.metastore.hive.registry import Call, reads
from strandline.metastore.hive.statistics_totals import StatisticsTotal
from strandline.metastore.hive.statistics_values import (
    COLUMNS_PER_UNIT,
    AnalyzableColumns,
    decode_summary,
    form_of,
)
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.table_structs import partition_columns_of
from strandline.metastore.off_loop import off_loop_for
from strandline.metastore.store.rows import TABLE_STATISTICS, AnalyzedColumn, RowKind
from strandline.model.descriptors import TableDescriptor

DEFAULT_ENGINE = "hive"
"""The engine whose statistics are meant if a request names none."""


def stored_name(name: str, keys: Sequence[str]) -> str:
    """The stored name of a partition. Raises `InvalidInput`; ``MetaException`` if it is empty."""
    return partition_name(keys, partition_values(name, keys))


class _Statistics:
    """The statistics that a request reads: of some columns of one table, by one engine."""

    def __init__(self, call: Call, scope: Scope, relation: Relation, columns: list[str]) -> None:
        self._call = call
        self._scope = scope
        self._engine = call.args.get("engine") or DEFAULT_ENGINE
        self._table: TableDescriptor | None = None
        if isinstance(relation, TableDescriptor) and not relation.transactional:
            self._table = relation
        self.columns = list(dict.fromkeys(name.lower() for name in columns))
        self._order = {name: index for index, name in enumerate(self.columns)}

    async def of_table(self) -> list[AnalyzedColumn]:
        by_name = await self.of_stored([TABLE_STATISTICS])
        return by_name.get(TABLE_STATISTICS, [])

    async def of_partitions(self, names: Collection[str]) -> dict[str, list[AnalyzedColumn]]:
        """Return the statistics of the columns in each of these partitions that has any."""
        return await self.of_stored(await self.stored_names(names))

    async def stored_names(self, names: Collection[str]) -> list[str]:
        """Return the names of partitions as they are stored, each once, without invalid names."""
        await off_loop_for(len(names))
        work.spend(len(names))
        if self._table is None:
            return []
        keys = [key.name for key in partition_columns_of(self._table)]
        stored_names: dict[str, None] = {}
        for name in names:
            if name:
                with suppress(InvalidInput):
                    stored_names[stored_name(name, keys)] = None
        return list(stored_names)

    async def of_stored(self, names: Collection[str]) -> dict[str, list[AnalyzedColumn]]:
        """Like `of_partitions`, by names as they are stored."""
        if self._table is None or not names or not self.columns:
            return {}
        columns = AnalyzableColumns(self._table)
        rows = await self._call.reader.rows(
            self._scope.point, self._table, RowKind.STATISTICS, names
        )
        by_name = {row.name: self._picked(columns.valid(row)) for row in rows}
        return {name: picked for name, picked in by_name.items() if picked}

    def _picked(self, columns: Sequence[AnalyzedColumn]) -> list[AnalyzedColumn]:
        # Not a loop over the requested columns: a client may name any number of them.
        order = self._order
        picked = [c for c in columns if c.engine == self._engine and c.name in order]
        return sorted(picked, key=lambda column: order[column.name])


async def _statistics(call: Call) -> _Statistics:
    """The statistics of the columns that the arguments name. Raises `ObjectNotFound`."""
    names = call.text("db_name"), call.text("tbl_name")
    return _Statistics(call, *await call.reader.relation(*names), call.texts("colNames"))


def _summaries(columns: Sequence[AnalyzedColumn]) -> list[bytes]:
    """Return structs that are already encoded."""
    return [column.summary for column in columns]


@reads("get_table_statistics_req")
async def get_table_statistics_req(call: Call) -> Struct:
    statistics = await _statistics(call)
    return {"tableStats": _summaries(await statistics.of_table())}


@reads("get_partitions_statistics_req")
async def get_partitions_statistics_req(call: Call) -> Struct:
    parts = await (await _statistics(call)).of_partitions(call.texts("partNames"))
    work.spend(sum(map(len, parts.values())) // COLUMNS_PER_UNIT)
    return {"partStats": {name: _summaries(of_columns) for name, of_columns in parts.items()}}


@reads("get_aggr_stats_for")
async def get_aggr_stats_for(call: Call) -> Struct:
    """Combine the statistics of several partitions; count those that have all the columns."""
    statistics = await _statistics(call)
    names = await statistics.stored_names(call.texts("partNames"))
    known = await statistics.of_stored(names)
    complete = sum(len(of_part) == len(statistics.columns) for of_part in known.values())
    by_column: dict[str, dict[str, StatisticsTotal]] = {name: {} for name in statistics.columns}
    for index, name in enumerate(names):
        for column in work.spending(known.get(name, ())):
            summary = decode_summary(column.summary)
            total = by_column[column.name].setdefault(form_of(summary), StatisticsTotal())
            total.add(summary, index=index if complete < len(names) else None)
    totals = [total.over(len(names)) for forms in by_column.values() for total in forms.values()]
    return {"colStats": totals, "partsFound": complete}


@reads("get_table_column_statistics")
async def get_table_column_statistics(call: Call) -> Struct:
    known = await (await _of_one_column(call)).of_table()
    return _one_column(call, known, part=None)


@reads("get_partition_column_statistics")
async def get_partition_column_statistics(call: Call) -> Struct:
    known = await (await _of_one_column(call)).of_partitions([call.text("part_name")])
    name, of_column = next(iter(known.items()), (call.text("part_name"), []))
    return _one_column(call, of_column, part=name)


async def _of_one_column(call: Call) -> _Statistics:
    names = call.text("db_name"), call.text("tbl_name")
    return _Statistics(call, *await call.reader.relation(*names), [call.text("col_name")])


async def statistics_of_table(call: Call, scope: Scope, relation: Relation) -> Struct | None:
    """Return the ``ColumnStatistics`` of all columns of a table, or None if it has none."""
    columns = [column.name for column in relation.columns]
    known = await _Statistics(call, scope, relation, columns).of_table()
    if not known:
        return None
    return described(scope.name, relation.name, known, part=None, summaries=_summaries(known))


def _one_column(call: Call, known: Sequence[AnalyzedColumn], *, part: str | None) -> Struct:
    """Return the ``ColumnStatistics`` of one column. Raises `ObjectNotFound` if it has none."""
    schema, table = call.text("db_name"), call.text("tbl_name")
    if not known:
        of_part = "" if part is None else f"partName={part}, "
        raise ObjectNotFound(
            f"Statistics for dbName={schema}, tableName={table}, {of_part}"
            f"columnName={call.text('col_name')} doesn't exist."
        )
    return described(schema, table, known, part=part, summaries=_summaries(known))


def described(
    schema: str,
    table: str,
    known: Sequence[AnalyzedColumn],
    *,
    part: str | None,
    summaries: Sequence[bytes] | Sequence[Struct],
) -> Struct:
    """Return the ``ColumnStatistics`` of columns of a table, or of a partition.

    ``summaries`` are those of the columns, encoded or not.
    """
    description = {
        "isTblLevel": part is None,
        "dbName": schema.lower(),
        "tableName": table.lower(),
        "partName": part,
        "lastAnalyzed": known[0].analyzed,
        "catName": DEFAULT_DATABASE,
    }
    return {"statsDesc": description, "statsObj": summaries}
