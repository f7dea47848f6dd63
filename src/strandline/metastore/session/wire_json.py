"""JSON texts: values and errors as HTTP bodies. `json_forms` defines the JSON of a value."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from strandline.errors import InvalidInput, ProtocolError, StrandlineError, error_of, surface_of
from strandline.metastore.session.json_forms import form_of
from strandline.metastore.session.json_values import Form, Json, Misfit

PROBLEM_TYPE = "application/problem+json"
"""The content type of an error, from RFC 9457."""
_SHOWN = 80
"""The number of bytes of a body that an error shows."""


def write_json(value: object, hint: Any) -> bytes:
    """Return the JSON text of ``value``, whose type is ``hint``, a class or another type hint."""
    return dump_json(form_of(hint).write(value))


_JSON = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    allow_nan=False,
    check_circular=False,  # saves a quarter of the time; forms write trees
)


def dump_json(value: Json) -> bytes:
    """Return JSON text. Raises `InvalidInput` for a value that JSON or UTF-8 cannot represent."""
    try:
        return _JSON.encode(value).encode()
    except ValueError as error:  # NaN, or half a surrogate pair
        raise InvalidInput(f"this cannot be sent as JSON: {error}") from None


def read_json(data: bytes, hint: Any) -> Any:
    """The value of type ``hint`` in JSON text. `InvalidInput` has the path of what is wrong."""
    return read_form(data, form_of(hint))


def read_form(data: bytes, form: Form) -> Any:
    """`read_json`, with a given form."""
    value = parse_json(data)
    try:
        return form.read(value)
    except Misfit as misfit:
        raise misfit.error() from None
    except RecursionError:
        raise _too_deep() from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _no_member_twice(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"duplicate member {duplicate!r} in an object")
    return members


_STRICT = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_no_member_twice)


def parse_json(data: bytes) -> Json:
    """Parse strict JSON: UTF-8, no NaN, no duplicate member. Raises `InvalidInput`."""
    try:
        return _STRICT.decode(data.decode())
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"the body is not JSON: {error.msg} at position {error.pos} of {len(data)}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None


def _too_deep() -> InvalidInput:
    return InvalidInput("the body is nested too deeply to be read")


def write_error(error: BaseException, *, status: int | None = None) -> tuple[int, bytes]:
    """Return the HTTP status and body for ``error``; a foreign exception is an internal error.

    ``status`` overrides the status of the error's class. The body is an RFC 9457 object with the
    error's ``code`` as an additional member.
    """
    if isinstance(error, StrandlineError):
        code, message = error.code, error.message
    else:
        code = StrandlineError.code
        message = f"internal error of the node ({type(error).__name__}); see its log"
    status = status or surface_of(error).http
    problem = {
        "type": f"urn:strandline:error:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": message,
        "code": code,
    }
    # A message may quote a name that contains half a surrogate pair.
    return status, json.dumps(problem, ensure_ascii=False).encode(errors="replace")


def read_error(status: int, body: bytes) -> StrandlineError:
    """The error that `write_error` wrote, of the same class; a `ProtocolError` for other bodies."""
    try:
        problem = parse_json(body)
        code, message = problem["code"], problem["detail"]
    except (InvalidInput, LookupError, TypeError):
        code = message = None
    if not isinstance(code, str) or not isinstance(message, str):
        return ProtocolError(
            f"the answer with HTTP status {status} is not from a Strandline node, or from one of "
            f"release 0.3.0 or older: {body[:_SHOWN]!r}; check the address and the release"
        )
    return error_of(code, message)
