"""Named points at which a test can kill a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from strandline import faults


def run(setting: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from strandline.faults import reached\n{code}"],
        env={**os.environ, faults.ENVIRONMENT_VARIABLE: setting},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


CODE = "for n in range(3):\n    print(n, flush=True)\n    reached('commit-sent')\nprint('end')"


@pytest.mark.parametrize(
    ("setting", "printed"), [("commit-sent", "0\n"), ("commit-sent:3", "0\n1\n2\n")]
)
def test_an_armed_point_kills_the_process_at_its_count(setting: str, printed: str) -> None:
    completed = run(setting, CODE)
    assert completed.returncode == -signal.SIGKILL
    assert completed.stdout == printed


@pytest.mark.parametrize("setting", ["", "commit-durable"])
def test_a_point_that_is_not_armed_does_nothing(setting: str) -> None:
    assert run(setting, CODE).stdout.endswith("end\n")


def test_a_point_that_does_not_exist_is_refused_at_the_start() -> None:
    completed = run("nowhere", CODE)
    assert completed.returncode != 0
    assert "unknown point" in completed.stderr
    assert "commit-durable" in completed.stderr
