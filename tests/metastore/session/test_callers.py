"""A request must name this node as its host, and its credentials must be readable."""

from __future__ import annotations

import pytest

from strandline.errors import InvalidInput, PermissionDenied
from strandline.metastore.session.callers import (
    _MAX_ACCEPTED,
    AUTHORIZATION,
    OriginGuard,
    caller_of,
    host_of,
)
from strandline.metastore.session.http_messages import Message, Request


async def no_more() -> Message:
    return {"type": "http.disconnect"}


def guard() -> OriginGuard:
    return OriginGuard(["Lake.example.org", "::5"])


def is_own(
    *headers: tuple[str, str], server: str = "10.0.0.7", by: OriginGuard | None = None
) -> bool:
    scope = {
        "method": "POST",
        "path": "/v1/begin",
        "server": (server, 9084),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    try:
        (by or guard()).require_own(Request(scope, no_more))
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9084",
        "127.9.9.9",
        "localhost",
        "LOCALHOST.:9084",
        "node.localhost:1",
        "[::1]:9084",
        "lake.example.org:9084",
        "LAKE.example.org",
        "10.0.0.7:9084",
        "[::5]:80",
    ],
)
def test_requests_that_name_the_node_are_accepted(host: str) -> None:
    assert is_own(("host", host))
    assert is_own(("host", host), ("origin", f"http://{host}"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org:9084",
        "10.0.0.8",
        "localhost.evil.org",
        "127.0.0.1.evil.org",
        "evil.org@",
        "",
        "[::6]",
        "[",
        "lake.example.org.evil",
        "evil.example\\.localhost",
        "evillocalhost",
    ],
)
def test_requests_with_a_foreign_host_or_origin_are_refused(host: str) -> None:
    assert not is_own(("host", host))
    assert not is_own(("host", "localhost"), ("origin", f"http://{host}"))
    assert not is_own(("host", "localhost"), ("host", host))


def test_a_request_with_a_null_origin_is_refused() -> None:
    assert not is_own(("host", "localhost"), ("origin", "null"))


def test_a_request_without_host_and_origin_is_accepted() -> None:
    assert is_own()


def test_an_address_is_accepted_only_from_connections_that_arrived_there() -> None:
    same = guard()
    assert is_own(("host", "10.0.0.7"), by=same)
    assert not is_own(("host", "10.0.0.7"), server="10.0.0.8", by=same)


def test_few_and_only_short_accepted_names_are_remembered() -> None:
    same = guard()
    assert is_own(("host", f"{'a' * 80}.localhost"), by=same)
    assert not same._accepted
    for number in range(_MAX_ACCEPTED + 1):
        assert is_own(("host", f"n{number}.localhost"), by=same)
        assert 0 < len(same._accepted) <= _MAX_ACCEPTED


@pytest.mark.parametrize("sent", ["evil.example\\@127.0.0.1", "evil.example@127.0.0.1"])
def test_a_host_after_user_information_is_not_accepted(sent: str) -> None:
    assert host_of(f"//{sent}") is None


@pytest.mark.parametrize("sent", ["", "Basic", "Basic YW5u", "Basic é", "Basic /w==", "Bearer x"])
def test_credentials_that_cannot_be_read_are_refused(sent: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        caller_of({AUTHORIZATION.lower(): sent})
