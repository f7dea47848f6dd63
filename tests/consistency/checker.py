"""Finds in a history of several nodes on one store what no order of its transactions can explain.

Pure: the same history gives the same complaints. Each check is a function over the facts of a
history and stands for one promise:

* an id is given once: transactions, tables, the write ids of a table;
* a transaction ends once. Commits are ordered by their times, and real time agrees with that order;
* a snapshot stands for a time. Its lists contain exactly the writes that were committed up to then:
  all of a transaction's tables or none (otherwise it is torn); a later snapshot contains no less;
* a list has one answer, whichever node gives it: the files that its writes added and did not
  remove. What an aborted transaction wrote is never shown;
* a client without lists sees everything that was committed when it asked;
* if one of two concurrent transactions removes a file or deletes rows of it, the first committer
  wins;
* each node gives the same events under the same numbers, without a gap, in the order of commits;
* history that a hold keeps can be read; a node that was taken over no longer writes;
* a change of the catalog is one version, the one that its answer names; a refused one is none. Real
  time agrees with the order of versions, and all nodes give the same.

About a transaction of unknown outcome, the checks claim only what holds for either outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.consistency.facts import Facts, Txn, ValidIds
from tests.consistency.history import Operation, data_file_number, is_delete_file


@dataclass(frozen=True, slots=True)
class Complaint:
    """A broken promise: its kind, what was observed, and the operations that show it."""

    kind: str
    text: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.text}", *(f"    {op}" for op in self.operations)]
        return "\n".join(lines)


Complaints = Iterator[Complaint]


def check(operations: Sequence[Operation]) -> list[Complaint]:
    """All complaints about a history; empty if it can be explained."""
    facts = Facts(operations)
    return [complaint for judge in CHECKS for complaint in judge(facts)]


# -- ids and ends


def ids_are_given_once(facts: Facts) -> Complaints:
    owners: dict[tuple[int, int], Operation] = {}
    own: dict[tuple[int, int], Operation] = {}
    for op in facts.of("stage"):
        owner = owners.setdefault((op.table_id, op.write_id), op)
        if owner.txn_id != op.txn_id:
            yield Complaint("duplicated write id", "of two transactions", (owner, op))
        first = own.setdefault((op.txn_id, op.table_id), op)
        if first.write_id != op.write_id:
            yield Complaint("duplicated write id", "a transaction has two", (first, op))
    for txn in facts.txns.values():
        if len(txn.begins) > 1:
            yield Complaint("duplicated transaction id", "begun twice", tuple(txn.begins))
    tables: dict[int, Operation] = {}
    for op in facts.of("create"):
        other = tables.setdefault(op.table_id, op)
        if other is not op:
            yield Complaint("reused table id", "two tables have one id", (other, op))


def transactions_end_once(facts: Facts) -> Complaints:
    for txn in facts.txns.values():
        if txn.committed and txn.aborted:
            ends = (txn.aborted[0], txn.committed[0])
            yield Complaint("abort ignored", f"{txn.txn_id} is aborted and committed", ends)
        if len({op.time for op in txn.committed}) > 1:
            yield Complaint("two commit times", f"of {txn.txn_id}", tuple(txn.committed))


def commits_are_in_the_order_of_time(facts: Facts) -> Complaints:
    commits = sorted(facts.of("commit"), key=lambda op: op.began)
    ended = sorted(commits, key=_ended)
    latest: Operation | None = None
    passed = 0
    for op in commits:
        while passed < len(ended) and ended[passed].is_before(op):
            if latest is None or ended[passed].time > latest.time:
                latest = ended[passed]
            passed += 1
        if latest is not None and op.time < latest.time:
            yield Complaint("commit times go back", "the later commit is earlier", (latest, op))


def _ended(op: Operation) -> int:
    assert op.ended is not None  # the caller selects answered operations
    return op.ended


# -- lists


def lists_have_what_was_committed(facts: Facts) -> Complaints:
    for op in facts.of("snapshot"):
        lists = {table_id: ValidIds(text) for table_id, text in op.lists.items()}
        begins = facts.txns[op.txn_id].begins if op.txn_id else []
        taken = begins[0] if begins else op
        for txn in facts.txns.values():
            seen = {(t, w): w in lists[t] for t, w in txn.writes if t in lists}
            # A transaction always sees its own writes. The write id of an aborted transaction is in
            # lists once its rows were cleaned.
            if not seen or txn.txn_id == op.txn_id or (txn.aborted and not txn.committed):
                continue
            if kind := _misfit(txn, op, taken, {*seen.values()}):
                yield Complaint(kind, _seen(txn, seen), (op, *txn.committed[:1]))


def _misfit(txn: Txn, op: Operation, taken: Operation, seen: set[bool]) -> str | None:
    """What is wrong with a snapshot of the time of ``taken`` that shows ``seen`` of ``txn``."""
    time = txn.commit_time
    if seen == {True}:
        is_early = txn.was_committed_after(op) or (time is not None and time > taken.time)
        return "early list" if is_early else None
    if time is None:
        return None
    if seen == {True, False}:
        return "torn transaction"
    is_stale = time <= taken.time or (not op.at and txn.was_committed_before(taken))
    return "stale list" if is_stale else None


def _seen(txn: Txn, seen: dict[tuple[int, int], bool]) -> str:
    parts = (f"{'with' if is_in else 'without'} {w} of {t}" for (t, w), is_in in seen.items())
    return f"transaction {txn.txn_id}: {', '.join(sorted(parts))}"


def lists_do_not_go_back(facts: Facts) -> Complaints:
    now = [op for op in facts.of("snapshot") if not op.at and not op.txn_id]
    ended = sorted(now, key=_ended)
    latest: Operation | None = None
    known: defaultdict[int, dict[int, Operation]] = defaultdict(dict)
    passed = 0
    pairs = {pair for _, txn in facts.committed for pair in txn.writes}
    for op in now:
        while passed < len(ended) and ended[passed].is_before(op):
            before = ended[passed]
            if latest is None or before.time > latest.time:
                latest = before
            lists = {table_id: ValidIds(text) for table_id, text in before.lists.items()}
            for table_id, write_id in pairs:
                if table_id in lists and write_id in lists[table_id]:
                    known[table_id].setdefault(write_id, before)
            passed += 1
        if latest is not None and op.time < latest.time:
            yield Complaint("non-monotonic read", "the later one is of before", (latest, op))
        for table_id, text in op.lists.items():
            valid = ValidIds(text)
            for write_id, before in known[table_id].items():
                if write_id not in valid:
                    seen = f"write {write_id} of table {table_id} was seen before"
                    yield Complaint("non-monotonic read", seen, (before, op))


# -- rows


def lists_have_one_answer(facts: Facts) -> Complaints:
    for op in facts.of("files"):
        valid = ValidIds(op.write_ids)

        def is_seen(txn_id: int, op: Operation = op, valid: ValidIds = valid) -> bool:
            return any(w in valid for w in facts.txns[txn_id].write_ids_of(op.table_id))

        yield from _judged(facts, op, is_seen)


def views_have_what_was_committed(facts: Facts) -> Complaints:
    for op in facts.of("view"):

        def is_seen(txn_id: int, op: Operation = op) -> bool:
            time = facts.txns[txn_id].commit_time
            return time is not None and time <= op.time

        yield from _judged(facts, op, is_seen)
        for time, txn in facts.committed:
            wrote = any(table_id == op.table_id for table_id, _ in txn.writes)
            if wrote and time > op.time and txn.was_committed_before(op):
                yield Complaint("stale view", f"without {txn.txn_id}", (txn.committed[0], op))


def _judged(facts: Facts, op: Operation, is_seen: Callable[[int], bool]) -> Complaints:
    """What is wrong with the files of an answer; ``is_seen`` tells it by a transaction's id."""
    files = facts.staged[op.table_id]
    for path in op.files:
        staged = files.get(path)
        if staged is None:
            yield Complaint("unknown file", f"{path} was not put into that table", (op,))
            continue
        txn = facts.txns[staged.added.txn_id]
        if txn.aborted and not txn.committed and txn.txn_id != op.txn_id:
            yield Complaint("aborted write", f"{path} is shown", (txn.aborted[0], op))
        elif not is_seen(txn.txn_id) and (txn.committed or txn.was_committed_after(op)):
            yield Complaint("early write", f"{path} of {txn.txn_id} is shown", (op,))
        for removal in staged.removals:
            if _is_certain(facts, removal, op) and is_seen(removal.txn_id):
                text = f"{path}, which {removal.txn_id} removed, is shown"
                yield Complaint("removed file", text, (removal, op))
    shown = set(op.files)
    with_rows = {data_file_number(path) for path in shown if not is_delete_file(path)}
    for staged in files.values():
        if staged.path in shown:
            continue
        # A view names a delete file only if it needs it. Cleaning removes one without a data file.
        if is_delete_file(staged.path) and (
            op.call == "view" or data_file_number(staged.path) not in with_rows
        ):
            continue
        if any(is_seen(removal.txn_id) or not removal.is_done for removal in staged.removals):
            continue
        if _is_certain(facts, staged.added, op) and is_seen(staged.added.txn_id):
            yield Complaint("lost write", f"{staged.path} is missing", (staged.added, op))


def _is_certain(facts: Facts, stage: Operation, op: Operation) -> bool:
    """Whether the rows of a staging must show to a reader whose list contains its write.

    They must if the staging was executed and committed; for the transaction itself, if the staging
    ended before the read. The list may contain the write of an aborted transaction, which shows
    nothing once its rows were cleaned.
    """
    if stage.txn_id == op.txn_id:
        return stage.is_before(op)
    return stage.is_done and bool(facts.txns[stage.txn_id].committed)


def files_have_one_writer_at_a_time(facts: Facts) -> Complaints:
    for files in facts.staged.values():
        for staged in files.values():
            removers = _committed(facts, staged.removals)
            for first, second in pairwise(removers):
                yield _lost_update(f"{staged.path} was removed twice", first, second)
            for first, second in pairwise(_committed(facts, staged.removals + staged.touches)):
                if second.begin_time < first.committed[0].time:
                    yield _lost_update(f"{staged.path} was changed by both", first, second)


def _committed(facts: Facts, stages: Sequence[Operation]) -> list[Txn]:
    """The committed transactions of these calls, by their commit times."""
    txns = [facts.txns[txn_id] for txn_id in {op.txn_id for op in stages if op.is_done}]
    return sorted((txn for txn in txns if txn.committed), key=lambda txn: txn.committed[0].time)


def _lost_update(text: str, first: Txn, second: Txn) -> Complaint:
    return Complaint("lost update", text, (first.committed[0], second.committed[0]))


# -- events


def events_are_the_commits_in_order(facts: Facts) -> Complaints:
    log: dict[int, tuple[str, int]] = {}
    for op in facts.of("events"):
        for place, (number, kind, txn_id) in enumerate(op.events, start=op.after + 1):
            if number != place:
                yield Complaint("event order", f"event {number} where {place} is due", (op,))
                break
            if log.setdefault(number, (kind, txn_id)) != (kind, txn_id):
                text = f"event {number} was {log[number]} before"
                yield Complaint("event order", text, (op,))
    ends: dict[int, tuple[int, str]] = {}
    latest = 0
    for number, (kind, txn_id) in sorted(log.items()):
        if txn_id in ends:
            text = f"event {number} ({kind}) of {txn_id} is behind its end, event {ends[txn_id][0]}"
            yield Complaint("event order", text)
        if kind not in ("COMMIT_TXN", "ABORT_TXN"):
            continue
        ends[txn_id] = number, kind
        txn = facts.txns.get(txn_id)
        if txn is None:
            continue
        if (kind == "COMMIT_TXN" and txn.aborted) or (kind == "ABORT_TXN" and txn.committed):
            yield Complaint("false event", f"{kind} of {txn_id}", (*txn.aborted, *txn.committed))
        time = txn.commit_time or 0
        if 0 < time < latest:
            text = f"event {number} of {txn_id} is of an earlier commit than an event before it"
            yield Complaint("event order", text, (txn.committed[0],))
        latest = max(latest, time)
    yield from _missing_events(facts, ends)


def _missing_events(facts: Facts, ends: dict[int, tuple[int, str]]) -> Complaints:
    for op in facts.of("events"):
        last = op.events[-1][0] if op.events else op.after
        for _, txn in facts.committed:
            if not txn.writes or not txn.was_committed_before(op):
                continue
            if txn.txn_id not in ends or ends[txn.txn_id][0] > last:
                yield Complaint("missing event", f"of {txn.txn_id}", (txn.committed[0], op))


# -- holds and fences


def what_is_held_can_be_read(facts: Facts) -> Complaints:
    releases = {op.hold_id: op for op in facts.operations if op.call == "release"}
    for hold in facts.of("hold"):
        release = releases.get(hold.hold_id)
        for op in facts.operations:
            if op.error != "version_not_found" or not 0 < hold.at <= op.at:
                continue
            is_held = release is None or op.is_before(release)
            if hold.is_before(op) and is_held:
                yield Complaint("hold ignored", "history that is held is gone", (hold, op))


def who_was_taken_over_writes_no_more(facts: Facts) -> Complaints:
    writes = [*facts.of("create", "drop", "begin", "stage", "commit")]
    for takeover in facts.of("takeover"):
        for op in writes:
            if op.generation < takeover.generation and takeover.is_before(op):
                yield Complaint("fenced node", "it wrote after the takeover", (takeover, op))


# -- changes of the catalog


def changes_are_the_versions_of_their_answers(facts: Facts) -> Complaints:
    logs = sorted(facts.of("log"), key=lambda op: len(op.versions))
    for shorter, longer in pairwise(logs):
        if longer.versions[: len(shorter.versions)] != shorter.versions:
            yield Complaint("two histories", "of the catalog", (shorter, longer))
    if not logs:
        return
    made = defaultdict(list)
    for version, author in logs[-1].versions:
        made[author].append(version)
    for op in facts.operations:
        if op.call != "change":
            continue
        versions = made[op.author]
        if op.is_done and op.is_before(logs[-1]) and versions != [op.version]:
            yield Complaint("lost change", f"the versions of its author are {versions}", (op,))
        if op.error not in ("", "unknown_outcome") and versions:
            yield Complaint("refused change", f"it is the version {versions}", (op,))
        if len(versions) > 1:
            yield Complaint("repeated change", f"as the versions {versions}", (op,))


def versions_are_in_real_time_order(facts: Facts) -> Complaints:
    changes = [*facts.of("change")]
    ended = sorted(changes, key=lambda op: op.ended or 0)
    latest: Operation | None = None
    for op in sorted(changes, key=lambda op: op.began):
        while ended and ended[0].is_before(op):
            other = ended.pop(0)
            if latest is None or other.version > latest.version:
                latest = other
        if latest is not None and op.version <= latest.version:
            yield Complaint("version order", "a later change has no later version", (latest, op))


CHECKS: tuple[Callable[[Facts], Complaints], ...] = (
    ids_are_given_once,
    transactions_end_once,
    commits_are_in_the_order_of_time,
    lists_have_what_was_committed,
    lists_do_not_go_back,
    lists_have_one_answer,
    views_have_what_was_committed,
    files_have_one_writer_at_a_time,
    events_are_the_commits_in_order,
    what_is_held_can_be_read,
    who_was_taken_over_writes_no_more,
    changes_are_the_versions_of_their_answers,
    versions_are_in_real_time_order,
)
