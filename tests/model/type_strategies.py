"""Hypothesis strategies for data types."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from strandline.model.types import (
    ATOMIC_TYPES,
    DAY_TIME_UNITS,
    YEAR_MONTH_UNITS,
    ArrayType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    YearMonthIntervalType,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True)
names = st.one_of(plain_names, texts)
metadata = st.one_of(
    st.just(""),
    st.dictionaries(
        st.sampled_from(["k", "ein Schlüssel", "__CURRENT_DEFAULT"]),
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), texts, st.lists(texts)),
        min_size=1,
    ).map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))),
)


def _span(units: tuple[str, ...]) -> st.SearchStrategy[tuple[str, str]]:
    spans = [(a, b) for i, a in enumerate(units) for b in units[i:]]
    return st.sampled_from(spans)


collations = st.sampled_from([None, "UTF8_BINARY", "UTF8_LCASE", "UNICODE_CI", "de_CI"])
scalars: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from(sorted(ATOMIC_TYPES.values(), key=lambda atomic: atomic.name)),
    st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p))),
    st.builds(StringType, collations),
    st.builds(CharType, st.integers(0, 2**31 - 1)),
    st.builds(VarcharType, st.integers(0, 2**31 - 1)),
    st.builds(TimeType, st.integers(0, 9)),
    st.builds(GeometryType, st.sampled_from([None, 0, 3857, 4326])),
    st.builds(GeographyType, st.sampled_from([None, 4326])),
    _span(YEAR_MONTH_UNITS).map(lambda span: YearMonthIntervalType(*span)),
    _span(DAY_TIME_UNITS).map(lambda span: DayTimeIntervalType(*span)),
)


def structs(
    of: st.SearchStrategy[DataType],
    *,
    named: st.SearchStrategy[str] = names,
    with_metadata: bool = True,
) -> st.SearchStrategy[StructType]:
    """Structs whose fields have types from ``of``."""
    entry = st.builds(
        StructField,
        named,
        of,
        nullable=st.booleans(),
        comment=st.none() | texts,
        metadata=metadata if with_metadata else st.just(""),
    )
    return st.lists(entry, max_size=4).map(lambda fields: StructType(tuple(fields)))


def types(
    *, with_flags: bool = True, with_metadata: bool = True, named: st.SearchStrategy[str] = names
) -> st.SearchStrategy[DataType]:
    """Types of all kinds. Without flags every array and map may hold NULL."""
    flags = st.booleans() if with_flags else st.just(True)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.builds(ArrayType, inner, flags),
            st.builds(MapType, inner, inner, flags),
            structs(inner, named=named, with_metadata=with_metadata),
        ),
        max_leaves=8,
    )
