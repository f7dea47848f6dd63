"""A Spark that knows nothing of this package, in a process of its own: it times queries.

Run as a script it reads one JSON request a line, and answers with the seconds that each took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class PlainSpark:
    """The session of a process. ``uri`` is that of the metastore."""

    def __init__(self, uri: str, warehouse: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, uri, str(warehouse)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=warehouse.parent,
            text=True,
        )

    def run(self, statement: str) -> None:
        """Run a statement whose rows nobody wants."""
        self._ask({"run": statement})

    def scans(self, queries: Mapping[str, str], *, rounds: int) -> dict[str, list[float]]:
        """The seconds of each query in each round, taken in turns after a first round."""
        return self._ask({"scans": dict(queries), "rounds": rounds})

    def plans(self, queries: Mapping[str, str], *, rounds: int) -> dict[str, list[float]]:
        """The seconds until the plan of each query is there, in sessions that know no table."""
        return self._ask({"plans": dict(queries), "rounds": rounds})

    def _ask(self, request: dict[str, Any]) -> dict[str, list[float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                answer = json.loads(line.removeprefix("ANSWER "))
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                seconds: dict[str, list[float]] = answer["seconds"]
                return seconds
        raise RuntimeError("the Spark process has ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=60)


def serve(uri: str, warehouse: str) -> None:
    """Answer the requests that come on standard input, until it ends."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.hadoop.hive.metastore.uris", uri)
        .enableHiveSupport()
        .getOrCreate()
    )

    def scan(query: str) -> None:
        spark.sql(query).write.format("noop").mode("overwrite").save()

    def plan(query: str) -> None:
        spark.newSession().sql(query)._jdf.queryExecution().executedPlan()

    def timed(work: Any, queries: Sequence[str], rounds: int) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {query: [] for query in queries}
        for number in range(rounds + 1):
            for query, spent in seconds.items():
                began = time.perf_counter()
                work(query)
                if number:
                    spent.append(time.perf_counter() - began)
        return seconds

    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "run" in request:
                spark.sql(request["run"]).collect()
                answer = {"seconds": {}}
            else:
                kind = "scans" if "scans" in request else "plans"
                queries = request[kind]
                work = scan if kind == "scans" else plan
                spent = timed(work, list(queries.values()), request["rounds"])
                answer = {"seconds": {name: spent[query] for name, query in queries.items()}}
        except Exception as error:
            answer = {"error": str(error)}
        print("ANSWER " + json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
