"""The one seam to SQL databases: engine and transactions, schema versions, clock row, fence row."""

from strandline.sql.clock_row import stored_time, take_time
from strandline.sql.engine import Database, DatabaseStatistics, open_engine
from strandline.sql.fence import FenceRow, FenceState
from strandline.sql.sqlite_file import sqlite_url

__all__ = [
    "Database",
    "DatabaseStatistics",
    "FenceRow",
    "FenceState",
    "open_engine",
    "sqlite_url",
    "stored_time",
    "take_time",
]
