"""The catalog's part of a verification: its versions, their history, and the tables they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from strandline.catalog import Catalog, VersionInfo
from strandline.catalog.rules import broken_rules
from strandline.clock import format_timestamp
from strandline.durable.state import AppliedUpdate, ReadOnlyState
from strandline.durable.update import EntryArguments
from strandline.metastore.inspection import Finding, FindingKind
from strandline.model.descriptors import TableDescriptor


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of any retained version. ``present`` says whether the last version has it."""

    name: str
    descriptor: TableDescriptor
    present: bool


def compare_history(state: ReadOnlyState, history: list[VersionInfo]) -> Iterator[Finding]:
    """Find versions in the log that differ from their ``history`` entries.

    Each version that is not silent has one entry. The entry is stored under a key of its own, which
    no checksum covers. So a changed key could hide an entry. Releases up to 0.2.0 stored the time
    beside the record too. A version and its entry got the same time, so each can be checked against
    the other.
    """
    updates = {applied.version: applied.update for applied in state.recovered[1:]}
    missing = {version for version, update in updates.items() if not update.silent}
    for entry in history:
        update = updates.get(entry.version)
        if update is None:
            continue  # trimmed, or newer than the state
        missing.discard(entry.version)
        place = f"version {entry.version}"
        if update.time != entry.time:
            yield Finding(
                FindingKind.RECORD,
                place,
                f"its time is {format_timestamp(update.time)} in the log and"
                f" {format_timestamp(entry.time)} in the history",
            )
        elif (update.author, update.member) != (entry.author, entry.member) or update.silent:
            yield Finding(
                FindingKind.RECORD, place, "its entry in the history is that of another version"
            )
    for version in sorted(missing):
        yield Finding(
            FindingKind.RECORD, f"version {version}", "its entry in the history is missing"
        )


def findings_of_rules(state: ReadOnlyState) -> Iterator[Finding]:
    """Find objects of the last version that break a rule which holds for every catalog."""
    for kind, key, message in broken_rules(state.recovered[-1].contents):
        repair = f"{message}; repair it with `strandline debug edit`"
        yield Finding(FindingKind.RECORD, f"{kind} {key}", repair)


def parse_arguments(state: ReadOnlyState, history: list[VersionInfo]) -> None:
    """Parse the arguments of all entries, and keep none. Raises `CorruptData`."""
    actions = chain.from_iterable(version.actions for version in history)
    entries = chain.from_iterable(applied.update.entries for applied in state.recovered)
    for arguments in chain((each for _, each in actions), (entry.arguments for entry in entries)):
        if isinstance(arguments, EntryArguments):  # otherwise they are parsed
            len(EntryArguments(None, text=arguments.text))


def known_tables(state: ReadOnlyState) -> dict[int, KnownTable]:
    """Return the last descriptor of every table in any retained version, by table id."""
    tables: dict[int, KnownTable] = {}
    first, last = state.recovered[0], state.recovered[-1]
    for applied in state.recovered:
        catalog = Catalog(applied.version, applied.time, applied.contents)
        for table in _changed(applied, catalog, everything=applied is first):
            name = catalog.qualified_name(table)
            tables[table.id] = KnownTable(name, table, present=False)
    catalog = Catalog(last.version, last.time, last.contents)
    for table in catalog.tables():
        tables[table.id] = KnownTable(catalog.qualified_name(table), table, present=True)
    return tables


def table_ids_of(applied: AppliedUpdate) -> set[int]:
    """The ids of the tables that the version has."""
    return set(Catalog(applied.version, applied.time, applied.contents).table_ids())


def _changed(
    applied: AppliedUpdate, catalog: Catalog, *, everything: bool
) -> Iterator[TableDescriptor]:
    if everything:
        yield from catalog.tables()
        return
    for entry in applied.update.entries:
        for change in entry.changes:
            if change.kind == "table" and change.new is not None:
                table = catalog.table_by_id(change.object_id)
                if table is not None:
                    yield table
