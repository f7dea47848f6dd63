"""The zone partition of a row about files.

A zone distributes the files of its tables over a fixed number of partitions, by which nodes select
the rows that they hold (`strandline.metastore.cache`). The partition is a hash, modulo the number
of partitions:

* of the values of the table's colocation columns, if all rows of a file or Hive partition have the
  same values: then equal values of two tables of the zone are in one zone partition;
* otherwise of the table's id and all values by which the table is partitioned.

The zone of a table, its colocation columns, its partitioning, and the number of partitions of a
zone never change, so the same values always give the same partition. Rows of releases up to 0.3.0,
and rows about files of several partitions, are `TABLE_LEVEL`: they belong to all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

from strandline.catalog import Catalog
from strandline.metastore.store.rows import TABLE_LEVEL
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import Partition, PartitionValue, TransformKind
from strandline.wire.codecs import TEXT
from strandline.wire.partitions import encode_partition


class ZonePartitions:
    """Assigns rows of a table to the ``count`` partitions of its zone; see the module."""

    def __init__(self, table: TableDescriptor, count: int) -> None:
        self._count = count
        of_fields = {
            field.source_id: index
            for index, field in enumerate(table.partitioning)
            if field.transform.kind is TransformKind.IDENTITY
        }
        of_keys = {column_id: index for index, column_id in enumerate(table.partition_columns)}
        indexes = of_fields if table.transactional else of_keys
        colocated = table.colocation and all(column in indexes for column in table.colocation)
        self._indexes = [indexes[column] for column in table.colocation] if colocated else None
        self._salt = b"" if colocated else table.id.to_bytes(8, "little")

    @classmethod
    def of(cls, table: TableDescriptor, catalog: Catalog) -> ZonePartitions:
        zone = catalog.zone(table.zone_id)
        return cls(table, 1 if zone is None else zone.partitions)

    def of_file(self, partition: Partition) -> int:
        """The zone partition of a data file of a transactional table."""
        if self._count == 1:
            return 0
        if self._indexes is not None:
            # The ids are left out: the fields of two tables have different ones.
            partition = tuple(PartitionValue(0, partition[index].value) for index in self._indexes)
        return self._hashed(encode_partition(partition))

    def of_values(self, values: Sequence[str]) -> int:
        """The zone partition of a Hive partition of a plain table."""
        if self._count == 1:
            return 0
        data = bytearray()
        for index in range(len(values)) if self._indexes is None else self._indexes:
            TEXT.write(data, values[index])
        return self._hashed(bytes(data))

    def _hashed(self, data: bytes) -> int:
        return crc32(data, crc32(self._salt)) % self._count


def common(buckets: Iterable[int]) -> int:
    """The bucket of a row about files of these partitions: the partition if one, else all."""
    distinct_buckets = set(buckets)
    return distinct_buckets.pop() if len(distinct_buckets) == 1 else TABLE_LEVEL
