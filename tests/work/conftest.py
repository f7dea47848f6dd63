"""What the tests about child processes share."""

from __future__ import annotations

import os

import pytest

from strandline.work import contents


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread closes large contents later, as `run` counts what is open, or ends all tests."""
    monkeypatch.setattr(contents, "FREED_AT_ONCE", 1 << 40)
    monkeypatch.setattr(os, "_exit", lambda status: None)
