"""Planted faults: how one is registered, and how the check that must find it is run.

A fault patches the real implementation of a store. The check is a test of the conformance suite,
called with its usual fixtures. It must fail at the statement that is there for this fault, not with
an error of the patch or with another assertion.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import StrandlineError
from tests.metastorage import conftest, test_conformance, test_conformance_order
from tests.metastorage.work import Hear, Say
from tests.sql.processes import Process

Fault = Callable[[pytest.MonkeyPatch], None]
Check = Callable[..., None]

SUITE = Path(__file__).parent
LONG = 5.0
"""Seconds after which a waiter counts as not woken here; in the suite it has a minute."""


@dataclass(frozen=True)
class Tooth:
    """A fault in stores of one kind, and how a check must complain of it.

    ``complaint`` is searched for in the lines of the suite that led to the failure and in the
    message of the error; ``given`` are the parameters of the one case of the check that is run.
    """

    fault: Fault
    kind: str
    check: Check
    complaint: str
    given: dict[str, object]

    def bite(self, request: pytest.FixtureRequest) -> None:
        """Run the check with the fault planted; fails unless the check complains as it should."""
        names = inspect.signature(self.check).parameters
        fixtures = {n: request.getfixturevalue(n) for n in names if n not in self.given}
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)) as failure,
        ):
            patch.setattr(test_conformance_order, "Process", self._process)
            self.fault(patch)
            self.check(**fixtures, **self.given)
        assert re.search(self.complaint, _complaint(failure.value)), _complaint(failure.value)

    def _process(self, target: str, *arguments: object) -> Process:
        """One more process of the suite, with the same fault planted in it."""
        fault = (self.fault.__module__, self.fault.__name__)
        return Process("tests.metastorage.teeth:with_fault", *fault, target, *arguments)


class Teeth(list[Tooth]):
    """The faults of one file, in order."""

    def found_by(
        self, check: Check, *kinds: str, complaint: str, **given: object
    ) -> Callable[[Fault], Fault]:
        """Register a fault in stores of these kinds, one tooth for each.

        A check that has a short and a long form is run in its long form.
        """
        if "times" in inspect.signature(check).parameters:
            given = {"times": test_conformance_order.LONG, **given}

        def register(fault: Fault) -> Fault:
            self.extend(Tooth(fault, kind, check, complaint, given) for kind in kinds)
            return fault

        return register

    def cases(self) -> list[Any]:  # Any: pytest does not name the type
        """The parameters ``kind_name`` and ``tooth`` of the test that runs these teeth."""
        return [
            pytest.param(tooth.kind, tooth, id=f"{tooth.fault.__name__}-{tooth.kind}")
            for tooth in self
        ]


def wrap(patch: pytest.MonkeyPatch, name: str, *places: object, by: Callable[..., object]) -> None:
    """Replace a function or method by ``by``, which gets the real one as its first argument."""
    for place in places:
        patch.setattr(place, name, _around(getattr(place, name), by))


def _around(real: Callable[..., object], by: Callable[..., object]) -> Callable[..., object]:
    def planted(*arguments: Any, **named: Any) -> object:  # Any: whatever the method takes
        return by(real, *arguments, **named)

    return planted


def with_fault(
    say: Say, hear: Hear, module: str, fault: str, target: str, *arguments: object
) -> None:
    """What a process of the suite does, after a fault is planted in it."""
    patch = pytest.MonkeyPatch()
    waiters_are_missed_soon(patch)
    getattr(import_module(module), fault)(patch)
    work, _, function = target.partition(":")
    getattr(import_module(work), function)(say, hear, *arguments)


def waiters_are_missed_soon(patch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which a waiter counts as not woken from a minute to `LONG`."""
    for module in (conftest, test_conformance):
        patch.setattr(module, "LONG", LONG)


def _complaint(error: BaseException) -> str:
    """The lines of the suite that led to the error, and its message."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and "/tests/" not in frames[-1].filename:
        return f"an assertion that is not the suite's: {frames[-1]}"
    lines = [frame.line or "" for frame in frames if _is_of_the_suite(Path(frame.filename))]
    return "\n".join([*lines, str(error)])


def _is_of_the_suite(path: Path) -> bool:
    return path.parent == SUITE and "teeth" not in path.name
