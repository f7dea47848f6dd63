"""Streams are written with `foreachBatch`, as docs/how-to/transactional-tables.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from strandline.spark import Tables
from tests.spark.data import files, folder, ids, numbers, suffixes

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_batch_that_is_repeated_after_a_failure_is_in_the_table_once(
    tables: Tables, tmp_path: Path
) -> None:
    tables.create("shop.events", "id BIGINT, batch STRING")
    for number in range(3):
        numbers(tables, number).coalesce(1).write.mode("append").parquet(f"{tmp_path}/events")
    failing_steps = ["before the commit", "after the commit"]

    def fail_once(step: str) -> None:
        if step in failing_steps:
            failing_steps.remove(step)
            raise RuntimeError(step)

    def write(frame: DataFrame, batch: int) -> None:
        with tables.transaction() as transaction:
            transaction.delete("shop.events", f"batch = 'events {batch}'")
            transaction.append("shop.events", frame.withColumn("batch", sql.lit(f"events {batch}")))
            fail_once("before the commit")
        fail_once("after the commit")

    def run() -> None:
        events = tables.spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", "1")
        stream = events.parquet(f"{tmp_path}/events").writeStream.foreachBatch(write)
        stream = stream.option("checkpointLocation", f"{tmp_path}/checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()

    for step in list(failing_steps):
        with pytest.raises(StreamingQueryException, match=step):
            run()
    run()
    assert ids(tables.read("shop.events")) == [0, 1, 2]
    assert tables.read("shop.events").select("batch").distinct().count() == 3
    assert suffixes(files(folder(tables, "shop.events"))) == {"_files": 4}
