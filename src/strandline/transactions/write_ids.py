"""The lists that readers carry, in Hive's form: of transactions, and of the writes of one table.

A `ValidTxnList` says which transactions a reader sees as committed, a `ValidWriteIdList` which
write ids of one table. `strandline.transactions.id_lists` explains how both represent a set of ids.
`ValidWriteIdList.derive` makes the list of a table from a list of transactions.

**Text** is exactly Hive's: ``hwm:minOpen:open:aborted`` for transactions, the same after ``table:``
for a table.

**Compaction** merges the files of many writes into one, and the cleaner removes the merged files.
Neither may act on a write that is still open. So both use lists that answer more strictly than a
reader's: `CompactorWriteIds` and `CleanerWriteIds`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

from strandline.errors import IllegalChange, InvalidInput
from strandline.transactions.id_lists import NO_OPEN, IdList, RangeResponse, contains


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTxnList(IdList):
    """The transactions that a reader sees as committed. ``str()`` gives Hive's text."""

    def __str__(self) -> str:
        return self.numbers()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The list that ``text`` represents. Raises `InvalidInput`, `LimitExceeded`."""
        return cls.of_text(text, text.split(":", 4))

    @classmethod
    def derive(
        cls,
        server_hwm: int,
        *,
        unfinished: Sequence[int],
        aborted: Collection[int] = frozenset(),
        current: int = 0,
    ) -> Self:
        """The list of transaction ``current``, or of a reader outside of any if ``current`` is 0.

        ``unfinished`` are all ids up to ``server_hwm`` that are open or aborted. ``current`` sees
        itself, and no transaction that began after it.
        """
        hidden = [t for t in unfinished if not current or t < current]
        return cls.of(
            min(current, server_hwm) if current else server_hwm,
            open_ids=[t for t in hidden if t not in aborted],
            aborted=[t for t in hidden if t in aborted],
        )

    def for_compactor(self, txn_id: int) -> Self:
        """The list of a compaction's transaction, which does not see its own result.

        ``self`` is the list that `derive` gives for ``txn_id``.
        """
        if contains(self.exceptions, txn_id):
            return self
        hwm = max(self.hwm, txn_id)
        exceptions = tuple(sorted((*self.exceptions, txn_id)))
        return self.changed(hwm=hwm, exceptions=exceptions, aborted=self.aborted_ids)

    def for_cleaner(self) -> Self:
        """The list up to the first open id. Raises `IllegalChange` if an open id is below it."""
        capped = self.up_to(_below(self.min_open, self))
        if capped.open_ids:
            raise IllegalChange(
                f"transaction {capped.open_ids[0]} is open, and the list says that {self.min_open}"
                " is the first open one; read the list again"
            )
        return capped


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidWriteIdList(IdList):
    """The write ids of one table that a reader sees as committed. ``str()`` gives Hive's text.

    ``table`` (``db.table`` in lower case) is used only in the text; without it the text says
    ``null``.
    """

    table: str | None = None

    def __post_init__(self) -> None:
        IdList.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if self.table is not None and (not self.table or set(self.table) & set(":$")):
            raise InvalidInput(f"a list cannot be written for a table named {self.table!r:.200}")

    def __str__(self) -> str:
        return f"{'null' if self.table is None else self.table}:{self.numbers()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The list that ``text`` represents. Raises `InvalidInput`, `LimitExceeded`."""
        name, *rest = text.split(":", 5)
        return cls.of_text(text, rest, table=None if name.lower() == "null" else name)

    @classmethod
    def derive(
        cls,
        table: str | None,
        *,
        txns: ValidTxnList,
        writes: Iterable[tuple[int, int]],
        next_write_id: int | None,
    ) -> Self:
        """What the reader of ``txns`` sees of a table.

        ``writes`` are (transaction, write id) pairs. An id without a pair was purged and counts as
        committed. Among the pairs that the reader sees, all but the highest may be omitted.
        ``next_write_id`` is None for a table that was never written. As in Hive, if no pair is
        visible, the list ends at the first hidden id and keeps the ``min_open`` from before that.
        """
        pairs = sorted((w, txn) for txn, w in writes)
        hwm = max((w for w, txn in pairs if txn <= txns.hwm), default=0)
        if hwm <= 0:
            hwm = 0 if next_write_id is None else next_write_id - 1
        pairs = [(w, txn) for w, txn in pairs if w <= hwm]
        hidden = [(w, txn) for w, txn in pairs if not txns.valid(txn)]
        aborted = [w for w, txn in hidden if txns.aborted(txn)]
        opened = [w for w, txn in hidden if not txns.aborted(txn)]
        derived = replace(cls.of(hwm, open_ids=opened, aborted=aborted), table=table)
        if not hidden or len(hidden) < len(pairs):
            return derived
        first = derived.exceptions[0]
        is_open = first == derived.min_open
        return replace(
            derived, hwm=first, exceptions=(first,), aborted_ids=() if is_open else (first,)
        )

    def equivalent(self, other: ValidWriteIdList) -> bool:
        """Whether both lists see the same ids of the same table; case of its name is ignored."""
        same_table = (self.table or "").lower() == (other.table or "").lower()
        return same_table and self.sees_same(other)

    def for_compactor(self) -> CompactorWriteIds:
        """The list up to the first open id, for merging files. ``self`` is a reader's list."""
        # A list that was read may name a smallest open id that differs from the one it contains.
        first_open = min((self.min_open, *self.open_ids[:1]))
        capped = self.up_to(_below(first_open, self))
        return _of_kind(CompactorWriteIds, replace(capped, min_open=first_open))

    def for_cleaner(self, *, highest: int | None = None) -> CleanerWriteIds:
        """The list for removing files that a compaction of the ids up to ``highest`` merged."""
        return _of_kind(CleanerWriteIds, self if highest is None else self.up_to(highest))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorWriteIds(ValidWriteIdList):
    """The writes that a compaction may merge: no open one, and none after an open one."""

    def range_valid(self, first: int, last: int) -> RangeResponse:
        """All or none, never some: a compaction never takes a part of a file."""
        return RangeResponse.ALL if last <= self.hwm else RangeResponse.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerWriteIds(ValidWriteIdList):
    """The writes whose files a cleaner may remove: none above the high-water mark."""

    def range_valid(self, first: int, last: int) -> RangeResponse:
        if last > self.hwm:
            return RangeResponse.NONE
        return ValidWriteIdList.range_valid(self, first, last)


def _below(first_open: int, ids: IdList) -> int:
    """The high-water mark of the part of ``ids`` below ``first_open``."""
    return ids.hwm if first_open == NO_OPEN else max(0, min(ids.hwm, first_open - 1))


L = TypeVar("L", bound=ValidWriteIdList)


def _of_kind(kind: type[L], ids: ValidWriteIdList) -> L:
    return kind(**{field.name: getattr(ids, field.name) for field in fields(ids)})
