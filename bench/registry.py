"""The registry of benchmarks: the decorator that declares a benchmark, and the groups."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

# The modules that form the harness. Every other module of the package is a group; subpackages are
# not.
HARNESS = frozenset({"__main__", "registry", "report"})


class UnknownGroup(Exception):
    """A chosen group does not exist. The message lists the existing groups."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One result, in the unit of its benchmark or in its own ``unit``.

    ``reference`` is the value of the peer or of the raw limit, measured in the same run. If a
    benchmark returns several results, ``label`` distinguishes them and is appended to its name.
    ``target`` replaces the target of the benchmark for this result.
    """

    value: float
    reference: float | None = None
    label: str | None = None
    target: float | None = None
    unit: str | None = None


Result = float | Measured | Sequence[Measured]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A declared benchmark: its name, its target, and the function that runs it."""

    group: str
    name: str
    unit: str
    target: float | None
    better: Literal["higher", "lower"]
    run: Callable[[], Result]


class Registry:
    """The benchmarks of one package of groups, in order of declaration."""

    def __init__(self) -> None:
        self._benchmarks: dict[tuple[str, str], Benchmark] = {}

    def add(self, benchmark: Benchmark) -> None:
        """Add a benchmark. Raises ValueError if its group and name already exist."""
        key = (benchmark.group, benchmark.name)
        if key in self._benchmarks:
            raise ValueError(f"the benchmark {benchmark.group}/{benchmark.name} is declared twice")
        self._benchmarks[key] = benchmark

    def of_group(self, group: str) -> list[Benchmark]:
        """Return the benchmarks of a group that imported modules have declared."""
        return [entry for entry in self._benchmarks.values() if entry.group == group]

    def load(self, package: ModuleType, *, only: Collection[str] = ()) -> list[Benchmark]:
        """Import the chosen groups of the package, by default all, and return their benchmarks.

        Raises UnknownGroup, before any import, if a group does not exist or the package has no
        groups, and ValueError if a group's module declares no benchmark of this group.
        """
        known = groups(package)
        unknown = sorted(set(only) - set(known))
        if unknown or not known:
            asked = f"no benchmark group {', '.join(unknown)}" if unknown else "no benchmark group"
            raise UnknownGroup(f"there is {asked}; known groups: {', '.join(known) or 'none'}")
        loaded: list[Benchmark] = []
        for group in known:
            if only and group not in only:
                continue
            importlib.import_module(f"{package.__name__}.{group}")
            benchmarks = self.of_group(group)
            if not benchmarks:
                raise ValueError(f"{package.__name__}/{group}.py declares no benchmark of {group}")
            loaded += benchmarks
        return loaded


def groups(package: ModuleType) -> list[str]:
    """Return the sorted names of the package's groups."""
    modules = pkgutil.iter_modules(package.__path__)
    names = (module.name for module in modules if not module.ispkg)
    return sorted(name for name in names if name not in HARNESS and not name.startswith("_"))


DECLARED = Registry()


def benchmark(
    *,
    group: str,
    name: str,
    unit: str,
    better: Literal["higher", "lower"],
    target: float | None = None,
    registry: Registry = DECLARED,
) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Declare the decorated function as a benchmark of ``group`` (the name of its module).

    ``unit`` is printed after the value ("1/s", "ms", "x"). ``target`` is in this unit: a minimum if
    ``better`` is "higher", a maximum if it is "lower". The function takes no arguments and returns
    its value, a `Measured`, or several.
    """

    def declare(run: Callable[[], Result]) -> Callable[[], Result]:
        registry.add(Benchmark(group, name, unit, target, better, run))
        return run

    return declare
