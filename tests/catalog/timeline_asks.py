"""What the steps of a timeline ask a node; see `tests.catalog.timeline`.

Each is a function of the node, or returns one. The answers are plain data: version numbers, names,
counts. Times are in milliseconds since the beginning of the timeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strandline.catalog import Command
from strandline.clock import LOGICAL_BITS, Timestamp, timestamp
from strandline.durable.transaction import new_update
from strandline.durable.update import Change, Entry
from strandline.model.descriptors import Setting
from strandline.wire.registry import encode
from tests.catalog.timeline_world import PATIENCE, Node

Ask = Callable[[Node], object]


@dataclass(frozen=True)
class Done:
    """The result of `execute`: the version, and for each command whether it changed anything."""

    version: int
    applied: tuple[bool, ...] = (True,)


def execute(*commands: Command, timeout: float = PATIENCE) -> Ask:
    """Execute the commands as one batch."""

    def ask(node: Node) -> Done:
        executed = node.manager.execute(commands, author="ann", timeout=timeout)
        return Done(executed.version, executed.applied)

    return ask


def each(*commands: Command) -> Ask:
    """Execute each command in its own version; returns how many there were."""
    return lambda node: len([execute(command)(node) for command in commands])


def compact(version: int) -> Ask:
    """Trim the versions below ``version``."""
    return lambda node: node.manager.compact(version)


def sync(node: Node) -> None:
    """Apply the log as it is now."""
    node.manager.sync()


def latest(node: Node) -> int:
    """The highest version applied, active or not."""
    return node.manager.latest_catalog().version


def earliest(node: Node) -> int:
    """The lowest version that can be read."""
    return node.manager.earliest_catalog().version


def present(node: Node) -> int:
    """The version that is active now."""
    return node.manager.present().version


def schemas(version: int) -> Ask:
    """The schemas of a version, without the system schema."""

    def ask(node: Node) -> list[str]:
        return [
            schema.name
            for schema in node.manager.catalog(version).schemas()
            if schema.name != "system"
        ]

    return ask


def zones(version: int) -> Ask:
    """The zones of a version, the default one first."""

    def ask(node: Node) -> list[str]:
        catalog = node.manager.catalog(version)
        default = catalog.default_zone()
        return [zone.name for zone in sorted(catalog.zones(), key=lambda other: other != default)]

    return ask


def objects(version: int) -> Ask:
    """How many objects of all kinds a version holds."""
    return lambda node: sum(
        len(of_kind) for _, of_kind in node.manager.catalog(version).contents.dump()
    )


def tables(node: Node) -> int:
    """How many tables there are at present."""
    return node.manager.present().table_count()


def ids_used_since(version: int) -> Ask:
    """How many ids were allocated between that version and the latest."""

    def next_id(node: Node, of: int) -> int:
        number: int = node.manager.catalog(of).get("id_allocator", "object").next_id
        return number

    return lambda node: next_id(node, latest(node)) - next_id(node, version)


def active_from(version: int) -> Ask:
    """When a version became active, or will become active."""
    return lambda node: node.world.since_start(node.manager.catalog(version).time)


def active_at(number: int) -> Ask:
    """The version active at a timestamp that is given as a number."""
    return lambda node: node.manager.catalog_as_of(Timestamp(number)).version


def active_after(ms: int) -> Ask:
    """The version active at the end of that millisecond."""

    def ask(node: Node) -> int:
        at = timestamp(node.world.start + ms, (1 << LOGICAL_BITS) - 1)
        return node.manager.catalog_as_of(at).version

    return ask


def last_version_within(version: int) -> Ask:
    """The version active at the last moment of a version; None if it has not ended."""

    def ask(node: Node) -> int | None:
        last = node.manager.last_moment(version)
        return None if last is None else node.manager.active_catalog(last).version

    return ask


def replayed(node: Node) -> tuple[int, list[int]]:
    """What the node read when it started: the version of the snapshot, and the updates after it."""
    return node.replayed


def statistic(name: str) -> Ask:
    """A count of the manager."""
    return lambda node: getattr(node.manager.statistics(), name)


# -- questions to a node's log ---------------------------------------------------------------------


def upper(node: Node) -> int:
    """The version that the next append makes."""
    return node.log.frontier().upper


def revision(node: Node) -> int:
    """How often the store was written to."""
    return node.store.revision()


def verbs(start: int, end: int) -> Ask:
    """The verbs of each update from version ``start`` to ``end`` − 1."""
    return lambda node: [
        [entry.verb for entry in update.entries] for update in node.log.updates(start, end)
    ]


def epoch(node: Node) -> int | None:
    """The epoch of the holder of the catalog."""
    return node.openable().epoch()


def append(version: int, *, epoch: int = 1) -> Ask:
    """Append a setting at that version, under the token of that epoch; returns the version."""

    def ask(node: Node) -> int:
        name = f"appended at {version}"
        change = Change("setting", name.encode(), None, encode(Setting(name, "x")))
        update = new_update(version, [Entry("set", {}, (change,))], author="ann", member="m")
        token = node.log.token()
        assert token is not None
        return node.log.append(version, replace(token, epoch=epoch), [update])[0].version

    return ask


def read_only(node: Node) -> int:
    """The version that a read-only reader of the log reaches."""
    return node.openable().open_read_only().recovered[-1].version
