"""Configuration parameters: how their texts are parsed, and that every stored value can be read."""

from __future__ import annotations

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import SetConfiguration
from strandline.catalog.configuration import (
    CLUSTER_SIZES,
    ENFORCE_PRIVILEGES,
    HISTORY_RETENTION,
    MAX_TABLES,
    METADATA_STALENESS,
    PARAMETERS,
    ClusterSize,
    parameter,
)
from strandline.errors import InvalidInput
from strandline.node.settings import REGISTRY


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1500", 1_500),
        ("500ms", 500),
        ("1 s", 1_000),
        ("30m", 1_800_000),
        ("12H", 43_200_000),
        ("7d", 604_800_000),
        ("7 days", 604_800_000),
    ],
)
def test_durations_are_parsed_with_their_units(text: str, milliseconds: int) -> None:
    assert HISTORY_RETENTION.read(text) == milliseconds
    assert REGISTRY["history_retention_ms"].read(text) == milliseconds  # the setting of a node


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("ON", True), ("false", False), ("off", False)]
)
def test_booleans_are_parsed(text: str, value: bool) -> None:
    assert ENFORCE_PRIVILEGES.read(text) is value


def test_cluster_sizes_are_parsed() -> None:
    sizes = CLUSTER_SIZES.read('{"a": {"cores": 3, "memory": "2G"}}')
    assert sizes == {"a": ClusterSize(3, "2G")}


@pytest.mark.parametrize("declared", PARAMETERS.values(), ids=list(PARAMETERS))
def test_every_parameter_accepts_its_default_and_refuses_an_invalid_text(declared: object) -> None:
    known = parameter(getattr(declared, "name"))  # noqa: B009 - the parameter is of any type
    assert known.default is None or known.read(known.default) is not None
    with pytest.raises(InvalidInput, match=known.name):
        known.read("\x00")


@pytest.mark.parametrize("text", ["", "١", "1e3", "1.5", "9" * 19, "NaN", "7d 1h", "d", "7w"])
def test_invalid_numbers_and_durations_are_refused(text: str) -> None:
    for setting in (MAX_TABLES, METADATA_STALENESS):
        with pytest.raises(InvalidInput, match=setting.name):
            setting.read(text)


@pytest.mark.parametrize(
    "text",
    ["", "null", "1", "[", '"a"', '{"a":1}', '{"a":{"cores":true,"memory":"1g"}}', "[" * 100_000],
)
def test_invalid_cluster_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cluster_sizes cannot be"):
        CLUSTER_SIZES.read(text)


def test_a_value_set_in_the_catalog_applies_until_it_is_unset(manager: CatalogManager) -> None:
    assert MAX_TABLES.value(manager.latest_catalog()) == 1_000_000
    assert HISTORY_RETENTION.value(manager.latest_catalog()) is None
    for name, value in (("max_tables", "5"), ("history_retention", "1h")):
        manager.execute(SetConfiguration(name=name, value=value), author="ann")
    assert MAX_TABLES.value(manager.latest_catalog()) == 5
    assert HISTORY_RETENTION.value(manager.latest_catalog()) == 3_600_000
    manager.execute(SetConfiguration(name="history_retention", value=None), author="ann")
    assert HISTORY_RETENTION.value(manager.latest_catalog()) is None


def test_a_value_at_its_limit_is_allowed_and_one_above_is_not() -> None:
    for name, allowed, refused in (
        ("history_retention", "36600d", "3162240000001"),
        (
            "cluster_sizes",
            '{"s":{"cores":100000,"memory":"1g"}}',
            '{"s":{"cores":100001,"memory":"1g"}}',
        ),
    ):
        parameter(name).read(allowed)
        with pytest.raises(InvalidInput):
            parameter(name).read(refused)
