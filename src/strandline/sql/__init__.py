"""The one interface to SQL databases: transactions, schema versions, clock row, fence row."""

from strandline.sql.clock_row import (
    STORED_TIME,
    accept_time,
    accepted_time,
    present_time,
    stored_time,
    take_time,
    taking_time,
)
from strandline.sql.database import DIALECTS, PATIENCE, Database, open_engine
from strandline.sql.fence import FENCE_ROW, FenceRow, FenceState
from strandline.sql.looking import look_in_order, wait_until
from strandline.sql.sqlite_database import SqliteDatabase, open_sqlite
from strandline.sql.statements import (
    CHUNK,
    Counter,
    Parameter,
    Query,
    Row,
    change,
    change_each,
    chunks,
    first_row,
    marks,
    run,
    run_all,
    run_at_commit,
    run_in_parts,
    value,
)

__all__ = [
    "CHUNK",
    "DIALECTS",
    "FENCE_ROW",
    "PATIENCE",
    "STORED_TIME",
    "Counter",
    "Database",
    "FenceRow",
    "FenceState",
    "Parameter",
    "Query",
    "Row",
    "SqliteDatabase",
    "accept_time",
    "accepted_time",
    "change",
    "change_each",
    "chunks",
    "first_row",
    "look_in_order",
    "marks",
    "open_engine",
    "open_sqlite",
    "present_time",
    "run",
    "run_all",
    "run_at_commit",
    "run_in_parts",
    "stored_time",
    "take_time",
    "taking_time",
    "value",
    "wait_until",
]
