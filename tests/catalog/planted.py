"""Faults that a test plants in the declaration of a kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog import kinds
from strandline.catalog.declared_kinds import declared_kind


def plant(patch: pytest.MonkeyPatch, kind: str, **columns: Any) -> None:  # Any: a column's value
    """Replace columns in the declaration of ``kind``, for the duration of the test."""
    patch.setitem(kinds._KINDS, kind, replace(kinds.kind_named(kind), **columns))


def plant_undo(patch: pytest.MonkeyPatch, kind: str, **columns: Any) -> None:  # Any: see above
    """The same for the columns that define how an object is undone."""
    plant(patch, kind, undo=replace(declared_kind(kind).undo, **columns))
