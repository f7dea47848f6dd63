"""Plants a fault: replaces text in the source of one function."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest


def plant(
    patch: pytest.MonkeyPatch,
    owner: Any,  # Any: a class or a module
    name: str,
    old: str,
    new: str,
) -> None:
    """Replace ``old``, which must occur once, by ``new`` in the source of ``owner.name``."""
    real = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, old
    made: dict[str, Any] = {}
    module = sys.modules[real.__module__]
    exec(source.replace(old, new), vars(module) | {"__builtins__": __builtins__}, made)
    patch.setattr(owner, name, made[name])
