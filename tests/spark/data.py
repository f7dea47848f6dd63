"""DataFrames from rows, rows from DataFrames, files in a table's folder, changed settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, SparkSession

from strandline.metastore.interface import AsOf
from strandline.spark import Tables
from strandline.spark.folder import TableFolder, folder_path


def frame(tables: Tables, **columns: list[Any] | pa.Array) -> DataFrame:
    """Return a DataFrame of these columns, made in the JVM so that no Python worker starts."""
    return tables.spark.createDataFrame(pa.table(columns))


def numbers(tables: Tables, *ids: int) -> DataFrame:
    """Return a DataFrame with one column ``id``."""
    return frame(tables, id=pa.array(ids, pa.int64()))


def ids(answer: DataFrame) -> list[int]:
    """Return the values of the column ``id``, in order."""
    return sorted(answer.toArrow()["id"].to_pylist())


def rows(answer: DataFrame) -> Counter[tuple[Any, ...]]:
    """Return the rows with their counts; structs are tuples of pairs."""
    return Counter(
        tuple(tuple(v.items()) if isinstance(v, dict) else v for v in row.values())
        for row in answer.toArrow().to_pylist()
    )


def folder(tables: Tables, name: str, *, version: int | None = None) -> Path:
    """Return the folder of a table."""
    return folder_path(tables.session.table(name, at=AsOf(version=version)).location)


def files(path: Path) -> list[str]:
    """Return all files below a folder, relative to it."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def suffixes(names: Iterable[str]) -> Counter[str]:
    """Return the number of files of each kind: the first part of the path, up to a ``=``."""
    return Counter(name.split("/")[0].split("=")[0] for name in names)


@contextmanager
def calls_of_the_jvm(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls that a block makes in the JVM. Those that free its objects come at any time."""
    calls: list[str] = []
    send = ClientServerConnection.send_command

    def noted(connection: ClientServerConnection, command: str) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            calls.append(command)
        return send(connection, command)

    with patch.context() as changed_class:
        changed_class.setattr(ClientServerConnection, "send_command", noted)
        yield calls


@contextmanager
def changed(spark: SparkSession, setting: str, value: str = "false") -> Iterator[None]:
    """Change a setting of the session in a block."""
    before = spark.conf.get(setting)
    spark.conf.set(setting, value)
    try:
        yield
    finally:
        spark.conf.set(setting, str(before))


def lose_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a file of each write from the driver, as if an executor on another machine wrote it."""
    staged = TableFolder.staged

    def without_a_file(of: TableFolder, staging: str) -> AbstractContextManager[int]:
        next((of.path / staging).rglob("*.parquet")).unlink()
        return staged(of, staging)

    monkeypatch.setattr(TableFolder, "staged", without_a_file)
