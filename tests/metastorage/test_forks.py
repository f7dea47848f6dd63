"""A store in a process that forks: the connections belong to the parent."""

from __future__ import annotations

import subprocess
import sys

from tests.metastorage.conftest import Place

PROGRAM = """
import os
import sys
from contextlib import closing
from strandline.clock import HybridClock
from strandline.errors import UnsupportedOperation
from strandline.metastorage import Put, open_metastorage

store = open_metastorage(sys.argv[1], HybridClock())
store.invoke([], [Put("a", b"parent")])
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: store.get("a"),
        lambda: store.invoke([], [Put("a", b"child")]),
        store.check,
        store.revision,
        lambda: store.wait_for_change("a", 0, timeout=0),
        lambda: store.lease("lead"),
    ):
        try:
            call()
        except UnsupportedOperation:
            refused += 1
    store.close()
    try:
        open_metastorage(sys.argv[1], HybridClock()).close()
    except UnsupportedOperation as error:
        refused += "'spawn'" in error.message
    os._exit(refused)
of_child = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert of_child == (7 if sys.argv[1].startswith("sqlite") else 6), of_child
assert store.get("a").value == b"parent"
assert store.invoke([], [Put("a", b"again")]).revision == 2
lost = getattr(store, "_all", None)
assert lost is None or lost.statistics().lost_connections == 0
store.close()
child = os.fork()
if child == 0:  # nothing is open any more
    with closing(open_metastorage(sys.argv[1], HybridClock())) as store:
        os._exit(store.invoke([], [Put("a", b"child")]).revision)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


def test_a_forked_child_cannot_use_the_store_and_does_not_disturb_the_parent(place: Place) -> None:
    """Nor can it open the file of a store that its parent has open: SQLite would take no locks."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, place.address],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
