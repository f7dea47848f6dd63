"""What commands on zones do, refuse and leave alone."""

from __future__ import annotations

from collections.abc import Callable

from strandline.catalog.commands import (
    EVERY_NODE,
    NEVER,
    AlterZone,
    CommentOn,
    CreateZone,
    DropTable,
    DropZone,
    RenameZone,
    SetDefaultZone,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
)
from strandline.model.descriptors import ConsistencyMode, ZoneDescriptor
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    arguments,
    create_table,
)

ZONE = CreateZone(name="z")
WIDE = CreateZone(name="z", storage_profiles=("fast", "cold"), replicas=3)
IN_ZONE = create_table("s.t", zone="z", storage_profile="cold")


def zone(name: str, *attributes: str) -> Callable[[Result], object]:
    """Attributes of a zone after the run; a single attribute is not wrapped in a tuple."""

    def read(result: Result) -> object:
        named_zone = result.after.zone_named(name)
        assert named_zone is not None, f"there is no zone {name}"
        values = tuple(getattr(named_zone, attribute) for attribute in attributes)
        return values[0] if len(values) == 1 else values

    return read


def zone_ids(name: str) -> Callable[[Result], tuple[int | None, int | None]]:
    """The id of the zone of that name, before and after."""

    def read(result: Result) -> tuple[int | None, int | None]:
        zones = result.before.zone_named(name), result.after.zone_named(name)
        return zones[0] and zones[0].id, zones[1] and zones[1].id

    return read


def default_zone(result: Result) -> str | None:
    default: ZoneDescriptor | None = result.after.default_zone()
    return None if default is None else default.name


def quorums(before: tuple[int, int], replicas: int, wanted: int) -> Scenario:
    """A zone with these replicas and this quorum gets other replicas; the quorum follows."""
    return Scenario(
        f"the quorum of {before[0]} replicas follows to {replicas}",
        cases=[72],
        setup=[CreateZone(name="z", replicas=before[0], quorum_size=before[1])],
        run=AlterZone(name="z", replicas=replicas),
        expect=Made(["alter_zone"]),
        checks=[(zone("z", "replicas", "quorum_size"), (replicas, wanted))],
    )


def refused_setting(what: str, says: str, **setting: object) -> Scenario:
    return Scenario(
        f"{what} cannot be created",
        cases=[70],
        run=CreateZone(name="z", **setting),  # type: ignore[arg-type]  # fields of the command
        expect=Refused(InvalidInput, says),
    )


SCENARIOS = [
    Scenario(
        "a zone that is told nothing has the defaults",
        cases=[69],
        run=ZONE,
        expect=Made(["create_zone"]),
        checks=[
            (zone("z", "partitions", "replicas", "quorum_size"), (1, None, 3)),
            (zone("z", "auto_adjust_scale_up", "auto_adjust_scale_down"), (0, None)),
            (zone("z", "node_filter", "storage_profiles"), ("", ("default",))),
            (zone("z", "consistency_mode"), ConsistencyMode.STRONG),
            (zone("z", "owner"), "ann"),
        ],
        note="One partition with a replica on every node, so that any node can answer for any "
        "table; nothing is computed from the nodes that are there.",
    ),
    Scenario(
        "a zone keeps what it is told",
        cases=[69],
        run=CreateZone(
            name="z",
            owner="eve",
            partitions=65_000,
            replicas=5,
            quorum_size=2,
            auto_adjust_scale_up=NEVER,
            auto_adjust_scale_down=60,
            node_filter="region = 'eu' AND cores >= 8",
            storage_profiles=("b", "a"),
            storage_location="s3://bucket/z",
            consistency_mode=ConsistencyMode.HIGH_AVAILABILITY,
        ),
        expect=Made(),
        checks=[
            (zone("z", "owner", "partitions", "replicas", "quorum_size"), ("eve", 65_000, 5, 2)),
            (zone("z", "auto_adjust_scale_up", "auto_adjust_scale_down"), (None, 60)),
            (zone("z", "storage_profiles", "storage_location"), (("b", "a"), "s3://bucket/z")),
            (zone("z", "consistency_mode"), ConsistencyMode.HIGH_AVAILABILITY),
        ],
    ),
    *(
        Scenario(
            f"{replicas} replicas have a default quorum of {quorum}",
            cases=[69],
            run=CreateZone(name="z", replicas=replicas),
            expect=Made(),
            checks=[(zone("z", "quorum_size"), quorum)],
        )
        for replicas, quorum in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (10, 3))
    ),
    refused_setting("no partitions", "0 partitions", partitions=0),
    refused_setting("too many partitions", "65001 partitions", partitions=65_001),
    refused_setting("no replicas", "number of replicas", replicas=0),
    refused_setting("no quorum", "quorum size", quorum_size=0),
    refused_setting("a time below 0", "scaling up", auto_adjust_scale_up=-1),
    refused_setting("another time below 0", "scaling down", auto_adjust_scale_down=-1),
    refused_setting("a filter that does not parse", "node filter", node_filter="$..*"),
    refused_setting("no storage profiles", "at least one", storage_profiles=()),
    refused_setting("a profile twice", "duplicate", storage_profiles=("a", "b", "a")),
    refused_setting("a location that is no URI", "not a URI", storage_location="/data"),
    refused_setting("a location with a space", "not a URI", storage_location="s3://b/a b"),
    refused_setting("a location without a place", "not a URI", storage_location="file:"),
    refused_setting("a quorum of 1 on every node", "a replica on every node", quorum_size=1),
    refused_setting("a quorum below 5 replicas' range", "2 to 3", replicas=5, quorum_size=1),
    refused_setting("a quorum above 5 replicas' range", "2 to 3", replicas=5, quorum_size=4),
    refused_setting(
        "more profiles than 100", "found 101", storage_profiles=tuple(f"p{n}" for n in range(101))
    ),
    Scenario(
        "a storage profile without a name cannot be created",
        cases=[70],
        run=CreateZone(name="z", storage_profiles=("a", " ")),
        expect=Refused(InvalidName, "storage profile"),
    ),
    Scenario(
        "a replica on every node goes with the default quorum",
        cases=[70],
        run=CreateZone(name="z", replicas=EVERY_NODE),
        expect=Made(),
        checks=[(zone("z", "replicas", "quorum_size"), (None, 3))],
    ),
    Scenario(
        "a zone is created once, whatever the case",
        cases=[71],
        setup=[ZONE],
        run=CreateZone(name="Z"),
        expect=Refused(AlreadyExists, "zone z already exists"),
    ),
    Scenario(
        "IF NOT EXISTS leaves a zone alone",
        cases=[71],
        setup=[ZONE],
        run=CreateZone(name="z", replicas=2, if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "IF NOT EXISTS creates a missing zone",
        cases=[71],
        run=CreateZone(
            name="z", storage_profiles=tuple(f"p{n}" for n in range(100)), if_not_exists=True
        ),
        expect=Made(["create_zone"]),
        checks=[(lambda r: len(r.after.zone_named("z").storage_profiles), 100)],
    ),
    Scenario(
        "a name is free after its zone was dropped",
        cases=[71],
        setup=[ZONE],
        run=[DropZone(name="z"), ZONE],
        expect=Made(["drop_zone", "create_zone"]),
        checks=[(lambda r: zone_ids("z")(r)[0] != zone_ids("z")(r)[1], True)],
    ),
    Scenario(
        "partitions cannot be altered",
        cases=[72],
        setup=[ZONE],
        run=AlterZone(name="z", partitions=2),
        expect=Refused(IllegalChange, "partitions of zone z cannot be altered"),
    ),
    quorums((3, 2), 1, 1),
    quorums((5, 3), 4, 2),
    quorums((1, 1), 2, 2),
    quorums((2, 2), 5, 2),
    Scenario(
        "a quorum that does not fit the new replicas is refused",
        cases=[72],
        setup=[CreateZone(name="z", replicas=5)],
        run=AlterZone(name="z", replicas=3, quorum_size=3),
        expect=Refused(InvalidInput, "3 replicas: 2 to 2"),
    ),
    Scenario(
        "a quorum is altered alone",
        cases=[72],
        setup=[CreateZone(name="z", replicas=7)],
        run=AlterZone(name="z", quorum_size=4),
        expect=Made(["alter_zone"]),
        checks=[(zone("z", "replicas", "quorum_size"), (7, 4))],
    ),
    Scenario(
        "an alter without a difference makes no version",
        cases=[72],
        setup=[CreateZone(name="z", replicas=3, node_filter="a = 1")],
        run=AlterZone(name="z", replicas=3, quorum_size=2, node_filter="a = 1"),
        expect=Nothing(),
        note="A version that changes nothing tells nobody anything.",
    ),
    Scenario(
        "the consistency mode stays",
        cases=[72],
        setup=[ZONE],
        run=AlterZone(name="z", consistency_mode=ConsistencyMode.HIGH_AVAILABILITY),
        expect=Refused(IllegalChange, "consistency mode of zone z is STRONG"),
    ),
    Scenario(
        "a profile that a table lies in cannot be taken away",
        cases=[72],
        setup=[WIDE, SCHEMA, IN_ZONE],
        run=AlterZone(name="z", storage_profiles=("fast",)),
        expect=Refused(IllegalChange, "table s.t uses it"),
    ),
    Scenario(
        "a profile that nobody uses can be taken away",
        cases=[72],
        setup=[WIDE, SCHEMA, IN_ZONE],
        run=AlterZone(name="z", storage_profiles=("cold", "new")),
        expect=Made(["alter_zone"]),
        checks=[(zone("z", "storage_profiles"), ("cold", "new"))],
    ),
    Scenario(
        "a zone cannot lose all its profiles",
        cases=[72],
        setup=[ZONE],
        run=AlterZone(name="z", storage_profiles=()),
        expect=Refused(InvalidInput, "at least one storage profile"),
    ),
    Scenario(
        "a storage location goes back to the store's own",
        setup=[CreateZone(name="z", storage_location="file:/a")],
        run=AlterZone(name="z", storage_location=""),
        expect=Made(),
        checks=[(zone("z", "storage_location"), None)],
    ),
    Scenario(
        "a missing zone is not altered",
        cases=[72],
        run=AlterZone(name="z", replicas=2),
        expect=Refused(ObjectNotFound, "'z'"),
    ),
    Scenario(
        "IF EXISTS covers a missing zone",
        cases=[72, 73],
        run=[
            AlterZone(name="z", replicas=2, if_exists=True),
            RenameZone(name="z", new_name="y", if_exists=True),
            SetDefaultZone(name="z", if_exists=True),
            DropZone(name="z", if_exists=True),
        ],
        expect=Nothing(),
    ),
    Scenario(
        "a renamed zone keeps its id",
        cases=[73],
        setup=[ZONE],
        run=RenameZone(name="z", new_name="y"),
        expect=Made(["rename_zone"]),
        checks=[
            (lambda r: zone_ids("z")(r)[0] == zone_ids("y")(r)[1], True),
            (lambda r: zone_ids("z")(r)[1], None),
        ],
    ),
    Scenario(
        "a renamed default zone stays the default one",
        cases=[73],
        run=RenameZone(name="default", new_name="main"),
        expect=Made(["rename_zone"]),
        checks=[(default_zone, "main")],
    ),
    Scenario(
        "a zone does not take another's name",
        cases=[73],
        setup=[ZONE],
        run=RenameZone(name="z", new_name="Default"),
        expect=Refused(AlreadyExists, "zone default already exists"),
    ),
    Scenario(
        "a missing zone is not renamed",
        cases=[73],
        run=RenameZone(name="z", new_name="y"),
        expect=Refused(ObjectNotFound, "'z'"),
    ),
    Scenario(
        "another zone becomes the default one",
        cases=[74],
        setup=[ZONE],
        run=SetDefaultZone(name="z"),
        expect=Made(["set_default_zone"]),
        checks=[(default_zone, "z"), (arguments("set_default_zone"), [{"zone": "z"}])],
    ),
    Scenario(
        "the default zone is made the default one again in vain",
        cases=[74],
        run=SetDefaultZone(name="DEFAULT"),
        expect=Nothing(),
    ),
    Scenario(
        "a missing zone is not made the default one",
        cases=[74],
        run=SetDefaultZone(name="z"),
        expect=Refused(ObjectNotFound, "'z'"),
    ),
    Scenario(
        "the default zone cannot be dropped",
        cases=[74],
        setup=[ZONE, SetDefaultZone(name="z")],
        run=DropZone(name="z"),
        expect=Refused(IllegalChange, "is the default zone"),
    ),
    Scenario(
        "what was the default zone can be dropped",
        cases=[74],
        setup=[ZONE, SetDefaultZone(name="z")],
        run=DropZone(name="default"),
        expect=Made(["drop_zone"]),
    ),
    Scenario(
        "a zone is dropped though records of tables contain the bytes of its id by chance",
        cases=[74],
        setup=[ZONE, SCHEMA, [create_table(f"s.{'t' * length}") for length in range(1, 40)]],
        run=DropZone(name="z"),
        expect=Made(["drop_zone"]),
    ),
    Scenario(
        "a zone with a table in it cannot be dropped",
        cases=[74],
        setup=[WIDE, SCHEMA, IN_ZONE],
        run=DropZone(name="z"),
        expect=Refused(IllegalChange, "table s.t is in it"),
    ),
    Scenario(
        "a zone can be dropped while there are tables in other zones",
        cases=[74],
        setup=[WIDE, SCHEMA, create_table("s.t", *(f"c{n} int" for n in range(127)))],
        run=DropZone(name="z"),
        expect=Made(["drop_zone"]),
        note="the record of the table contains the id of the zone, as the id of a column",
    ),
    Scenario(
        "a zone can be dropped once its table is",
        cases=[74],
        setup=[WIDE, SCHEMA, IN_ZONE, DropTable(schema="s", table="t")],
        run=DropZone(name="z"),
        expect=Made(["drop_zone"]),
        checks=[(lambda r: [z.name for z in r.after.zones()], ["default"])],
    ),
    Scenario(
        "a comment goes with its zone",
        setup=[ZONE, CommentOn(kind=ObjectKind.ZONE, name="z", text="x")],
        run=DropZone(name="z"),
        expect=Made(["drop_zone"]),
        checks=[(lambda r: r.after.contents.count("comment"), 0)],
    ),
]
