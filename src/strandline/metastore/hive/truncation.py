"""Methods that remove the files of a managed plain table, or of some of its partitions.

As with Spark's TRUNCATE, the files are deleted at once: the metastore has no history of the rows of
a plain table. Only folders that the store chose are emptied, and never through a link. If one of
the folders is not such a one, nothing is deleted. The counts are set to 0 afterwards, so a request
that ended half-way can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from strandline.clock import system_wall_clock
from strandline.errors import IllegalChange, ObjectNotFound, UnsupportedOperation
from strandline.metastore.hive.parameters import LAST_DDL_TIME
from strandline.metastore.hive.partition_changes import plain_table
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.registry import Call, changes
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.partition_places import partition_places
from strandline.metastore.store.rows import (
    NewRow,
    PartitionRow,
    Row,
    RowKind,
    TableParametersRow,
    new_parameters,
    new_partition,
)
from strandline.model.descriptors import Properties, TableKind, properties
from strandline.model.privileges import Privilege

_EMPTY = {
    **dict.fromkeys(("numFiles", "numRows", "rawDataSize", "totalSize"), "0"),
    "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}',
}
_OF_SPARK = "spark.sql.statistics."


@changes("truncate_table")
async def truncate_table(call: Call) -> None:
    await _truncate(call, call.text("dbName"), call.text("tableName"), call.args.get("partNames"))


@changes("truncate_table_req")
async def truncate_table_req(call: Call) -> Struct:
    request = call.of("req")
    schema, table = request.text("dbName"), request.text("tableName")
    await _truncate(request, schema, table, request.args.get("partNames"))
    return {}


async def _truncate(call: Call, schema: str, name: str, names: Collection[str] | None) -> None:
    partitioned = await plain_table(
        call, schema, name, need=Privilege.DELETE, missing=ObjectNotFound, what="rows of its own"
    )
    table = partitioned.table
    if table.kind is not TableKind.MANAGED or not call.folders.is_own_table(partitioned.location):
        raise UnsupportedOperation(
            f"{schema}.{name} is an external table, so the metastore does not delete its files; "
            "delete them yourself"
        )
    if "metadata_location" in dict(table.properties):
        raise UnsupportedOperation(
            f"{schema}.{name} is an Iceberg table; delete its rows with an Iceberg client"
        )
    if partitioned.keys:
        _truncate_partitions(call, partitioned, names)
    elif names:
        raise IllegalChange(f"{schema}.{name} has no partitions to truncate")
    else:
        _truncate_all(call, partitioned)


def _truncate_all(call: Call, partitioned: Partitioned) -> None:
    call.folders.verify(call.folders.place(partitioned.location))
    call.folders.clear(partitioned.location)
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        old = list(change.visible(RowKind.TABLE_PARAMETERS).values())
        counted = next((row.as_(TableParametersRow).parameters for row in old), ())
        statistics = change.visible(RowKind.STATISTICS).values()
        change.stage(
            add=[new_parameters(_emptied(counted))],
            remove=[row.row_id for row in (*old, *statistics)],
        )


def _truncate_partitions(
    call: Call, partitioned: Partitioned, names: Collection[str] | None
) -> None:
    store, table_id = call.metastore.store, partitioned.table.id
    rows = store.rows(table_id, RowKind.PARTITION, write_ids=None, names=names)
    missing = set(names or ()) - {row.name for row in rows}
    if missing:
        raise ObjectNotFound(f"partition {min(missing)} does not exist")
    places = partition_places(call.metastore, partitioned.table, location=partitioned.location)
    for row in rows:
        if not places.is_own(row):
            raise UnsupportedOperation(
                f"the files of partition {row.name} are at a location that a user chose, so the "
                "metastore does not delete them; delete them yourself"
            )
    if not rows:
        return
    for row in rows:
        call.folders.clear(partitioned.place(row.as_(PartitionRow)))
    with store.change(table_id, author=call.user) as change:
        present = change.visible(RowKind.PARTITION, {row.name for row in rows})
        statistics = change.visible(RowKind.STATISTICS, present.keys())
        staged = []
        for name, row in present.items():
            removed = [row, statistics[name]] if name in statistics else [row]
            staged.append(([_emptied_partition(row)], [each.row_id for each in removed]))
        change.stage_each(staged)


def _emptied_partition(row: Row) -> NewRow:
    partition = row.as_(PartitionRow)
    emptied = replace(partition, parameters=_emptied(partition.parameters))
    return new_partition(emptied, name=row.name, bucket=row.bucket)


def _emptied(parameters: Properties) -> Properties:
    kept = {name: value for name, value in parameters if not name.startswith(_OF_SPARK)}
    return properties(kept | _EMPTY | {LAST_DDL_TIME: str(system_wall_clock() // 1000)})
