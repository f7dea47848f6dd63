"""The calls of `Session` as HTTP carries them: ``POST /v1/<method>``, arguments as JSON.

The table is made from the signatures of `Session` itself. A method that is added there has a path,
a form for its arguments and one for its result on both sides at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline import work
from strandline.metastore.interface import Session, TableFiles
from strandline.metastore.session import file_lists
from strandline.metastore.session.json_forms import Form, arguments_form, result_hint
from strandline.metastore.session.wire_json import read_form, read_json, write_json
from strandline.metastore.workers import CallKind

PREFIX = "/v1"
USER_HEADER = "X-Strandline-User"
"""Who calls, percent-encoded."""
ANONYMOUS = "anonymous"
JSON_TYPE = "application/json"
_READS = frozenset({"differences", "files", "history", "open", "table", "tables", "transaction"})
"""Methods that change nothing: they may be given up on the way, and asked again."""
_DDL = frozenset({"compact", "execute", "undo", "undrop", "undrop_partitions"})
"""Methods that wait for other DDL."""
_LOCAL = frozenset({"close"})
"""Methods that end at the client."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method of `Session`, and how its arguments and its result are written and read."""

    name: str
    arguments: Form
    content_type: str
    write_result: Callable[[Any], bytes]
    read_result: Callable[[bytes], Any]

    @property
    def path(self) -> str:
        """Where it is called."""
        return f"{PREFIX}/{self.name}"

    @property
    def only_reads(self) -> bool:
        """Whether the call changes nothing."""
        return self.name in _READS

    def answer(self, session: Session, body: bytes, *, still_wanted: Callable[[], object]) -> bytes:
        """Carry the call out: from the body of the request to that of its answer.

        ``still_wanted`` is called before anything is done, and may raise.
        """
        arguments = read_form(body, self.arguments)
        still_wanted()
        result = getattr(session, self.name)(**arguments)
        work.spend(len(result) if isinstance(result, list | tuple) else 0)
        return self.write_result(result)

    def kind(self, body_bytes: int) -> CallKind:
        """What the call may hold up."""
        if self.name in _DDL:
            return CallKind.DDL
        return (
            CallKind.LARGE if work.things_of_json(body_bytes) > work.IN_THREAD else CallKind.SMALL
        )


def _call(name: str) -> Call:
    method = getattr(Session, name)
    arguments, hint = arguments_form(method), result_hint(method)
    if hint is TableFiles:
        return Call(
            name,
            arguments,
            file_lists.CONTENT_TYPE,
            file_lists.write_files,
            file_lists.read_files,
        )
    return Call(
        name,
        arguments,
        JSON_TYPE,
        lambda value: write_json(value, hint),
        lambda body: read_json(body, hint),
    )


CALLS: dict[str, Call] = {
    name: _call(name) for name in sorted(Session.__abstractmethods__ - _LOCAL)
}
