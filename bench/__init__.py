"""Benchmarks of Strandline, each printed next to its reference and target.

A number alone means little: it depends on the machine and the time of day. So, in the same run, a
benchmark also measures an external reference (a peer that does the same work, the raw speed of the
disk). It reports the value, the reference and their ratio. A benchmark has a target if the project
promises one.

A group is a module of this package, named after the layer that it measures (`bench/metastore.py`).
Its benchmarks are functions with the decorator `@benchmark`. There is no list of groups, and a
group is imported only if it is chosen. So measuring one layer does not need the extras of others.

What must stay true: if a benchmark fails, the other rows are still reported, and the run fails. A
missed target is reported and does not fail the run, since a slow machine is not a defect.
`build/bench.json` contains the rows of one run only, never a mixture.

Rejected: pytest-benchmark. It measures one function in one process, and most benchmarks here
measure a rate with several processes.
"""

from bench.registry import Benchmark, Measured, Registry, UnknownGroup, benchmark
from bench.report import Row

__all__ = ["Benchmark", "Measured", "Registry", "Row", "UnknownGroup", "benchmark"]
