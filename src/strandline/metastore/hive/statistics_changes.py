"""Methods that store and delete the column statistics that `statistics` reads.

Each call is one transaction: it stores the statistics of everything it names, or nothing. The
parameters of the table or partition also list the columns that have statistics, and the same
transaction sets them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from strandline.catalog.privileges.rules import WRITING
from strandline.clock import system_wall_clock
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.accuracy import accurate_columns, with_accurate, without_accurate
from strandline.metastore.hive.partition_changes import named_table, plain_table
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.registry import Call, changes, invalid_object, meta_exception
from strandline.metastore.hive.statistics import DEFAULT_ENGINE, stored_name
from strandline.metastore.hive.statistics_values import (
    AnalyzableColumns,
    combined,
    decode_summary,
    encode_summary,
    form_of,
    read_summary,
)
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.store.rows import (
    PARAMETERS_NAME,
    TABLE_STATISTICS,
    AnalyzedColumn,
    NewRow,
    PartitionRow,
    Row,
    RowKind,
    StatisticsRow,
    TableParametersRow,
    new_parameters,
    new_statistics,
)
from strandline.metastore.store.staging import Staging
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.descriptors import Properties
from strandline.model.privileges import Privilege
from strandline.model.type_text import simple_string

MAX_ROW_BYTES = 16 << 20
"""The maximum number of bytes of the statistics of all columns of one table or partition."""


class _Update:
    """Statistics by one engine that one transaction stores. They are read before it begins.

    With ``merges`` they are added to the known statistics, if those are accurate.
    """

    def __init__(self, partitioned: Partitioned, *, engine: str, merges: bool) -> None:
        self._partitioned = partitioned
        self._columns = AnalyzableColumns(partitioned.table)
        self._engine = engine
        self._merges = merges
        self._now = system_wall_clock() // 1000
        self._sent_columns: dict[str, dict[str, AnalyzedColumn]] = {}

    def add(self, name: str, statistics: Struct) -> None:
        """Add the statistics of the named partition, or of the table. Raises `InvalidInput`."""
        if not statistics["statsObj"]:
            raise InvalidInput("the argument statsObj is missing: the statistics name no column")
        of_columns = self._sent_columns.setdefault(name, {})
        for sent in statistics["statsObj"]:
            analyzed = self._analyzed_column(sent)
            before = of_columns.get(analyzed.name) if self._merges else None
            of_columns[analyzed.name] = _merged(before, analyzed)

    def _analyzed_column(self, sent: Struct) -> AnalyzedColumn:
        column = self._columns.get(sent["colName"])
        if column is None:
            raise meta_exception(
                f"Column {sent['colName'].lower()} doesn't exist in table"
                f" {self._partitioned.table.name.lower()} in database {self._partitioned.schema}"
            )
        return AnalyzedColumn(
            column_id=column.id,
            name=column.name.lower(),
            type=simple_string(column.type),
            engine=self._engine,
            analyzed=self._now,
            summary=encode_summary(read_summary(sent, column)),
        )

    def store(self, call: Call) -> None:
        """Store them. Raises `ObjectNotFound` and stores nothing if a partition does not exist."""
        with call.metastore.store.change(self._partitioned.table.id, author=call.user) as change:
            rows = change.visible(RowKind.STATISTICS, self._sent_columns.keys())
            holders = _holders(change, self._sent_columns.keys())
            staged = [
                self._staged(name, sent, holders[name], rows.get(name))
                for name, sent in self._sent_columns.items()
            ]
            if any(staged):
                change.stage_each([stage for stage in staged if stage is not None])

    def _staged(
        self, name: str, sent: dict[str, AnalyzedColumn], holder: _Holder, row: Row | None
    ) -> tuple[list[NewRow], list[int]] | None:
        """Return the rows to add and the ids to remove, or None if nothing can be merged."""
        stored_columns = self._columns.valid(row)
        # An alter of a table changes the parameters of its partitions only if it cascades.
        parameters = without_accurate(holder.parameters, _changed_since(row, stored_columns))
        if self._merges:
            accurate = accurate_columns(dict(parameters))
            own_columns = {
                column.name: column for column in stored_columns if column.engine == self._engine
            }
            sent = {
                column: _merged(own_columns.get(column), analyzed)
                for column, analyzed in sent.items()
                if column in accurate
            }
        if not sent:
            return None
        remaining_columns = [
            c for c in stored_columns if c.engine != self._engine or c.name not in sent
        ]
        columns = (*remaining_columns, *sent.values())
        size = sum(len(column.summary) for column in columns)
        if size > MAX_ROW_BYTES:
            raise InvalidInput(
                f"the statistics of {name or self._partitioned.table.name} would take {size} "
                f"bytes; at most {MAX_ROW_BYTES} are allowed: send them without bit vectors and "
                "histograms"
            )
        parameters = with_accurate(parameters, sent)
        added, removed = [new_statistics(columns, name=name)], [] if row is None else [row.row_id]
        if parameters != holder.parameters:
            added.append(holder.with_parameters(parameters))
            removed += holder.row_ids
        return added, removed


def _changed_since(row: Row | None, valid: Collection[AnalyzedColumn]) -> set[str]:
    """The columns with statistics in a row that are not among those still ``valid``."""
    names = set() if row is None else {column.name for column in row.as_(StatisticsRow).columns}
    return names - {column.name for column in valid}


def _merged(old: AnalyzedColumn | None, new: AnalyzedColumn) -> AnalyzedColumn:
    """Combine two statistics of a column. If their forms differ, return the new one."""
    if old is None:
        return new
    before, after = decode_summary(old.summary), decode_summary(new.summary)
    if form_of(before) != form_of(after):
        return new
    return replace(new, summary=encode_summary(combined(before, after)))


@dataclass(frozen=True, slots=True)
class _Holder:
    """A partition, or the table, whose parameters say which statistics are accurate.

    ``row`` is None if the table has no such parameters yet.
    """

    parameters: Properties
    row: Row | None

    @property
    def row_ids(self) -> list[int]:
        return [] if self.row is None else [self.row.row_id]

    def with_parameters(self, parameters: Properties) -> NewRow:
        if self.row is None or self.row.kind is RowKind.TABLE_PARAMETERS:
            return new_parameters(parameters)
        return self.row.replaced_by(replace(self.row.as_(PartitionRow), parameters=parameters))


def _holders(change: Staging, names: Collection[str]) -> dict[str, _Holder]:
    """Return the holders for these partitions, or for the table. Raises `ObjectNotFound`."""
    if TABLE_STATISTICS in names:
        row = change.visible(RowKind.TABLE_PARAMETERS).get(PARAMETERS_NAME)
        parameters = () if row is None else row.as_(TableParametersRow).parameters
        return {TABLE_STATISTICS: _Holder(parameters, row)}
    rows = change.visible(RowKind.PARTITION, names)
    if len(rows) < len(names):
        raise ObjectNotFound("Partition for which stats is gathered doesn't exist.")
    return {name: _Holder(row.as_(PartitionRow).parameters, row) for name, row in rows.items()}


# -- methods that store


@changes("update_table_column_statistics", "update_table_column_statistics_req")
async def update_table_column_statistics(call: Call) -> bool:
    await _set(call, _only_statistics(call), of_table=True)
    return True


@changes("update_partition_column_statistics", "update_partition_column_statistics_req")
async def update_partition_column_statistics(call: Call) -> bool:
    await _set(call, _only_statistics(call), of_table=False)
    return True


def _only_statistics(request: Call) -> list[Struct]:
    """The statistics of a request that may have only those of one table or partition, as a list."""
    if "stats_obj" in request.args:
        return [request.struct("stats_obj")]
    listed = request.structs("colStats")
    if len(listed) != 1 or request.args.get("needMerge"):
        raise InvalidInput(
            f"the request has {len(listed)} statistics, needMerge is"
            f" {bool(request.args.get('needMerge'))}; send those of one table or partition, or call"
            " set_aggr_stats_for, which merges"
        )
    return listed


@changes("set_aggr_stats_for")
async def set_aggr_stats_for(call: Call) -> bool:
    listed = call.structs("colStats")
    if not listed:
        return True
    of_table = bool(listed[0]["statsDesc"]["isTblLevel"])
    if of_table and len(listed) > 1:
        raise meta_exception(
            f"Expecting only 1 ColumnStatistics for table's column stats, but find {len(listed)}"
        )
    merges = bool(call.args.get("needMerge"))
    await _set(call, listed, of_table=of_table, merges=merges)
    return True


async def _set(
    call: Call, listed: Sequence[Struct], *, of_table: bool, merges: bool = False
) -> None:
    """Store the statistics of a table, or of some of its partitions: all or none."""
    partitioned = await _table(call, listed[0]["statsDesc"], of_table=of_table)
    engines = {s.get("engine") or call.args.get("engine") or DEFAULT_ENGINE for s in listed}
    if len(engines) > 1:
        raise InvalidInput(
            f"the statistics are of the engines {' and '.join(sorted(engines))}; send those of "
            "one engine"
        )
    (engine,) = engines
    update = _Update(partitioned, engine=engine, merges=merges)
    for statistics in listed:
        described = statistics["statsDesc"]
        home = described["dbName"].lower(), described["tableName"].lower()
        if home != (partitioned.schema, partitioned.table.name.lower()):
            raise InvalidInput(
                f"the request has statistics of {'.'.join(home)} and of "
                f"{partitioned.schema}.{partitioned.table.name}; send those of one table"
            )
        name = TABLE_STATISTICS if of_table else _part_name(partitioned, described.get("partName"))
        try:
            update.add(name, statistics)
        except (InvalidInput, ThriftException):
            # What is wrong with them tells columns and types, and a writer may not read them.
            call.reader.access.require(Privilege.SELECT, partitioned.table)
            raise
    update.store(call)


async def _table(call: Call, described: Struct, *, of_table: bool) -> Partitioned:
    schema, table = described["dbName"], described["tableName"]
    missing: Exception = invalid_object(f"{schema}.{table} table not found")
    if of_table:
        missing = ObjectNotFound(f"Specified database/table does not exist : {schema}.{table}")
    return await plain_table(call, schema, table, need=WRITING, missing=missing, what="statistics")


def _part_name(partitioned: Partitioned, name: str | None) -> str:
    if not name:
        raise meta_exception("Partition name is invalid. null")
    return stored_name(name, partitioned.key_names)


# -- methods that delete


@changes("delete_table_column_statistics")
async def delete_table_column_statistics(call: Call) -> bool:
    missing = ObjectNotFound(
        f"Table {call.text('tbl_name')}  for which stats deletion is requested doesn't exist"
    )
    partitioned = await named_table(call, need=WRITING, missing=missing, what="statistics")
    _delete(call, partitioned, TABLE_STATISTICS)
    return True


@changes("delete_partition_column_statistics")
async def delete_partition_column_statistics(call: Call) -> bool:
    missing = invalid_object(f"{call.text('db_name')}.{call.text('tbl_name')} table not found")
    partitioned = await named_table(call, need=WRITING, missing=missing, what="statistics")
    _delete(call, partitioned, _part_name(partitioned, call.args.get("part_name")))
    return True


def _delete(call: Call, partitioned: Partitioned, name: str) -> None:
    """Delete the statistics of the named column by the named engine; without a name, of all.

    As in Hive, the parameters continue to say that they are accurate. To tell a column without
    statistics from a column with old ones, a client has to request them.
    """
    name_of_column, engine = call.args.get("col_name"), call.args.get("engine")

    def is_deleted(column: AnalyzedColumn) -> bool:
        return (name_of_column is None or column.name == name_of_column.lower()) and (
            engine is None or column.engine == engine
        )

    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        if name != TABLE_STATISTICS and not change.visible(RowKind.PARTITION, [name]):
            raise ObjectNotFound(
                f"Partition {name} for which stats deletion is requested doesn't exist"
            )
        row = change.visible(RowKind.STATISTICS, [name]).get(name)
        stored_columns = AnalyzableColumns(partitioned.table).valid(row)
        remaining_columns = tuple(column for column in stored_columns if not is_deleted(column))
        if row is None or len(remaining_columns) == len(stored_columns):
            if name_of_column is None:
                return
            of_partition = "" if name == TABLE_STATISTICS else f" partition={name}"
            raise ObjectNotFound(
                f"Column stats doesn't exist for db={partitioned.schema} "
                f"table={partitioned.table.name.lower()}{of_partition} col={name_of_column.lower()}"
            )
        change.stage(
            add=[new_statistics(remaining_columns, name=name)] if remaining_columns else [],
            remove=[row.row_id],
        )
