"""An unmodified Spark in its own process, which knows only the address of the metastore.

A process can have one Spark session, and its metastore is fixed when it starts. So tests talk to
the process over pipes, with one JSON text per line in each direction. Run as a script, this module
is the other end.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self


class SparkError(Exception):
    """The error that Spark reported for a statement."""


Answer = dict[str, Any]
"""``schema`` as a text and ``rows`` of texts, or the class of an ``error`` and what it ``says``."""


class SparkProcess:
    """A Spark session with Hive support. It creates its databases and tables in ``warehouse``.

    Statements of tests run once, so they are interpreted; with ``compiled``, Spark works as usual.
    ``pyspark`` is the folder of another release of PySpark.
    """

    def __init__(
        self, uri: str, warehouse: Path, *, compiled: bool = False, pyspark: Path | None = None
    ) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYSPARK_PYTHON"] = sys.executable
        if pyspark is not None:
            environment["PYTHONPATH"] = str(pyspark)
        environment["HADOOP_USER_NAME"] = "ann"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, uri, str(warehouse), str(compiled)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=warehouse.parent,
            text=True,
        )

    def sql(self, text: str) -> list[list[Any]]:
        """The rows of a statement. Raises `SparkError`."""
        return self._ask(text)

    def answer(self, text: str) -> Answer:
        """The answer to a statement, which may be an error."""
        [[answer]] = self._ask({"answer": text})
        return Answer(answer)

    def read_with_package(self, store: str | Path, tables: dict[int, str]) -> list[list[Any]]:
        """The rows of tables at versions, read by `strandline.spark`.

        Each row is the version, and the row as JSON. A negative version means the present.
        """
        return self._ask({"store": str(store), "tables": tables})

    def save(self, query: str, table: str, *, mode: str, meanwhile: str = "") -> None:
        """Save the rows of a query with ``saveAsTable``. Raises `SparkError`.

        Until it ends, another thread runs the statement ``meanwhile`` over and over.
        """
        self._ask({"query": query, "table": table, "mode": mode, "meanwhile": meanwhile})

    def seconds(self, query: str, *, of: str) -> float:
        """The duration of a query, or of its "plan" in a session that knows no table."""
        [[seconds]] = self._ask({"query": query, "timed": of})
        return float(seconds)

    def files_read(self, query: str) -> int:
        """Run a query, and return how many files it reads."""
        [[count]] = self._ask({"counted": query})
        return int(count)

    def _ask(self, request: str | dict[str, Any]) -> list[list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                kind, answer = json.loads(line.removeprefix("ANSWER "))
                if kind == "error":
                    raise SparkError(answer)
                rows: list[list[Any]] = answer
                return rows
        raise SparkError("the process has ended")

    def column(self, text: str, number: int = 0) -> list[Any]:
        """One column of the rows of a statement."""
        return [row[number] for row in self.sql(text)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=300)


INTERPRETED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
COMPILED = {"spark.driver.memory": "3g"}


def serve(uri: str, warehouse: str, compiled: str) -> None:
    """Answer the statements that arrive on standard input, until it ends."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.hadoop.hive.metastore.uris", uri)
        .enableHiveSupport()
    )
    for name, value in (COMPILED if compiled == "True" else INTERPRETED).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if isinstance(request, str):
                answer = "rows", [list(row) for row in spark.sql(request).collect()]
            elif "answer" in request:
                answer = "rows", [[_answer(spark, request["answer"])]]
            elif "store" in request:
                answer = "rows", _read_with_package(spark, request["store"], request["tables"])
            elif "counted" in request:
                answer = "rows", [[_files_read(spark, request["counted"])]]
            elif "timed" in request:
                answer = "rows", [[_seconds(spark, request["query"], request["timed"])]]
            else:
                with _running(spark, request["meanwhile"]):
                    writer = spark.sql(request["query"]).write.mode(request["mode"])
                    writer.saveAsTable(request["table"])
                answer = "rows", []
        except Exception as error:
            answer = "error", str(error)  # type: ignore[assignment]  # the other kind
        print("ANSWER " + json.dumps(answer, default=str), flush=True)
    spark.stop()


@contextmanager
def _running(spark: Any, statement: str) -> Iterator[None]:
    """Run a statement over and over in another thread, which has begun and has not failed."""
    if not statement:
        yield
        return
    ended, begun = threading.Event(), threading.Event()

    def run() -> None:
        while not ended.is_set():
            spark.sql(statement).collect()
            begun.set()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        while not begun.wait(0.1) and not running.done():
            pass
        try:
            yield
        finally:
            ended.set()
            running.result()


def _answer(spark: Any, text: str) -> Answer:
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(text)
        rows = [[None if value is None else str(value) for value in row] for row in frame.collect()]
    except PySparkException as error:
        return {"error": error.getCondition() or type(error).__name__, "says": str(error)}
    return {"schema": frame.schema.simpleString(), "rows": rows}


def _read_with_package(spark: Any, store: str, tables: dict[str, str]) -> list[list[Any]]:
    from pyspark.sql import functions

    from strandline.node import Node
    from strandline.spark import Tables
    from strandline.spark.schemas import SETTINGS

    session = spark.newSession()
    for key, value in SETTINGS.items():
        session.conf.set(key, value)
    with Node.open(store) as node:
        reader = Tables(session, node.session(user="ann"))
        frames = [
            reader.read(name, version=None if version < 0 else version).select(
                functions.lit(version), functions.to_json(functions.struct("*"))
            )
            for version, name in ((int(text), name) for text, name in tables.items())
        ]
        rows = functools.reduce(lambda all_rows, more: all_rows.unionAll(more), frames).collect()
    return [list(row) for row in rows]


def _files_read(spark: Any, query: str) -> int:
    """The sum of Spark's metric "number of files read", also that of broadcast delete files."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")  # its plans hide their scans
    frame = session.sql(query)
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(number).metrics() for number in range(leaves.size())]
    return sum(scan.apply("numFiles").value() for scan in scans if scan.contains("numFiles"))


def _seconds(spark: Any, query: str, of: str) -> float:
    began = time.perf_counter()
    if of != "plan":
        spark.sql(query).write.format("noop").mode("overwrite").save()
    else:
        spark.newSession().sql(query)._jdf.queryExecution().executedPlan()
    return time.perf_counter() - began


if __name__ == "__main__":
    serve(*sys.argv[1:])
