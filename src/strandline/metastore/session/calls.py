"""The calls of `Session` over HTTP: ``POST /v1/<method>``, with JSON or lists of files.

The table of calls is generated from the signatures of `Session`. A method that is added there gets
a path, a form for its arguments and one for its result, for client and node at once.

A client and its node must be of one release: calls change between releases. Each sends the version
of its protocol in a header, so that both can name the reason if the versions differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strandline import work
from strandline.metastore.interface import Session, TableFiles
from strandline.metastore.session import file_lists
from strandline.metastore.session.json_forms import arguments_form, form_of, result_hint
from strandline.metastore.session.json_values import Form, always, as_it_is
from strandline.metastore.session.local_session import LocalSession
from strandline.metastore.session.wire_json import dump_json, read_form
from strandline.metastore.workers import CallKind

PREFIX = "/v1"
USER_HEADER = "X-Strandline-User"
"""The header with the user of the call, percent-encoded."""
PROTOCOL = "3"
"""Changes when a call changes. Without the header, an answer counts as 1; a request is accepted."""
PROTOCOL_HEADER = "X-Strandline-Protocol"
STORE_HEADER = "X-Strandline-Store"
"""The header with the environment id of the store. A node sends it with each answer. A request that
names another store is refused; one without the header is accepted, since older clients send none.
"""
ANONYMOUS = "anonymous"
JSON_TYPE = "application/json"
_READS = frozenset(
    {
        "clean",
        "config",
        "data_history",
        "differences",
        "dump",
        "files",
        "history",
        "holders",
        "open",
        "parameters",
        "roles",
        "schemas",
        "status",
        "storage_usage",
        "table",
        "tables",
        "transaction",
        "verify",
    }
)
"""Methods that change nothing: they may be given up halfway, and called again."""
_DDL = frozenset({"compact", "execute", "undo", "undrop", "undrop_partitions"})
"""Methods that wait for other DDL."""
_READ_FIRST = frozenset({"undo", "undrop"})
"""Methods that read the history before they change something: until then, they may be given up."""
_WHOLE_STORE = frozenset({"clean", "dump", "verify"})
"""Methods that read the whole store, which may take long."""
_LOCAL = frozenset({"close"})
"""Methods that the client executes itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method of `Session`, and how its arguments and its result are written and read.

    ``method`` is the method of `LocalSession` with which a node answers the call. Its result is
    written in pieces. A form is None if the body has none.
    """

    name: str
    method: str
    request_type: str
    write_arguments: Callable[[Mapping[str, Any]], bytes]
    read_arguments: Callable[[bytes], dict[str, Any]]
    request_form: Form | None
    answer_type: str
    write_result: Callable[[Any], Iterable[bytes]]
    read_result: Callable[[bytes], Any]
    answer_form: Form | None

    @property
    def path(self) -> str:
        return f"{PREFIX}/{self.name}"

    @property
    def only_reads(self) -> bool:
        return self.name in _READS

    @property
    def may_be_too_long(self) -> bool:
        """Whether a child may execute the call instead when it costs too much for a thread."""
        return self.only_reads or self.name in _READ_FIRST

    @property
    def reads_whole_store(self) -> bool:
        """Whether the call reads the whole store: a node executes one such call at a time."""
        return self.name in _WHOLE_STORE

    def answer(
        self, session: LocalSession, body: bytes, *, still_wanted: Callable[[], object]
    ) -> Iterable[bytes]:
        """Execute the call: take the body of the request, return that of the answer in pieces.

        ``still_wanted`` is called before anything is done, and may raise.
        """
        arguments = self.read_arguments(body)
        still_wanted()
        result = getattr(session, self.method)(**arguments)
        work.spend(len(result) if isinstance(result, list | tuple) else 0)
        return self.write_result(result)

    def kind(self, body_bytes: int) -> CallKind:
        """The kind of the call, by what it may hold up."""
        if self.name in _DDL:
            return CallKind.DDL
        if work.units_of_json(body_bytes) > work.IN_THREAD:
            return CallKind.LARGE
        return CallKind.READ if self.only_reads else CallKind.WRITE


def _call(name: str) -> Call:
    method = getattr(Session, name)
    request = _STAGING if method is Session.stage else _json(arguments_form(method))
    hint = result_hint(method)
    if hint is TableFiles:
        return Call(name, LocalSession.stored_files.__name__, *request, *_in_one_piece(_FILES))
    if hint is bytes:
        return Call(name, LocalSession.dump_pieces.__name__, *request, *_DUMP)
    return Call(name, name, *request, *_in_one_piece(_json(form_of(hint))))


_Codec = tuple[str, Callable[[Any], bytes], Callable[[bytes], Any], Form | None]
"""A content type, a function that writes its content, one that reads it, and its form if JSON."""
_STAGING: _Codec = (
    file_lists.CONTENT_TYPE,
    file_lists.write_staging,
    file_lists.read_staging,
    None,
)
_FILES: _Codec = (file_lists.CONTENT_TYPE, file_lists.write_files, file_lists.read_files, None)
_InPieces = tuple[str, Callable[[Any], Iterable[bytes]], Callable[[bytes], Any], Form | None]
"""A `_Codec` that writes the content in pieces."""
_DUMP: _InPieces = (
    JSON_TYPE,
    lambda pieces: pieces,
    bytes,
    Form(as_it_is, as_it_is, always({"type": "object"})),
)


def _in_one_piece(codec: _Codec) -> _InPieces:
    content_type, write, read, form = codec
    return content_type, lambda value: (write(value),), read, form


def _json(form: Form) -> _Codec:
    return (
        JSON_TYPE,
        lambda value: dump_json(form.write(value)),
        lambda body: read_form(body, form),
        form,
    )


CALLS: dict[str, Call] = {
    name: _call(name) for name in sorted(Session.__abstractmethods__ - _LOCAL)
}
