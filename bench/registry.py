"""Which benchmarks there are: the decorator that declares one, and the groups that hold them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

# The modules of the package that are the harness itself; every other module, but not a package, is
# a group.
HARNESS = frozenset({"__main__", "registry", "report"})


class UnknownGroup(Exception):
    """Somebody asked for a group that is not there; the message lists those that are."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One result, in the unit of its benchmark or in a ``unit`` of its own.

    ``reference`` is what the peer or the limit measured in the same run. A benchmark that gives
    several results tells them apart by ``label``, which is appended to its name; ``target``
    replaces the target of the benchmark for this result.
    """

    value: float
    reference: float | None = None
    label: str | None = None
    target: float | None = None
    unit: str | None = None


Result = float | Measured | Sequence[Measured]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A declared benchmark: what it is called, what it promises, and how it is run."""

    group: str
    name: str
    unit: str
    target: float | None
    better: Literal["higher", "lower"]
    run: Callable[[], Result]


class Registry:
    """The benchmarks of one package of groups, in the order in which they were declared."""

    def __init__(self) -> None:
        self._benchmarks: dict[tuple[str, str], Benchmark] = {}

    def add(self, benchmark: Benchmark) -> None:
        """Declare one; a second of the same group and name is a mistake (ValueError)."""
        key = (benchmark.group, benchmark.name)
        if key in self._benchmarks:
            raise ValueError(f"the benchmark {benchmark.group}/{benchmark.name} is declared twice")
        self._benchmarks[key] = benchmark

    def of_group(self, group: str) -> list[Benchmark]:
        """The benchmarks that were declared for a group, so far as its module is imported."""
        return [entry for entry in self._benchmarks.values() if entry.group == group]

    def load(self, package: ModuleType, *, only: Collection[str] = ()) -> list[Benchmark]:
        """Import the chosen groups of the package (all, where none is named); give what they hold.

        Raises UnknownGroup, before anything is imported, and ValueError where a group's module
        declares no benchmark under the group's name.
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
            found = self.of_group(group)
            if not found:
                raise ValueError(f"{package.__name__}/{group}.py declares no benchmark of {group}")
            loaded += found
        return loaded


def groups(package: ModuleType) -> list[str]:
    """The names of the package's groups, sorted."""
    found = pkgutil.iter_modules(package.__path__)
    names = (module.name for module in found if not module.ispkg)
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

    ``unit`` is printed after the value ("1/s", "ms", "x"). ``target`` is the value that must be
    reached, in this unit, from below or from above as ``better`` says. The function takes no
    argument and returns its value, or `Measured`, or several.
    """

    def declare(run: Callable[[], Result]) -> Callable[[], Result]:
        registry.add(Benchmark(group, name, unit, target, better, run))
        return run

    return declare
