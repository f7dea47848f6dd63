"""Methods that read partitions.

Hive's numbers: at most ``max_parts`` partitions, all for a negative number. For 0 it gives none,
but all names. Transactional tables and views have no partitions that a client could ask for. A
plain table as of then is shown as a view and still gives its partitions, under its own name as
under the hidden one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from strandline import work
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.exceptions import meta_exception
from strandline.metastore.hive.partition_chooser import partition_chooser
from strandline.metastore.hive.partition_names import partition_values
from strandline.metastore.hive.partition_rows import Partitioned
from strandline.metastore.hive.registry import Call, reads
from strandline.metastore.hive.storage import Struct
from strandline.metastore.partition_places import partition_places
from strandline.metastore.store.rows import PartitionRow, Row, RowKind
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import TableDescriptor

T = TypeVar("T")

_SHORT_FILTER = 1_000
"""Characters of a filter that are read on the event loop, in a part of a millisecond."""


class _Asked:
    """The partitions of the table that a call asks for."""

    def __init__(self, call: Call, *, schema: str = "db_name", table: str = "tbl_name") -> None:
        self._call = call
        self._reading = call.reading
        self._shown = call.folders.shown
        self._scope, relation = call.reading.relation(call.text(schema), call.text(table))
        self._table = relation if isinstance(relation, TableDescriptor) else None
        self._of: Partitioned | None = None

    @property
    def partitioned(self) -> Partitioned | None:
        """What the partitions have in common; None for a view."""
        if self._of is None and self._table is not None:
            location = self._reading.location(self._table)
            self._of = Partitioned(
                self._table, schema=self._scope.name, location=location, shown=self._shown
            )
        return self._of

    @property
    def key_names(self) -> list[str]:
        return self.partitioned.key_names if self.partitioned is not None else []

    def rows(self, names: Collection[str] | None = None) -> list[Row]:
        """The rows by name, all or those with these names."""
        if self._table is None or not self.key_names:
            return []
        return self._reading.rows(self._scope, self._table, RowKind.PARTITION, names)

    def structs(self, rows: Sequence[Row]) -> list[Struct | bytes]:
        """The ``Partition`` structs; those of many encoded already."""
        of = self.partitioned
        if of is None or self._table is None:
            return []
        struct = self._show(of, self._table, past=self._scope.moment is not None and bool(rows))
        if len(rows) <= work.AT_ONCE:
            return [struct(row) for row in rows]
        # Encoded one by one: the structs of all would take many times the memory of the answer.
        return [HIVE_CODEC.encode_struct("Partition", struct(row)) for row in work.spending(rows)]

    def _show(
        self, of: Partitioned, table: TableDescriptor, *, past: bool
    ) -> Callable[[Row], Struct]:
        if not past:
            return lambda row: of.struct(row.as_(PartitionRow))
        # Folders have moved since: partitions were dropped or renamed.
        places = partition_places(self._call.metastore, table, location=of.location)
        return lambda row: of.struct(row.as_(PartitionRow), place=places.place(row))

    def one(self, values: Sequence[str] | None) -> Struct | bytes:
        """The partition with these values. Raises `ObjectNotFound`."""
        if self.partitioned is None:
            raise _missing(values or ())
        found = self.rows([self.partitioned.name_of(values)])
        if not found:
            raise _missing(values or ())
        (struct,) = self.structs(found)
        return struct

    def matching(self, values: Sequence[str]) -> list[Row]:
        """The rows whose first values are these; an empty one stands for any."""
        if len(values) > len(self.key_names):
            raise meta_exception(
                f"Incorrect number of partition values. numPartKeys={len(self.key_names)}, "
                f"part_val={len(values)}"
            )
        wanted = [(position, value) for position, value in enumerate(values) if value]
        return [
            row
            for row in self.rows()
            if all(row.as_(PartitionRow).values[position] == value for position, value in wanted)
        ]

    def chosen(self, text: str) -> list[Row]:
        """The rows that a filter chooses."""
        if self.partitioned is None:
            return []
        if len(text) > _SHORT_FILTER:
            self._reading.need_patience()
        chooses = partition_chooser(text, self.partitioned.keys)
        return [row for row in self.rows() if chooses(row.as_(PartitionRow).values)]


def _missing(values: Sequence[str]) -> ObjectNotFound:
    return ObjectNotFound(f"partition values=[{', '.join(values)}]")


def _at_most(call: Call, items: Sequence[T], name: str = "max_parts") -> list[T]:
    limit = call.args.get(name, -1)
    return list(items if limit < 0 else items[:limit])


def _names_at_most(call: Call, rows: Sequence[Row], name: str = "max_parts") -> list[str]:
    names = [row.name for row in rows]
    return names if call.args.get(name, -1) == 0 else _at_most(call, names, name)


@reads("get_partition", "get_partition_with_auth")
def get_partition(call: Call) -> Struct | bytes:
    return _Asked(call).one(call.args.get("part_vals"))


@reads("get_partition_req")
def get_partition_req(call: Call) -> Struct:
    request = call.of("req")
    asked = _Asked(request, schema="dbName", table="tblName")
    return {"partition": asked.one(request.args.get("partVals"))}


@reads("get_partition_by_name")
def get_partition_by_name(call: Call) -> Struct | bytes:
    asked, name = _Asked(call), call.text("part_name")
    try:
        values = partition_values(name, asked.key_names)
    except InvalidInput as error:
        raise ObjectNotFound(error.message) from None
    return asked.one(values)


@reads("get_partitions", "get_partitions_with_auth")
def get_partitions(call: Call) -> list[Struct | bytes]:
    asked = _Asked(call)
    return asked.structs(_at_most(call, asked.rows()))


@reads("get_partitions_req")
def get_partitions_req(call: Call) -> Struct:
    request = call.of("req")
    asked = _Asked(request, schema="dbName", table="tblName")
    return {"partitions": asked.structs(_at_most(request, asked.rows(), "maxParts"))}


@reads("get_partition_names")
def get_partition_names(call: Call) -> list[str]:
    return _names_at_most(call, _Asked(call).rows())


@reads("get_partition_names_ps")
def get_partition_names_ps(call: Call) -> list[str]:
    return _names_at_most(call, _Asked(call).matching(call.texts("part_vals")))


@reads("get_partition_names_ps_req")
def get_partition_names_ps_req(call: Call) -> Struct:
    request = call.of("req")
    asked = _Asked(request, schema="dbName", table="tblName")
    rows = asked.matching(request.args.get("partValues") or ())
    return {"names": _names_at_most(request, rows, "maxParts")}


@reads("get_partitions_ps", "get_partitions_ps_with_auth")
def get_partitions_ps(call: Call) -> list[Struct | bytes]:
    asked = _Asked(call)
    return asked.structs(_at_most(call, asked.matching(call.texts("part_vals"))))


@reads("get_partitions_ps_with_auth_req")
def get_partitions_ps_with_auth_req(call: Call) -> Struct:
    request = call.of("req")
    asked = _Asked(request, schema="dbName", table="tblName")
    rows = asked.matching(request.args.get("partVals") or ())
    return {"partitions": asked.structs(_at_most(request, rows, "maxParts"))}


@reads("get_partitions_by_filter")
def get_partitions_by_filter(call: Call) -> list[Struct | bytes]:
    asked = _Asked(call)
    return asked.structs(_at_most(call, asked.chosen(call.args.get("filter") or "")))


@reads("get_num_partitions_by_filter")
def get_num_partitions_by_filter(call: Call) -> int:
    return len(_Asked(call).chosen(call.args.get("filter") or ""))


@reads("get_partitions_by_names")
def get_partitions_by_names(call: Call) -> list[Struct | bytes]:
    asked = _Asked(call)
    return asked.structs(asked.rows(call.texts("names")))


@reads("get_partitions_by_names_req")
def get_partitions_by_names_req(call: Call) -> Struct:
    request = call.of("req")
    asked = _Asked(request)
    return {"partitions": asked.structs(asked.rows(request.args.get("names") or ()))}


@reads("get_partition_values")
def get_partition_values(call: Call) -> Struct:
    """The values of some keys of the partitions, in an order, each combination once if asked so."""
    request = call.of("request")
    asked = _Asked(request, schema="dbName", table="tblName")
    positions = _positions(asked, request.args.get("partitionKeys"))
    order = _positions(asked, request.args.get("partitionOrder"))
    rows = asked.chosen(request.args.get("filter") or "")
    values = [row.as_(PartitionRow).values for row in rows]
    if order:
        descending = request.args.get("ascending") is False
        values.sort(key=lambda own: [own[at] for at in order], reverse=descending)
    picked = [tuple(own[at] for at in positions) for own in values]
    if request.args.get("applyDistinct", True):
        picked = list(dict.fromkeys(picked))
    return {
        "partitionValues": [{"row": list(own)} for own in _at_most(request, picked, "maxParts")]
    }


def _positions(asked: _Asked, fields: Sequence[Struct] | None) -> list[int]:
    """Where the keys of these fields stand among those of the table. `InvalidInput`."""
    names = [field.get("name", "").lower() for field in fields or ()]
    for name in names:
        if name not in asked.key_names:
            raise meta_exception(f"Key {name} is not a partition key of the table")
    return [asked.key_names.index(name) for name in names]
