"""The SQL tables of the object store and the notification log.

Reads select one table and kind, sometimes also names. The index ``store_row_by_name`` serves both
without reading rows of other tables. The rows that one write id added or removed, as caches load
them, are a range of the indexes by write.

``store_sequence`` assigns row ids in blocks: the ids of one staging are consecutive, so that its
event can name them by the first id and the count.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text

from strandline.sql.schema_versions import ROW_NUMBER, whole_row

METADATA = MetaData()

STORE_ROW = Table(
    "store_row",
    METADATA,
    Column("row_id", ROW_NUMBER, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, nullable=False),
    Column("kind", Integer, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("write_id", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("store_row_by_name", "table_id", "kind", "name", "row_id"),
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

# Its index by place has both columns, since the key is the number of the row.
TABLE_LOCATION = Table(
    "table_location",
    METADATA,
    Column("table_id", ROW_NUMBER, primary_key=True, autoincrement=False),
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

# The moves aside whose folders may not have been moved yet.
UNFINISHED_MOVE = Table(
    "unfinished_move",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("location", Text, primary_key=True),
    Column("up_to_row", BigInteger, primary_key=True, autoincrement=False),
    Column("target", Text, nullable=False),
)

# The time up to which removed rows of a table were cleaned (`cleaning`).
CLEANED_TABLE = Table(
    "cleaned_table",
    METADATA,
    Column("table_id", ROW_NUMBER, primary_key=True, autoincrement=False),
    Column("up_to", BigInteger, nullable=False),
)

NOTIFICATION_LOG = Table(
    "notification_log",
    METADATA,
    Column("event_id", ROW_NUMBER, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("verb", Text, nullable=False),
    Column("catalog_version", BigInteger),
    Column("txn_id", BigInteger),
    Column("table_id", BigInteger),
    Column("write_id", BigInteger),
    Column("body", LargeBinary, nullable=False),
)

# All of ``projected_version`` is projected, and ``projected_entries`` of the version after it.
NOTIFICATION_SEQUENCE = Table(
    "notification_sequence",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("event_id", BigInteger, nullable=False),
    Column("projected_version", BigInteger, nullable=False),
    Column("projected_entries", Integer, nullable=False),
)


for _table in (
    STORE_SEQUENCE,
    NOTIFICATION_SEQUENCE,
    PARTITION_MOVE,
    UNFINISHED_MOVE,
    CLEANED_TABLE,
):
    whole_row(_table)
