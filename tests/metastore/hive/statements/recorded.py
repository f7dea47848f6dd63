"""Statements of an unmodified Spark, and its answers on Hive's metastore 2.3.10.

Each line of `SCENARIO` is a statement; lines that begin with ``#`` are titles. ``{warehouse}`` is
the warehouse of the metastore. A statement that ends with ``-- soak`` takes long, and tests Spark
more than its metastore; the answers to the other statements do not depend on it. Run as a script,
this module asks Hive again and writes `FILE`:

    .venv/bin/python -m tests.metastore.hive.statements.recorded

It needs Java, PostgreSQL and its JDBC driver (``make servers``), and a minute.

Values that must differ between two metastores or two runs are replaced in the answers
(`_comparable`): the location of the warehouse, and times.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.metastore.hive.differential.scenario import partition, table
from tests.metastore.hive.spark_process import Answer, SparkProcess
from tests.servers.hive_metastore import hive_metastore, warehouse
from tests.servers.thrift_client import ThriftClient

FILE = Path(__file__).with_name("answers_of_hive_2_3_10.json")
SCENARIO = Path(__file__).with_name("scenario.sql")
_SOAK = " -- soak"
_LINES = [line for line in SCENARIO.read_text().splitlines() if line and not line.startswith("#")]
STATEMENTS = tuple(line.removesuffix(_SOAK).removesuffix(";") for line in _LINES)
QUICK = tuple(number for number, line in enumerate(_LINES) if not line.endswith(_SOAK))
"""The statements that ``make teeth`` runs, by their numbers."""
WAREHOUSE = "{warehouse}"

_TIME = re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \w+ \d{4}\b")
_SECONDS = re.compile(r"(transient_lastDdlTime)(=|' = ')\d+")


def answers(
    spark: SparkProcess, folder: Path, *, chosen: Iterable[int] = range(len(STATEMENTS))
) -> dict[int, Answer]:
    """The answers of Spark to the chosen statements, by their numbers.

    ``folder`` is the warehouse of its metastore.
    """
    return {
        number: _comparable(
            spark.answer(STATEMENTS[number].replace(WAREHOUSE, str(folder))), folder
        )
        for number in chosen
    }


def answers_of_hive(folder: Path) -> dict[int, Answer]:
    """The answers of Spark on Hive's metastore; both run in ``folder``."""
    with hive_metastore(folder) as port:
        make_sql_tables(port)
        with SparkProcess(f"thrift://127.0.0.1:{port}", warehouse(folder)) as spark:
            return answers(spark, warehouse(folder))


def make_sql_tables(port: int) -> None:
    """Make Hive's metastore create its SQL tables, which it otherwise does when they are needed.

    With the several connections of Spark, it would then wait for itself for ever. So a client with
    one connection comes first.
    """
    with ThriftClient("127.0.0.1", port) as client:
        client.call("create_table", tbl=table("default", "first", keys="p int"))
        client.call("add_partition", new_part=partition("default", "first", "1"))
        client.call("get_partitions", db_name="default", tbl_name="first", max_parts=-1)
        client.call("get_functions", dbName="default", pattern="*")
        client.call("drop_table", dbname="default", name="first", deleteData=True)


def recorded_answers() -> list[Answer]:
    """The answers in the file. Raises `AssertionError` if the statements have changed since."""
    recorded = json.loads(FILE.read_text())
    asked = tuple(entry["statement"] for entry in recorded)
    assert asked == STATEMENTS, f"the statements have changed; run {__name__} as a script"
    return [entry["answer"] for entry in recorded]


def _comparable(answer: Answer, folder: Path) -> Answer:
    if "error" in answer:
        return {"error": answer["error"]}
    rows = [[_plain(value, str(folder)) for value in row] for row in answer["rows"]]
    return {"schema": answer["schema"], "rows": rows}


def _plain(value: str | None, folder: str) -> str | None:
    if value is None:
        return None
    return _SECONDS.sub(r"\1\2a time", _TIME.sub("a time", value.replace(folder, WAREHOUSE)))


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded = answers_of_hive(Path(folder))
    entries = [
        json.dumps({"statement": STATEMENTS[number], "answer": answer}, ensure_ascii=False)
        for number, answer in recorded.items()
    ]
    FILE.write_text("[\n" + ",\n".join(entries) + "\n]\n")


if __name__ == "__main__":
    _record()
