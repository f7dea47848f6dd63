"""``strandline holders``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.status import age
from strandline.clock import (
    Timestamp,
    format_timestamp,
    milliseconds,
    parse_timestamp,
    system_wall_clock,
    timestamp,
)
from strandline.node import Node
from strandline.transactions import Component, LockMode
from tests.servers import stores
from tests.strandline_command import strandline


def shown(*arguments: object) -> str:
    result = strandline("holders", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def records(*arguments: object) -> list[Any]:  # Any: what JSON holds
    return [json.loads(line) for line in shown(*arguments, "--output", "json").splitlines()]


@pytest.fixture(params=["folder", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return stores.new_store(request.param, tmp_path)


def test_holders_are_shown_with_and_without_a_running_node(address: Any) -> None:
    with Node.open(address.address, settings=address.settings) as node:
        ann = node.session(user="ann\nx", host="h1")
        begun = ann.begin()
        hold = ann.hold("backup", "me", at=begun.begin_time, ttl_ms=3_600_000)
        component = Component(LockMode.EXCLUSIVE, "shop", "orders")
        lock = node.transactions.locks.acquire([component], owner="bob", agent="iceberg")
        while_running = records(address.address)
        output = shown(address.address)
    *listed, summary = records(address.address)
    assert [(r["holder"], r["id"], r["kind"], r["owner"]) for r in listed] == [
        ("transaction", begun.txn_id, "read-write", "ann\nx"),
        ("hold", hold.hold_id, "backup", "me"),
        ("lock", lock.lock_id, "granted", "bob"),
    ]
    since = format_timestamp(begun.begin_time)
    assert [r["since"] for r in listed[:2]] == [since, since]
    assert listed[0]["keeps"][0].startswith(f"history from {since} on")
    assert listed[2]["keeps"] == ["EXCLUSIVE on shop.orders"]
    assert all(r["age_ms"] >= 0 for r in listed)
    assert summary == while_running[-1] | {"low_watermark": summary["low_watermark"]}
    assert summary["holder"] == "summary"
    assert (summary["transactions"], summary["holds"], summary["locks"]) == (1, 1, 1)
    assert summary["min_open_txn"] == begun.txn_id
    assert r"ann\nx" in output
    (hold_line,) = (line for line in output.splitlines() if line.startswith("hold "))
    assert re.search(r"  (1 h|59 min( \d+ s)?)  +history from ", hold_line)
    assert "open transactions: 1, holds: 1, locks: 1" in output
    assert "history is needed from " in output


def test_a_store_without_holders_prints_zero_counts(tmp_path: Path) -> None:
    Node.open(tmp_path / "s").close()
    assert shown(tmp_path / "s").startswith("open transactions: 0, holds: 0, locks: 0\n")
    (summary,) = records(tmp_path / "s")
    assert summary["min_open_txn"] is None


def test_a_store_whose_first_start_did_not_end_has_no_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("power")

    monkeypatch.setattr("strandline.node.node.Transactions", fail)
    with pytest.raises(OSError, match="power"):
        Node.open(tmp_path / "s")
    assert shown(tmp_path / "s").startswith("open transactions: 0, holds: 0, locks: 0\n")


@pytest.mark.parametrize("days", [1, 7])
def test_history_is_needed_as_long_as_the_parameter_says(tmp_path: Path, days: int) -> None:
    Node.open(tmp_path / "s").close()
    if days != 7:  # the default
        strandline("parameter", "set", tmp_path / "s", "history_retention", f"{days}d")
    before = system_wall_clock()
    (summary,) = records(tmp_path / "s")
    needed = milliseconds(parse_timestamp(summary["low_watermark"])) + days * 86_400_000
    assert before - 60_000 <= needed <= system_wall_clock()


def test_holders_of_a_missing_store_is_an_error(tmp_path: Path) -> None:
    result = strandline("holders", tmp_path / "nowhere")
    assert result.exit_code == 66
    assert "there is no store" in result.output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3_725, "1 h 2 min"), (3_605, "1 h 5 s"),
     (200_000, "2 d 7 h"), (-5, "0 s")],
)  # fmt: skip
def test_an_age_is_printed_in_its_two_largest_units(seconds: int, text: str) -> None:
    assert age(timestamp(10**12), timestamp(10**12 + 1000 * seconds)) == text
    assert age(None, Timestamp(5)) == ""
