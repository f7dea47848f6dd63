"""What a history proves about its transactions and files, before any check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.consistency.history import ABORTED, COMMITTED, Operation

CONFLICTS = ("write_conflict", "transaction_finished")
"""Refusals of a commit after which the transaction is aborted."""


@dataclass(slots=True)
class Txn:
    """A transaction, assembled from its calls."""

    txn_id: int
    begins: list[Operation] = field(default_factory=list)
    stages: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    committed: list[Operation] = field(default_factory=list)
    """Answers that prove the commit: of commits, and of state."""
    aborted: list[Operation] = field(default_factory=list)
    writes: set[tuple[int, int]] = field(default_factory=set)
    """Its known (table id, write id) pairs."""

    @property
    def commit_time(self) -> int | None:
        """None if it is not known to be committed."""
        return self.committed[0].time if self.committed else None

    @property
    def begin_time(self) -> int:
        return self.begins[0].time if self.begins else 0

    def write_ids_of(self, table_id: int) -> Iterator[int]:
        """Its write ids of a table: one, unless something is wrong."""
        return (w for t, w in self.writes if t == table_id)

    def was_committed_before(self, operation: Operation) -> bool:
        """Whether a client knew of the commit when the operation began."""
        return any(op.is_before(operation) for op in self.committed)

    def was_committed_after(self, operation: Operation) -> bool:
        """Whether no client had asked for the commit when the operation ended."""
        ended = operation.ended
        asked = self.commits or self.committed
        return ended is not None and all(op.began > ended for op in asked)


@dataclass(frozen=True, slots=True)
class Staged:
    """A file in a table: the call that added it.

    And the calls that removed it or deleted rows of it, answered or not.
    """

    path: str
    added: Operation
    removals: list[Operation] = field(default_factory=list)
    touches: list[Operation] = field(default_factory=list)


class ValidIds:
    """The ids that the text of a list of write ids counts as committed."""

    def __init__(self, text: str) -> None:
        _, hwm, _, opened, aborted = text.split(":")
        self._hwm = int(hwm)
        self._exceptions = {
            int(word) for part in (opened, aborted) for word in part.split(",") if word
        }

    def __contains__(self, write_id: object) -> bool:
        return (
            isinstance(write_id, int) and write_id <= self._hwm and write_id not in self._exceptions
        )


class Facts:
    """See the module."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = sorted(operations, key=lambda operation: operation.began)
        self.txns: dict[int, Txn] = {}
        for op in self.operations:
            if op.txn_id:
                self._note(self.txns.setdefault(op.txn_id, Txn(op.txn_id)), op)

    def _note(self, txn: Txn, op: Operation) -> None:
        match op.call:
            case "begin":
                txn.begins.append(op)
            case "stage":
                txn.stages.append(op)
                if op.is_done:
                    txn.writes.add((op.table_id, op.write_id))
            case "commit":
                txn.commits.append(op)
                if op.is_done:
                    txn.committed.append(op)
                elif op.error in CONFLICTS:
                    txn.aborted.append(op)
            case "abort" if op.is_done:
                txn.aborted.append(op)
            case "state" if op.status == COMMITTED:
                txn.committed.append(op)
            case "state" if op.status == ABORTED:
                txn.aborted.append(op)

    def of(self, *calls: str) -> Iterator[Operation]:
        """The answered operations of these calls, in the order in which they began."""
        return (op for op in self.operations if op.call in calls and op.is_done)

    @cached_property
    def committed(self) -> list[tuple[int, Txn]]:
        """The transactions that are known to be committed, by their commit times."""
        known = [(txn.commit_time, txn) for txn in self.txns.values()]
        return sorted(
            ((time, txn) for time, txn in known if time is not None), key=lambda pair: pair[0]
        )

    @cached_property
    def staged(self) -> dict[int, dict[str, Staged]]:
        """The staged files, by table id and path."""
        tables: defaultdict[int, dict[str, Staged]] = defaultdict(dict)
        stages = [op for op in self.operations if op.call == "stage" and not op.error]
        for op in stages:
            for path in op.files:
                before = tables[op.table_id].get(path)
                if before is None or (op.is_done and not before.added.is_done):
                    tables[op.table_id][path] = Staged(path, op)
        for op in stages:
            for path in op.removed:
                if removed := tables[op.table_id].get(path):
                    removed.removals.append(op)
            for path in op.touched:
                if touched := tables[op.table_id].get(path):
                    touched.touches.append(op)
        return tables
