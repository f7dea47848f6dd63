"""Hive's ``Partition`` structs, to rows of the object store and back.

A client repeats the columns, the format and the location of the table in each partition. A row has
only what differs: its location relative to the table's, so that it moves with the table, and format
and columns if they are not the table's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strandline.errors import InvalidInput
from strandline.metastore.hive.exceptions import meta_exception
from strandline.metastore.hive.names import hadoop_location
from strandline.metastore.hive.parameters import LAST_DDL_TIME
from strandline.metastore.hive.partition_values import partition_name
from strandline.metastore.hive.storage_descriptors import (
    HiveColumn,
    Struct,
    read_fields,
    read_storage,
    shown_columns,
    storage_struct,
)
from strandline.metastore.hive.table_structs import partition_columns_of, plain_columns_of
from strandline.metastore.store.rows import PartitionRow
from strandline.metastore.store.warehouse import relative_location, resolve_location
from strandline.model.descriptors import StorageFormat, TableDescriptor, properties
from strandline.model.types import DataType


class Partitioned:
    """What the partitions of one table have in common. ``schema`` is the name in answers.

    ``shown`` gives a recorded place as it is now (`StoreFolders.shown`).
    """

    def __init__(
        self,
        table: TableDescriptor,
        *,
        schema: str,
        location: str,
        shown: Callable[[str], str] = str,
    ) -> None:
        self._shown = shown
        self.table = table
        self.schema = schema
        self.location = location
        columns = () if table.transactional else partition_columns_of(table)
        self.keys: tuple[tuple[str, DataType], ...] = tuple(
            (column.name.lower(), column.type) for column in columns
        )
        self._columns: tuple[HiveColumn, ...] = shown_columns(
            table.storage, plain_columns_of(table)
        )
        self._storage = replace(table.storage, hive_columns=None)

    @property
    def key_names(self) -> list[str]:
        """The names of the partition keys, in order."""
        return [name for name, _ in self.keys]

    def name_of(self, values: Sequence[str] | None) -> str:
        """The name of the partition with these values. ``MetaException`` for too many or few."""
        try:
            return partition_name(self.key_names, values or ())
        except InvalidInput:
            keys = "".join(f"{name}, " for name in self.key_names)
            shown = "".join(f"{value}, " for value in values or ())
            raise meta_exception(
                f"Invalid partition key & values; keys [{keys}], values [{shown}]"
            ) from None

    def read(self, partition: Mapping[str, Any], *, now: int) -> tuple[str, PartitionRow]:
        """The name and the row of a client's ``Partition``; ``now`` is in seconds since 1970."""
        name = self.name_of(partition.get("values"))
        sd = partition.get("sd")
        parameters = {LAST_DDL_TIME: str(now)} | dict(partition.get("parameters") or {})
        row = PartitionRow(
            values=tuple(partition["values"]),
            location=name,
            parameters=properties(parameters),
            created=now,
            last_access=partition.get("lastAccessTime", 0),
        )
        if sd is None:
            return name, row
        storage = read_storage(sd, locations=[self.location])
        columns = read_fields(sd.get("cols"))
        if sd.get("location"):
            row = replace(row, location=self.relative(hadoop_location(sd["location"])))
        return name, replace(
            row,
            storage=None if storage == self._storage else storage,
            columns=None if columns == self._columns else columns,
        )

    def relative(self, location: str) -> str:
        """The location as a row keeps it."""
        return relative_location(self.location, location)

    def place(self, row: PartitionRow) -> str:
        """Where the files of the partition lie."""
        place = resolve_location(self.location, row.location)
        now = self._shown(place)
        return place if now == place else hadoop_location(now)

    def struct(
        self, row: PartitionRow, *, place: str | None = None, sd: Struct | str | None = None
    ) -> Struct:
        """The ``Partition`` that a client sees; ``place`` is its location if not that of the row.

        ``sd`` is its storage descriptor, where the caller has it already.
        """
        if sd is None:
            place = self.place(row) if place is None else place
            sd = self.storage_struct(place, row.storage, row.columns)
        return {
            "values": list(row.values),
            "dbName": self.schema,
            "tableName": self.table.name.lower(),
            "createTime": row.created,
            "lastAccessTime": row.last_access,
            "sd": sd,
            "parameters": dict(row.parameters),
        }

    def storage_struct(
        self,
        place: str,
        storage: StorageFormat | None = None,
        columns: Sequence[HiveColumn] | None = None,
    ) -> Struct:
        """The storage descriptor of a partition at that location, with the format of its table."""
        return storage_struct(
            self._storage if storage is None else storage,
            columns=self._columns if columns is None else columns,
            location=place,
            table_location=self.location,
        )

    def described(self, values: Sequence[str]) -> str:
        """A partition in an error message."""
        return (
            f"Partition(values:[{', '.join(values)}], dbName:{self.schema}, "
            f"tableName:{self.table.name.lower()})"
        )
