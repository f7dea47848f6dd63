"""Activation: a version is in the log at once, and becomes active some time later."""

from __future__ import annotations

from dataclasses import replace

from strandline.catalog.commands import CreateSchema
from strandline.errors import AlreadyExists, DeadlineExceeded, Stopping, UnknownOutcome
from tests.catalog.scenario import Refused
from tests.catalog.timeline import Await, Begin, Do, Ends, Join, Stop, Timeline, Waits, Wall
from tests.catalog.timeline_asks import (
    Done,
    active_from,
    execute,
    latest,
    present,
    schemas,
    sync,
    upper,
)

SECOND = 1000
YEAR = 365 * 24 * 3600 * SECOND
DELAY, SKEW = 200, 100
SHORT = 0.3
"""A time-out, in seconds, that is over before the clock moves: the clock never moves by itself."""
A, B = CreateSchema(name="a"), CreateSchema(name="b")
A_IF_NEW = replace(A, if_not_exists=True)
DEFAULT = CreateSchema(name="default")

TIMELINES = [
    Timeline(
        "a version is not active before its time",
        cases=[7],
        nodes=2,
        delay_ms=YEAR,
        steps=[
            Wall(YEAR),
            Begin("a", execute(A)),
            Waits("a", until=2 * YEAR),
            Do(latest, 3),
            Do(active_from(3), 2 * YEAR),
            Do(present, 2),
            Do(present, 2, node=2),
            Wall(YEAR - 1),
            Waits("a", until=2 * YEAR),
            Do(present, 2),
            Wall(1),
            Ends("a", Done(3)),
            Do(present, 3),
            Do(present, 3, node=2),
        ],
    ),
    Timeline(
        "what changed nothing waits for the version that it was validated against",
        cases=[8],
        delay_ms=DELAY,
        skew_ms=SKEW,
        steps=[
            Wall(SECOND),
            Begin("first", execute(A)),
            Waits("first", until=SECOND + DELAY + SKEW),
            Wall(10),
            Begin("again", execute(A_IF_NEW)),
            Waits("again", until=SECOND + DELAY + SKEW),
            Wall(DELAY + SKEW - 11),
            Waits("first", until=SECOND + DELAY + SKEW),
            Waits("again", until=SECOND + DELAY + SKEW),
            Wall(1),
            Ends("first", Done(3)),
            Ends("again", Done(3, (False,))),
            Do(execute(A_IF_NEW), Done(3, (False,))),
        ],
    ),
    Timeline(
        "a call waits until the clock of every node has passed the activation",
        cases=[9],
        delay_ms=DELAY,
        skew_ms=SKEW,
        steps=[
            Wall(SECOND),
            Begin("a", execute(A)),
            Waits("a", until=SECOND + DELAY + SKEW),
            Begin("b", execute(B)),
            Waits("b", until=SECOND + DELAY + SKEW + 1),
            Wall(DELAY - 1),
            Do(present, 2),
            Wall(2),
            Do(present, 4),
            Waits("a", until=SECOND + DELAY + SKEW),
            Wall(SKEW - 1),
            Ends("a", Done(3)),
            Waits("b", until=SECOND + DELAY + SKEW + 1),
            Wall(1),
            Ends("b", Done(4)),
        ],
        note="a time with a counter counts as the millisecond behind it",
    ),
    Timeline(
        "a refusal waits for the version that it was validated against",
        cases=[8, 19],
        delay_ms=DELAY,
        steps=[
            Wall(SECOND),
            Begin("first", execute(A)),
            Waits("first", until=SECOND + DELAY),
            Begin("again", execute(A)),
            Waits("again", until=SECOND + DELAY),
            Wall(DELAY),
            Ends("first", Done(3)),
            Ends("again", Refused(AlreadyExists, "schema a already exists")),
        ],
    ),
    Timeline(
        "who is refused by a version that is active is told at once",
        cases=[19],
        delay_ms=DELAY,
        steps=[
            Begin("early", execute(DEFAULT)),
            Waits("early", until=DELAY),
            Wall(DELAY),
            Ends("early", Refused(AlreadyExists, "schema default already exists")),
            Begin("late", execute(DEFAULT)),
            Ends("late", Refused(AlreadyExists, "default"), at_once=True),
            Begin("nothing", execute(replace(DEFAULT, if_not_exists=True))),
            Ends("nothing", Done(2, (False,)), at_once=True),
        ],
        note="the first contents are a version like any other, and may not be active yet",
    ),
    Timeline(
        "who cannot wait for the activation is told what is known by then",
        cases=[7, 8, 19],
        delay_ms=DELAY,
        steps=[
            Wall(SECOND),
            Begin("first", execute(A)),
            Waits("first", until=SECOND + DELAY),
            Do(execute(A, timeout=SHORT), Refused(AlreadyExists, "schema a already exists")),
            Do(execute(A_IF_NEW, timeout=SHORT), Refused(DeadlineExceeded, "did not reach")),
            Do(execute(B, timeout=SHORT), Refused(UnknownOutcome, "is in the log as version 4")),
            Waits("first", until=SECOND + DELAY),
            Do(present, 2),
            Wall(DELAY + 1),
            Ends("first", Done(3)),
            Do(schemas(4), ["a", "b", "default"]),
            Do(present, 4),
        ],
        note="a refusal is one all the same, and what was appended is never told as refused",
    ),
    Timeline(
        "a stopped node appends nothing, and who waits is told",
        cases=[5],
        nodes=2,
        delay_ms=DELAY,
        steps=[
            Wall(SECOND),
            Begin("sent", execute(A)),
            Waits("sent", until=SECOND + DELAY),
            Await("later", 9),
            Stop(),
            Ends("sent", Refused(UnknownOutcome, "the change is in the log as version 3")),
            Ends("later", Refused(Stopping, "this node is stopping")),
            Do(execute(B), Refused(Stopping, "this node is stopping")),
            Do(upper, 4, node=2),
            Do(schemas(3), ["a", "default"]),
            Do(sync, node=2),
            Do(schemas(3), ["a", "default"], node=2),
        ],
        note="who was sent is told where its change is, and the memory of the node still answers",
    ),
    Timeline(
        "a version that is not active yet is found so by who joins",
        cases=[7, 15],
        delay_ms=DELAY,
        steps=[
            Wall(SECOND),
            Begin("a", execute(A)),
            Waits("a", until=SECOND + DELAY),
            Join(2),
            Do(latest, 3, node=2),
            Do(active_from(3), SECOND + DELAY, node=2),
            Do(present, 2, node=2),
            Wall(DELAY),
            Ends("a", Done(3)),
            Do(present, 3, node=2),
        ],
    ),
]
