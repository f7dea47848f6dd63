"""Configuration parameters: what their texts spell, and that what is stored can always be read."""

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
def test_a_duration_is_read_in_its_unit(text: str, milliseconds: int) -> None:
    assert HISTORY_RETENTION.read(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("ON", True), ("false", False), ("off", False)]
)
def test_a_switch_is_read(text: str, value: bool) -> None:
    assert ENFORCE_PRIVILEGES.read(text) is value


def test_sizes_are_read() -> None:
    sizes = CLUSTER_SIZES.read('{"a": {"cores": 3, "memory": "2G"}}')
    assert sizes == {"a": ClusterSize(3, "2G")}


@pytest.mark.parametrize("one", PARAMETERS.values(), ids=list(PARAMETERS))
def test_a_default_is_a_value_of_its_parameter(one: object) -> None:
    known = parameter(getattr(one, "name"))  # noqa: B009 - the parameter is of any type
    assert known.default is None or known.read(known.default) is not None
    with pytest.raises(InvalidInput, match=known.name):
        known.read("\x00")


@pytest.mark.parametrize("text", ["", "١", "1e3", "1.5", "9" * 19, "NaN", "7d 1h", "d", "7w"])
def test_what_is_no_number_is_refused(text: str) -> None:
    for one in (MAX_TABLES, METADATA_STALENESS):
        with pytest.raises(InvalidInput, match=one.name):
            one.read(text)


@pytest.mark.parametrize(
    "text",
    ["", "null", "1", "[", '"a"', '{"a":1}', '{"a":{"cores":true,"memory":"1g"}}', "[" * 100_000],
)
def test_what_are_no_sizes_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cluster_sizes cannot be"):
        CLUSTER_SIZES.read(text)


def test_a_value_in_the_catalog_holds_until_it_is_taken_back(manager: CatalogManager) -> None:
    assert MAX_TABLES.value(manager.latest_catalog()) == 1_000_000
    assert HISTORY_RETENTION.value(manager.latest_catalog()) is None
    for name, value in (("max_tables", "5"), ("history_retention", "1h")):
        manager.execute(SetConfiguration(name=name, value=value), author="ann")
    assert MAX_TABLES.value(manager.latest_catalog()) == 5
    assert HISTORY_RETENTION.value(manager.latest_catalog()) == 3_600_000
    manager.execute(SetConfiguration(name="history_retention", value=None), author="ann")
    assert HISTORY_RETENTION.value(manager.latest_catalog()) is None
