"""Methods that read and add partitions as ``PartitionSpec``, a list of partitions of one table.

Hive can write such a list in two forms: with whole partitions, or with one storage descriptor that
they share. Answers have the first form, as Hive's own by default. Requests may have either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strandline.catalog import DEFAULT_DATABASE
from strandline.metastore.hive.partition_changes import add_all, table_to_add_all_to
from strandline.metastore.hive.partitions import Partitions, at_most, named_partitions
from strandline.metastore.hive.patterns import like
from strandline.metastore.hive.registry import Call, changes, meta_exception, reads
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.off_loop import off_loop
from strandline.metastore.store.rows import Row
from strandline.metastore.thrift.codec import HIVE_CODEC

Shape = Callable[[Struct], Struct]
"""Returns the part of a ``Partition`` that a request asks for."""


async def _specs(
    partitions: Partitions, rows: Sequence[Row], shape: Shape | None = None
) -> list[Struct]:
    """Return one ``PartitionSpec`` with these partitions; none for a view."""
    common = partitions.common
    if common is None:
        return []
    listed: list[Struct | bytes]
    if shape is None:
        listed = await partitions.structs(rows)
    else:
        await off_loop()
        structs = partitions.plain_structs(rows)
        listed = [HIVE_CODEC.encode_struct("Partition", shape(struct)) for struct in structs]
    spec = {
        "dbName": common.schema,
        "tableName": common.table.name.lower(),
        "rootPath": common.location,
        "partitionList": {"partitions": listed},
        "catName": DEFAULT_DATABASE,
    }
    return [spec]


@reads("get_partitions_pspec")
async def get_partitions_pspec(call: Call) -> list[Struct]:
    partitions = await named_partitions(call)
    return await _specs(partitions, await partitions.first_rows())


@reads("get_part_specs_by_filter")
async def get_part_specs_by_filter(call: Call) -> list[Struct]:
    partitions = await named_partitions(call)
    rows = await partitions.filtered(call.args.get("filter") or "")
    return await _specs(partitions, at_most(call, rows))


_BY_NAMES, _BY_VALUES, _BY_EXPRESSIONS = 0, 1, 2


@reads("get_partitions_with_specs")
async def get_partitions_with_specs(call: Call) -> Struct:
    """Return some fields of the partitions that names, values or filters choose."""
    partitions = await named_partitions(call)
    shape = _shape(call.args.get("projectionSpec") or {})
    chosen = call.args.get("filterSpec") or {}
    mode, filters = chosen.get("filterMode"), chosen.get("filters") or []
    if mode is None or (mode == _BY_EXPRESSIONS and not filters):
        rows = await partitions.rows()
    elif mode == _BY_NAMES:
        rows = await partitions.rows(filters)
    elif mode == _BY_VALUES:
        rows = await partitions.matching(filters)
    elif mode == _BY_EXPRESSIONS:
        rows = await partitions.filtered(" and ".join(f"({text})" for text in filters))
    else:
        raise meta_exception(f"the filter mode is {mode}; send 0, 1 or 2")
    return {"partitionSpec": await _specs(partitions, rows, shape)}


def _shape(projection: Struct) -> Shape | None:
    """Return what picks the fields of a projection, or None if it asks for all of them.

    A field is named by its path, like ``sd.location``. Patterns of parameter names are those of
    SQL's LIKE, except that a point matches any character. Raises `LimitExceeded`.
    """
    fields = _tree(projection.get("fieldList") or ())
    included, excluded = (
        like(pattern.replace("%", ".*").replace("_", ".")) if pattern else None
        for pattern in map(projection.get, ("includeParamKeyPattern", "excludeParamKeyPattern"))
    )
    if not (fields or included or excluded):
        return None

    def shape(partition: Struct) -> Struct:
        picked = _picked(partition, fields) if fields else dict(partition)
        if "parameters" in picked:
            picked["parameters"] = {
                name: value
                for name, value in picked["parameters"].items()
                if (included is None or included(name)) and not (excluded and excluded(name))
            }
        return picked

    return shape


_DEEPEST = 4
"""The number of parts in the longest path to a field of a ``Partition`` that is not a map."""


def _tree(paths: Iterable[str]) -> Struct:
    """Return the paths as nested dicts, in which None stands for a whole field."""
    tree: Struct = {}
    for path in paths:
        *names, last = path.split(".", _DEEPEST)[:_DEEPEST]
        below: Any = tree  # later a part of it, or None
        for name in names:
            below = below.setdefault(name, {})
            if below is None:
                break
        else:
            below[last] = None
    return tree


def _picked(struct: Struct, fields: Struct) -> Struct:
    """Return the fields that a tree names. Those that do not exist are ignored."""
    picked: Struct = {}
    for name in fields.keys() & struct.keys():
        value, below = struct[name], fields[name]
        is_part = below is not None and isinstance(value, dict)
        picked[name] = _picked(value, below) if is_part else value
    return picked


@changes("add_partitions_pspec")
async def add_partitions_pspec(call: Call) -> int:
    """Add the partitions of all specs to the table that the first one names."""
    specs = call.structs("new_parts")
    partitions = [partition for spec in specs for partition in _partitions_of(spec)]
    if not partitions:
        return 0
    schema, table = specs[0].get("dbName", ""), specs[0].get("tableName", "")
    partitioned = await table_to_add_all_to(call, schema, table)
    return len(add_all(call, partitioned, partitions))


def _partitions_of(spec: Struct) -> list[Struct]:
    """The partitions of a ``PartitionSpec``, which may share one storage descriptor."""
    listed: list[Struct] = (spec.get("partitionList") or {}).get("partitions") or []
    shared = spec.get("sharedSDPartitionSpec") or {}
    sd = shared.get("sd") or {}
    home = {name: spec.get(name, "") for name in ("dbName", "tableName")}
    root = sd.get("location") or spec.get("rootPath") or ""
    return listed + [
        home | partition | {"sd": {**sd, "location": root + (partition.get("relativePath") or "")}}
        for partition in shared.get("partitions") or ()
    ]
