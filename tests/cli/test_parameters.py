"""``strandline parameter``: the configuration parameters of a catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.catalog.configuration import PARAMETERS
from strandline.node import Node
from tests.strandline_command import strandline


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Node.open(tmp_path / "lake"):
        return tmp_path / "lake"


def values(store: Path) -> dict[str, str | None]:
    listed = strandline("parameter", "list", store, "--output", "json")
    assert listed.exit_code == 0, listed.stderr
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    return {line["name"]: line["value"] for line in lines}


def test_a_parameter_is_set_listed_and_reset(store: Path) -> None:
    assert values(store) == dict.fromkeys(PARAMETERS)
    result = strandline("parameter", "set", store, "history_retention", "3 days", "--user", "ann")
    assert result.exit_code == 0, result.stderr
    assert "set configuration history_retention (value: 3 days)" in result.stdout
    assert values(store)["history_retention"] == "3 days"
    again = strandline("parameter", "set", store, "history_retention", "3 days")
    assert again.stdout == "it already has this value\n"
    table = strandline("parameter", "list", store).stdout
    assert table.split()[:3] == ["parameter", "value", "meaning"]
    assert "3 days (set)" in table
    assert all(declared.doc in table for declared in PARAMETERS.values())
    assert strandline("parameter", "reset", store, "history_retention").exit_code == 0
    assert values(store) == dict.fromkeys(PARAMETERS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("colour", "blue", "parameter 'colour' is unknown; known parameters are cluster_sizes"),
        ("max_tables", "-5", "max_tables cannot be '-5': it must be a whole number, 0 or more"),
        ("enforce_privileges", "true", "first create a superuser role"),
    ],
)
def test_an_invalid_parameter_is_refused_and_changes_nothing(
    store: Path, name: str, value: str, message: str
) -> None:
    refused = strandline("parameter", "set", store, name, value)
    assert refused.exit_code != 0
    assert message in refused.stderr
    assert values(store) == dict.fromkeys(PARAMETERS)


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    assert strandline("parameter", "list", tmp_path / "none").exit_code == 66
