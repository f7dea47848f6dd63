"""Hypothesis strategies for every class that has a format, made from its annotations."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, IntFlag
from functools import cache

from hypothesis import strategies as st

from strandline.clock import Timestamp
from strandline.durable.update import Argument, CatalogSnapshot, Update
from strandline.metastore.store.rows import DeleteFile
from strandline.model.partitioning import Transform, TransformKind
from strandline.model.types import DataType
from strandline.wire.types import TypeTree
from tests.model.type_strategies import texts
from tests.model.type_strategies import types as data_types

LARGE = 2**63 - 1  # some fields are signed
MAX_LENGTH = 3

numbers = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 2**32, LARGE]))
arguments = st.dictionaries(texts, st.one_of(texts, numbers, st.booleans(), st.lists(texts)))
SIMPLE: dict[object, st.SearchStrategy[object]] = {
    int: numbers,
    str: texts,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    float: st.floats(allow_nan=False, allow_infinity=False),
    types.NoneType: st.none(),
    DataType: data_types(),
    Transform: st.builds(Transform, st.sampled_from(TransformKind), st.integers(1, 2**31 - 1)),
    Mapping[str, Argument]: arguments,
}
BESIDE_THE_BYTES: dict[type, tuple[str, ...]] = {Update: ("time", "appended")}


def values(annotation: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Return values of a class that has a format, or of the annotation of one of its fields."""
    return _values(annotation)


@cache
def _values(annotation: typing.Any) -> st.SearchStrategy[typing.Any]:
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation is TypeTree:
        return data_types().map(TypeTree)
    if annotation is CatalogSnapshot:
        return snapshots()
    if annotation is DeleteFile:
        return delete_files()
    if isinstance(annotation, typing.NewType):
        return values(annotation.__supertype__)
    if typing.get_origin(annotation) is tuple:
        return tuples(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return st.one_of(*map(values, typing.get_args(annotation)))
    if issubclass(annotation, IntFlag):
        return st.integers(0, sum(annotation)).map(annotation)
    if issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    assert isinstance(annotation, type), f"no strategy for {annotation}"
    assert is_dataclass(annotation), f"no strategy for {annotation}"
    hints = typing.get_type_hints(annotation)
    beside = BESIDE_THE_BYTES.get(annotation, ())
    return st.builds(
        annotation,
        **{
            field.name: values(hints[field.name])
            for field in fields(annotation)
            if field.name not in beside
        },
    )


def tuples(parts: tuple[typing.Any, ...]) -> st.SearchStrategy[tuple[typing.Any, ...]]:
    if parts[1:] == (...,):
        return st.lists(values(parts[0]), max_size=MAX_LENGTH).map(tuple)
    return st.tuples(*map(values, parts))


@st.composite
def delete_files(draw: st.DrawFn) -> DeleteFile:
    """A delete file, with one count for each of its files."""
    counts = draw(st.dictionaries(numbers, numbers, max_size=MAX_LENGTH))
    return DeleteFile(path=draw(texts), file_ids=tuple(counts), counts=tuple(counts.values()))


@st.composite
def snapshots(draw: st.DrawFn) -> CatalogSnapshot:
    """A snapshot with one time for each of its objects, or with no times."""
    kinds = draw(values(tuple[tuple[str, tuple[bytes, ...]], ...]))
    times = tuple(tuple(draw(values(Timestamp)) for _ in records) for _, records in kinds)
    known_times = draw(st.sampled_from([(), times]))
    return CatalogSnapshot(draw(numbers), draw(values(Timestamp)), kinds, known_times)
