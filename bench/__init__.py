"""Measurements of Strandline, each printed beside the limit that it is held to.

A number alone says nothing: it depends on the machine and on the hour. So a benchmark measures, in
the same run, what bounds it from outside (the peer that does the same work, the raw speed of the
disk), and reports both: value, reference, ratio. A target is stated where the project promises one.

A group is a module of this package, named after the layer that it measures (`bench/metastore.py`);
its benchmarks are functions under `@benchmark`. Nothing lists the groups, and a group is imported
only when it is asked for, so that measuring one layer needs the extras of no other.

What must stay true: a benchmark that fails spoils no other's row and fails the run; a missed target
is reported and fails nothing, since a slow machine is not a defect; `build/bench.json` holds the
rows of one run only, never a mixture. Rejected: pytest-benchmark, whose unit is one function called
in one process, where most of what is measured here is several processes and a rate.
"""

from bench.registry import Benchmark, Measured, Registry, UnknownGroup, benchmark
from bench.report import Row

__all__ = ["Benchmark", "Measured", "Registry", "Row", "UnknownGroup", "benchmark"]
