"""The SQL tables of the object store and the notification log.

Reads ask for one table and kind, sometimes for names; ``store_row_by_name`` answers both without
touching another table's rows. What one write id added or removed, as the caches load it, is a range
of the indexes by write.

``store_sequence`` gives row ids in blocks: the ids of one staging follow each other without a gap,
so that its event can name them by the first and the count.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from strandline.sql.ground import whole_row

PART = "metastore"
VERSION = 4
"""Version 2, of release 0.2.1, added ``partition_move`` and indexes that find flipped bytes.

Version 3, of release 0.3.0, finds tables by their places, and notes the folders of dropped
partitions that are still to be moved. Version 4, of release 0.4.0, added ``cleaned_table``.
"""

METADATA = MetaData()

STORE_ROW = Table(
    "store_row",
    METADATA,
    Column("row_id", BigInteger, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, nullable=False),
    Column("kind", Integer, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("write_id", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("store_row_by_name", "table_id", "kind", "name"),
    Index("store_row_by_write", "table_id", "write_id"),
)

STORE_REMOVAL = Table(
    "store_removal",
    METADATA,
    Column("row_id", BigInteger, primary_key=True, autoincrement=False),
    Column("write_id", BigInteger, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, nullable=False),
    Index("store_removal_by_write", "table_id", "write_id"),
)

STORE_SEQUENCE = Table(
    "store_sequence",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("row_id", BigInteger, nullable=False),
)

TABLE_LOCATION = Table(
    "table_location",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("location", Text, nullable=False),
    Index("table_location_by_place", "location"),
)

PARTITION_MOVE = Table(
    "partition_move",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("location", Text, primary_key=True),
    Column("up_to_row", BigInteger, primary_key=True, autoincrement=False),
    Column("target", Text, nullable=False),
    Column("target_row", BigInteger),
)

# The moves aside whose folders may still be where they were.
UNFINISHED_MOVE = Table(
    "unfinished_move",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("location", Text, primary_key=True),
    Column("up_to_row", BigInteger, primary_key=True, autoincrement=False),
    Column("target", Text, nullable=False),
)

# Of these tables, what was removed up to a time is gone (`cleaning`).
CLEANED_TABLE = Table(
    "cleaned_table",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("up_to", BigInteger, nullable=False),
)

NOTIFICATION_LOG = Table(
    "notification_log",
    METADATA,
    Column("event_id", BigInteger, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("verb", Text, nullable=False),
    Column("catalog_version", BigInteger),
    Column("txn_id", BigInteger),
    Column("table_id", BigInteger),
    Column("write_id", BigInteger),
    Column("body", LargeBinary, nullable=False),
)

# ``projected_version`` is projected as a whole, and ``projected_entries`` of the version after it.
NOTIFICATION_SEQUENCE = Table(
    "notification_sequence",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("event_id", BigInteger, nullable=False),
    Column("projected_version", BigInteger, nullable=False),
    Column("projected_entries", Integer, nullable=False),
)


WHOLE = (
    STORE_SEQUENCE,
    NOTIFICATION_SEQUENCE,
    TABLE_LOCATION,
    PARTITION_MOVE,
    UNFINISHED_MOVE,
    CLEANED_TABLE,
)
for _table in WHOLE:
    whole_row(_table)
