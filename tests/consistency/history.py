"""What clients asked of nodes and the answers: plain data for a checker.

An operation is one call of one client. ``began`` and ``ended`` are its places in the order of all
beginnings and ends that the clients saw: if A ended before B began, A was first. An operation
without an end has no answer, or an answer that leaves the outcome open.

A history is written as JSON, one operation per line, so that a finding can be checked again.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
DELETE_FILE = "-deletes.parquet"
"""The suffix of the name of a delete file."""


def is_delete_file(name: str) -> bool:
    """Whether a file deletes rows of other files."""
    return name.endswith(DELETE_FILE)


def data_file_number(name: str) -> str:
    """The number of a data file, or of the data file that a delete file deletes rows of."""
    return name.removesuffix(DELETE_FILE).rpartition("-of-")[2].partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A call and its answer; which fields count depends on the ``call``.

    ========  =====================================================================================
    create    ``table``: its name; the answer is its ``table_id``
    drop      ``table``
    begin     the answer is ``txn_id`` and the ``time`` of the begin
    stage     ``files`` are added to, and ``removed`` taken from, ``table_id`` by ``txn_id``; some
              of the files delete rows of those that are ``touched``; the answer is the ``write_id``
    commit    of ``txn_id``; the answer is the ``time``
    abort     of ``txn_id``
    state     of ``txn_id``; the answer is its ``status``, and for a committed one the ``time``
    snapshot  of tables, now, ``at`` a time, or as ``txn_id`` sees them; the answer is the ``time``
              that it stands for and ``lists``: the valid write ids of each table id, as texts
    files     of ``table_id`` by the list ``write_ids``, from a snapshot that stands for ``at``; the
              answer is ``files``. ``txn_id``: the transaction that the snapshot was taken by
    view      of ``table_id`` now, by a client without transactions; the answer is ``files`` and
              the ``time`` of the last commit that they reflect
    events    of the notification log after the number ``after``; the answer is ``events``:
              number, type, transaction
    hold      of the history from ``at`` on; the answer is ``hold_id``
    release   of ``hold_id``
    change    of the catalog by the user ``author``, who makes no other; the answer is ``version``
    log       of the catalog's versions; the answer is ``versions``: number, author
    takeover  of the store by another ``generation`` of nodes
    ========  =====================================================================================

    ``generation`` is that of the node that was asked. ``error`` is the code of a refusal.
    """

    call: str
    client: str = ""
    node: str = ""
    began: int
    ended: int | None = None
    error: str = ""
    generation: int = 0
    table: str = ""
    table_id: int = 0
    txn_id: int = 0
    write_id: int = 0
    time: int = 0
    at: int = 0
    after: int = 0
    hold_id: int = 0
    author: str = ""
    version: int = 0
    status: str = ""
    write_ids: str = ""
    lists: Mapping[int, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    events: tuple[tuple[int, str, int], ...] = ()
    versions: tuple[tuple[int, str], ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether it was answered, and not refused."""
        return self.ended is not None and not self.error

    def is_before(self, other: Operation) -> bool:
        """Whether it had ended when the other one began."""
        return self.ended is not None and self.ended < other.began

    def __str__(self) -> str:
        what = {name: value for name, value in asdict(self).items() if value and name != "call"}
        return f"{self.call}({', '.join(f'{name}={value}' for name, value in what.items())})"


class History:
    """Operations in the order of their ends, and how many were answered. Thread-safe."""

    def __init__(self) -> None:
        self._places = itertools.count(1)
        self._lock = threading.Lock()
        self._operations: list[Operation] = []
        self.answered = 0

    def place(self) -> int:
        """The next place in the order of beginnings and ends."""
        with self._lock:
            return next(self._places)

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._operations.append(operation)
            self.answered += operation.ended is not None

    @property
    def operations(self) -> list[Operation]:
        """All of them, in the order in which they began."""
        with self._lock:
            return sorted(self._operations, key=lambda operation: operation.began)


def save(operations: Iterable[Operation], path: Path) -> None:
    """Write a history, one operation per line."""
    with path.open("w") as file:
        for operation in operations:
            values = asdict(operation)
            print(json.dumps({k: v for k, v in values.items() if v or k == "began"}), file=file)


def load(path: Path) -> list[Operation]:
    """Read the history that `save` wrote."""
    return [_operation(json.loads(line)) for line in path.read_text().splitlines()]


def _operation(values: dict[str, Any]) -> Operation:  # Any: JSON
    known = {field.name for field in fields(Operation)}
    assert values.keys() <= known, values.keys() - known
    if "lists" in values:
        values["lists"] = {int(table_id): text for table_id, text in values["lists"].items()}
    for name in ("files", "removed", "touched"):
        values[name] = tuple(values.get(name, ()))
    for name in ("events", "versions"):
        values[name] = tuple(map(tuple, values.get(name, ())))
    return Operation(**values)
