"""Statistics of columns: the methods that ask for them. None are kept yet.

Trino and Presto ask for them to plan any query, and take any error for the end of the query. So
the answer is that there are none, in the words of each method. The methods that store or delete
statistics stay unknown: to answer that they were stored would be a lie.
"""

from __future__ import annotations

from strandline.errors import ObjectNotFound
from strandline.metastore.hive.registry import Call, reads
from strandline.metastore.hive.storage import Struct


@reads("get_table_statistics_req")
async def get_table_statistics_req(call: Call) -> Struct:
    await _require_table(call.of("request"), schema="dbName", table="tblName")
    return {"tableStats": []}


@reads("get_partitions_statistics_req")
async def get_partitions_statistics_req(call: Call) -> Struct:
    await _require_table(call.of("request"), schema="dbName", table="tblName")
    return {"partStats": {}}


@reads("get_aggr_stats_for")
async def get_aggr_stats_for(call: Call) -> Struct:
    await _require_table(call.of("request"), schema="dbName", table="tblName")
    return {"colStats": [], "partsFound": 0}


@reads("get_table_column_statistics")
async def get_table_column_statistics(call: Call) -> Struct:
    await _require_table(call, schema="db_name", table="tbl_name")
    raise ObjectNotFound(
        f"Statistics for dbName={call.text('db_name')}, tableName={call.text('tbl_name')}, "
        f"columnName={call.text('col_name')} doesn't exist."
    )


@reads("get_partition_column_statistics")
async def get_partition_column_statistics(call: Call) -> Struct:
    await _require_table(call, schema="db_name", table="tbl_name")
    raise ObjectNotFound(
        f"Statistics for dbName={call.text('db_name')}, tableName={call.text('tbl_name')}, "
        f"partName={call.text('part_name')}, columnName={call.text('col_name')} doesn't exist."
    )


async def _require_table(call: Call, *, schema: str, table: str) -> None:
    """Raises `ObjectNotFound`, and `PermissionDenied` for a table that the user may not read."""
    await call.reader.relation(call.text(schema), call.text(table))
