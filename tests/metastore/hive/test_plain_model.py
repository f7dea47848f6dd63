"""Random DDL on plain tables, on two nodes: present and past show the files of each table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metastore.hive.plain_model import PlainModel

STEPS, MANY_STEPS = 60, 250


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", pytest.param("postgresql", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, STEPS), *(pytest.param(n, MANY_STEPS, marks=pytest.mark.soak) for n in range(2, 12))],
)
def test_tables_and_partitions_show_their_own_files_at_any_time(
    tmp_path: Path, kind: str, seed: int, steps: int
) -> None:
    with PlainModel(kind, tmp_path, seed) as model:
        try:
            model.run(steps)
        except BaseException:
            print(*model.log, sep="\n")  # how it came to this
            raise
    done = sum(entry[-1] == "done" for entry in model.log)
    assert done > steps // 4, "most steps were refused"
