"""The commands that read the history: ``log`` and ``diff``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

import click

from strandline.catalog import VersionInfo
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.differences import Difference, Shown, differences
from strandline.catalog.events import read_history_backwards
from strandline.catalog.history import History
from strandline.catalog.kinds import spoken
from strandline.catalog.verbs import describe
from strandline.cli.options import (
    OUTPUT,
    STORE,
    Row,
    Store,
    cells,
    counted,
    print_json,
    print_table,
)
from strandline.cli.stores import (
    catalog_named,
    catalogs_of,
    data_of,
    delay_of,
    history_of,
    moment_named,
    reading,
)
from strandline.clock import LOGICAL_BITS, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, format_timestamp
from strandline.durable import Arguments, UpdateLog
from strandline.errors import InvalidInput, ObjectNotFound, VersionNotFound
from strandline.logs import in_one_line
from strandline.metastore.store.data_history import DataCommit, TableChange
from strandline.model.identifiers import QualifiedName, version_number


def version_as_json(info: VersionInfo) -> dict[str, object]:
    """Return one version as ``--output json`` prints it."""
    return {
        "version": info.version,
        "time": format_timestamp(info.time),
        "author": info.author,
        "member": info.member,
        "trimmed": info.trimmed,
        "actions": [{"verb": verb, **arguments} for verb, arguments in info.actions],
    }


def commit_as_json(commit: DataCommit, history: History) -> dict[str, object]:
    """Return one commit as ``--output json`` prints it."""
    return {
        "transaction": commit.txn_id,
        "time": format_timestamp(commit.time),
        "author": commit.user,
        "changes": [
            {"table": _name_of(history, change.table_id, commit.time), **asdict(change)}
            for change in commit.changes
        ],
    }


def _name_of(history: History, table_id: int, time: Timestamp) -> str:
    """Return the name of a table when a commit changed it.

    If that version is trimmed, the earliest retained version gives the name.
    """
    earliest = history.earliest
    catalog = earliest if time < earliest.time else history.at_time(time)
    table = catalog.table_by_id(table_id)
    return f"table {table_id}" if table is None else catalog.qualified_name(table)


_COUNTED = {
    "appended_rows": ("row", "appended"),
    "deleted_rows": ("row", "deleted"),
    "data_files_added": ("data file", "added"),
    "data_files_removed": ("data file", "removed"),
    "delete_files_added": ("delete file", "added"),
    "delete_files_removed": ("delete file", "removed"),
    "partitions_added": ("partition", "added"),
    "partitions_removed": ("partition", "dropped"),
}


def describe_change(change: TableChange, name: str) -> str:
    """Describe in words what a commit did to a table."""
    shown = [
        f"{counted(number, noun)} {verb}"
        for key, (noun, verb) in _COUNTED.items()
        if (number := getattr(change, key))
    ]
    return in_one_line(f"{name}: {', '.join(shown)}")


HISTORY_COLUMNS = "version", "when (UTC)", "who", "what"


def history_rows(
    entries: Iterable[VersionInfo | DataCommit], history: History | None = None
) -> Iterator[Row]:
    """Yield the rows of the history as a table for people, with `HISTORY_COLUMNS`."""
    for entry in entries:
        if isinstance(entry, VersionInfo):
            what = [describe(verb, arguments) for verb, arguments in entry.actions]
            number = f"{entry.version}{' (trimmed)' if entry.trimmed else ''}"
            author = entry.author
        else:
            assert history is not None
            what = [
                describe_change(change, _name_of(history, change.table_id, entry.time))
                for change in entry.changes
            ]
            number, author = f"commit {entry.txn_id}", entry.user
        yield number, format_timestamp(entry.time), in_one_line(author), "\n".join(what)


class Point(NamedTuple):
    """A point in the history. Points have its order: versions of one append have one time."""

    time: Timestamp
    version: int


_BEGINNING, _END = Point(MIN_TIMESTAMP, 0), Point(MAX_TIMESTAMP, sys.maxsize)


def _point_of(entry: VersionInfo | DataCommit) -> Point:
    version = entry.version if isinstance(entry, VersionInfo) else _END.version
    return Point(entry.time, version)


def point(text: str, log: UpdateLog, *, delay_ms: int, end: bool) -> Point:
    """Return the point of a version or a time, as the beginning or end of a range.

    The end of a version is where the next one begins, at its time but before it. Raises
    `InvalidInput`, `VersionNotFound`.
    """
    version = version_number(text)
    if version is None:
        at = moment_named(text)
        # A time without a counter means the end of its millisecond. A range begins at the start.
        if end:
            return Point(at, _END.version)
        start = at if "Z+" in text.upper() else Timestamp(at >> LOGICAL_BITS << LOGICAL_BITS)
        return Point(max(MIN_TIMESTAMP, start), 0)
    first = version + 1 if end else version
    boundary, latest_version = None, 0
    for info in read_history_backwards(log, delay_ms=delay_ms):
        latest_version = max(latest_version, info.version)
        if info.version < first:
            break
        boundary = info
    if boundary is not None:
        return Point(boundary.time, version)
    if end:
        return _END
    raise VersionNotFound(f"version {version} does not exist; the latest is {latest_version}")


def about_table(infos: Iterable[VersionInfo], name: str) -> Iterator[VersionInfo]:
    """Yield the versions that changed the table ``name``, under this or an earlier name.

    ``infos`` begins with the last version. Raises `InvalidName`, and `ObjectNotFound` if there are
    none.
    """
    table = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
    name_then, exists = _unquoted(table), False
    for info in infos:
        if any(_mentions(arguments, name_then) for _, arguments in info.actions):
            exists = True
            yield info
        for verb, arguments in reversed(info.actions):
            name_then = _before(verb, arguments, name_then)
    if not exists:
        raise ObjectNotFound(
            f"no version has changed a table {table}; name it as SCHEMA.TABLE, by a name it had"
        )


def _unquoted(name: QualifiedName) -> str:
    """Return the name of a table as the history has it, in lower case."""
    return f"{name.schema}.{name.name}".lower()


def _mentions(arguments: Arguments, name: str) -> bool:
    if any(
        isinstance(text, str) and text.lower() == name
        for value in arguments.values()
        for text in (value if isinstance(value, list) else [value])
    ):
        return True
    kind, _, granted_on = str(arguments.get("on", "")).partition(" ")
    if kind != "table" or not granted_on:  # default privileges name no object
        return False
    return _unquoted(QualifiedName.parse(granted_on)) == name  # as the client wrote it


def _before(verb: str, arguments: Arguments, name: str) -> str:
    """Return the name of the table before the action ``verb`` renamed it or its schema."""
    new = str(arguments.get("to", "")).lower()
    if verb == "rename_table" and new == name:
        return str(arguments.get("table", name)).lower()
    if verb == "rename_schema" and name.startswith(f"{new}."):
        return f"{str(arguments.get('schema', new)).lower()}.{name.partition('.')[2]}"
    return name


@click.command()
@STORE
@OUTPUT
@click.option(
    "-n", "--last", type=click.IntRange(1, sys.maxsize), help="Show only the last N lines."
)
@click.option("--since", metavar="POINT", help="Start at this version or time.")
@click.option("--until", metavar="POINT", help="End at this version or time.")
@click.option("--table", "table_name", metavar="NAME", help="Show only changes of schema.table.")
@click.option("--user", "author", metavar="NAME", help="Show only changes by this user.")
@click.option("--data", is_flag=True, help="Also show commits that changed rows or partitions.")
def log(
    store: Store,
    *,
    output: str,
    last: int | None,
    since: str | None,
    until: str | None,
    table_name: str | None,
    author: str | None,
    data: bool,
) -> None:
    """Show who changed what and when in STORE, version by version.

    With --data also each commit that changed rows or partitions; the time that is shown is the
    one to read as of. Versions marked as trimmed can no longer be read.
    """
    if author == "":
        raise InvalidInput("--user names no user; leave the option out to see all changes")
    history = None
    with reading(store, latest_only=not data) as (state, database):
        delay_ms = delay_of(state)
        named = partial(point, log=state.log, delay_ms=delay_ms)
        first = _BEGINNING if since is None else named(since, end=False)
        latest = _END if until is None else named(until, end=True)
        if latest < first:
            raise InvalidInput(f"--since {since} is after --until {until}; exchange them")
        infos = read_history_backwards(state.log, delay_ms=delay_ms)
        versions = infos if table_name is None else about_table(infos, table_name)
        in_range = takewhile(lambda info: _point_of(info) >= first, versions)
        chosen = (
            info for info in in_range if _point_of(info) <= latest and _is_by(author, info.author)
        )
        entries: list[VersionInfo | DataCommit] = [*reversed([*islice(chosen, last)])]
        if data:
            history = catalogs_of(state)
            with data_of(
                history, database, since=first.time, until=latest.time, table_name=table_name
            ) as commits:
                chosen_commits = (
                    commit
                    for commit in commits
                    if _point_of(commit) <= latest and _is_by(author, commit.user)
                )
                entries += islice(chosen_commits, last)
            entries.sort(key=lambda entry: entry.time)
            entries = entries[-(last or 0) :]
    if output == "text":
        print_table(HISTORY_COLUMNS, history_rows(entries, history))
        return
    for entry in entries:
        if isinstance(entry, VersionInfo):
            line = version_as_json(entry)
        else:
            assert history is not None
            line = commit_as_json(entry, history)
        print_json(line)


def _is_by(author: str | None, name: str) -> bool:
    return author is None or name.lower() == author.lower()


_NOTHING = "—"


def difference_as_json(difference: Difference) -> dict[str, object]:
    """Return one difference as ``--output json`` prints it."""
    return {
        "change": difference.change.value,
        "kind": difference.kind,
        "id": difference.id,
        "name": difference.name,
        "old_name": difference.old_name,
        "fields": [asdict(field) for field in difference.fields],
    }


def _difference_rows(between: Sequence[Difference]) -> Iterator[Row]:
    """Yield a row for each differing field, or one for an object without such fields."""
    for difference in between:
        what, old_name = f"{spoken(difference.kind)} {difference.name}", difference.old_name
        if old_name is not None:
            what += f" (was {old_name})"
        fields = [field for field in difference.fields if not (old_name and field.field == "name")]
        for number, field in enumerate(fields or [None]):
            head = (difference.change.value, what) if number == 0 else ("", "")
            rest = (field.field, _text(field.old), _text(field.new)) if field else ("", "", "")
            yield cells(*head, *rest)


def _text(value: Shown) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _NOTHING if value is None else str(value)


@click.command()
@STORE
@click.argument("old")
@click.argument("new", required=False)
@OUTPUT
def diff(store: Store, *, old: str, new: str | None, output: str) -> None:
    """Show what differs between OLD and NEW in STORE, by object and by field.

    OLD and NEW are versions or times (2026-11-20T10:00:00Z); without NEW, the newest version.
    """
    history = history_of(store)
    older = catalog_named(history, old)
    between = differences(older, history.latest if new is None else catalog_named(history, new))
    if output == "json":
        for difference in between:
            print_json(difference_as_json(difference))
    elif between:
        print_table(("change", "what", "field", "before", "after"), _difference_rows(between))
    else:
        click.echo("no difference")
