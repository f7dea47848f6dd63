"""The settings of a Spark session that tables rely on.

Columns are found in files by id. A session that matches them by name instead would give wrong rows
without a word after the first renamed column, so `check_reading` and `check_writing` refuse it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from strandline.errors import UnsupportedOperation

READ_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
WRITE_IDS = "spark.sql.parquet.fieldId.write.enabled"

SETTINGS = {
    READ_BY_ID: "true",
    WRITE_IDS: "true",
    # The default, INT96, carries no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Above it Spark starts a job to look at the files of a list, which costs far more than they do.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """The builder of a session with all settings that tables need; the time zone stays yours."""
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def check_reading(spark: SparkSession) -> None:
    """Raise `UnsupportedOperation` unless the session finds columns by id."""
    _check(spark, READ_BY_ID, "would look for columns by name, and a renamed one has other files'")


def check_writing(spark: SparkSession) -> None:
    """Raise `UnsupportedOperation` unless the session writes ids into files."""
    _check(spark, WRITE_IDS, "would write files without column ids, which nobody could read")


def _check(spark: SparkSession, setting: str, consequence: str) -> None:
    if spark.conf.get(setting, "false") != "true":
        raise UnsupportedOperation(
            f"this Spark session {consequence}: set {setting} to true, or build the session with"
            " strandline.spark.configure"
        )
