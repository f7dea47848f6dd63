"""The log below the catalog: which node may append, where, and which listeners hear of it."""

from __future__ import annotations

from strandline.catalog.commands import CreateSchema
from strandline.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Fenced,
    NotFound,
    OutOfSync,
    UnknownOutcome,
)
from tests.catalog.scenario import Refused
from tests.catalog.timeline import (
    AlwaysLost,
    Await,
    Begin,
    Do,
    Ends,
    Hears,
    Join,
    Listen,
    OneOf,
    Overtaken,
    Pending,
    Release,
    TakeOver,
    Timeline,
    fails,
    holds,
)
from tests.catalog.timeline_asks import (
    Done,
    append,
    compact,
    epoch,
    execute,
    latest,
    present,
    read_only,
    revision,
    schemas,
    statistic,
    sync,
    upper,
)

A, B = CreateSchema(name="a"), CreateSchema(name="b")
OTHERS = [execute(CreateSchema(name=f"o{n}")) for n in range(25)]


def out_of_sync(next_version: int) -> Refused:
    return Refused(OutOfSync, f"the next version is {next_version}")


TIMELINES = [
    Timeline(
        "an append is taken at the next version alone",
        cases=[79],
        nodes=2,
        steps=[
            Do(execute(A), Done(3)),
            *(Do(append(version), out_of_sync(4)) for version in (3, 2, 1, 5, 100)),
            Do(upper, 4),
            Do(append(4), 4),
            Do(append(4), out_of_sync(5)),
            Do(append(5), 5, node=2),
            Do(upper, 6),
            Do(present, 5),
            Do(execute(B), Done(6)),
        ],
    ),
    Timeline(
        "an append that is refused writes nothing",
        cases=[79],
        steps=[
            Do(execute(A), Done(3)),
            Do(revision, 2),
            *(Do(append(version), out_of_sync(4)) for version in (3, 5)),
            Do(revision, 2),
            Do(append(4), 4),
            Do(revision, 3),
        ],
        note="a refused append takes no revision of the store either",
    ),
    Timeline(
        "an append that is lost is validated again, more often than ten times",
        cases=[6],
        nodes=2,
        steps=[
            Overtaken(by=2, asks=OTHERS),
            Do(execute(A), Done(28)),
            Do(statistic("lost_appends"), 25),
            Do(latest, 28),
        ],
        note="a caller has a deadline, and no number of tries",
    ),
    Timeline(
        "an append that is lost to the very same change is refused",
        cases=[6],
        nodes=2,
        steps=[
            Overtaken(by=2, asks=[execute(B), execute(A)]),
            Do(execute(A), Refused(AlreadyExists, "schema a already exists")),
            Do(latest, 4),
        ],
    ),
    Timeline(
        "appends that always lose end at the caller's deadline",
        cases=[6],
        steps=[
            AlwaysLost(),
            Do(
                execute(A, timeout=0.05),
                OneOf(
                    [
                        Refused(DeadlineExceeded, "will not take effect"),
                        Refused(UnknownOutcome, "may still"),
                    ]
                ),
            ),
            Do(upper, 3),
            Do(latest, 2),
        ],
        note="here at the deadline and not after ten tries; in the middle of one, its caller "
        "cannot know what becomes of it",
    ),
    # -- listeners ---------------------------------------------------------------------------
    Timeline(
        "no call returns and no version follows before a listener has returned",
        cases=[18, 82],
        nodes=2,
        steps=[
            Listen("slow", holds),
            Begin("a", execute(A)),
            Hears("slow", [3]),
            Await("ready", 3),
            Begin("b", execute(B)),
            *(Do(execute(CreateSchema(name=f"m{n}")), Done(4 + n), node=2) for n in range(10)),
            Pending("a"),
            Pending("ready"),
            Pending("b"),
            Do(latest, 3),
            Hears("slow", [3]),
            Release("slow"),
            Ends("a", Done(3)),
            Ends("ready", 3),
            Ends("b", Done(14)),
            Hears("slow", range(3, 15)),
        ],
        note="the version itself can be read while its listeners are told of it",
    ),
    Timeline(
        "a listener that fails stops nobody and is counted",
        cases=[17],
        steps=[
            Listen("broken", fails),
            Listen("behind"),
            Await("ready", 3),
            Do(execute(A), Done(3)),
            Ends("ready", 3),
            Hears("broken", [3]),
            Hears("behind", [3]),
            Do(statistic("listener_failures"), 1),
            Do(schemas(3), ["a", "default"]),
            Do(execute(B), Done(4)),
        ],
    ),
    # -- readers and owners ------------------------------------------------------------------
    Timeline(
        "nobody can follow a log in which there is no catalog",
        cases=[80],
        nodes=0,
        steps=[
            Join(1, Refused(NotFound, "there is no catalog here")),
            Do(read_only, Refused(NotFound, "there is no catalog here")),
            Do(epoch, None),
            Do(revision, 0),
            TakeOver(),
            Join(2),
            Do(latest, 2, node=2),
        ],
        note="a log has no handler that could be missing: a state is its log's reader, and applies "
        "what it reads",
    ),
    Timeline(
        "every reader of a log reads all of it",
        cases=[80],
        nodes=3,
        steps=[
            Listen("two", node=2),
            Listen("three", node=3),
            Do(execute(A), Done(3)),
            Do(read_only, 3),
            Do(execute(B), Done(4), node=2),
            Do(sync, node=3),
            Do(read_only, 4, node=3),
            Hears("two", [3, 4]),
            Hears("three", [3, 4]),
        ],
        note="a second reader is no error: none takes anything from another",
    ),
    Timeline(
        "a log of somebody else is left alone",
        cases=[83],
        nodes=2,
        steps=[
            Do(epoch, 1),
            Do(append(3, epoch=2), Refused(Fenced, "the catalog's token is generation 0, epoch 1")),
            TakeOver(3),
            Do(epoch, 2, node=3),
            *(
                step
                for node in (1, 2)
                for step in (
                    Do(append(4), Refused(Fenced, "the catalog's token is generation 0, epoch 2")),
                    Do(execute(A), Refused(Fenced, "epoch 2"), node=node),
                    Do(epoch, 2, node=node),
                )
            ),
            Do(upper, 4),
            Join(3),
            Do(epoch, 2, node=3),
            Do(execute(A), Done(4), node=3),
            Do(execute(B), Done(5)),
            Do(compact(4), True, node=2),
        ],
        note="whose a log is, its fence token says; who is kept out joins the newer epoch",
    ),
]
