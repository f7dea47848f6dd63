"""Versions: how they are counted, what they hold, and how they are found again."""

from __future__ import annotations

from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.errors import AlreadyExists, InvalidInput, ObjectNotFound, VersionNotFound
from tests.catalog.scenario import Refused, create_table
from tests.catalog.timeline import (
    Await,
    Begin,
    Do,
    Ends,
    Hears,
    Join,
    Listen,
    Pending,
    Timeline,
    Wall,
)
from tests.catalog.timeline_asks import (
    Done,
    active_after,
    active_at,
    active_from,
    each,
    execute,
    ids_used_since,
    last_version_within,
    latest,
    objects,
    present,
    schemas,
    sync,
    tables,
    verbs,
    zones,
)

SECOND = 1000
A, B, C = (CreateSchema(name=name) for name in "abc")
A_IF_NEW = CreateSchema(name="a", if_not_exists=True)


TIMELINES = [
    Timeline(
        "there is no version above the latest or below 0",
        cases=[1],
        steps=[
            Do(schemas(3), Refused(VersionNotFound, "version 3 does not exist; the latest is 2")),
            Do(schemas(-1), Refused(VersionNotFound, "version -1")),
            Do(execute(A), Done(3)),
            Do(schemas(3), ["a", "default"]),
            Do(schemas(4), Refused(VersionNotFound, "version 4 does not exist; the latest is 3")),
        ],
    ),
    Timeline(
        "there is no time before the first",
        cases=[1],
        steps=[
            *(
                Do(active_at(number), Refused(InvalidInput, f"{number} is not a time"))
                for number in (0, -1, 1 << 63, 1 << 200)
            ),
            Do(active_at(1), 0),
        ],
        note="a number that is no time is a wrong request; at the first time there is version 0",
    ),
    Timeline(
        "version 0 is empty",
        cases=[2],
        steps=[
            Do(objects(0), 0),
            Do(schemas(0), []),
            Do(zones(0), []),
            Do(active_at(1), 0),
            Join(2),
            Do(objects(0), 0, node=2),
        ],
    ),
    Timeline(
        "a new catalog has its first contents behind its fence",
        cases=[3],
        steps=[
            Do(latest, 2),
            Do(verbs(1, 3), [["fence"], ["initialize"]]),
            Do(objects(1), 1),
            Do(schemas(1), []),
            Do(schemas(2), ["default"]),
            Do(zones(2), ["default"]),
            Do(present, 2),
        ],
        note="version 1 is the fence, by which every older holder is kept out, so the first "
        "contents are version 2; they have a default zone at once",
    ),
    Timeline(
        "each command is the next version, and old versions stay as they were",
        cases=[4],
        steps=[
            Do(execute(A), Done(3)),
            Do(execute(B), Done(4)),
            Do(execute(DropSchema(name="a")), Done(5)),
            Do(latest, 5),
            *(
                Do(schemas(version), expected)
                for version, expected in (
                    (2, ["default"]),
                    (3, ["a", "default"]),
                    (4, ["a", "b", "default"]),
                    (5, ["b", "default"]),
                )
            ),
        ],
    ),
    Timeline(
        "a version is found by its number and by its time, and the past stays as it is",
        cases=[88],
        nodes=2,
        steps=[
            Wall(SECOND),
            Do(execute(A), Done(3)),
            Wall(SECOND),
            Do(execute(B), Done(4)),
            Do(execute(C), Done(5)),
            Wall(SECOND),
            *(
                Do(ask, gives, node=node)
                for node in (1, 2)
                for ask, gives in (
                    (active_after(SECOND - 1), 2),
                    (active_after(SECOND), 3),
                    (active_after(2 * SECOND - 1), 3),
                    (active_after(2 * SECOND), 5),
                    (active_from(3), SECOND),
                    (active_from(4), 2 * SECOND),
                    (last_version_within(2), 2),
                    (last_version_within(3), 3),
                    (last_version_within(4), 4),
                    (last_version_within(5), None),
                )
            ),
            Do(execute(DropSchema(name="a")), Done(6)),
            Do(active_after(SECOND), 3),
            Do(schemas(3), ["a", "default"]),
            Do(last_version_within(5), 5),
        ],
    ),
    # -- batches -----------------------------------------------------------------------------
    Timeline(
        "a batch is one version, all or nothing, and takes no id when it is refused",
        cases=[10],
        steps=[
            Do(execute(A, B, A), Refused(AlreadyExists, "schema a already exists")),
            Do(execute(A, DropSchema(name="x")), Refused(ObjectNotFound, "'x'")),
            Do(latest, 2),
            Do(ids_used_since(2), 0),
            Do(execute(A, B), Done(3, (True, True))),
            Do(ids_used_since(2), 2),
            Do(schemas(3), ["a", "b", "default"]),
        ],
    ),
    Timeline(
        "a batch says which of its commands changed something",
        cases=[11],
        steps=[
            Do(execute(A), Done(3)),
            Do(
                execute(A_IF_NEW, B, A_IF_NEW, C, A_IF_NEW),
                Done(4, (False, True, False, True, False)),
            ),
            Do(latest, 4),
        ],
    ),
    Timeline(
        "a batch that changes nothing makes no version",
        cases=[12],
        steps=[
            Do(execute(A), Done(3)),
            Do(execute(A_IF_NEW, A_IF_NEW), Done(3, (False, False))),
            Do(execute(), Done(3, ())),
            Do(latest, 3),
        ],
    ),
    Timeline(
        "callers of one node do not exhaust each other",
        cases=[20],
        nodes=2,
        steps=[
            *(
                Begin(f"caller {n}", each(*(create_table(f"default.t_{n}_{i}") for i in range(30))))
                for n in range(10)
            ),
            *(Ends(f"caller {n}", 30) for n in range(10)),
            Do(tables, 300),
            Do(latest, 302),
            Do(tables, 300, node=2),
        ],
    ),
    # -- listeners ---------------------------------------------------------------------------
    Timeline(
        "a version is ready on a node when that node has applied it",
        cases=[5],
        nodes=2,
        steps=[
            Await("here", 4),
            Await("there", 4, node=2),
            Do(execute(A), Done(3)),
            Pending("here"),
            Do(execute(B), Done(4)),
            Ends("here", 4),
            Pending("there"),
            Do(latest, 2, node=2),
            Do(sync, node=2),
            Ends("there", 4),
            Await("past", 3, node=2),
            Ends("past", 3),
        ],
    ),
    Timeline(
        "every node hears of every version in order, and can read it",
        cases=[56],
        nodes=2,
        steps=[
            Listen("one"),
            Listen("two", node=2),
            Do(execute(A, B), Done(3, (True, True))),
            Do(execute(C), Done(4), node=2),
            Do(sync),
            Hears("one", [3, 4]),
            Hears("two", [3, 4]),
        ],
    ),
]
