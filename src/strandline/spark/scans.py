"""Scans: the rows of a table at a snapshot, as a native DataFrame.

Spark reads the listed Parquet files itself, with an explicit schema in which every column has its
id. So a renamed column is found, a column that was added later is NULL in older files, and a column
that was dropped and created again does not bring back its old values.

Deleted rows are removed by a LEFT ANTI JOIN with the broadcast bitmaps of their files, on the file
id, which is part of the file's path, and the bit at the row's position. That costs a few percent of
a scan, while a join on (path, position) row by row doubles its time. If most rows are in files
without deleted rows, these files are not joined; they are added by a union.

Rejected: a filter in a UDF (three to eight times the time of a scan), bitmaps as literals in the
expression (faster for one file, slower for many, and a plan of megabytes).

If a data file was emptied, or replaced by a shorter one, Spark reads fewer rows without an error.
So the size of each file is compared with its row in the metastore before the scan is planned.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from itertools import chain

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.errors import CorruptData, InvalidInput, Unavailable
from strandline.metastore.interface import AsOf, ColumnBounds, ResolvedTable, Session, TableFiles
from strandline.metastore.store.file_scans import (
    FILE_COLUMN,
    READER_OPTIONS,
    IdIn,
    IdPlace,
    by_id_place,
    split_for_join,
)
from strandline.metastore.store.rows import DataFile
from strandline.model.identifiers import normalize
from strandline.spark.conditions import implied_bounds
from strandline.spark.folder import folder_path, spark_path
from strandline.spark.positions import Bitmap, bitmap_table, read_bitmaps
from strandline.spark.schemas import (
    BITMAP,
    BITMAP_FILE,
    FILE,
    POSITION,
    ScanColumn,
    Selected,
    check_reading,
    metadata_for_users,
    reason_of,
    scan_columns,
    select,
    without_rows,
)

_REMEDY = "Put it back from a backup; `strandline verify FOLDER` lists all damaged files"
_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
"""Spark's first reader of Parquet, also in a session that is set to prefer the second one.

The second one does not know the positions of rows. With `spark.sql.parquet.aggregatePushdown`, it
takes minima and counts from footers, by the place of a column in its file, not by its id.
"""
_FILE_FIELD = spark_types.StructField(FILE_COLUMN, spark_types.LongType())
_IS_DELETED = (
    # `get` is NULL, and so no match, after the end of a bitmap.
    f"{FILE} = {BITMAP_FILE} AND getbit("
    f"get({BITMAP}, CAST(shiftright({POSITION}, 6) AS INT)), CAST({POSITION} & 63 AS INT)) = 1"
)


def live_rows(
    spark: SparkSession,
    session: Session,
    table: ResolvedTable,
    files: TableFiles,
    *,
    positions: bool = False,
) -> DataFrame:
    """The rows of ``files`` that are not deleted, with the columns of ``table``.

    With ``positions``, there are two more columns: `FILE` and `POSITION` of each row. If files
    cannot be read, the location of the table is looked up again, since it may have been renamed or
    dropped. Raises `UnsupportedOperation` in a session that does not read by id, `CorruptData`,
    `Unavailable`.
    """
    check_reading(spark, table.descriptor.columns)
    try:
        return _live_rows(_Scan(spark, table), files, positions=positions)
    except (CorruptData, Unavailable):
        now = session.table(table.name, at=AsOf(version=table.catalog_version))
    return _live_rows(_Scan(spark, now), files, positions=positions)


def require_condition(condition: object) -> None:
    """Raise `InvalidInput` unless this is SQL text or a Column."""
    if not isinstance(condition, str | Column):
        raise InvalidInput(f"a condition is SQL text or a Column, not {type(condition).__name__}")


def bounds_of(
    spark: SparkSession, table: ResolvedTable, condition: str | Column
) -> tuple[ColumnBounds, ...]:
    """The bounds of the table's columns that ``condition`` implies; see `Session.files`.

    Raises `InvalidInput` if it is not a condition on the table.
    """
    require_condition(condition)
    columns = _Scan(spark, table).nothing(positions=False)
    column_ids = {normalize(column.name): column.id for column in table.descriptor.columns}
    try:
        return implied_bounds(columns, condition, column_ids)
    except AnalysisException as error:
        raise InvalidInput(f"not a condition on {table.name}: {reason_of(error)}") from error


def _live_rows(scan: _Scan, files: TableFiles, *, positions: bool) -> DataFrame:
    data = {file.file_id: file for file in files.data_files}
    if data:
        scan.check_folder()
    bitmaps = read_bitmaps(
        scan.root,
        files.delete_files,
        {file_id: file.rows for file_id, file in data.items()},
    )
    if not data:
        return scan.nothing(positions=positions)
    if not bitmaps:
        return scan.of(data.values(), positions=positions)
    return _without_deleted(scan, data, bitmaps, positions=positions)


def _without_deleted(
    scan: _Scan,
    data: dict[int, DataFile],
    bitmaps: dict[int, Bitmap],
    *,
    positions: bool,
) -> DataFrame:
    touched, rest = split_for_join(list(data.values()), bitmaps)
    deleted_rows = sql.broadcast(scan.spark.createDataFrame(bitmap_table(bitmaps)))
    live = scan.of(touched, positions=True).join(deleted_rows, sql.expr(_IS_DELETED), "left_anti")
    if not positions:
        live = live.drop(FILE, POSITION)
    return live.unionAll(scan.of(rest, positions=positions)) if rest else live


class _Scan:
    """How the files of one table are read."""

    def __init__(self, spark: SparkSession, table: ResolvedTable) -> None:
        self.spark = spark
        self.root = folder_path(table.location)
        self._root = str(self.root)
        self._name = table.name
        self._columns = scan_columns(table.descriptor)

    def of(self, files: Iterable[DataFile], *, positions: bool) -> DataFrame:
        """All rows of ``files``; with ``positions``, also `FILE` and `POSITION`."""
        groups = by_id_place(files, with_ids=positions)
        for file in chain.from_iterable(groups.values()):
            self._check_size(file)
        scans = (self._group(*group, positions=positions) for group in groups.items())
        return functools.reduce(DataFrame.unionAll, scans)

    def check_folder(self) -> None:
        """Raise `Unavailable` unless the folder of the table exists."""
        if not self.root.is_dir():
            raise Unavailable(
                f"the folder {self.root} of {self._name} does not exist; if the table was just "
                "being renamed, read again"
            )

    def _check_size(self, file: DataFile) -> None:
        """Raise `CorruptData` unless the file exists and has the size that was written."""
        path = f"{self._root}/{file.path}"
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise CorruptData(
                f"data file {path} of {self._name} cannot be read: {error.strerror}. {_REMEDY}"
            ) from error
        if size != file.bytes:
            raise CorruptData(
                f"data file {path} of {self._name} has {size} bytes, but {file.bytes} were "
                f"written: it was cut or replaced. {_REMEDY}"
            )

    def _group(self, place: IdPlace, files: Sequence[DataFile], *, positions: bool) -> DataFrame:
        fields = [column.read for column in self._columns]
        reader = self.spark.read.options(**READER_OPTIONS)
        if place.id_in is IdIn.FOLDER:
            fields.append(_FILE_FIELD)
            reader = reader.option("basePath", spark_path(self.root / place.folder))
        paths = [spark_path(self.root / file.path, pattern=True) for file in files]
        try:
            rows = self._load(reader.schema(spark_types.StructType(fields)).format(_PARQUET), paths)
        except AnalysisException as error:
            raise Unavailable(
                f"the files of {self._name} cannot be read in {self.root}: {reason_of(error)}; if"
                " the table was just being renamed, read again"
            ) from error
        helpers = []
        if positions:
            metadata = rows.metadataColumn("_metadata")
            helpers = [
                _file_id(place, metadata).alias(FILE),
                metadata.getField("row_index").alias(POSITION),
            ]
        return select(rows, [_shown(column) for column in self._columns], *helpers)

    def _load(self, reader: DataFrameReader, paths: list[str]) -> DataFrame:
        """The rows of files. PySpark itself sends a list to the JVM in one call for each path."""
        jvm = getattr(self.spark, "_jvm", None)
        if jvm is None:  # Spark Connect sends it in one message
            return reader.load(paths)
        path_array = jvm.java.util.regex.Pattern.compile("\0").split("\0".join(paths))
        return reader._df(reader._jreader.load(path_array))

    def nothing(self, *, positions: bool) -> DataFrame:
        """An empty DataFrame with the columns of `of`."""
        fields = [
            spark_types.StructField(
                column.shown.name,
                column.shown.dataType,
                metadata=metadata_for_users(column.shown),
            )
            for column in self._columns
        ]
        if positions:
            fields += (spark_types.StructField(n, spark_types.LongType()) for n in (FILE, POSITION))
        return without_rows(self.spark, spark_types.StructType(fields))


def _file_id(place: IdPlace, metadata: Column) -> Column:
    """The id of the file from which a row is read."""
    match place.id_in:
        case IdIn.NAME:
            return sql.substring_index(metadata.getField("file_name"), "-", 1).cast("bigint")
        case IdIn.FOLDER:
            return sql.col(FILE_COLUMN)
        case IdIn.NOWHERE:
            return sql.lit(place.file_id).cast("bigint")


def _shown(column: ScanColumn) -> Selected:
    return Selected(
        source=column.read.name,
        name=column.shown.name,
        metadata=metadata_for_users(column.shown),
        cast_to=column.shown.dataType if column.renamed_inside else None,
    )
