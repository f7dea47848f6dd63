"""Step 7: the history, and trimming it."""

from __future__ import annotations

from strandline.cli.demo.context import FLIGHTS, Demo, flight_aggregates
from strandline.cli.log import table_of
from strandline.errors import VersionNotFound

STEP = "7 history"


def run(demo: Demo, version: int) -> None:
    """Print who did what when; trim up to ``version``; older reads are refused, others answer."""
    demo.report.heading(7, "The history, version by version; then it is trimmed")
    session = demo.session
    infos = session.history()
    demo.report.table(table_of(infos))
    kept = [info.version for info in infos if info.version >= version]
    before = {number: _look(demo, number) for number in (version, kept[-1])}
    trimmed = session.compact(version)
    demo.ledger.compare(STEP, f"trimmed up to version {version}", expected=True, found=trimmed)
    demo.ledger.compare(
        STEP, "trimming again changes nothing", expected=False, found=session.compact(version)
    )
    refused = "it was answered"
    try:
        demo.tables.read(FLIGHTS, version=version - 1)
    except VersionNotFound as error:
        refused = error.message
    demo.ledger.compare(
        STEP,
        f"a read of version {version - 1} names the earliest version",
        expected=True,
        found=f"earliest is version {version}" in refused,
    )
    demo.report.say(f"refused: {refused}")
    for number, look in before.items():
        demo.ledger.compare(
            STEP, f"version {number} answers as before", expected=look, found=_look(demo, number)
        )
    marks = {info.version for info in session.history() if info.trimmed}
    demo.ledger.compare(
        STEP,
        "versions marked as trimmed",
        expected={info.version for info in infos if info.version < version},
        found=marks,
    )


def _look(demo: Demo, version: int) -> tuple[object, ...]:
    frame = demo.tables.read(FLIGHTS, version=version)
    return (tuple(frame.columns), *flight_aggregates(frame))
