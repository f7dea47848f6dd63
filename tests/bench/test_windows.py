"""A rate is measured over consecutive windows that agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.peers.windows import settled


def windows(*rates: float) -> Callable[[float], float]:
    left = list(rates)
    return lambda seconds: left.pop(0)


def test_the_rate_is_the_mean_of_the_first_three_consecutive_windows_that_agree() -> None:
    assert settled(windows(50, 80, 100, 101, 99, 1)) == 100


def test_without_agreement_the_steadiest_windows_count_and_a_warning_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert settled(windows(50, 100, 110, 120, 240, 10), most=6) == 110
    assert "no 3 windows of 6 agree; the best spread is 1.20" in capsys.readouterr().out
