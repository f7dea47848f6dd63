"""What a node logs about DDL and calls, over both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.errors import (
    InvalidInput,
    NotFound,
    ObjectNotFound,
    PermissionDenied,
    Unavailable,
    WriteConflict,
)
from strandline.metastore.call_log import CallLog
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.thrift import ThriftException
from tests.log_lines import NEVER_SLOW_MS, log_lines
from tests.metastore.hive.hive_node import HiveNode, hive_node
from tests.metastore.session.served import serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveNode]:
    with hive_node(tmp_path_factory.mktemp("log") / "store") as node:
        yield node


def test_ddl_over_thrift_is_logged_with_its_version_user_client_and_change(
    served: HiveNode,
) -> None:
    with log_lines() as lines, served.client() as client:
        client.call("set_ugi", user_name="bob", group_names=[])
        client.call("create_database", database={"name": "bobs"})
        client.call("get_all_databases")
    version = served.node.catalogs.latest_catalog().version
    (line,) = lines.of("ddl")
    assert line.pop("client").startswith("127.0.0.1:")
    assert line.pop("message").startswith(f"version {version}: create schema bobs")
    assert line == {"level": "info", "user": "bob", "catalog_version": version}
    assert lines.of("calls") == []


def test_ddl_over_http_is_logged_and_a_refusal_is_logged_with_its_caller(served: HiveNode) -> None:
    application = HttpApplication(served.node.metastore, calls=CallLog(NEVER_SLOW_MS))
    with (
        serving(application) as url,
        log_lines() as lines,
        HttpSession(url, user="ann") as session,
    ):
        version = session.execute(CreateSchema(name="anns")).version
        with pytest.raises(InvalidInput):
            session.execute(CreateSchema(name=" x"))
        session.tables("anns")
        with pytest.raises(ObjectNotFound):
            session.tables("nobodys")
        session.undo(version)
    made, undone = lines.of("ddl")
    assert (made["user"], made["message"]) == (
        "ann",
        f"version {version}: create schema anns",
    )
    assert made["client"].startswith("127.0.0.1:")
    assert undone["message"].startswith(f"version {version + 1}: drop schema anns")
    (refused,) = lines.of("calls")
    assert refused["message"].startswith("execute was refused: ")
    assert refused["user"] == "ann"
    assert refused["ms"] >= 0


def test_a_schema_with_an_invalid_version_is_logged_with_the_reason(served: HiveNode) -> None:
    with log_lines() as lines, served.client() as client:
        for name in ("default@nine", "default@2026-99-99", "default@99999", "none_such"):
            with suppress(ThriftException):
                client.call("get_database", name=name)
    messages = [line["message"] for line in lines.of("calls")]
    assert len(messages) == 3
    assert "default@nine" in messages[0]
    assert "2026-99-99" in messages[1]
    assert "version 99999 does not exist" in messages[2]


def test_a_slow_call_is_logged_as_a_warning(
    served: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(HttpApplication(served.node.metastore, calls=CallLog(0))) as url,
        log_lines() as lines,
        HttpSession(url, user="ann") as session,
    ):
        session.tables("default")
    (line,) = lines.of("calls")
    assert (line["level"], line["message"], line["user"]) == ("warning", "tables was slow", "ann")


@pytest.mark.parametrize(
    ("error", "ms", "level"),
    [
        (None, 999, None),
        (None, 1000, "warning"),
        (ObjectNotFound("x"), 5, "debug"),
        (NotFound("x"), 5, "info"),
        (WriteConflict("x"), 5, "info"),
        (PermissionDenied("x"), 5, "warning"),
        (Unavailable("x"), 5, "warning"),
        (RuntimeError("told elsewhere"), 5, None),
    ],
)
def test_the_log_level_of_a_call_depends_on_its_error_and_duration(
    error: Exception | None, ms: int, level: str | None
) -> None:
    with log_lines(level="debug") as lines:
        log = CallLog(1000)
        log.ended("http", "m", client="c", user="", seconds=ms / 1000, error=error)
    assert [line["level"] for line in lines.of("calls")] == ([level] if level else [])
