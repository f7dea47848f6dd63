"""The benchmark harness: groups, rows, the table, and the file."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from bench.__main__ import main
from bench.registry import DECLARED, Benchmark, Measured, Registry, UnknownGroup
from bench.report import number, rows, write

KEYS = ["group", "name", "value", "unit", "reference", "ratio", "target", "met"]

# A group registers in the registry that the test made, which is an attribute of its package.
HEADER = """
from bench.registry import Measured, benchmark
from measured_layers import registry
"""
WIRE = """
@benchmark(group="wire", name="encode", unit="us", target=150, better="lower", registry=registry)
def encode():
    return Measured(120.0, reference=60.0)

@benchmark(group="wire", name="decode", unit="us", better="lower", registry=registry)
def decode():
    return 7
"""
MODEL = """
@benchmark(group="model", name="parse", unit="1/s", target=10, better="higher", registry=registry)
def parse():
    return [Measured(9, label="flat"), Measured(9, label="nested", target=5)]
"""
BROKEN = """
@benchmark(group="sql", name="crash", unit="ms", better="lower", registry=registry)
def crash():
    raise RuntimeError("planted")

@benchmark(group="sql", name="silent", unit="ms", better="lower", registry=registry)
def silent():
    return []

@benchmark(group="sql", name="sound", unit="ms", better="lower", registry=registry)
def sound():
    return 1.5
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A temporary package of benchmark groups, its registry, and the output of its runs."""

    folder: Path
    package: ModuleType
    registry: Registry
    printed: io.StringIO

    def group(self, name: str, text: str) -> None:
        (self.folder / "measured_layers" / f"{name}.py").write_text(HEADER + text)

    def run(self, *arguments: str) -> int:
        return main(
            [*arguments, "--output", str(self.file)],
            package=self.package,
            registry=self.registry,
            console=Console(file=self.printed, width=120),
        )

    @property
    def file(self) -> Path:
        return self.folder / "build" / "bench.json"

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.file.read_text())
        return rows


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "measured_layers").mkdir()
    (tmp_path / "measured_layers" / "__init__.py").write_text(
        "from bench.registry import Registry\nregistry = Registry()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("measured_layers")]:
        monkeypatch.delitem(sys.modules, name)
    package = importlib.import_module("measured_layers")
    return Bench(tmp_path, package, package.registry, io.StringIO())


def declared(*, better: Any = "higher", target: float | None = None) -> Benchmark:
    return Benchmark("wire", "encode", "us", target, better, lambda: 0.0)


def test_a_run_writes_the_rows_of_every_group(bench: Bench) -> None:
    bench.group("wire", WIRE)
    bench.group("model", MODEL)
    assert bench.run() == 0
    assert [list(row) for row in bench.rows()] == [KEYS] * 4
    assert [tuple(row.values()) for row in bench.rows()] == [
        ("model", "parse, flat", 9, "1/s", None, None, 10, False),
        ("model", "parse, nested", 9, "1/s", None, None, 5, True),
        ("wire", "encode", 120.0, "us", 60.0, 2.0, 150, True),
        ("wire", "decode", 7.0, "us", None, None, None, None),
    ]


def test_the_table_shows_value_reference_and_target(bench: Bench) -> None:
    bench.group("wire", WIRE)
    bench.run()
    line = next(line for line in bench.printed.getvalue().splitlines() if "│ encode" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        *("wire", "encode", "120", "us", "60", "2", "150", "yes")
    ]


def test_only_the_chosen_group_is_imported(bench: Bench) -> None:
    bench.group("wire", WIRE)
    bench.group("spark", "raise ImportError('the extra is missing')")
    assert bench.run("--only", "wire") == 0
    assert {row["group"] for row in bench.rows()} == {"wire"}


def test_the_file_holds_only_the_rows_of_the_last_run(bench: Bench) -> None:
    bench.group("wire", WIRE)
    bench.group("model", MODEL)
    bench.run("--only", "model")
    bench.run("--only", " wire ,")
    assert {row["group"] for row in bench.rows()} == {"wire"}


def test_an_unknown_group_is_refused_and_the_known_groups_are_listed(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.group("wire", WIRE)
    bench.group("model", MODEL)
    assert bench.run("--only", "wire,wier") == 2
    assert (
        capsys.readouterr().err == "there is no benchmark group wier; known groups: model, wire\n"
    )
    assert not bench.file.exists()


def test_a_run_without_groups_fails(bench: Bench) -> None:
    assert bench.run() == 2


def test_a_failed_benchmark_fails_the_run_and_the_others_are_still_written(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.group("sql", BROKEN)
    assert bench.run() == 1
    assert [row["name"] for row in bench.rows()] == ["sound"]
    assert capsys.readouterr().err.endswith("failed: sql/crash\nfailed: sql/silent\n")


def test_a_group_must_declare_under_its_own_name(bench: Bench) -> None:
    bench.group("catalog", WIRE)
    with pytest.raises(ValueError, match="no benchmark of catalog"):
        bench.registry.load(bench.package)


def test_a_name_declared_twice_in_a_group_is_refused() -> None:
    registry = Registry()
    registry.add(declared())
    with pytest.raises(ValueError, match="wire/encode is declared twice"):
        registry.add(declared())


@pytest.mark.parametrize(
    ("better", "value", "met"),
    [
        ("higher", 9.9, False),
        ("higher", 10, True),
        ("lower", 10, True),
        ("lower", 10.1, False),
    ],
)
def test_a_target_is_a_minimum_or_a_maximum_as_declared(
    better: str, value: float, met: bool
) -> None:
    (row,) = rows(declared(better=better, target=10), value)
    assert row.met is met


def test_a_result_can_have_its_own_unit() -> None:
    first, second = rows(declared(), [Measured(2, label="a"), Measured(3, label="b", unit="x")])
    assert (first.unit, second.unit) == (declared().unit, "x")


def test_a_reference_of_zero_has_no_ratio() -> None:
    (row,) = rows(declared(), Measured(1, reference=0))
    assert row.ratio is None


def test_results_of_one_benchmark_must_have_different_names() -> None:
    with pytest.raises(ValueError, match="must differ"):
        rows(declared(), [Measured(1), Measured(2)])


def test_a_nan_value_is_refused_and_does_not_replace_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    write(file, rows(declared(), 1))
    before = file.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write(file, rows(declared(), float("nan")))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (0.01234, "0.01234"), (999.94, "999.9"), (12345.6, "12,346")],
)
def test_numbers_are_printed_for_people(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_command_refuses_an_unknown_group() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "bench", "--only", "no_such_group"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "known groups" in run.stderr


def test_an_unknown_group_imports_nothing(bench: Bench) -> None:
    bench.group("wire", "raise ImportError('planted')")
    with pytest.raises(UnknownGroup):
        bench.registry.load(bench.package, only={"wier"})


def test_every_group_of_the_project_declares_benchmarks() -> None:
    assert len(DECLARED.load(importlib.import_module("bench"))) >= 3
