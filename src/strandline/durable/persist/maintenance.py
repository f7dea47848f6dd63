"""Maintenance of a shard: rollups, parts for inline rows, merging, compaction and the sweep.

None of it changes what readers get from `since` on. Each step writes its blobs first, and then
commits one diff that names them. So a crash before the diff leaves blobs that no state names, and
the sweep removes them.

* `tidy` runs once every `EVERY` diffs, in the append that made the last of them. It writes a
  rollup, moves the inline rows of the state to parts, and merges small parts. The diffs below the
  rollup are then removed. The last `MERGED_AT_ONCE` batches are merged only if the largest of them
  has at most half of their rows, so a row is rewritten about log(number of rows) times.
* `compact` moves ``since``. It replaces the versions up to there by a first batch, which has the
  remaining row of each object and the rows of append-only kinds that are not pruned. Rows of
  lasting kinds are in separate batches, which stay.
* `sweep` removes the blobs that no state names; see `strandline.durable.persist.shard_state`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from strandline.durable.collections import APPEND_ONLY, LASTING
from strandline.durable.log import Frontier, refuse_absent, refuse_other_token
from strandline.durable.persist.shard import PART_ROWS, REFUSED, Shard
from strandline.durable.persist.shard_state import (
    AlreadyMaintained,
    Batch,
    Batches,
    Rewrite,
    ShardState,
    UploadExpired,
    raise_floor,
    rewrite,
    seqno_of,
)
from strandline.durable.rows import UPDATE, Row, consolidated
from strandline.errors import CorruptData, StrandlineError, Unavailable
from strandline.fencing import FenceToken
from strandline.wire.registry import encode

EVERY = 128
"""Diffs between two rollups."""
SWEPT_EVERY = 16 * EVERY
MAX_DIFFS = 32 * EVERY
"""If more diffs have no rollup, because no blob can be written, appends are refused."""
MERGED_AT_ONCE = 8

log = logging.getLogger(__name__)


class Maintenance:
    """See the module. One for each `Shard` object that appends."""

    def __init__(self, shard: Shard, *, every: int) -> None:
        self._shard = shard
        self._every = every

    def check(self) -> None:
        """Raise `Unavailable` if a rollup is overdue: its blobs could not be written."""
        count = _diffs_since_rollup(self._shard.known)
        if count >= 2 * self._every:
            raise Unavailable(
                f"the catalog's blobs were not written for {count} changes; the log of the node"
                f" that made them says why. After {MAX_DIFFS} changes, further ones are refused"
            )

    def before_append(self) -> None:
        """Raise `Unavailable` if too many diffs have no rollup and none can be written."""
        if _diffs_since_rollup(self._shard.known) > MAX_DIFFS:
            self.tidy()

    def after_append(self, state: ShardState) -> None:
        """Do what is due at ``state``, to which an append of this process led.

        Failures are logged, and the work is tried again `EVERY` diffs later.
        """
        if _diffs_since_rollup(state) % self._every:
            return
        with _failures_logged():  # the append succeeded and must not raise
            self.tidy()
            if state.seqno - state.floor >= SWEPT_EVERY // EVERY * self._every:
                self.sweep()

    def tidy(self) -> None:
        """Write a rollup, move the inline rows of the state to parts, and merge small parts."""
        shard = self._shard
        state = shard.refresh()
        tidied = shard.reading_of(state, partial(self._tidied, state))
        if tidied is not None and tidied.rollup is not None and self._rewrite(tidied):
            shard.consensus.truncate(shard.name, tidied.rollup.seqno + 1)

    def _tidied(self, state: ShardState) -> Rewrite:
        rollup = self._shard.put(encode(state), state.seqno, "rollup")
        history, appended = self._flushed(state)
        history = self._merged(history, state, first=1 if state.since else 0)
        return Rewrite(state, history, self._merged(appended, state), rollup)

    def compact(self, up_to: int, fence: FenceToken) -> bool:
        """Move ``since`` to ``up_to``; see `UpdateLog.compact`."""
        while True:
            state = self._shard.refresh()
            refuse_other_token(state.fence, fence)
            if up_to <= state.since:
                return False
            refuse_absent(up_to, Frontier(state.since, state.upper))
            covered = [batch for batch in state.batches if batch.lower <= up_to]
            if any(batch.rows and not batch.parts for batch in covered):
                self.tidy()
                continue
            rewritten = self._shard.reading_of(state, partial(self._compacted, state, up_to, fence))
            if rewritten is not None and self._rewrite(rewritten):
                with _failures_logged():  # what was asked for is done; a later sweep removes more
                    self.sweep()
                return True

    def _compacted(self, state: ShardState, up_to: int, fence: FenceToken) -> Rewrite:
        """The compaction of ``state`` up to ``up_to``; its rows up to there must be in parts."""
        shard, upper = self._shard, up_to + 1
        covered = [batch for batch in state.batches if batch.lower < upper]
        rows = self._rows_that_count(covered, state)
        old = [row for row in rows if row.version < upper]
        heads = {row.version: row.time for row in old if row.kind == UPDATE}
        if missing := set(range(state.since + 1, upper)) - heads.keys():
            raise CorruptData(
                f"version {min(missing)} is missing in the log; nothing was trimmed: restore the "
                "store from a backup"
            )
        remaining_rows = consolidated(old)
        remaining_rows += (row for row in old if row.kind in APPEND_ONLY)
        batches = [shard.batch_in_parts(0, upper, remaining_rows, state)]
        end = covered[-1].upper
        if upper < end:
            later = [row for row in rows if row.version >= upper]
            batches.append(shard.batch_in_parts(upper, end, later, state))
        history = (*batches, *state.batches[len(covered) :])
        since = up_to, heads[up_to]
        return Rewrite(state, history, state.appended, since=since, fence=fence)

    def _rewrite(self, change: Rewrite) -> bool:
        """Commit ``change``. Returns whether it was done; if not, its uploads are removed."""
        try:
            self._shard.commit(rewrite(change))
        except REFUSED as refused:  # after any other error its parts may be named
            self._shard.remove_unused(change.uploads())
            if isinstance(refused, AlreadyMaintained | UploadExpired):
                return False
            raise
        return True

    def _rows_that_count(self, batches: Sequence[Batch], state: ShardState) -> list[Row]:
        """The rows of ``batches`` except those that ``state`` says are pruned."""
        pruned = dict(state.pruned)
        rows = (row for batch in batches for row in self._shard.rows_of(batch))
        return [row for row in rows if row.version > pruned.get(row.kind, 0)]

    # -- parts -------------------------------------------------------------------------------------

    def _flushed(self, state: ShardState) -> tuple[Batches, Batches]:
        """The batches of ``state``, with its inline rows moved to parts."""
        first = 1 if state.since else 0  # the consolidated batch at `since` stays separate
        history = list(state.batches[:first])
        appended = list(state.appended)
        for is_inline, run in groupby(state.batches[first:], key=lambda batch: not batch.parts):
            batches = list(run)
            # Batches in parts stay as they are and are not read.
            inline = batches if is_inline else []
            rows = self._rows_that_count(inline, state)
            if not rows:
                history += batches
                continue
            lower, upper = batches[0].lower, batches[-1].upper
            for into, of_kinds in (
                (history, [row for row in rows if row.kind not in LASTING]),
                (appended, [row for row in rows if row.kind in LASTING]),
            ):
                if of_kinds:
                    into.append(self._shard.batch_in_parts(lower, upper, of_kinds, state))
        return tuple(history), tuple(sorted(appended, key=lambda batch: batch.lower))

    def _merged(self, batches: Batches, state: ShardState, *, first: int = 0) -> Batches:
        """``batches`` with the last small ones merged into one; those before ``first`` stay."""
        while len(batches) - first >= MERGED_AT_ONCE:
            last = batches[-MERGED_AT_ONCE:]
            counts = [batch.rows for batch in last]
            if sum(counts) > PART_ROWS or 2 * max(counts) > sum(counts):
                break
            rows = self._rows_that_count(last, state)
            merged = self._shard.batch_in_parts(last[0].lower, last[-1].upper, rows, state)
            batches = (*batches[:-MERGED_AT_ONCE], merged)
        return batches

    # -- the sweep ---------------------------------------------------------------------------------

    def sweep(self) -> int:
        """Remove the blobs that no state names or ever will. Returns their number."""
        shard = self._shard
        state = shard.commit(raise_floor)
        named = state.blobs()
        unnamed = [
            key
            for key in shard.blob.list(f"{shard.name}/")
            if key not in named and seqno_of(key) < state.floor
        ]
        for key in unnamed:
            shard.blob.delete(key)
        return len(unnamed) + shard.blob.remove_unfinished()


@contextmanager
def _failures_logged() -> Iterator[None]:
    try:
        yield
    except StrandlineError as error:
        log.warning("maintenance of the catalog's log failed: %s", error.message)
    except Exception:
        log.exception("maintenance of the catalog's log failed")


def _diffs_since_rollup(state: ShardState) -> int:
    return state.seqno - (0 if state.rollup is None else state.rollup.seqno)
