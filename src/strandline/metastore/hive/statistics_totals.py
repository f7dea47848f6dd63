"""Combines the statistics of a column in several partitions, even if only some have statistics.

If all partitions have statistics, or only one has, the result is that of `combined`. If some have
none, Hive extrapolates, and its planner expects the result. This module does the same:

* a total becomes the mean of the known ones, rounded down, times the number of partitions;
* a bound, a length or a number of distinct values is assumed to grow linearly between the partition
  with the lowest value and the one with the highest, in the order in which the client names the
  partitions. The result is the value at that end of the list towards which it grows. It is never
  inside the known bounds.
"""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Any

from strandline.metastore.hive.statistics_values import (
    FORMS,
    LARGEST,
    MAX_SCALE,
    UNKNOWN,
    Rule,
    capped,
    combined,
    form_of,
    lower,
    total,
)
from strandline.metastore.hive.storage_descriptors import Struct


class StatisticsTotal:
    """The sum of the statistics of one column, partition by partition; all have the same form."""

    def __init__(self) -> None:
        self._whole: Struct = {}
        self._parts = 0
        self._lows: dict[str, tuple[float, int]] = {}
        self._highs: dict[str, tuple[float, int]] = {}

    def add(self, summary: Struct, *, index: int | None) -> None:
        """Add the statistics of the partition that the client named at ``index``, from 0.

        ``index`` is None if all partitions have statistics: it is not needed then.
        """
        self._whole = combined(self._whole, summary) if self._parts else summary
        self._parts += 1
        if index is None:
            return
        for name, value in summary["statsData"][form_of(summary)].items():
            number = _number(value)
            if number is None or (name not in ("lowValue", "highValue") and number < 0):
                continue
            self._lows[name] = min(self._lows.get(name, (number, index)), (number, index))
            self._highs[name] = max(self._highs.get(name, (number, index)), (number, index))

    def over(self, partitions: int) -> Struct:
        """Return the statistics of ``partitions`` partitions. At least one must have been added."""
        form = form_of(self._whole)
        values = self._whole["statsData"][form]
        if 1 < self._parts < partitions:
            values = {
                name: self._extrapolated(name, value, FORMS[form][name], partitions=partitions)
                for name, value in values.items()
            }
        # Also of one partition: a client may have sent more distinct values than fit.
        return {**self._whole, "statsData": {form: capped(form, values)}}

    def _extrapolated(self, name: str, value: Any, rule: Rule, *, partitions: int) -> Any:
        if rule is total:
            return value if value == UNKNOWN else min(value // self._parts * partitions, LARGEST)
        return (
            self._extended(name, value, rule, last=partitions - 1) if name in self._lows else value
        )

    def _extended(self, name: str, value: Any, rule: Rule, *, last: int) -> Any:
        """Return ``value`` extrapolated to the end of the list towards which it grows."""
        (low, index_of_low), (high, index_of_high) = self._lows[name], self._highs[name]
        span = abs(index_of_high - index_of_low)
        if span == 0:
            return value
        rises = index_of_low < index_of_high
        if rule is lower:
            reach = index_of_high if rises else last - index_of_high
            extended = high - _share(high - low, reach, span)
        else:
            reach = last - index_of_low if rises else index_of_low
            extended = low + _share(high - low, reach, span)
        # The first of two equal values: Hive returns a decimal in the scale that results from this.
        return rule(_with_number(value, extended), value)


def _share(width: float, reach: int, span: int) -> float:
    """``width`` times ``reach`` divided by ``span``; an integer if ``width`` is."""
    return width * reach // span if isinstance(width, int) else width * reach / span


def _number(value: Any) -> float | None:
    """Return a bound or a count as a number, or None if it has no finite one."""
    if isinstance(value, dict):
        if "unscaled" in value:
            unscaled = int.from_bytes(value["unscaled"], "big", signed=True)
            try:
                value = unscaled / 10 ** value["scale"]
            except OverflowError:
                return None
        else:
            value = next(iter(value.values()), None)
    return value if isinstance(value, int | float) and isfinite(value) else None


def _with_number(value: Any, number: float) -> Any:
    """Return ``value`` with another number in it, or unchanged if the protocol cannot carry it."""
    if isinstance(number, int):
        number = max(min(number, LARGEST), -LARGEST - 1)
    elif not isfinite(number):
        return value
    if not isinstance(value, dict):
        return number
    if "unscaled" not in value:
        return dict.fromkeys(value, number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    if -exponent > MAX_SCALE:
        return value
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return {
        "unscaled": unscaled.to_bytes(size, "big", signed=True),
        "scale": max(-exponent, 0),
    }
