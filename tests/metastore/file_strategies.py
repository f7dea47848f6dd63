"""Hypothesis strategies of data files, as clients may send and stores may hold them."""

from __future__ import annotations

from hypothesis import strategies as st

from strandline.metastore.store.rows import ColumnStatistics, DataFile
from strandline.model.partitioning import PartitionValue

numbers = st.integers(0, 300) | st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("long" * 40)
data_files = st.builds(
    DataFile,
    file_id=numbers,
    path=texts,
    rows=numbers,
    bytes=numbers,
    partition=st.lists(
        st.builds(
            PartitionValue, numbers, st.none() | st.booleans() | texts | st.integers() | st.binary()
        ),
        max_size=3,
    ).map(tuple),
    statistics=st.lists(
        st.builds(
            ColumnStatistics,
            column_id=numbers,
            lower=st.none() | texts,
            upper=st.none() | texts,
            nulls=st.none() | numbers,
        ),
        max_size=3,
    ).map(tuple),
    schema_version=numbers,
)
