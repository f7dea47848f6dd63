from __future__ import annotations

import json

import pytest

from strandline import errors
from strandline.catalog import Behind
from strandline.errors import InvalidInput, NotFresh, ProtocolError, StrandlineError
from strandline.metastore.session.wire_json import dump_json, parse_json, read_error, write_error

ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, StrandlineError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_read_back_with_its_class_message_and_status(
    kind: type[StrandlineError],
) -> None:
    error = kind("what was asked, ‘was found’, and what to do")
    status, body = write_error(error)
    read = read_error(status, body)
    assert type(read) is kind
    assert read.message == error.message
    assert status == errors.surface_of(error).http
    assert 400 <= status < 600


def test_an_error_without_its_own_code_is_read_back_as_its_base_class() -> None:
    read = read_error(*write_error(Behind("the catalog has moved on")))
    assert type(read) is NotFresh


def test_an_unexpected_error_is_sent_without_its_details() -> None:
    status, body = write_error(KeyError("a secret"))
    assert status == 500
    assert b"secret" not in body
    assert type(read_error(status, body)) is StrandlineError


def test_a_message_with_lone_surrogates_can_be_sent() -> None:
    assert "?" in read_error(*write_error(InvalidInput("\ud800"))).message


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"1", b'{"code": "internal"}', b'{"code": 1, "detail": "m"}'],
)
def test_an_error_body_in_another_shape_is_read_as_protocol_error(body: bytes) -> None:
    read = read_error(502, body)
    assert type(read) is ProtocolError
    assert "502" in read.message


def test_an_error_of_a_node_of_release_0_3_0_is_read_as_protocol_error_that_names_the_release() -> (
    None
):
    message = "table x.y does not exist in version 2"
    body = json.dumps({"error": {"code": "object_not_found", "message": message}}).encode()
    read = read_error(404, body)
    assert type(read) is ProtocolError
    assert "release 0.3.0 or older" in read.message
    assert "table x.y does not exist" in read.message


def test_an_unknown_error_code_is_read_as_strandline_error() -> None:
    body = json.dumps({"code": "of_the_future", "detail": "m"}).encode()
    assert type(read_error(400, body)) is StrandlineError


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_a_value_that_json_cannot_represent_is_not_sent(value: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be sent"):
        dump_json({"a": value})


def test_a_duplicate_member_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="duplicate member 'b'"):
        parse_json(b'{"a": 1, "b": 1, "b": 1}')
