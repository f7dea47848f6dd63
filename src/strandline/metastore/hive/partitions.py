"""Methods that read partitions.

Limits follow Hive: ``max_parts`` limits the partitions to return, and a negative number means all.
For 0 the methods return none, except `get_partition_names`, which returns all. Transactional tables
and views have no partitions that a client can read. A plain table of the past is shown as a view
but still has partitions, under its own name and under its hidden name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from strandline import work
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.hive_reader import Scope
from strandline.metastore.hive.partition_filter import bind_filter, parse_filter
from strandline.metastore.hive.partition_name_patterns import pattern_of_filter, pattern_of_values
from strandline.metastore.hive.partition_values import (
    DEFAULT_PARTITION,
    Partitioned,
    partition_values,
    unescape,
)
from strandline.metastore.hive.registry import Call, meta_exception, reads
from strandline.metastore.hive.storage_descriptors import HiveColumn, Struct
from strandline.metastore.off_loop import charge, off_loop, off_loop_for
from strandline.metastore.partition_places import PastPlaces
from strandline.metastore.store.rows import PartitionRow, Row, RowKind
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import StorageFormat, TableDescriptor

T = TypeVar("T")

_DESCRIPTOR = "StorageDescriptor"
_LOCATION = b"\x0b\x00\x02"
"""The header of the location field, which follows the columns."""
_KEPT_DESCRIPTORS = 16
"""Partitions of one answer seldom have more formats and columns than that."""
_SHORT_FILTER = 1_000
"""The longest filter, in characters, that is parsed on the event loop, in under a millisecond."""
_BYTES_PER_UNIT = 2_000
"""The bytes of partitions that are shown for one unit of `strandline.work`, besides a unit for each
partition: far more than usual ones have."""
_USUAL_NAME = 20
"""The characters of a partition's name that a condition takes about as long for as for none."""
_FILTERED_AT_ONCE = 300_000
"""Characters of names times characters of a filter that is evaluated on the event loop, in under a
millisecond."""
_FILTERED_PER_UNIT = 15_000
"""Characters of names times characters of a filter that cost one unit of `strandline.work`.

``like`` compares each character of a value with each of its pattern, and no other thread runs
meanwhile.
"""


class Partitions:
    """The partitions of the relation that a call names. A view has none.

    ``common`` has the common parts of the partitions; it is None for a view.
    """

    def __init__(self, call: Call, scope: Scope, common: Partitioned | None) -> None:
        self._call = call
        self._scope = scope
        self.common = common

    @property
    def key_names(self) -> list[str]:
        return [] if self.common is None else self.common.key_names

    async def rows(
        self,
        names: Collection[str] | None = None,
        *,
        like: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Return the rows of all partitions, or of those with these names, ordered by name.

        With a pattern ``like``, rows with other names may be left out; with ``limit``, rows after
        the first that many.
        """
        if self.common is None or not self.key_names:
            return []
        table, kind = self.common.table, RowKind.PARTITION
        point = self._scope.point
        return await self._call.reader.rows(point, table, kind, names, like=like, limit=limit)

    async def first_rows(self) -> list[Row]:
        """Return the rows of as many partitions as the call wants, ordered by name."""
        limit = self._call.args.get("max_parts", -1)
        rows = await self.rows(limit=None if limit < 0 else limit)
        return at_most(self._call, rows)

    async def structs(self, rows: Sequence[Row]) -> list[Struct | bytes]:
        """Return the ``Partition`` structs. If they are long, they are already encoded."""
        if self.common is None:
            return []
        # Each partition repeats the columns of the table.
        if len(rows) * len(self.common.table.columns) <= work.AT_ONCE:
            return list(self.plain_structs(rows))
        place = self._places(self.common, rows)
        await off_loop()
        # Encoded one by one: all structs together take many times the memory of the answer.
        encode = _encoder(self.common)
        return [encode(row.as_(PartitionRow), place(row)) for row in _charged(rows)]

    def plain_structs(self, rows: Sequence[Row]) -> Iterator[Struct]:
        if self.common is None or not rows:
            return
        place = self._places(self.common, rows)
        for row in _charged(rows):
            yield self.common.struct(row.as_(PartitionRow), place=place(row))

    def _places(self, common: Partitioned, rows: Sequence[Row]) -> Callable[[Row], str]:
        moment = self._scope.point.moment
        if moment is None:
            return lambda row: common.place(row.as_(PartitionRow))
        # The folders may have moved since: partitions were dropped or renamed.
        call, table = self._call, common.table
        seen = call.metastore.transactions.write_ids(table.id, at=moment)
        moves = call.metastore.store.sql_store.partition_moves(table.id, seen=seen)
        places = PastPlaces(table, location=common.location, folders=call.folders, moves=moves)
        if any(map(places.went_aside, rows)):  # Spark takes a missing folder for an empty one
            call.reader.keep_past(table, moment)
        return places.place

    async def partition(self, values: Sequence[str] | None) -> Struct:
        """Return the partition with these values. Raises `ObjectNotFound`."""
        rows = [] if self.common is None else await self.rows([self.common.name_of(values)])
        if not rows:
            raise ObjectNotFound(f"partition values=[{', '.join(values or ())}]")
        (struct,) = self.plain_structs(rows)
        # As in Hive: the request may spell NULL in another way than the row.
        return {**struct, "values": list(values or ())}

    async def matching(self, values: Sequence[str]) -> list[Row]:
        """Return the rows whose first values are these. An empty value matches any.

        Values are compared as in the name of a partition: NULL and the empty text are the same. As
        in Hive, the last value of a short list is the beginning of a value: 1 matches 10 too.
        """
        if len(values) > len(self.key_names):
            raise meta_exception(
                f"Incorrect number of partition values. numPartKeys={len(self.key_names)}, "
                f"part_val={len(values)}"
            )
        required_values = [(position, value) for position, value in enumerate(values) if value]
        begins = len(values) - 1 if len(values) < len(self.key_names) else None

        def fits(stored_values: Sequence[str]) -> bool:
            for position, value in required_values:
                text = stored_values[position] or DEFAULT_PARTITION
                if text != value and not (position == begins and text.startswith(value)):
                    return False
            return True

        like = pattern_of_values(values, keys=self.key_names, begins=begins)
        rows = await self.rows(like=like)
        return [row for row in rows if fits(_values(row))]

    async def filtered(self, text: str) -> list[Row]:
        if self.common is None:
            return []
        if len(text) > _SHORT_FILTER:
            await off_loop()
        expression, keys = parse_filter(text), self.common.keys
        chooses = bind_filter(expression, keys)
        rows = await self.rows(like=pattern_of_filter(expression, keys))
        size = sum(_USUAL_NAME + len(row.name) for row in rows) * len(text)
        if size > _FILTERED_AT_ONCE:
            await off_loop()
        work.spend(size // _FILTERED_PER_UNIT)
        return [row for row in rows if chooses(_values(row))]


def _charged(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of partitions to show, charged by their number and their bytes."""
    work.spend(sum(len(row.body) for row in rows) // _BYTES_PER_UNIT)
    return work.spending(rows)


def _values(row: Row) -> Sequence[str]:
    """Return the values of a partition, from its name if possible: decoding takes far longer."""
    if not row.is_decoded():
        row.compare()  # a damaged name must not hide a partition
        values = [unescape(part.rpartition("=")[2]) for part in row.name.split("/")]
        if DEFAULT_PARTITION not in values:
            return values
    return row.as_(PartitionRow).values


def _encoder(common: Partitioned) -> Callable[[PartitionRow, str], bytes]:
    """Return a function that encodes a row with its place as a ``Partition``.

    Most storage descriptors of a table differ only in the location, so the rest is encoded once.
    """

    @lru_cache(maxsize=_KEPT_DESCRIPTORS)
    def around_location(
        storage: StorageFormat | None, columns: tuple[HiveColumn, ...] | None
    ) -> tuple[bytes, bytes]:
        shared = common.storage_struct("", storage, columns)
        encoded = HIVE_CODEC.encode_struct(_DESCRIPTOR, {"cols": shared.pop("cols")})
        rest = HIVE_CODEC.encode_struct(_DESCRIPTOR, shared).removeprefix(_LOCATION + bytes(4))
        return encoded[:-1] + _LOCATION, rest

    def encode(row: PartitionRow, place: str) -> bytes:
        before, after = around_location(row.storage, row.columns)
        text = place.encode()
        sd = b"".join((before, len(text).to_bytes(4, "big"), text, after))
        return HIVE_CODEC.encode_struct("Partition", common.struct(row, sd=sd))

    return encode


async def named_partitions(call: Call) -> Partitions:
    """Return the partitions of the table that the arguments name. Raises `ObjectNotFound`."""
    scope, relation = await call.reader.relation(call.text("db_name"), call.text("tbl_name"))
    common = None
    if isinstance(relation, TableDescriptor):
        await off_loop_for(len(relation.columns))
        location = await call.reader.shown_location(relation)
        common = Partitioned(relation, schema=scope.name, location=location, folders=call.folders)
    return Partitions(call, scope, common)


def at_most(call: Call, items: Sequence[T]) -> list[T]:
    limit = call.args.get("max_parts", -1)
    return list(items if limit < 0 else items[:limit])


def _names_at_most(call: Call, rows: Sequence[Row]) -> list[str]:
    return [row.name for row in at_most(call, rows)]


@reads("get_partition", "get_partition_with_auth", "get_partition_req")
async def get_partition(call: Call) -> Struct | bytes:
    partitions = await named_partitions(call)
    return await partitions.partition(call.args.get("part_vals"))


@reads("get_partition_by_name")
async def get_partition_by_name(call: Call) -> Struct | bytes:
    partitions, name = await named_partitions(call), call.text("part_name")
    try:
        values = partition_values(name, partitions.key_names)
    except InvalidInput as error:
        raise ObjectNotFound(error.message) from None
    return await partitions.partition(values)


@reads("get_partitions", "get_partitions_with_auth", "get_partitions_req")
async def get_partitions(call: Call) -> list[Struct | bytes]:
    partitions = await named_partitions(call)
    return await partitions.structs(await partitions.first_rows())


@reads("get_partition_names")
async def get_partition_names(call: Call) -> list[str]:
    partitions = await named_partitions(call)
    lists_all = call.args.get("max_parts") == 0
    rows = await (partitions.rows() if lists_all else partitions.first_rows())
    return [row.name for row in rows]


@reads("fetch_partition_names_req")
async def fetch_partition_names_req(call: Call) -> list[str]:
    return [row.name for row in await (await named_partitions(call)).first_rows()]


@reads("get_partition_names_ps")
async def get_partition_names_ps(call: Call) -> list[str]:
    partitions = await named_partitions(call)
    return _names_at_most(call, await partitions.matching(_some_values(call)))


@reads("get_partition_names_ps_req")
async def get_partition_names_ps_req(call: Call) -> Struct:
    partitions = await named_partitions(call)
    rows = await partitions.matching(call.args.get("partValues") or ())
    return {"names": _names_at_most(call, rows)}


@reads("get_partitions_ps", "get_partitions_ps_with_auth")
async def get_partitions_ps(call: Call) -> list[Struct | bytes]:
    partitions = await named_partitions(call)
    rows = await partitions.matching(_some_values(call))
    return await partitions.structs(at_most(call, rows))


def _some_values(call: Call) -> list[str]:
    values = call.texts("part_vals")
    if not values:
        raise meta_exception("Invalid partition key & values; keys [], values []")
    return values


@reads("get_partitions_ps_with_auth_req")
async def get_partitions_ps_with_auth_req(call: Call) -> Struct:
    partitions = await named_partitions(call)
    names = call.args.get("partNames")
    if names is None:
        rows = await partitions.matching(call.args.get("part_vals") or ())
    else:
        rows = await partitions.rows(names)
    return {"partitions": await partitions.structs(at_most(call, rows))}


@reads("get_partitions_by_filter", "get_partitions_by_filter_req")
async def get_partitions_by_filter(call: Call) -> list[Struct | bytes]:
    partitions = await named_partitions(call)
    rows = await partitions.filtered(call.args.get("filter") or "")
    return await partitions.structs(at_most(call, rows))


@reads("get_num_partitions_by_filter")
async def get_num_partitions_by_filter(call: Call) -> int:
    partitions = await named_partitions(call)
    return len(await partitions.filtered(call.args.get("filter") or ""))


@reads("get_partitions_by_names")
async def get_partitions_by_names(call: Call) -> list[Struct | bytes]:
    partitions = await named_partitions(call)
    return await partitions.structs(await partitions.rows(call.texts("names")))


@reads("get_partitions_by_names_req")
async def get_partitions_by_names_req(call: Call) -> Struct:
    partitions = await named_partitions(call)
    rows = await partitions.rows(call.args.get("names") or ())
    return {"partitions": await partitions.structs(rows)}


@reads("get_partition_values")
async def get_partition_values(call: Call) -> Struct:
    """Return the values of some keys of the partitions, sorted and without duplicates if asked.

    As in Hive, a filter returns the values of all keys, in the order of the table.
    """
    partitions = await named_partitions(call)
    positions = _positions(partitions, call.args.get("partitionKeys"))
    if not positions:
        raise meta_exception("the request names no partition keys; name at least one")
    order = _positions(partitions, call.args.get("partitionOrder"))
    text = call.args.get("filter") or ""
    if text:
        positions, order = list(range(len(partitions.key_names))), []
    rows = await partitions.filtered(text)
    # A request may repeat a key, and each of its positions is in the answer for every partition.
    await charge(work.units_of_values(len(rows) * (len(positions) + len(order))))
    values = [_values(row) for row in rows]
    if order:
        descending = call.args.get("ascending") is False
        values.sort(key=lambda row_values: [row_values[at] for at in order], reverse=descending)
    picked = [tuple(row_values[at] for at in positions) for row_values in values]
    if call.args.get("applyDistinct", True):
        picked = list(dict.fromkeys(picked))
    return {"partitionValues": [{"row": list(row)} for row in at_most(call, picked)]}


def _positions(partitions: Partitions, fields: Sequence[Struct] | None) -> list[int]:
    """Return the positions of these keys among the table's keys. ``MetaException`` if unknown."""
    names = [field.get("name", "").lower() for field in fields or ()]
    for name in names:
        if name not in partitions.key_names:
            raise meta_exception(f"Key {name} is not a partition key of the table")
    return [partitions.key_names.index(name) for name in names]
