"""What a release wrote is frozen: every later release reads and rewrites these bytes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import strandline
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import EMPTY
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Change
from strandline.errors import CorruptData, IncompatibleFormat
from strandline.wire import columns, registry, types
from strandline.wire.registry import decode, encode, formats
from strandline.wire.stored import RECENT
from tests.golden import (
    goldens_0_1_0,
    goldens_0_2_0,
    goldens_0_2_1,
    goldens_0_3_0,
    goldens_0_4_0,
    goldens_0_5_0,
    goldens_0_6_0,
    goldens_0_7_0,
    goldens_0_8_0,
)
from tests.golden.layout import nested
from tests.positions import At

RELEASES = {
    "0.1.0": goldens_0_1_0.GOLDENS,
    "0.2.0": goldens_0_2_0.GOLDENS,
    "0.2.1": goldens_0_2_1.GOLDENS,
    "0.3.0": goldens_0_3_0.GOLDENS,
    "0.4.0": goldens_0_4_0.GOLDENS,
    "0.5.0": goldens_0_5_0.GOLDENS,
    "0.6.0": goldens_0_6_0.GOLDENS,
    "0.7.0": goldens_0_7_0.GOLDENS,
    "0.8.0": goldens_0_8_0.GOLDENS,
}
UNSEALED = ("0.1.0", "0.2.0")
"""The releases whose records have no checksum."""
GOLDENS = [
    pytest.param(release, value, data, id=f"{release} {type(value).__name__} {number}")
    for release, goldens in RELEASES.items()
    for number, (value, data) in enumerate(goldens)
]
BY_CLASS = {collection.of: collection for collection in COLLECTIONS.values()}
OBJECTS = [
    pytest.param(value, data, id=type(value).__name__)
    for value, data in goldens_0_1_0.GOLDENS
    if type(value) in BY_CLASS
]


@contextmanager
def writing_as(release: str) -> Iterator[None]:
    """Write as if ``release`` were the last one, so that nested objects too have its formats."""
    names = list(RELEASES)
    known = names[: names.index(release) + 1]
    pinned = {
        of: kept
        for of, versions in registry._by_type.items()
        if (kept := [layout for layout in versions if layout.since in known])
    }
    version = len(pinned[types.TypeTree])
    common = {key: nested(18, version, data[3:]) for key, data in types._COMMON_BYTES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_by_type", pinned)
        patch.setattr(types, "_COMMON_BYTES", common)
        patch.setattr(registry, "PROTOCOL", 1 if release in UNSEALED else 2)
        columns._version_bytes.cache_clear()
        yield
    columns._version_bytes.cache_clear()


@pytest.mark.parametrize(("release", "value", "data"), GOLDENS)
def test_an_object_is_encoded_to_and_decoded_from_its_golden_bytes(
    release: str, value: object, data: bytes
) -> None:
    assert decode(data, type(value)) == value
    with writing_as(release):
        assert encode(value) == data


def test_a_record_is_sealed_with_the_checksum_of_its_bytes() -> None:
    value, data = goldens_0_2_1.FENCE
    with writing_as("0.2.1"):
        assert encode(value) == data
    assert decode(data, type(value)) == value


@pytest.mark.parametrize(("release", "value", "data"), GOLDENS)
def test_a_flipped_byte_of_a_sealed_record_is_refused(
    release: str, value: object, data: bytes
) -> None:
    sealed = registry.seal(registry.seal(b"", b"") + data[2:], b"") if release in UNSEALED else data
    assert decode(sealed, type(value)) == value
    for place in range(len(sealed)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(sealed)
            broken[place] ^= flip
            with pytest.raises((CorruptData, IncompatibleFormat)):
                decode(bytes(broken), type(value))


@pytest.mark.parametrize("release", RELEASES)
def test_every_format_of_a_release_has_golden_bytes(release: str) -> None:
    for module in pkgutil.walk_packages(strandline.__path__, "strandline."):
        if not module.name.startswith(("strandline.spark", "strandline.cli.demo")):
            importlib.import_module(module.name)
    start = 2 if release in UNSEALED else 6
    covered = {
        (data[start] | data[start + 1] << 8, data[start + 2]) for _, data in RELEASES[release]
    }
    written = {(layout.type_id, layout.version) for layout in formats() if layout.since == release}
    assert written == covered
    assert {layout.since for layout in formats()} <= RELEASES.keys()


@pytest.mark.parametrize(("value", "data"), OBJECTS)
def test_an_unchanged_object_keeps_the_bytes_that_the_first_release_wrote(
    value: object, data: bytes
) -> None:
    kind = BY_CLASS[type(value)]
    RECENT.forget()
    stored = kind.stored(data)
    key = kind.key(stored)
    contents = EMPTY.apply([Change(kind.kind, key, None, data)])
    transaction = CatalogTransaction(At(1, contents), author="ann")
    with transaction.entry("touch", {}):
        transaction.put(stored.value)
    assert transaction.entries == []
    assert contents.dump() == ((kind.kind, (data,)),)
    assert kind.stored(contents.dump()[0][1][0]).value == value
