"""The form of the timelines in ``tests/catalog/timelines``: what nodes do in sequence.

Each module there has a list ``TIMELINES``. A timeline runs on its own store, with nodes that
share a wall clock, which stands still until a step moves it::

    Timeline(
        "a version is not active before its time",
        cases=[7],
        delay_ms=DAY,
        steps=[
            Begin("a", execute(CreateSchema(name="a"))),
            Waits("a", until=DAY),
            Do(latest, 3),
            Do(present, 2),
            Wall(DAY),
            Ends("a", Done(3)),
        ],
    )

``nodes``
    How many nodes there are at the beginning. Node 1 creates the catalog, the others join it.
    Version 1 is then its fence, version 2 its first contents.
``delay_ms``, ``skew_ms``
    The delay and the skew with which the catalog is created.
``steps``
    What happens, in order. Most steps ask a node something, by default node 1, and state the
    expected result: a value; `Refused` with an error class and a text in its message; or `OneOf`
    several. `tests.catalog.timeline_asks` has what can be asked. Times are in milliseconds since
    the beginning.
``cases``, ``note``
    As in a `tests.catalog.scenario.Scenario`.

`Waits` states that something has *not* happened yet because the clock has not reached a time.
Otherwise `Pending` states it, after steps which show that the other nodes have continued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strandline.errors import OutOfSync, StrandlineError
from tests.catalog.scenario import Refused
from tests.catalog.timeline_asks import Ask, Done
from tests.catalog.timeline_world import PATIENCE, Reaction, Told, World


@dataclass(frozen=True)
class OneOf:
    """Any of these, if chance decides which."""

    outcomes: Sequence[object]


class Step(Protocol):
    """One step of a timeline."""

    def take(self, world: World) -> None:
        """Run the step; raises `AssertionError` if the result is not the expected one."""


@dataclass(frozen=True)
class Timeline:
    """See the module."""

    name: str
    steps: Sequence[Step]
    cases: Sequence[int] = ()
    nodes: int = 1
    delay_ms: int = 0
    skew_ms: int = 0
    note: str = ""


def fits(outcome: object, due: object) -> bool:
    """Whether ``found``, a value or an error, is the expected outcome ``due``."""
    if isinstance(due, OneOf):
        return any(fits(outcome, expected) for expected in due.outcomes)
    if isinstance(due, Refused):
        return type(outcome) is due.error and due.says in str(outcome)
    return outcome == due


def check(work: Callable[[], object], due: object) -> None:
    """Do ``work``; its value or its error must be the expected outcome ``due``."""
    try:
        outcome = work()
    except StrandlineError as error:
        outcome = error
    assert fits(outcome, due), f"{outcome!r} where {due!r} was due"


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Do:
    """Ask a node something, and wait until it has answered."""

    ask: Ask
    gives: object = None
    node: int = 1

    def take(self, world: World) -> None:
        node = world.node(self.node)
        check(lambda: self.ask(node), self.gives)


@dataclass(frozen=True)
class Begin:
    """Ask a node something in a thread of its own; later steps refer to the call as ``call``."""

    call: str
    ask: Ask
    node: int = 1

    def take(self, world: World) -> None:
        node = world.node(self.node)
        world.call(self.call, lambda: self.ask(node))


@dataclass(frozen=True)
class Await:
    """Take a future that ends when ``version`` is applied on a node; its result is a version."""

    call: str
    version: int
    node: int = 1

    def take(self, world: World) -> None:
        ready = world.node(self.node).manager.ready(self.version)
        ready.add_done_callback(lambda _: world.tell())
        world.calls[self.call] = ready


@dataclass(frozen=True)
class Waits:
    """The call is not done, because it waits for the clock to reach that time."""

    call: str
    until: int

    def take(self, world: World) -> None:
        wait = world.wait_of(self.call)
        assert wait is not None, f"call {self.call} is done: {world.calls[self.call]}"
        assert wait == self.until, f"call {self.call} waits for {wait} and not {self.until}"


@dataclass(frozen=True)
class Pending:
    """The call is not done yet."""

    call: str

    def take(self, world: World) -> None:
        call = world.calls[self.call]
        assert not call.done(), f"call {self.call} is done: {call}"


@dataclass(frozen=True)
class Ends:
    """The call ends with this result; ``at_once``: without waiting for the clock."""

    call: str
    gives: object
    at_once: bool = False

    def take(self, world: World) -> None:
        if self.at_once:
            assert world.wait_of(self.call) is None, f"call {self.call} waits for the clock"
        call = world.calls[self.call]
        world.until(call.done, f"call {self.call} ends")

        def result() -> object:
            ended = call.result()
            return ended if isinstance(ended, Done) else getattr(ended, "version", ended)

        check(result, self.gives)


@dataclass(frozen=True)
class Wall:
    """Let time pass on all nodes."""

    ms: int

    def take(self, world: World) -> None:
        world.move(self.ms)


@dataclass(frozen=True)
class Join:
    """A process starts as node ``node`` and joins the catalog. If that node runs, it ends first."""

    node: int = 1
    gives: object = None

    def take(self, world: World) -> None:
        node = world.restart(self.node)
        check(lambda: node.begin(hold=False), self.gives)


@dataclass(frozen=True)
class TakeOver:
    """A process starts as node ``node``, creates a missing catalog, and holds it in a new epoch."""

    node: int = 1

    def take(self, world: World) -> None:
        world.restart(self.node).begin(hold=True)


@dataclass(frozen=True)
class Stop:
    """A node stops; its memory can still be asked."""

    node: int = 1

    def take(self, world: World) -> None:
        world.node(self.node).manager.stop()


@dataclass(frozen=True)
class Listen:
    """A listener receives the versions of a node from now on, and does ``reaction`` each time."""

    name: str
    reaction: Reaction = lambda _: None
    node: int = 1

    def take(self, world: World) -> None:
        manager = world.node(self.node).manager
        world.listeners[self.name] = Told(world, manager, self.reaction)
        manager.subscribe(world.listeners[self.name])


@dataclass(frozen=True)
class Hears:
    """Wait until the listener has received exactly these versions."""

    name: str
    versions: Sequence[int]

    def take(self, world: World) -> None:
        heard = world.listeners[self.name].heard
        due = list(self.versions)
        world.until(lambda: len(heard) >= len(due), f"{self.name} heard {heard} and not {due}")
        assert heard == due, f"{self.name} heard {heard} and not {due}"


@dataclass(frozen=True)
class Release:
    """Let the listener that is blocked by `holds` return, now and from now on."""

    name: str

    def take(self, world: World) -> None:
        world.listeners[self.name].may_return.set()


@dataclass(frozen=True)
class Overtaken:
    """Before each of the next appends of ``node`` another node does the next of ``asks``."""

    by: int
    asks: Sequence[Ask]
    node: int = 1

    def take(self, world: World) -> None:
        log: Any = world.node(self.node).log
        real, left = log.append, list(self.asks)

        def append(*arguments: object, **named: object) -> object:
            if left:
                left.pop(0)(world.node(self.by))
            return real(*arguments, **named)

        log.append = append


@dataclass(frozen=True)
class AlwaysLost:
    """From now on every append of ``node`` comes too late."""

    node: int = 1

    def take(self, world: World) -> None:
        log: Any = world.node(self.node).log

        def append(*_: object, **__: object) -> object:
            raise OutOfSync("somebody else was first")

        log.append = append


# -- what listeners do -----------------------------------------------------------------------------


def fails(_told: Told) -> None:
    """Raise an error."""
    raise RuntimeError("the listener broke")


def holds(listener: Told) -> None:
    """Do not return before `Release`."""
    assert listener.may_return.wait(PATIENCE)
