"""Calls of a session that a signal handler ends, while its error is kept, as notebooks do."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from strandline.node import Node
from tests.interrupts import interrupt_of
from tests.servers.stores import new_store


# The garbage collector closes connections that an interrupt made the pool lose.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_after_a_call_that_was_interrupted_at_any_step_another_process_can_write(
    kind: str, tmp_path: Path
) -> None:
    address, settings = new_store(kind, tmp_path / "lake")
    with (
        closing(Node.open(address, settings=settings, background=False)) as node,
        closing(Node.open(address, settings=settings, background=False)) as other_node,
        ThreadPoolExecutor(1) as other_thread,
    ):
        session, other = node.session(user="ann"), other_node.session(user="bob")

        def begin() -> None:
            try:
                session.begin()
            except AssertionError as error:  # of SQLAlchemy, in a `finally`
                raise KeyboardInterrupt from error

        begin()
        step = 0
        while interrupt := interrupt_of(begin, at_step=step):
            began = other_thread.submit(other.begin)
            began.result(timeout=5.0)
            assert interrupt.__traceback__ is not None
            step += 1
    assert step
    gc.collect()
