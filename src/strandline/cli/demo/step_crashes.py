"""Step 6: kill the node at the worst moments, and start it again each time.

This step uses HTTP to the served node, whatever client the rest of the demo uses. A client in the
driver's own process would die with its store, and could not ask for the outcome of its commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

from strandline.catalog.commands import AddColumns, ColumnDefinition
from strandline.cli.demo.context import Demo, rows
from strandline.errors import StrandlineError, Unavailable
from strandline.metastore.interface import Session
from strandline.model.types import STRING
from strandline.spark import Tables

PROBE = "nyc.probe"


def run(demo: Demo) -> None:
    """Kill the node at each point, restart it, and compare the rows with those acknowledged."""
    demo.report.heading(
        6, "crashes", "The node is killed with SIGKILL, and nothing acknowledged is lost"
    )
    demo.tables.create(PROBE, "n int, point string")
    expected: list[tuple[int, str]] = []
    points: list[tuple[str, Callable[[Demo, Tables, Session, int], bool]]] = [
        ("files-written", _killed_between_files_and_store),
        ("rows-staged", _append_again),
        ("commit-sent", _append),
        ("commit-durable", _append),
        ("ddl-appended", _add_column),
    ]
    with demo.report.bar("five crashes", total=len(points)) as step:
        for number, (point, work) in enumerate(points, start=1):
            starts = demo.node.starts
            fault = "" if point == "files-written" else point
            with _armed(demo, fault), demo.http() as session:
                tables = Tables(demo.tables.spark, session)
                acknowledged = work(demo, tables, session, number)
            if acknowledged and work in (_append, _append_again):
                expected.append((number, "appended"))
            _judge(demo, point, expected, died=demo.node.starts > starts + (1 if fault else 0))
            step()


@contextmanager
def _armed(demo: Demo, fault: str) -> Iterator[None]:
    """Run the node with ``fault`` armed, and start it again, unarmed, as soon as it has died."""
    if not fault:
        yield
        return
    demo.node.stop()
    demo.node.start(fault=fault)
    with ThreadPoolExecutor(1, "supervisor") as threads:
        restarted = threads.submit(demo.node.start_again)
        try:
            yield
        finally:
            if not wait([restarted], timeout=240).done:  # the fault was never reached
                demo.node.stop()
            restarted.result()


def _append(demo: Demo, tables: Tables, session: Session, number: int) -> bool:
    """Append in one transaction. If an answer is lost, the client finds out the outcome."""
    del demo, session
    with tables.transaction() as transaction:
        transaction.append(PROBE, _one_row(tables, number))
    return True


def _append_again(demo: Demo, tables: Tables, session: Session, number: int) -> bool:
    """Append; if that fails because the answer to staging is lost, append again."""
    try:
        return _append(demo, tables, session, number)
    except StrandlineError:
        return _append(demo, tables, session, number)


def _one_row(tables: Tables, number: int) -> Any:  # Any: a Spark DataFrame
    return tables.spark.range(1).selectExpr(f"{number} AS n", "'appended' AS point")


class _KilledBeforeStage:
    """A session that kills the node after files are written and before they are staged."""

    def __init__(self, session: Session, demo: Demo) -> None:
        self._session = session
        self._demo = demo
        self.txn_id = 0

    def stage(self, txn_id: int, *_: object, **__: object) -> None:
        self.txn_id = txn_id
        self._demo.node.kill()
        raise Unavailable("the node was killed before it received the list of files")

    def __getattr__(self, name: str) -> Any:  # Any: whatever a session has
        return getattr(self._session, name)


def _killed_between_files_and_store(
    demo: Demo, tables: Tables, session: Session, number: int
) -> bool:
    """Kill the node before staging. No row may appear, and the transaction can be aborted."""
    killing_session = _KilledBeforeStage(session, demo)
    restart = threading.Thread(target=demo.node.start_again)
    restart.start()
    with (
        suppress(StrandlineError),
        Tables(tables.spark, killing_session).transaction() as transaction,  # type: ignore[arg-type]  # the calls it makes
    ):
        transaction.append(PROBE, _one_row(tables, number))
    restart.join()
    state = session.abort(killing_session.txn_id).state
    demo.report.compare(
        "the transaction whose files were never reported", expected="ABORTED", actual=state.name
    )
    return False


def _add_column(demo: Demo, tables: Tables, session: Session, number: int) -> bool:
    """Execute DDL and lose its answer. The history shows whether it happened."""
    del tables, number
    command = AddColumns(schema="nyc", table="probe", columns=(ColumnDefinition("more", STRING),))
    settled = "answered"
    try:
        session.execute(command)
    except Unavailable:
        settled = "unknown"
    demo.report.compare("the answer to DDL was lost", expected="unknown", actual=settled)
    last = session.history()[-1]
    demo.report.compare(
        "the last version in the history",
        expected=[("add_columns", PROBE)],
        actual=[(verb, arguments.get("table")) for verb, arguments in last.actions],
    )
    columns = [column.name for column in session.table(PROBE).descriptor.columns]
    demo.report.compare("columns of probe", expected=["n", "point", "more"], actual=columns)
    return True


def _judge(demo: Demo, point: str, expected: list[tuple[int, str]], *, died: bool) -> None:
    demo.report.compare(f"the node died at {point}", expected=True, actual=died)
    actual = rows(demo.tables.read(PROBE).select("n", "point"))
    what = f"rows after the crash at {point}"
    demo.report.compare(what, expected=list(expected), actual=actual)
    demo.report.say(f"{point}: killed and started again; acknowledged rows: {len(expected)}")
