"""A request must name this node, whichever way its sender found it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strandline.metastore.session.callers import OriginGuard, host_of


async def served(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=200)(scope, receive, send)


def status(*headers: tuple[str, str], server: str = "10.0.0.7") -> int:
    found: list[int] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "server": (server, 9084),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    guard = OriginGuard(
        served, hosts=["Lake.example.org", "::5"], refuse=lambda error: Response(status_code=403)
    )
    asyncio.run(guard(scope, receive, send))
    return found[0]


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
def test_the_nodes_own_names_are_answered(host: str) -> None:
    assert status(("host", host)) == 200
    assert status(("host", host), ("origin", f"http://{host}")) == 200


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
    ],
)
def test_foreign_names_are_refused(host: str) -> None:
    assert status(("host", host)) == 403
    assert status(("host", "localhost"), ("origin", f"http://{host}")) == 403
    assert status(("host", "localhost"), ("host", host)) == 403


def test_a_page_without_an_origin_of_its_own_is_refused() -> None:
    assert status(("host", "localhost"), ("origin", "null")) == 403


def test_what_no_browser_sends_needs_no_name() -> None:
    assert status() == 200


@pytest.mark.parametrize("sent", ["evil.example\\@127.0.0.1", "evil.example@127.0.0.1"])
def test_a_name_behind_a_user_is_no_host(sent: str) -> None:
    assert host_of(f"//{sent}") is None
