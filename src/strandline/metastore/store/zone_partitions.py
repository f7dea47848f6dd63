"""Which partition of its zone a row about files belongs to.

A zone spreads the files of its tables over a fixed number of partitions; nodes keep rows by them
(`strandline.metastore.cache`). The partition is a hash modulo their number:

* of the values of the table's colocation columns, where all rows of a file or Hive partition have
  the same: then equal values of two tables of the zone are in one partition;
* else of the table's id and all values by which it is partitioned.

A table stays in its zone, a zone keeps its number of partitions, and a table its colocation columns
and its partitioning, so a place is found again by the same values. Rows of releases up to 0.3.0,
and what belongs to files of several partitions, are `TABLE_LEVEL`: in all of them.
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
    """The ``count`` partitions of the zone of a table; see the module."""

    def __init__(self, table: TableDescriptor, count: int) -> None:
        self._count = count
        of_fields = {
            field.source_id: place
            for place, field in enumerate(table.partitioning)
            if field.transform.kind is TransformKind.IDENTITY
        }
        of_keys = {column_id: place for place, column_id in enumerate(table.partition_columns)}
        places = of_fields if table.transactional else of_keys
        colocated = table.colocation and all(column in places for column in table.colocation)
        self._places = [places[column] for column in table.colocation] if colocated else None
        self._salt = b"" if colocated else table.id.to_bytes(8, "little")

    @classmethod
    def of(cls, table: TableDescriptor, catalog: Catalog) -> ZonePartitions:
        """Those of a table of the catalog."""
        zone = catalog.zone(table.zone_id)
        return cls(table, 1 if zone is None else zone.partitions)

    def of_file(self, partition: Partition) -> int:
        """Where a data file of a transactional table belongs."""
        if self._count == 1:
            return 0
        if self._places is not None:
            # The fields of two tables have other ids.
            partition = tuple(PartitionValue(0, partition[place].value) for place in self._places)
        return self._hashed(encode_partition(partition))

    def of_values(self, values: Sequence[str]) -> int:
        """Where a Hive partition of a plain table belongs."""
        if self._count == 1:
            return 0
        data = bytearray()
        for place in range(len(values)) if self._places is None else self._places:
            TEXT.write(data, values[place])
        return self._hashed(bytes(data))

    def _hashed(self, data: bytes) -> int:
        return crc32(data, crc32(self._salt)) % self._count


def common(buckets: Iterable[int]) -> int:
    """Where a row about files of these partitions belongs: in theirs, if it is one."""
    found = set(buckets)
    return found.pop() if len(found) == 1 else TABLE_LEVEL
