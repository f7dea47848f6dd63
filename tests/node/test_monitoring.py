"""The health and the metrics that a node reports over HTTP."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.catalog.events import AppliedVersion
from strandline.clock import milliseconds
from strandline.config import Settings
from strandline.durable.persist.persist_log import PersistLog
from strandline.durable.shadow_log import ShadowLog
from strandline.errors import CorruptData, ObjectNotFound, Unavailable, UnknownOutcome
from strandline.metastore.call_log import CallLog
from strandline.metastore.session import HttpSession
from strandline.node import Node, monitoring
from strandline.node import node as node_module
from strandline.node.health import NodeHealth
from strandline.node.metrics import METRICS, metrics_text
from strandline.node.monitoring import Monitoring
from strandline.sql import FenceRow, StoreFull, change
from tests.metastore.session.served import monitored, serving
from tests.servers import etcd, stores


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check may take long on a busy machine."""
    monkeypatch.setattr(monitoring, "DEADLINE", 60.0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def health(url: str) -> tuple[int, dict[str, object]]:
    answer = httpx.get(f"{url}/health/ready", trust_env=False)
    assert answer.headers["cache-control"] == "no-store"
    return answer.status_code, answer.json()


def test_health_is_checked_at_each_request_and_gives_reasons(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(monitored(node)) as url:
        assert health(url) == (200, health(url)[1])
        assert health(url)[1]["status"] == "ok"

        def gone() -> None:
            raise Unavailable("the store is away")

        with monkeypatch.context() as broken:
            broken.setattr(node.health, "_checks", dict(node.health._checks))
            node.health.add("store", gone)
            status, body = health(url)
            assert (status, body["status"]) == (503, "failing")
            assert body["problems"] == [{"check": "store", "reason": "the store is away"}]
            node.health.add("store", lambda: 1 / 0)
            status, body = health(url)
            assert status == 503
            reason = "the check failed with an internal error: ZeroDivisionError"
            assert body["problems"] == [{"check": "store", "reason": reason}]
        assert health(url)[0] == 200


def test_a_node_that_is_fenced_or_has_no_applier_is_unhealthy(
    tmp_path: Path,
) -> None:
    with Node.open(tmp_path / "s") as node:
        assert node.health.report() == []
        with node.database.write() as connection:
            token = FenceRow.read(connection)
            assert token is not None
            newer = type(token.token)(token.token.deploy_generation + 1, 0)
            FenceRow.raise_to(connection, newer)
        problems = {problem.check: problem.reason for problem in node.health.report()}
        assert "a newer holder has opened it" in problems["fence"]
        node.catalogs.stop()
        problems = {problem.check: problem.reason for problem in node.health.report()}
        assert "stopping" in problems["catalog applier"]


def test_a_node_whose_store_was_upgraded_by_a_newer_release_is_unhealthy(tmp_path: Path) -> None:
    with Node.open(tmp_path / "s") as node:
        assert node.health.report() == []
        with node.database.write() as connection:
            newer = "UPDATE strandline_schema SET version = version + 1 WHERE part = 'metastore'"
            change(connection, newer)
        (reported,) = node.health.report()
        assert reported.check == "release"
        assert reported.stops_reads
        assert "was written by a newer release: its part 'metastore'" in reported.reason


def problem(node: Node, check: str) -> str:
    """The reason that ``check`` gives, or "" if it finds no problem."""
    return next((finding.reason for finding in node.health.report() if finding.check == check), "")


@pytest.mark.slow
def test_a_node_whose_applier_hangs_is_not_ready_until_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, hangs = threading.Event(), threading.Event()

    def hang(_: AppliedVersion) -> None:
        hangs.set()
        go_on.wait()

    with Node.open(tmp_path / "s") as node, Node.open(tmp_path / "s") as other:
        node.catalogs.subscribe(hang)
        with serving(monitored(node)) as url:
            try:
                other.metastore.execute(CreateSchema(name="new"), user="ann")
                assert hangs.wait(60)
                # Not all checks: after a pause of this process, that of the store waits as well.
                node.catalogs.check_applier(longest=60)
                monkeypatch.setattr(node_module, "LAG_SECONDS", 0.7)
                while health(url)[0] == 200:
                    pass
                status, body = health(url)
                assert (status, body["status"]) == (503, "failing")
                with pytest.raises(Unavailable, match=r"at most 0\.7 s are allowed"):
                    node.catalogs.check_applier(longest=0.7)
            finally:
                go_on.set()
        while problem(node, "catalog applier"):
            pass


@pytest.mark.slow
def test_a_node_whose_follower_hangs_or_fails_is_not_ready_until_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(tmp_path / "s") as node:
        go_on, hangs = threading.Event(), threading.Event()

        def hang(after: int, *, timeout: float) -> int:
            hangs.set()
            go_on.wait()
            return after

        def fail(after: int, *, timeout: float) -> int:
            raise Unavailable("the store is away")

        with monkeypatch.context() as broken:
            broken.setattr(node_module, "LAG_SECONDS", 60.0)
            broken.setattr(node.notifications, "wait", hang)
            assert hangs.wait(60)
            assert problem(node, "notification follower") == ""
            broken.setattr(node_module, "LAG_SECONDS", 0.7)
            try:
                while not problem(node, "notification follower"):
                    pass
                assert "at most 0.7 s are allowed" in problem(node, "notification follower")
                broken.setattr(node.notifications, "wait", fail)
            finally:
                go_on.set()
            while "fails: Unavailable: the store is away" not in (
                problem(node, "notification follower")
            ):
                pass
        while problem(node, "notification follower"):
            pass
        node.store.follower.stop(wake=node.database.wake)
        assert problem(node, "notification follower") == "the thread cache-applier is not running"


@pytest.mark.slow
def test_a_node_that_can_make_no_folders_is_not_ready_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, *_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with Node.open(tmp_path / "s") as node:
        with monkeypatch.context() as full:
            full.setattr(os, "mkdir", fail)
            with pytest.raises(UnknownOutcome, match="No space left"):
                node.metastore.execute(CreateSchema(name="new"), user="ann")
            assert "No space left on device" in problem(node, "folders and events")
        while problem(node, "folders and events"):
            pass
        assert (tmp_path / "s" / "warehouse" / "new.db").is_dir()


def test_a_node_whose_full_database_takes_no_events_is_ready_for_reads_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL may have space for the small write of the health check, but not for these."""

    def fail(*_: object) -> None:
        raise StoreFull("the disk of the server is full")

    with Node.open(tmp_path / "s") as node, serving(monitored(node)) as url:
        node.metastore.execute(CreateSchema(name="old"), user="ann")
        with monkeypatch.context() as full:
            full.setattr(node.projector._entries, "advance", fail)
            with pytest.raises(UnknownOutcome, match="will follow"):
                node.metastore.execute(DropSchema(name="old"), user="ann")
            status, body = health(url)
            assert (status, body["status"]) == (200, "read_only")
            reason = "the disk of the server is full"
            assert body["problems"] == [{"check": "folders and events", "reason": reason}]
        node.projector.project_up_to(node.catalogs.latest_catalog().version)
        assert health(url)[1]["status"] == "ok"


def test_a_health_check_that_never_ends_is_named_as_a_problem(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "DEADLINE", 0.05)
    hangs, go_on, checks = threading.Event(), threading.Event(), NodeHealth()

    def hang() -> None:
        hangs.set()
        go_on.wait()

    checks.add("clock", lambda: None)
    checks.add("catalog head", hang)
    reason = "the store did not answer within 0.05 s: the check 'catalog head' waits for it"
    try:
        with serving(monitored(node, checks=checks)) as url:
            while not hangs.is_set():
                health(url)
            for _ in range(4):  # more requests than threads
                status, body = health(url)
                assert status == 503
                assert body["problems"] == [{"check": "deadline", "reason": reason}]
            go_on.set()
    finally:
        go_on.set()


async def test_requests_that_wait_for_a_page_share_an_answer_and_block_no_other_page(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = SimpleQueue[int](), threading.Event()

    def hang() -> None:
        began.put(1)
        go_on.wait()
        raise Unavailable("the store is away")

    parts = {"transactions": hang}
    pages = Monitoring(node.catalogs, NodeHealth(), parts, CallLog()).pages
    metrics, ready = pages["/metrics"], pages["/health/ready"]
    first = asyncio.ensure_future(metrics())
    try:
        await asyncio.to_thread(began.get, timeout=60)
        others = [asyncio.ensure_future(metrics()) for _ in range(100)]
        assert (await ready()).status == 200
    finally:
        go_on.set()
    assert {answer.status for answer in await asyncio.gather(first, *others)} == {200}
    assert began.qsize() == 1  # one more call for the hundred


def test_liveness_does_not_depend_on_the_store(node: Node) -> None:
    checks = NodeHealth()
    checks.add("store", lambda: pytest.fail("nobody asks the store"))
    with serving(monitored(node, checks=checks)) as url:
        assert httpx.get(f"{url}/health/live", trust_env=False).status_code == 200


def samples(page: bytes | str) -> dict[tuple[str, frozenset[str]], float]:
    """The numbers on a page, by the name and the label values of each sample."""
    text = page.decode() if isinstance(page, bytes) else page
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_calls_with_times_and_errors_by_method(node: Node) -> None:
    with serving(monitored(node)) as url, HttpSession(url, user="ann") as session:
        session.execute(CreateSchema(name="counted"))
        for schema in ("counted", "counted", "missing"):
            try:
                session.tables(schema)
            except ObjectNotFound:
                assert schema == "missing"
        httpx.post(f"{url}/v1/nothing-of-ours", json={}, trust_env=False)
        answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    values = samples(answer.text)
    assert values["strandline_call_seconds_count", frozenset({"http", "tables"})] == 3
    assert values["strandline_call_seconds_bucket", frozenset({"http", "tables", "+Inf"})] == 3
    assert values["strandline_call_seconds_count", frozenset({"http", "execute"})] == 1
    assert (
        values["strandline_call_errors_total", frozenset({"http", "tables", "object_not_found"})]
        == 1
    )
    assert (
        values["strandline_catalog_version", frozenset()] == node.catalogs.latest_catalog().version
    )
    assert values["strandline_catalog_lag_versions", frozenset()] == 0
    assert not [labels for _, labels in values if "nothing-of-ours" in labels]


def test_metrics_have_the_watermarks_and_the_lag_of_the_follower(tmp_path: Path) -> None:
    def read(node: Node) -> dict[str, float]:
        with serving(monitored(node)) as url:
            values = samples(httpx.get(f"{url}/metrics", trust_env=False).text)
        names = ("low_watermark_seconds", "min_open_transaction", "follower_lag_events")
        return {name: values[f"strandline_{name}", frozenset()] for name in names}

    with Node.open(tmp_path / "s", settings=Settings(history_retention_ms=1)) as node:
        assert read(node)["min_open_transaction"] == 0
        session = node.session(user="ann")
        opened = [session.begin() for _ in range(2)]
        node.store.follower.stop(wake=node.database.wake)
        node.store.log_applier.catch_up()
        before = node.store.statistics().applied_event
        session.execute(CreateSchema(name="new"))
        metrics = read(node)
        assert metrics["low_watermark_seconds"] == milliseconds(opened[0].begin_time) / 1000
        assert metrics["min_open_transaction"] == opened[0].txn_id
        assert metrics["follower_lag_events"] == node.notifications.head() - before > 0
        session.abort(opened[0].txn_id)
        node.store.log_applier.catch_up()
        assert read(node)["min_open_transaction"] == opened[1].txn_id
        assert read(node)["follower_lag_events"] == 0


@pytest.fixture(params=[Unavailable, CorruptData])
def url_without_transactions(
    node: Node, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The pages of a node that cannot read the statistics of its transactions."""

    def gone() -> None:
        raise request.param("the store is away")

    monkeypatch.setattr(node.transactions, "statistics", gone)
    with serving(monitored(node)) as url:
        yield url


def test_a_part_that_cannot_be_read_hides_no_other_metrics(url_without_transactions: str) -> None:
    page = httpx.get(f"{url_without_transactions}/metrics", trust_env=False)
    values = samples(page.text)
    assert values["strandline_part_readable", frozenset({"transactions"})] == 0
    assert values["strandline_part_readable", frozenset({"catalog"})] == 1
    assert ("strandline_open_transactions", frozenset()) not in values
    assert ("strandline_catalog_version", frozenset()) in values


@pytest.mark.slow
def test_a_node_whose_etcd_is_full_is_ready_for_reads_and_says_that_it_is_full(
    tmp_path: Path,
) -> None:
    store = stores.new_store("etcd", tmp_path)
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(monitored(node)) as url,
    ):
        assert health(url)[1]["status"] == "ok"
        with etcd.running().full():
            status, body = health(url)
            assert (status, body["status"]) == (200, "read_only")
            (problem,) = cast(list[dict[str, str]], body["problems"])
            assert problem["check"] == "catalog head"
            assert "disarm its alarm" in problem["reason"]
            with node.database.write() as connection:
                change(connection, "UPDATE strandline_fence SET epoch = epoch + 5")
            status, body = health(url)
            assert (status, body["status"]) == (503, "failing")


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_a_node_whose_database_another_node_keeps_busy_is_ready_for_reads_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(node_module, "BUSY_SECONDS", 60.0)
    store = stores.new_store(kind, tmp_path)
    with (
        Node.open(store.address, settings=store.settings) as node,
        Node.open(store.address, settings=store.settings) as other,
        serving(monitored(node)) as url,
    ):
        with other.database.write(), monkeypatch.context() as impatient:
            impatient.setattr(node_module, "BUSY_SECONDS", 0.05)
            status, body = health(url)
        assert (status, body["status"]) == (200, "read_only")
        (problem,) = cast(list[dict[str, str]], body["problems"])
        assert problem["check"] == "database writable"
        assert health(url)[1]["status"] == "ok"


def test_a_node_that_may_not_read_its_store_is_not_ready(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise PermissionError("the store may not be read")

    monkeypatch.setattr(node.health, "_checks", dict(node.health._checks))
    node.health.add("clock", refused)
    with serving(monitored(node)) as url:
        status, body = health(url)
    assert (status, body["status"]) == (503, "failing")


def test_a_node_whose_warehouse_is_read_only_is_ready_for_reads_and_says_so(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(monitored(node)) as url:
        assert health(url)[1]["status"] == "ok"
        node.folders.warehouse.mkdir(exist_ok=True)
        monkeypatch.setattr(os, "access", lambda *_: False)
        status, body = health(url)
        assert (status, body["status"]) == (200, "read_only")
        (problem,) = cast(list[dict[str, str]], body["problems"])
        assert problem["check"] == "warehouse writable"
        assert "creates no managed tables" in problem["reason"]


@pytest.mark.parametrize("catalog_log", ["persist", "shadow:stash+persist"])
def test_a_node_whose_catalog_cannot_write_its_blobs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog_log: str
) -> None:
    with Node.open(tmp_path, settings=Settings(catalog_log=catalog_log)) as node:
        log = node.catalogs.state.log
        log = log._second if isinstance(log, ShadowLog) else log
        assert isinstance(log, PersistLog)
        for name in ("a", "b"):
            node.session(user="ann").execute(CreateSchema(name=name))
        assert node.health.report() == []
        monkeypatch.setattr(log.maintenance, "_every", 1)  # so a rollup is overdue
        (problem,) = node.health.report()
        assert (problem.check, problem.stops_reads) == ("catalog blobs writable", False)


def test_metrics_count_the_watches_of_etcd_and_the_calls_that_share_writes(
    tmp_path: Path,
) -> None:
    store = stores.new_store("etcd", tmp_path)
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        session.begin()
        metastorage = node._opened_store.catalog_log.metastorage
        assert metastorage is not None
        while not metastorage.statistics().watches:  # the follower begins it
            pass
        with serving(monitored(node)) as url:
            values = samples(httpx.get(f"{url}/metrics", trust_env=False).text)
    metrics = {name.removeprefix("strandline_"): value for (name, _), value in values.items()}
    assert metrics["metastorage_writes_total"] > 0
    assert metrics["metastorage_watches_total"] >= 1
    assert metrics["shared_calls_total"] >= metrics["shared_writes_total"] >= 1
    assert metrics["shared_calls_waiting"] == 0


def test_statistics_have_null_for_a_part_that_cannot_be_read(
    node: Node, url_without_transactions: str
) -> None:
    answer = httpx.get(f"{url_without_transactions}/v1/statistics", trust_env=False)
    assert answer.status_code == 200
    counts = answer.json()
    assert counts["transactions"] is None
    assert counts["catalog"]["latest_version"] == node.catalogs.latest_catalog().version


def test_every_metric_has_a_value_on_the_page(node: Node) -> None:
    counts: dict[str, object | None] = {
        name: statistics() for name, statistics in node.statistics.items()
    }
    values = samples(metrics_text(counts, CallLog().statistics()))
    names = {name for name, _ in values}
    for part in counts:
        for metric in METRICS[part]:
            assert {f"strandline_{metric.name}", f"strandline_{metric.name}_total"} & names
