"""Updates: the elements of the catalog's log.

An **update** is one commit and one version. It has a random ``id`` (an append whose answer was lost
is settled by comparing the id at its version), the ``time`` that the log assigned, an author, the
member of the deployment that wrote it, and a tuple of entries. An **entry** is a verb with its
arguments and the changes that it makes. Only the *changes* determine the state, in the same way in
every log. The *verb* determines which event fires and what users read later. A **change** replaces
the object at ``(kind, key)``: ``old`` and ``new`` are its exact bytes, or None if absent.

The time is part of the update and of its audit event, so every log, copy and restore has the same
one. The log knows the time only when it orders the append, and then completes the bytes
(`strandline.wire.registry.timed_head`). Releases before 0.2.1 stored the time only in the metadata
of the key.

Append-only objects (`appended`) are written in the same commit under their own keys. They are in no
snapshot and not kept in memory.

An update whose entries are all silent is bookkeeping (fence, configuration). No event fires for it,
and it is in no history.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.errors import CorruptData
from strandline.wire.codecs import (
    BYTES,
    TEXT,
    TIME,
    UINT,
    Codec,
    Reader,
    encode_text,
    optional,
    pair,
    sequence,
)
from strandline.wire.registry import Fields, nested_list, register, register_codec

Argument = str | int | bool | list[str] | None
Arguments = Mapping[str, Argument]

SILENT_VERBS = frozenset({"fence", "configure", "allocate"})
"""Verbs of bookkeeping entries. They fire no event and are in no history."""


@dataclass(frozen=True, slots=True)
class Change:
    """The object of ``kind`` at ``key`` changes from the bytes ``old`` to the bytes ``new``."""

    kind: str
    key: bytes
    old: bytes | None
    new: bytes | None

    @property
    def object_id(self) -> int:
        """The id of the object, of a kind whose keys are ids."""
        return int.from_bytes(self.key, "big")


@dataclass(frozen=True, slots=True)
class Entry:
    """One action: a verb, its arguments and its changes."""

    verb: str
    arguments: Arguments
    changes: tuple[Change, ...]

    @property
    def silent(self) -> bool:
        """Whether this entry changes bookkeeping only."""
        return self.verb in SILENT_VERBS


@dataclass(frozen=True, slots=True)
class Appended:
    """An object of an append-only kind, as its bytes."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """One commit; see the module."""

    version: int
    id: bytes
    author: str
    member: str
    entries: tuple[Entry, ...]
    time: Timestamp = MIN_TIMESTAMP
    appended: tuple[Appended, ...] = field(default=(), compare=False)

    @property
    def silent(self) -> bool:
        """Whether every entry of this update is silent."""
        return all(entry.silent for entry in self.entries)

    def changes(self) -> Iterator[Change]:
        """The changes of all entries, in order."""
        return (change for entry in self.entries for change in entry.changes)

    def at(self, time: Timestamp) -> Update:
        """This update with the time that the log assigned."""
        return Update(
            self.version, self.id, self.author, self.member, self.entries, time, self.appended
        )


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """Every object of the catalog at ``version``, by kind, in place of all updates up to it.

    ``time`` is the time of the update that made the version. ``times`` are the times of the last
    change of each object, in the order of ``kinds``. If ``times`` is empty, as in snapshots of
    release 0.1.0, ``time`` is the time of all objects.
    """

    version: int
    time: Timestamp
    kinds: tuple[tuple[str, tuple[bytes, ...]], ...]
    times: tuple[tuple[Timestamp, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """The actions of one update, without its changes. It outlives the update."""

    version: int
    id: bytes
    author: str
    member: str
    actions: tuple[tuple[str, Arguments], ...]
    time: Timestamp = MIN_TIMESTAMP


class EntryArguments(Mapping[str, Argument]):
    """The arguments of an entry, and the JSON text with sorted keys in which they are stored.

    At first only one of the two exists. Few readers of an update look at its arguments, so the text
    is parsed at the first access, which raises `CorruptData` if it is not a JSON object. The text
    is encoded once, although the update, its audit event and its notification all contain it.
    """

    __slots__ = ("_text", "_values")

    def __init__(self, values: Arguments | None, *, text: bytes | None = None) -> None:
        self._values = None if values is None else dict(values)
        self._text = text

    @property
    def text(self) -> bytes:
        """The stored form, in UTF-8. Raises `InvalidInput` for a lone surrogate."""
        if self._text is None:
            self._text = encode_text(_write_json(self._values))
        return self._text

    @property
    def values_by_name(self) -> dict[str, Argument]:
        if self._values is None:
            self._values = _parse_arguments(self._text or b"")
        return self._values

    def __getitem__(self, name: str) -> Argument:
        return self.values_by_name[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values_by_name.get(name, default)  # `Mapping.get` raises and catches an error

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __repr__(self) -> str:
        return repr(self.values_by_name)


_write_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_read_json = json.JSONDecoder().decode


def _parse_arguments(text: bytes) -> dict[str, Argument]:
    try:
        values = _read_json(text.decode())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise CorruptData(
            f"the arguments of an entry are not a JSON object: {text[:80]!r}; restore the store"
            " from a backup"
        )
    return values


def _write_arguments(out: bytearray, value: Arguments) -> None:
    arguments = value if isinstance(value, EntryArguments) else EntryArguments(value)
    BYTES.write(out, arguments.text)


ARGUMENTS: Codec[Arguments] = Codec(
    _write_arguments, lambda reader: EntryArguments(None, text=BYTES.read(reader))
)
"""``TEXT``: JSON with sorted keys and no spaces."""


def _write_times(out: bytearray, value: tuple[Timestamp, ...]) -> None:
    BYTES.write(out, struct.pack(f"<{len(value)}Q", *value))


def _read_times(reader: Reader) -> tuple[Timestamp, ...]:
    data = BYTES.read(reader)
    if len(data) % _TIME_BYTES:
        raise reader.corrupt(f"times of {len(data)} bytes")
    return struct.unpack(f"<{len(data) // _TIME_BYTES}Q", data)


_TIME_BYTES = 8

TIMES: Codec[tuple[Timestamp, ...]] = Codec(_write_times, _read_times)
"""``BYTES`` with 8 bytes for each time: a hundred thousand of them are decoded in one step."""


def _snapshot(
    version: int,
    time: Timestamp,
    kinds: tuple[tuple[str, tuple[bytes, ...]], ...],
    times: tuple[tuple[Timestamp, ...], ...],
) -> CatalogSnapshot:
    if times and [len(of_kind) for of_kind in times] != [len(records) for _, records in kinds]:
        raise CorruptData(
            f"the snapshot of version {version} has times that do not belong to its objects;"
            " restore the store from a backup"
        )
    return CatalogSnapshot(version, time, kinds, times)


_OPTIONAL_BYTES = optional(BYTES)


def _write_change(out: bytearray, value: Change) -> None:
    TEXT.write(out, value.kind)
    BYTES.write(out, value.key)
    _OPTIONAL_BYTES.write(out, value.old)
    _OPTIONAL_BYTES.write(out, value.new)


def _read_change(reader: Reader) -> Change:
    return Change(
        intern(TEXT.read(reader)),
        BYTES.read(reader),
        _OPTIONAL_BYTES.read(reader),
        _OPTIONAL_BYTES.read(reader),
    )


# An update may have tens of thousands of changes, so these bypass the loop over fields.
register_codec(
    Change, type_id=3, version=1, since="0.1.0", codec=Codec(_write_change, _read_change)
)
register(
    Entry,
    type_id=2,
    version=1,
    since="0.1.0",
    fields=[("verb", TEXT), ("arguments", ARGUMENTS), ("changes", nested_list(Change))],
)

_UPDATE_1: Fields = (
    ("version", UINT),
    ("id", BYTES),
    ("author", TEXT),
    ("member", TEXT),
    ("entries", nested_list(Entry)),
)
_AUDIT_EVENT_1: Fields = (*_UPDATE_1[:-1], ("actions", sequence(pair(TEXT, ARGUMENTS))))
_SNAPSHOT_1: Fields = (
    ("version", UINT),
    ("time", UINT),
    ("kinds", sequence(pair(TEXT, sequence(BYTES)))),
)

register(Update, type_id=1, version=1, since="0.1.0", fields=_UPDATE_1)
register(Update, type_id=1, version=2, since="0.2.1", fields=[("time", TIME), *_UPDATE_1])
register(CatalogSnapshot, type_id=4, version=1, since="0.1.0", fields=_SNAPSHOT_1)
register(
    CatalogSnapshot,
    type_id=4,
    version=2,
    since="0.2.0",
    fields=[*_SNAPSHOT_1, ("times", sequence(TIMES))],
    build=_snapshot,
)
register(AuditEvent, type_id=30, version=1, since="0.1.0", fields=_AUDIT_EVENT_1)
register(AuditEvent, type_id=30, version=2, since="0.2.1", fields=[("time", TIME), *_AUDIT_EVENT_1])
