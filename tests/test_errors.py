"""The tree of errors, and how clients of each protocol see them."""

from __future__ import annotations

import re

import pytest

from strandline import errors
from strandline.errors import SURFACES, StrandlineError, error_of, surface_of


def every_error(kind: type[StrandlineError] = StrandlineError) -> list[type[StrandlineError]]:
    return [kind, *(error for sub in kind.__subclasses__() for error in every_error(sub))]


OURS = [kind for kind in every_error() if kind.__module__ == errors.__name__]


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = re.findall(r"^[│ ├└─]*(\w+)", (errors.__doc__ or "").partition("::\n")[2], re.M)
    assert drawn == [kind.__name__ for kind in OURS]


def test_every_code_is_unique_and_identifies_its_error() -> None:
    assert len({kind.code for kind in OURS}) == len(OURS)
    for kind in OURS:
        again = error_of(kind.code, "text")
        assert type(again) is kind
        assert (again.message, str(again)) == ("text", "text")


def test_an_unknown_code_gives_the_root() -> None:
    assert type(error_of("from_the_future", "text")) is StrandlineError


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_has_valid_thrift_http_and_exit_surfaces(
    kind: type[StrandlineError],
) -> None:
    surface = surface_of(kind("text"))
    assert 64 <= surface.exit <= 78
    assert 400 <= surface.http <= 599
    assert surface.thrift.endswith("Exception")


def test_a_foreign_error_is_shown_as_an_internal_one() -> None:
    assert surface_of(RuntimeError("x")) == SURFACES[StrandlineError]
