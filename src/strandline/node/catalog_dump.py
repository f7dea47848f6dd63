"""The catalog as JSON, with keys and values in the form that `strandline debug edit` accepts.

The dump is one JSON object, in which each object of the catalog has its own line, in the order of
the keys. It is made piece by piece, so it takes no memory beyond that of the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from strandline.catalog.rules import key_of
from strandline.clock import format_timestamp
from strandline.durable.collections import APPEND_ONLY, COLLECTIONS, FENCE
from strandline.durable.log import Scanned
from strandline.durable.state import ReadOnlyState
from strandline.durable.update import AuditEvent
from strandline.errors import InvalidInput
from strandline.fencing import FenceToken
from strandline.metastore.session.wire_json import write_json
from strandline.wire import decode

KINDS = (*(name for name in COLLECTIONS if name != FENCE.kind), *APPEND_ONLY)
"""The kinds that a dump shows: all except the fence, which is in its head."""


def dump_pieces(
    state: ReadOnlyState, *, ignored: Collection[str] = (), only_counts: bool = False
) -> Iterator[str]:
    """Yield the content of the log of ``state`` up to its present head, except ``ignored`` kinds.

    With ``only_counts``, yield the counts without the objects. Raises `InvalidInput` if ``ignored``
    names an unknown kind.
    """
    unknown = sorted(set(ignored) - set(KINDS))
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is not a kind of object; the kinds are {', '.join(sorted(KINDS))}"
        )
    latest = state.take_recovered()[-1]
    token = state.log.token() or FenceToken(0, 0)
    head = {
        "environment": state.environment,
        "version": latest.version,
        "time": format_timestamp(latest.time),
        "deploy_generation": token.deploy_generation,
        "epoch": token.epoch,
    }
    yield json.dumps(head)[:-1] + ', "collections": {'
    separator = "\n"
    for name in sorted(set(KINDS) - set(ignored)):
        yield f"{separator}{json.dumps(name)}: {{"
        separator = "},\n"
        if name in COLLECTIONS:
            objects = latest.contents.all_of(name)
            count = len(objects)
            lines = (_of_object(name, objects[key]) for key in sorted(objects))
        else:
            count = sum(1 for _ in _scanned(state, name, latest.version))
            lines = (_of_appended(name, o) for o in _scanned(state, name, latest.version))
        yield f'"count": {count}'
        if not only_counts:
            yield from _list(lines)
    yield "}\n}}\n"


def _list(lines: Iterator[str]) -> Iterator[str]:
    yield ', "objects": ['
    for number, line in enumerate(lines):
        yield (",\n" if number else "\n") + line
    yield "]"


def _of_object(name: str, stored: Any) -> str:
    kind = COLLECTIONS[name]
    value = decode(stored.data, kind.of)  # not `stored.value`, which caches the decoded value
    key, text = json.dumps(key_of(kind, value)), write_json(value, kind.of).decode()
    changed = format_timestamp(stored.updated)
    return f'{{"key": {key}, "value": {text}, "changed": "{changed}"}}'


def _scanned(state: ReadOnlyState, name: str, last: int) -> Iterator[Scanned]:
    return state.log.scan(name, 1, last + 1)


def _of_appended(name: str, scanned: Scanned) -> str:
    value = decode(scanned.data, APPEND_ONLY[name].of)
    if isinstance(value, AuditEvent):
        text = json.dumps(
            {
                "author": value.author,
                "member": value.member,
                "actions": [[verb, dict(arguments)] for verb, arguments in value.actions],
            }
        )
    else:
        text = write_json(value, type(value)).decode()
    at = format_timestamp(scanned.time)
    return f'{{"version": {scanned.version}, "value": {text}, "time": "{at}"}}'
