"""Rates are those of windows that agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.peers.windows import settled


def windows(*rates: float) -> Callable[[float], float]:
    left = list(rates)
    return lambda seconds: left.pop(0)


def test_the_first_three_windows_in_a_row_that_agree_are_the_rate() -> None:
    assert settled(windows(50, 80, 100, 101, 99, 1)) == 100


def test_without_such_windows_the_steadiest_count_and_it_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert settled(windows(50, 100, 110, 120, 240, 10), most=6) == 110
    assert "no 3 windows of 6 agree; the best spread is 1.20" in capsys.readouterr().out
