"""Messages of errors that users make: they use the terms of users and name the remedy."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.errors import InvalidInput, WriteConflict
from strandline.metastore.interface import AsOf
from strandline.metastore.session import http_session, http_transport
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.model.types import INT
from strandline.node import Node

COLUMNS = (ColumnDefinition("k", INT),)
WRONG: Any = "table"


@pytest.mark.parametrize(
    ("whole", "did"),
    [(False, "deleted rows of the data file a.parquet"), (True, "removed the data file a.parquet")],
)
def test_a_conflict_names_the_table_the_file_and_what_the_other_transaction_did(
    tmp_path: Path, whole: bool, did: str
) -> None:
    with Node.open(tmp_path) as node:
        ann, bob = node.session(user="ann"), node.session(user="bob")
        table = TableDefinition(
            name="orders", columns=COLUMNS, transactional=True, provider="strandline"
        )
        ann.execute(CreateTable(schema="default", definition=table))
        table_id = ann.table("orders").descriptor.id
        first = ann.begin().txn_id
        file = DataFile(file_id=first << 20, path="a.parquet", rows=9, bytes=9)
        ann.stage(first, table_id, add=[file])
        ann.commit(first)
        ours, theirs = ann.begin().txn_id, bob.begin().txn_id
        for session, txn, path in ((ann, ours, "d1"), (bob, theirs, "d2")):
            deleted = DeleteFile(path=path, file_ids=(file.file_id,), counts=(1,))
            if whole and session is bob:
                session.stage(txn, table_id, remove=[file.path])
            else:
                session.stage(txn, table_id, add=[deleted], touch=[file.path])
        bob.commit(theirs)
        with pytest.raises(WriteConflict) as raised:
            ann.commit(ours)
    message = raised.value.message
    assert f": conflict on default.orders: transaction {theirs} of bob, committed at" in message
    assert f"{did}, which this transaction changes too" in message
    assert message.endswith("; begin again")


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(InvalidInput, match="version -1 does not exist: versions start at 0"):
        AsOf(version=-1)


def test_an_unknown_outcome_names_how_long_the_session_waited() -> None:
    attempts = http_session._Attempts(
        "the node did not answer begin",
        look="look at it",
        seconds=30,
        closed=threading.Event(),
        always_unknown=True,
    )
    message = attempts.unknown(http_transport.Lost("the connection broke", sent=True)).message
    assert re.match(r"the node did not answer begin within [01]\.\d s \(the connection", message)
