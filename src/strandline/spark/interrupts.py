"""Interrupts: if a signal handler raises during a call of Spark, the jobs of it are cancelled.

Otherwise they would write all their files, or find all rows, although nothing uses these.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:  # a client of Spark Connect alone has none
    from pyspark import SparkContext


@contextmanager
def cancelled_by_an_interrupt(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs of the block if a signal handler ends it: Ctrl-C, or a time limit.

    PySpark tries to cancel all jobs at Ctrl-C, but cannot call Spark in the middle of the call that
    is interrupted. Spark Connect cancels the job of a client that lets go of it.
    """
    context = _context_of(spark)
    if context is None:
        yield
        return
    tag = f"strandline-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the interrupt may have ended Spark too
            if not isinstance(error, Exception):
                _close_connection(context)
            context.cancelJobsWithTag(tag)
        raise
    finally:
        with suppress(Exception):
            context.removeJobTag(tag)


def collected(rows: DataFrame) -> pa.Table:
    """The rows as an Arrow table: `DataFrame.toArrow`, `cancelled_by_an_interrupt`.

    In a classic session, that waits for the end of the job even after an interrupt, and then raises
    the error of the job in its place. So another thread, which no signal interrupts, calls it.
    """
    spark = rows.sparkSession
    if _context_of(spark) is None:
        return rows.toArrow()
    with ThreadPoolExecutor(1) as thread, cancelled_by_an_interrupt(spark):
        return thread.submit(inheritable_thread_target(spark)(rows.toArrow)).result()


def _context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a classic session; None in Spark Connect."""
    return getattr(spark, "_sc", None)


def _close_connection(context: SparkContext) -> None:
    """Close this thread's connection to Spark: it may wait for the answer to the call that ended.

    Otherwise the next call would wait for the end of the job, and take its answer for its own.
    """
    client = context._gateway._gateway_client  # type: ignore[union-attr]  # None before Spark starts
    connection = client.get_thread_connection()
    if connection is not None:
        connection.close()
