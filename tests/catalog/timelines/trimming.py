"""Trimming and restarts: which part of the past is kept, and what a node finds when it starts."""

from __future__ import annotations

from strandline.catalog.commands import CreateSchema
from strandline.errors import VersionNotFound
from tests.catalog.scenario import Refused
from tests.catalog.timeline import Begin, Do, Ends, Join, Timeline, Waits, Wall
from tests.catalog.timeline_asks import (
    Done,
    active_after,
    active_at,
    active_from,
    compact,
    each,
    earliest,
    execute,
    latest,
    present,
    replayed,
    schemas,
    sync,
    upper,
)

SECOND = 1000
DAY = 24 * 3600 * SECOND
A, B, C = (CreateSchema(name=name) for name in "abc")
GONE = Refused(VersionNotFound, "the earliest is version 4")
MADE = [
    step
    for version, command in enumerate((A, B, C), start=3)
    for step in (Wall(SECOND), Do(execute(command), Done(version)))
]
"""Versions 3, 4 and 5, a second apart."""

TIMELINES = [
    Timeline(
        "trimming moves the earliest version, and the rest answers as before",
        cases=[13],
        nodes=2,
        steps=[
            *MADE,
            Wall(SECOND),
            Do(sync, node=2),
            Do(compact(4), True),
            *(
                step
                for node in (1, 2)
                for step in (
                    Do(sync, node=node),
                    Do(earliest, 4, node=node),
                    Do(schemas(0), GONE, node=node),
                    Do(schemas(3), GONE, node=node),
                    Do(active_at(1), GONE, node=node),
                    Do(active_after(2 * SECOND - 1), GONE, node=node),
                    Do(active_after(2 * SECOND), 4, node=node),
                    Do(active_from(4), 2 * SECOND, node=node),
                    Do(schemas(4), ["a", "b", "default"], node=node),
                    Do(schemas(5), ["a", "b", "c", "default"], node=node),
                )
            ),
            Do(compact(4), False),
            Do(earliest, 4),
        ],
    ),
    Timeline(
        "trimming again or lower changes nothing",
        cases=[14],
        nodes=2,
        steps=[
            *MADE,
            Do(sync, node=2),
            Do(compact(0), False),
            Do(earliest, 0),
            Do(active_at(1), 0),
            Do(compact(4), True),
            Do(compact(4), False),
            Do(compact(3), GONE),
            Do(compact(3), False, node=2),
            Do(earliest, 4, node=2),
            Do(compact(6), Refused(VersionNotFound, "version 6 does not exist")),
            Do(earliest, 4),
            Do(compact(5), True),
            Do(earliest, 5),
        ],
        note="a node that has not heard of the trimming asks for less than there is, in vain; one "
        "that has is told that the version is gone",
    ),
    Timeline(
        "what is not active yet is not trimmed to",
        cases=[13],
        delay_ms=SECOND,
        steps=[
            Wall(DAY),
            Begin("a", execute(A)),
            Waits("a", until=DAY + SECOND),
            Do(compact(3), Refused(VersionNotFound, "version 3 becomes active at")),
            Do(present, 2),
            Wall(SECOND),
            Ends("a", Done(3)),
            Do(compact(3), True),
            Do(earliest, 3),
        ],
    ),
    Timeline(
        "a restart replays every version at its old time",
        cases=[15, 81],
        steps=[
            *MADE,
            Wall(DAY),
            Join(),
            Do(replayed, (0, [1, 2, 3, 4, 5])),
            *(Do(active_from(2 + n), n * SECOND) for n in range(4)),
            Do(schemas(4), ["a", "b", "default"]),
            Do(active_after(3 * SECOND - 1), 4),
            Do(execute(CreateSchema(name="d")), Done(6)),
            Do(active_from(6), 3 * SECOND + DAY),
        ],
    ),
    Timeline(
        "a restart begins from the snapshot and replays what is behind it",
        cases=[16, 81],
        steps=[
            *MADE,
            Do(compact(4), True),
            Wall(DAY),
            Join(),
            Do(replayed, (4, [5])),
            Do(earliest, 4),
            Do(active_from(4), 2 * SECOND),
            Do(active_from(5), 3 * SECOND),
            Do(schemas(3), GONE),
            Do(schemas(4), ["a", "b", "default"]),
            Do(latest, 5),
        ],
    ),
    Timeline(
        "a snapshot takes the place of the one before it",
        cases=[81],
        steps=[
            *MADE,
            Do(compact(3), True),
            Do(compact(5), True),
            Join(),
            Do(replayed, (5, [])),
            Do(upper, 6),
            Do(schemas(5), ["a", "b", "c", "default"]),
            Do(execute(CreateSchema(name="d")), Done(6)),
        ],
    ),
    Timeline(
        "a node that slept through a trimming begins again from the snapshot",
        cases=[16],
        nodes=2,
        steps=[
            *MADE,
            Do(compact(5), True),
            Do(latest, 2, node=2),
            Do(earliest, 0, node=2),
            Do(present, 5, node=2),
            Do(earliest, 5, node=2),
            Do(active_from(5), 3 * SECOND, node=2),
            Do(schemas(5), ["a", "b", "c", "default"], node=2),
        ],
        note="it need not restart for that: what it missed is in no reader's way",
    ),
    Timeline(
        "a node that applied what is trimmed keeps its versions until it looks",
        cases=[16],
        nodes=2,
        steps=[
            Do(each(A, B, C), 3),
            Do(sync, node=2),
            Do(compact(4), True),
            Do(earliest, 0, node=2),
            Do(schemas(3), ["a", "default"], node=2),
            Do(sync, node=2),
            Do(earliest, 4, node=2),
            Do(schemas(3), GONE, node=2),
        ],
    ),
]
