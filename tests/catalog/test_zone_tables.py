"""Which tables lie in a zone, asked of a catalog that has many others; and where they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import CreateZone, DropTable, DropZone
from strandline.errors import IllegalChange
from strandline.wire.recent import RECENT
from strandline.wire.registry import decode
from tests.catalog.scenario import SCHEMA, create_table

TABLES = 200


def test_dropping_a_zone_decodes_only_tables_that_may_lie_in_it(
    new_manager: Callable[..., CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    many = [create_table(f"s.t{n}") for n in range(TABLES)]
    zoned = create_table("s.zoned", zone="z")
    done = manager.execute([SCHEMA, *many, CreateZone(name="z"), zoned], author="ann")
    assert manager.compact(done.version)
    again = new_manager()  # it has the records alone
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


def test_an_empty_storage_location_of_a_zone_is_none(manager: CatalogManager) -> None:
    done = manager.execute(CreateZone(name="z", storage_location=""), author="ann")
    zone = done.catalog.zone_named("z")
    assert zone is not None
    assert zone.storage_location is None
