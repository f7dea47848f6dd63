"""Zones and tables: finding the tables of a zone among many others, and the zone of new tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.catalog import CatalogManager, Command
from strandline.catalog.catalog import DEFAULT_ZONE_CONFIG
from strandline.catalog.commands import CreateZone, DropTable, DropZone, RenameZone
from strandline.errors import IllegalChange
from strandline.wire.registry import decode
from strandline.wire.stored import RECENT
from tests.catalog.scenario import SCHEMA, create_table

TABLES = 200


def test_dropping_a_zone_decodes_only_tables_that_may_be_in_it(
    new_manager: Callable[..., CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    many = [create_table(f"s.t{n}") for n in range(TABLES)]
    zoned = create_table("s.zoned", zone="z")
    executed = manager.execute([SCHEMA, *many, CreateZone(name="z"), zoned], author="ann")
    assert manager.compact(executed.version)
    again = new_manager()  # it has only the encoded records
    decoded = []

    def counted(data: bytes, of: type[object]) -> object:
        decoded.append(of.__name__)
        return decode(data, of)

    monkeypatch.setattr("strandline.wire.stored.decode", counted)
    monkeypatch.setattr(RECENT, "get", lambda data: None)
    with pytest.raises(IllegalChange, match=r"table s\.zoned is in it"):
        again.execute(DropZone(name="z"), author="ann")
    assert decoded.count("TableDescriptor") < TABLES / 10
    again.execute([DropTable(schema="s", table="zoned"), DropZone(name="z")], author="ann")
    assert again.present().zone_named("z") is None


def test_an_empty_storage_location_of_a_zone_becomes_none(manager: CatalogManager) -> None:
    executed = manager.execute(CreateZone(name="z", storage_location=""), author="ann")
    zone = executed.catalog.zone_named("z")
    assert zone is not None
    assert zone.storage_location is None


def test_a_default_zone_that_0_1_0_knew_only_by_name_stays_the_default_when_renamed(
    new_manager: Callable[..., CatalogManager],
) -> None:
    manager = new_manager()
    transaction = manager.state.transaction(manager.latest_catalog(), author="system")
    with transaction.entry("configure", {}):
        transaction.delete("config", DEFAULT_ZONE_CONFIG)  # 0.1.0 wrote none
    manager.state.commit_transaction(transaction)
    before = manager.present().default_zone()
    assert before is not None
    commands: list[Command] = [
        RenameZone(name="default", new_name="main"),
        CreateZone(name="default"),
        SCHEMA,
        create_table("s.t"),
    ]
    manager.execute(commands, author="ann")
    for node in (manager, new_manager()):
        catalog = node.present()
        zone, table = catalog.default_zone(), catalog.table("s", "t")
        assert zone is not None
        assert table is not None
        assert (zone.id, zone.name, table.zone_id) == (before.id, "main", before.id)
    with pytest.raises(IllegalChange, match="main is the default zone"):
        manager.execute(DropZone(name="main"), author="ann")
    manager.execute(DropZone(name="default"), author="ann")
