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
    told = {
        name.strip("`"): (default, said) for name, _, default, said in rows(page("configuration"))
    }
    expected = {
        one.name: ("unset" if one.default is None else f"`{one.default}`", one.doc)
        for one in PARAMETERS.values()
    }
    assert told == expected


def test_the_type_of_every_parameter_is_listed() -> None:
    told = {row[0].strip("`"): row[1].replace("`", "") for row in rows(page("configuration"))}
    assert told == {one.name: one.type for one in PARAMETERS.values()}


def test_every_system_view_is_listed_with_its_columns() -> None:
    told = {
        row[0].strip("`"): (row[1], row[2])
        for row in rows(section(page("system-views"), "## The views"))
    }
    expected = {
        one.name: (
            one.doc,
            ", ".join(f"`{name}` {simple_string(of)}" for name, of in one.columns),
        )
        for one in declared_views().values()
    }
    assert told == expected


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("partitions", f"1 to {zones.MAX_PARTITIONS:,}"),
        ("consistency mode", "`STRONG`, `HIGH_AVAILABILITY`"),
    ],
)
def test_the_limits_of_a_zone_are_listed(what: str, says: str) -> None:
    told = {row[0]: row[2] for row in rows(section(page("zones-and-clusters"), "## Zones"))}
    assert says in told[what]


def test_the_defaults_of_a_zone_are_listed() -> None:
    told = {row[0]: row[1] for row in rows(section(page("zones-and-clusters"), "## Zones"))}
    zone = ZoneDescriptor(1, "z", "ann")
    assert told["partitions"] == str(zone.partitions)
    assert (zone.replicas, told["replicas"]) == (None, "one on every node")
    assert told["storage profiles"] == f"`{zone.storage_profiles[0]}`"
    assert told["consistency mode"] == f"`{zone.consistency_mode.name}`"


def test_the_limit_of_a_cluster_is_listed() -> None:
    found = re.search(r"replication factor \(0 to (\d+)\)", page("zones-and-clusters"))
    assert found is not None
    assert int(found[1]) == MAX_REPLICATION_FACTOR
