"""Methods that give the columns of a table alone."""

from __future__ import annotations

from strandline.errors import ObjectNotFound
from strandline.metastore.hive.exceptions import unknown_table
from strandline.metastore.hive.registry import Call, reads
from strandline.metastore.hive.storage import Struct


@reads("get_fields", "get_fields_with_environment_context")
async def get_fields(call: Call) -> list[Struct]:
    """The columns that are no partition keys."""
    return await _columns(call, call.text("db_name"), call.text("table_name"), keys=False)


@reads("get_schema", "get_schema_with_environment_context")
async def get_schema(call: Call) -> list[Struct]:
    """The columns, partition keys last."""
    return await _columns(call, call.text("db_name"), call.text("table_name"), keys=True)


async def _columns(call: Call, schema: str, table: str, *, keys: bool) -> list[Struct]:
    try:
        struct = await call.reader.struct(*await call.reader.relation(schema, table))
    except ObjectNotFound as error:
        raise unknown_table(error.message) from error
    columns: list[Struct] = struct["sd"]["cols"]
    return columns + (struct["partitionKeys"] if keys else [])
