"""Intended differences between Spark's answers here and on Hive 2.3.10, with reasons."""

from __future__ import annotations

from tests.metastore.hive.differential.differences import Difference

DIFFERENCES = (
    Difference(
        why="Hive does not change the comment of a database, without a word.",
        client="Spark: COMMENT ON DATABASE",
        calls=r"^DESCRIBE DATABASE EXTENDED s1",
        cases=(r'\["Comment", "first"\] => \["Comment", "the first"\]',),
    ),
    Difference(
        why="Hive fails on a filter of a pattern and a number.",
        client="Spark: SELECT … WHERE host LIKE '%y' OR year = 2026",
        calls=r"LIKE '%y' OR year = 2026",
        cases=(
            r'{"error": "_LEGACY_ERROR_TEMP_3065"} => {"schema": "struct<line:string>",'
            r' "rows": \[\["one"\], \["three"\], \["two"\]\]}',
        ),
    ),
    Difference(
        why="Files are counted again after INSERT OVERWRITE. Hive keeps the counts from before.",
        client="Spark: the size that it plans a join by",
        calls=r"^DESCRIBE EXTENDED logs PARTITION",
        cases=(
            r'\["Partition Parameters", "\[rawDataSize=0, numFiles=2, (.*), totalSize=8,'
            r' COLUMN_STATS_ACCURATE={.*}, numRows=0\]", ""\] => \["Partition Parameters",'
            r' "\[rawDataSize=0, numFiles=1, \1, totalSize=5, numRows=0\]", ""\]',
            r'\["Partition Statistics", "8 bytes", ""\]'
            r' => \["Partition Statistics", "5 bytes", ""\]',
        ),
    ),
)
