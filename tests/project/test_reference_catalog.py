"""The reference pages about the catalog's own objects agree with the program."""

from __future__ import annotations

import re

import pytest

from strandline.catalog.commands import zones
from strandline.catalog.commands.clusters import MAX_REPLICATION_FACTOR
from strandline.catalog.configuration import PARAMETERS
from strandline.catalog.system_views.synchronization import declared_views
from strandline.model.descriptors import ZoneDescriptor
from strandline.model.type_text import simple_string
from tests.project.test_reference import page, rows, section


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = {
        name.strip("`"): (default, said) for name, _, default, said in rows(page("configuration"))
    }
    expected = {
        declared.name: (
            "unset" if declared.default is None else f"`{declared.default}`",
            declared.doc,
        )
        for declared in PARAMETERS.values()
    }
    assert listed == expected


def test_the_type_of_every_parameter_is_listed() -> None:
    listed = {row[0].strip("`"): row[1].replace("`", "") for row in rows(page("configuration"))}
    assert listed == {declared.name: declared.type for declared in PARAMETERS.values()}


def test_every_system_view_is_listed_with_its_columns() -> None:
    listed = {
        row[0].strip("`"): (row[1], row[2])
        for row in rows(section(page("system-views"), "## The views"))
    }
    expected = {
        view.name: (
            view.doc,
            ", ".join(f"`{name}` {simple_string(of)}" for name, of in view.columns),
        )
        for view in declared_views().values()
    }
    assert listed == expected


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("partitions", f"1 to {zones.MAX_PARTITIONS:,}"),
        ("consistency mode", "`STRONG`, `HIGH_AVAILABILITY`"),
    ],
)
def test_the_limits_of_a_zone_are_listed(what: str, says: str) -> None:
    listed = {row[0]: row[2] for row in rows(section(page("zones-and-clusters"), "## Zones"))}
    assert says in listed[what]


def test_the_defaults_of_a_zone_are_listed() -> None:
    listed = {row[0]: row[1] for row in rows(section(page("zones-and-clusters"), "## Zones"))}
    zone = ZoneDescriptor(1, "z", "ann")
    assert listed["partitions"] == str(zone.partitions)
    assert (zone.replicas, listed["replicas"]) == (None, "one on every node")
    assert listed["storage profiles"] == f"`{zone.storage_profiles[0]}`"
    assert listed["consistency mode"] == f"`{zone.consistency_mode.name}`"


def test_the_limit_of_a_cluster_is_listed() -> None:
    match = re.search(r"replication factor \(0 to (\d+)\)", page("zones-and-clusters"))
    assert match is not None
    assert int(match[1]) == MAX_REPLICATION_FACTOR
