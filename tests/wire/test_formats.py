"""Every registered format: round trips, truncated records, flipped bits."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.durable import chunks  # registers its format
from strandline.durable.collections import APPEND_ONLY, COLLECTIONS, Collection
from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.metastore.store import notifications, rows  # register theirs
from strandline.model import descriptors as d
from strandline.model.descriptors import TimestampEntry
from strandline.model.privileges import Privilege, SystemPrivilege
from strandline.model.types import INT, StructField, StructType
from strandline.wire import decode, encode, formats
from strandline.wire.registry import seal
from strandline.wire.types import TypeTree
from tests.golden import goldens_0_1_0, goldens_0_2_0
from tests.wire.value_strategies import values

REGISTERED_HERE = (chunks, notifications, rows)
CLASSES = sorted({layout.of for layout in formats()}, key=lambda of: of.__name__)
GOLDENS = [
    pytest.param(value, data, id=f"{type(value).__name__} {data[4]} {number}")
    for number, (value, data) in enumerate(goldens_0_1_0.GOLDENS + goldens_0_2_0.GOLDENS)
]
TYPED = (CorruptData, IncompatibleFormat)
ROUND_TRIPS = settings(
    max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.too_slow]
)

TABLE = next(v for v, _ in goldens_0_2_0.CATALOG if isinstance(v, d.TableDescriptor))
DATABASE = d.DatabaseDescriptor(1, "hive", "ann")


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
@ROUND_TRIPS
@given(data=st.data())
def test_every_class_reads_back_what_it_wrote(of: type[Any], data: st.DataObject) -> None:
    value = data.draw(values(of))
    record = encode(value)
    decoded = decode(record, of)
    assert decoded == value
    assert encode(decoded) == record


@pytest.mark.parametrize(("value", "data"), GOLDENS)
def test_a_truncated_or_extended_record_is_refused(value: object, data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(TYPED):
            decode(data[:length], type(value))
    with pytest.raises(CorruptData, match="after the end"):
        decode(data + b"\x00", type(value))


@pytest.mark.parametrize(("value", "data"), GOLDENS)
def test_a_record_with_any_bit_flipped_is_refused_or_decodes_to_another_value(
    value: object, data: bytes
) -> None:
    for spoiled in flipped(data):
        with suppress(*TYPED):  # raised by decode, or by == where a field is decoded lazily
            assert decode(spoiled, type(value)) != value, spoiled.hex()


@pytest.mark.parametrize("kind", COLLECTIONS.values(), ids=lambda kind: kind.kind)
def test_the_index_fields_of_a_damaged_record_are_read_or_refused(kind: Collection) -> None:
    everything = goldens_0_1_0.CATALOG + goldens_0_2_0.CATALOG
    data = next(data for value, data in everything if type(value) is kind.of)
    for spoiled in (*flipped(data), *(data[:length] for length in range(len(data)))):
        with suppress(*TYPED):
            stored = kind.stored(spoiled)
            assert kind.key(stored) is not None
            assert stored.value is not None


def flipped(data: bytes) -> list[bytes]:
    """``data`` with each of its bits flipped in turn."""
    records = []
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        records.append(bytes(spoiled))
    return records


@pytest.mark.parametrize("kind", COLLECTIONS.values(), ids=lambda kind: kind.kind)
@ROUND_TRIPS
@given(data=st.data())
def test_the_records_of_every_kind_begin_with_their_index_fields(
    kind: Collection, data: st.DataObject
) -> None:
    value = data.draw(values(kind.of))
    stored = kind.stored(encode(value))
    assert stored.name == value.name
    assert stored.id == (value.id if kind.has_id else 0)
    assert stored.group == (getattr(value, kind.group) if kind.group else 0)
    assert kind.stored_value(value) == stored
    if kind.has_id:
        names = [field.name for field in dataclasses.fields(kind.of)]
        parent = names[1] if names[1].endswith("_id") else None
        assert stored.parent == (getattr(value, parent) if parent else 0)


def test_every_kind_has_its_own_class_and_a_format() -> None:
    classes = [collection.of for collection in COLLECTIONS.values()]
    classes += [kind.of for kind in APPEND_ONLY.values()]
    assert len(classes) == len(set(classes))
    assert {layout.of for layout in formats()} >= set(classes)


def _with_columns(*counts: int) -> d.TableDescriptor:
    """A table whose schema versions have the first so many of the same columns."""
    columns = tuple(d.ColumnDescriptor(n, f"column_{n}", INT) for n in range(1, max(counts) + 1))
    versions = (d.SchemaVersion(n, columns[:count]) for n, count in enumerate(counts, 1))
    return dataclasses.replace(TABLE, schema_versions=tuple(versions))


def test_a_further_schema_version_of_a_table_takes_a_few_bytes() -> None:
    last, all_versions = encode(_with_columns(120)), encode(_with_columns(*range(20, 121)))
    assert len(all_versions) - len(last) <= 5 * 100
    decoded = decode(all_versions, d.TableDescriptor).schema_versions
    assert len({id(column) for version in decoded for column in version.columns}) == 120


def test_a_schema_version_with_a_column_that_is_not_listed_is_corrupt() -> None:
    data, run = encode(_with_columns(2)), bytes([1, 1, 1, 0, 2])
    assert data.count(run) == 1
    for broken in ([1, 1, 1, 1, 2], [1, 1, 1, 0, 3], [1, 1, 1, 3, 0]):
        with pytest.raises(CorruptData, match="not listed"):
            decode(seal(data.replace(run, bytes(broken)), b""), d.TableDescriptor)


@pytest.mark.parametrize("fraction", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_is_not_finite_is_not_written(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        encode(dataclasses.replace(TABLE, stale_rows_fraction=fraction))


@pytest.mark.parametrize(
    "spoiled", ["000000000000f87f", "000000000000f07f", "000000000000f0ff", "0000000000000080"]
)
def test_floats_that_are_never_written_are_corrupt(spoiled: str) -> None:
    data = encode(TABLE).replace(bytes.fromhex("000000000000d03f"), bytes.fromhex(spoiled))
    with pytest.raises(CorruptData, match="finite number"):
        decode(seal(data, b""), d.TableDescriptor)


def test_negative_zero_is_written_as_zero() -> None:
    positive = dataclasses.replace(TABLE, stale_rows_fraction=0.0)
    negative = dataclasses.replace(TABLE, stale_rows_fraction=-0.0)
    assert encode(positive) == encode(negative)


def test_an_unknown_privilege_is_corrupt() -> None:
    data = encode(SystemPrivilege("1/2", 1, 2, Privilege(0)))
    with pytest.raises(CorruptData, match="not flags of Privilege"):
        decode(seal(data[:-1] + b"\x80\x20", b""), SystemPrivilege)


def test_an_unknown_privilege_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="4097 has bits that are not flags of Privilege"):
        encode(SystemPrivilege("1/2", 1, 2, Privilege(4097)))


def test_a_parent_in_a_record_of_a_kind_without_parents_is_corrupt() -> None:
    data = bytearray(encode(DATABASE))
    data[10] = 5
    with pytest.raises(CorruptData, match="a parent in an object of a kind without parents"):
        decode(seal(bytes(data), b""), d.DatabaseDescriptor)


def test_a_negative_field_id_is_not_written() -> None:
    for field_id in (-1, -5):
        struct = StructType((StructField("a", INT, field_id=field_id),))
        with pytest.raises(InvalidInput, match=f"the number {field_id} cannot be stored"):
            encode(TypeTree(struct))


def test_a_time_beyond_64_bits_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="64"):
        encode(TimestampEntry("boot", 1 << 64))


@pytest.mark.parametrize(
    ("replicas", "quorum"),
    [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (10, 3), (None, 3)],
)
def test_a_zone_of_the_first_release_has_the_default_quorum(
    replicas: int | None, quorum: int
) -> None:
    zone, data = next(
        (v, data) for v, data in goldens_0_1_0.CATALOG if isinstance(v, d.ZoneDescriptor)
    )
    before = b"\x00\x00\x01\x07default"  # no replicas, no node filter, one storage profile
    after = before if replicas is None else bytes([1, replicas]) + before[1:]
    assert data.count(before) == 1
    decoded = decode(data.replace(before, after), d.ZoneDescriptor)
    assert decoded == dataclasses.replace(zone, replicas=replicas, quorum_size=quorum)


def test_fields_added_by_later_versions_have_their_defaults_in_an_older_record() -> None:
    data = next(data for v, data in goldens_0_1_0.CATALOG if isinstance(v, d.TableDescriptor))
    table = decode(data, d.TableDescriptor)
    assert (table.stale_rows_fraction, table.min_stale_rows) == (0.2, 500)
    assert (table.privileges, table.primary_key_index, table.storage_profile) == ((), 0, "")
