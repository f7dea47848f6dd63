"""The metastorage as a dictionary, and the random calls that compare the two."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from strandline.clock import HybridClock, Timestamp, timestamp
from strandline.metastorage import (
    Absent,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    KeyValue,
    Operation,
    Put,
    TimeIs,
    ValueIs,
    prefix_end,
)
from tests.conftest import ManualWall
from tests.metastorage.stores import StoreKind

NODES = st.integers(0, 1)
KEYS = st.sampled_from(["a", "a.1", "a.10", "a.2", "b", "c~"])
PREFIXES = st.sampled_from(["", "a", "a.", "a.1", "b", "c", "d"])
CONTESTED = st.sampled_from(["a", "a.1"])
BOUNDS = st.tuples(KEYS | st.just(""), KEYS | st.just("\x7f")).map(sorted)
VALUES = st.sampled_from([b"", b"1", b"2"])
CONDITIONS = st.lists(
    st.one_of(
        st.builds(Exists, KEYS),
        st.builds(Absent, KEYS),
        st.builds(ValueIs, KEYS, VALUES),
        st.builds(TimeIs, KEYS, st.integers(1, 6)),
    ),
    max_size=2,
)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Operations of one branch: none touches a key that another one puts."""
    puts = draw(st.dictionaries(KEYS, VALUES, max_size=3))
    planned: list[Operation] = [Put(key, value) for key, value in puts.items()]
    for start, end in draw(st.lists(st.tuples(KEYS, KEYS), max_size=2)):
        if start == end and start not in puts:
            planned.append(Delete(start))
        elif not any(start <= key < end for key in puts):
            planned.append(DeleteRange(start, end))
    return draw(st.permutations(planned))


class AgainstADictionary(RuleBasedStateMachine):
    """Two nodes with separate wall clocks on one store, and a dictionary."""

    def __init__(self, kind: StoreKind) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        address = kind.create(Path(folder))
        self.walls = [ManualWall(1_000), ManualWall(1_000)]
        self.nodes = [
            self.stack.enter_context(kind.open(address, HybridClock(wall))) for wall in self.walls
        ]
        self.entries: dict[str, KeyValue] = {}
        self.changed: dict[str, int] = {}
        self.revision = 0
        self.time = Timestamp(0)
        self.floor = Timestamp(0)

    def teardown(self) -> None:
        """Close both nodes and remove the store."""
        self.stack.close()

    @initialize(node=NODES, there=st.dictionaries(KEYS, VALUES, min_size=2))
    def begin(self, node: int, there: dict[str, bytes]) -> None:
        """Fill the store, so that the later calls find something."""
        self.invoke(node, [], [Put(key, value) for key, value in there.items()], [])

    @rule(node=NODES, wall=st.integers(1, 5_000))
    def set_wall(self, node: int, wall: int) -> None:
        self.walls[node].now = wall

    @rule(
        node=NODES,
        conditions=CONDITIONS,
        on_success=operations(),
        on_failure=operations(),
    )
    def invoke(
        self,
        node: int,
        conditions: list[Condition],
        on_success: list[Operation],
        on_failure: list[Operation],
    ) -> None:
        outcome = self.nodes[node].invoke(conditions, on_success, on_failure)
        succeeded = all(self.holds(condition) for condition in conditions)
        assert outcome.succeeded == succeeded
        touched = self.touched(on_success if succeeded else on_failure)
        if touched:
            assert outcome.time > self.floor
            assert outcome.time >= timestamp(self.walls[node].now)
            self.revision, self.time, self.floor = self.revision + 1, outcome.time, outcome.time
        assert (outcome.revision, outcome.time) == (self.revision, self.time)
        for key, value in touched.items():
            self.changed[key] = self.revision
            if value is None:
                del self.entries[key]
            else:
                self.entries[key] = KeyValue(key, value, self.revision, self.time)

    @rule(
        node=NODES,
        key=CONTESTED,
        value=st.none() | VALUES,
        by_value=st.booleans(),
        further=CONDITIONS,
    )
    def compare_and_set(
        self,
        node: int,
        key: str,
        value: bytes | None,
        by_value: bool,
        further: list[Condition],
    ) -> None:
        """The first condition holds, and the other node is told of a resulting change."""
        entry = self.entries.get(key)
        holds: Condition = Absent(key)
        if entry is not None:
            holds = ValueIs(key, entry.value) if by_value else TimeIs(key, entry.time)
        operation = Delete(key) if value is None else Put(key, value)
        self.invoke(node, [holds, *further], [operation], [])
        self.wait(1 - node, key, 1)

    def holds(self, condition: Condition) -> bool:
        match condition:
            case Exists():
                return condition.key in self.entries
            case Absent():
                return condition.key not in self.entries
            case ValueIs():
                entry = self.entries.get(condition.key)
                return entry is not None and entry.value == condition.value
            case TimeIs():
                entry = self.entries.get(condition.key)
                return entry is not None and entry.time == condition.time
        raise AssertionError(condition)

    def touched(self, operations: list[Operation]) -> dict[str, bytes | None]:
        values: dict[str, bytes | None] = {}
        for operation in operations:
            match operation:
                case Put():
                    values[operation.key] = operation.value
                case Delete() if operation.key in self.entries:
                    values[operation.key] = None
                case DeleteRange():
                    inside = (k for k in self.entries if operation.start <= k < operation.end)
                    values.update(dict.fromkeys(inside))
        return values

    @rule(node=NODES, key=KEYS)
    def get(self, node: int, key: str) -> None:
        assert self.nodes[node].get(key) == self.entries.get(key)

    @rule(node=NODES, bounds=BOUNDS, limit=st.none() | st.integers(1, 3))
    def range(self, node: int, bounds: list[str], limit: int | None) -> None:
        start, end = bounds
        wanted = [self.entries[key] for key in sorted(self.entries) if start <= key < end]
        assert self.nodes[node].range(start, end, limit=limit) == wanted[:limit]

    @rule(node=NODES, waits_for_rows=st.booleans())
    def check(self, node: int, waits_for_rows: bool) -> None:
        head = self.nodes[node].check() if waits_for_rows else self.nodes[node].look()
        assert head.revision == self.revision
        assert head.time > self.floor
        self.floor = head.time

    @rule(node=NODES, prefix=PREFIXES, back=st.integers(0, 4))
    def wait(self, node: int, prefix: str, back: int) -> None:
        after = max(0, self.revision - back)
        inside = (r for k, r in self.changed.items() if prefix <= k < prefix_end(prefix))
        wanted = max(inside, default=0) > after
        assert self.nodes[node].wait_for_change(prefix, after, timeout=0) == wanted

    @invariant()
    def all_nodes_have_the_model_s_entries(self) -> None:
        wanted = [self.entries[key] for key in sorted(self.entries)]
        for node in self.nodes:
            assert node.revision() == self.revision
            assert node.range("", "\x7f") == wanted


AS_USUAL = settings(max_examples=25, stateful_step_count=25)


def compare_with_a_dictionary(
    kind: StoreKind, how: settings = AS_USUAL, *, first: int | None = None
) -> None:
    """Assert that random calls on stores of this kind give what a dictionary gives.

    With the same ``first``, the calls are the same every time.
    """

    class OnThisKind(AgainstADictionary):
        def __init__(self) -> None:
            super().__init__(kind)

    machine = OnThisKind if first is None else seed(first)(OnThisKind)
    run_state_machine_as_test(machine, settings=how)
