"""Rates after warm-up: measures windows of equal length until three in a row agree."""

from __future__ import annotations

import os
from collections.abc import Callable

SECONDS = float(os.environ.get("BENCH_WINDOW", "5"))
"""The length of a window in seconds. ``make bench BENCH_WINDOW=1`` is a quick trial."""
AGREEMENT = 1.05
"""The largest rate of the windows that agree, divided by the smallest."""
IN_A_ROW = 3
MOST_WINDOWS = 12


def settled(window: Callable[[float], float], *, most: int = MOST_WINDOWS) -> float:
    """The mean rate of the first `IN_A_ROW` windows that agree.

    ``window`` measures for the given seconds and returns a rate. If none of the first ``most``
    windows agree, print a message and return the mean of the consecutive windows that agree best.
    """
    rates: list[float] = []
    while len(rates) < most:
        rates.append(window(SECONDS))
        if len(rates) >= IN_A_ROW and _spread(rates[-IN_A_ROW:]) <= AGREEMENT:
            return _mean(rates[-IN_A_ROW:])
    groups = [rates[at : at + IN_A_ROW] for at in range(len(rates) - IN_A_ROW + 1)]
    steadiest = min(groups, key=_spread)
    print(f"  no {IN_A_ROW} windows of {most} agree; the best spread is {_spread(steadiest):.2f}")
    return _mean(steadiest)


def _spread(rates: list[float]) -> float:
    return max(rates) / min(rates)


def _mean(rates: list[float]) -> float:
    return sum(rates) / len(rates)
