"""What only the metastorage in etcd has to prove."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from strandline.clock import HybridClock, Timestamp, system_wall_clock, timestamp
from strandline.errors import (
    CorruptData,
    IncompatibleFormat,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.metastorage import (
    Absent,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    Lease,
    LeaseHeld,
    Put,
    PutTimed,
    ValueIs,
)
from strandline.metastorage.etcd import gateway
from strandline.metastorage.etcd import invoke as etcd_invoke
from strandline.metastorage.etcd import leases as etcd_leases
from strandline.metastorage.etcd import store as etcd_store
from strandline.metastorage.etcd.access import EtcdAddress, parse_etcd_url
from strandline.metastorage.etcd.chunks import CHUNK_BYTES
from strandline.metastorage.etcd.feed import ChangeFeed
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.invoke import Invoke, View
from strandline.metastorage.etcd.layout import encode_time
from strandline.metastorage.etcd.operations import (
    Json,
    Page,
    TxnAnswer,
    delete_operation,
    put_operation,
)
from strandline.metastorage.etcd.store import EtcdMetastorage
from tests.conftest import ManualWall
from tests.metastorage.conftest import keys, put
from tests.metastorage.etcd_place import EtcdPlace
from tests.servers.loopback import Cut, Proxy, ReservedPort

LARGE = 3 * CHUNK_BYTES + 17
HOUR_MS = 60 * 60 * 1000


@pytest.fixture
def place() -> Iterator[EtcdPlace]:
    with ExitStack() as stack:
        yield EtcdPlace(stack)


@pytest.fixture
def store(place: EtcdPlace) -> EtcdMetastorage:
    return place.node()


def test_a_store_opened_for_reading_refuses_writes_and_creates_nothing(place: EtcdPlace) -> None:
    ahead = HybridClock(lambda: system_wall_clock() + 60_000)
    reader = EtcdMetastorage(place.url, ahead, read_only=True)
    with closing(reader):
        assert reader.get("a") is None
        assert place.everything() == []
        put(place.node(), "a", b"1")
        place.node().acquire_lease("expired", "me", ttl_ms=1000)
        before = place.everything()
        pair = reader.get("a")
        assert pair is not None
        assert pair.value == b"1"
        assert reader.revision() == 1
        lease = Lease("l", "me", Timestamp(0), 1)
        for write in (
            lambda: put(reader, "a", b"2"),
            reader.check,
            lambda: reader.acquire_lease("l", "me", ttl_ms=1000),
            lambda: reader.renew_lease(lease, ttl_ms=1000),
            lambda: reader.release_lease(lease),
            lambda: reader.lease("expired"),  # an expiry is written, so that all readers see it
        ):
            with pytest.raises(UnsupportedOperation, match="opened for reading"):
                write()
        assert place.everything() == before


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("etcd://one", EtcdAddress(("one:2379",), "strandline")),
        ("etcd://one:1/", EtcdAddress(("one:1",), "strandline")),
        ("etcd://one:1,two,one:1/c.1-x_", EtcdAddress(("one:1", "two:2379"), "c.1-x_")),
        ("etcd://[::1]:1,[fe80::2]/p", EtcdAddress(("[::1]:1", "[fe80::2]:2379"), "p")),
        (
            "etcd://li%40sa:a%3Ab@one/p?cacert=system&cert=%2Fc&key=k",
            EtcdAddress(("one:2379",), "p", "li@sa", "a:b", cacert="system", cert="/c", key="k"),
        ),
        ("etcd://lisa:@one", EtcdAddress(("one:2379",), "strandline", "lisa")),
    ],
)
def test_an_address_names_endpoints_and_a_prefix(url: str, address: EtcdAddress) -> None:
    assert parse_etcd_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("etcd:", "etcd://", "etcd:///p", "etcd://a,,b", "etcd://a/b/c", "etcd://a/b#c"),
        *("http://a", "etcd://a:b", "etcd://@a", "etcd://a:1:2", "etcd://a b", "etcd://é/b"),
    ],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        parse_etcd_url(url)


# Sharing one etcd


def test_stores_with_similar_prefixes_do_not_see_each_other(place: EtcdPlace) -> None:
    first, other = place.node(), place.node(url=place.url + "-more")
    put(first, "a", b"1")
    put(other, "a", b"2")
    put(other, "b")
    assert (first.revision(), other.revision()) == (1, 2)
    assert keys(first) == ["a"]
    first.invoke([], [DeleteRange("", "\x7f")])
    assert keys(other) == ["a", "b"]
    assert not first.wait_for_change("", 2, timeout=0)


def test_a_layout_of_a_newer_release_is_refused_and_not_changed(place: EtcdPlace) -> None:
    put(place.node(), "a")
    place.do(put_operation(place.keys.format, b"2"))
    with pytest.raises(IncompatibleFormat, match=r"layout 2.*layout 1"):
        place.node()
    assert place.gateway.range(place.keys.format).pairs[0].value == b"2"


def test_other_releases_find_the_keys_and_values_that_this_one_writes(place: EtcdPlace) -> None:
    """They are written here by hand, as the module of the layout documents them."""
    store, large = place.node(ManualWall(HOUR_MS)), b"x" * (CHUNK_BYTES + 1)
    first = store.invoke([], [Put("a", b"small"), Put("b", large), Put("c", b"")])
    second = store.invoke([], [PutTimed("d", encode_time, large)])
    third = store.invoke([], [Delete("c")])
    lease = store.acquire_lease("lead", "me", ttl_ms=5)
    assert lease is not None
    of_b, of_d = (place.keys.owner_of(place.chunks()[number].key)[1] for number in (0, 2))

    def numbers(*values: int) -> bytes:
        return b"".join(value.to_bytes(8) for value in values)

    reference = numbers(len(large)) + hashlib.sha256(large).digest()
    root = parse_etcd_url(place.url).prefix.encode()
    assert {pair.key.removeprefix(root): pair.value for pair in place.everything()} == {
        b"/format": b"1",
        b"/time": numbers(lease.expires - (5 << 16)),
        b"/head": numbers(3, third.time),
        b"/change/00000000000000000001": b'[["a","b","c"],[]]',
        b"/change/00000000000000000002": b'[["d"],[]]',
        b"/change/00000000000000000003": b'[["c"],[]]',
        b"/data/a": numbers(1, first.time) + b"\0small",
        b"/data/b": numbers(1, first.time) + b"\1" + of_b + reference,
        b"/data/d": numbers(2, second.time) + b"\2" + of_d + reference + numbers(second.time),
        b"/chunk/b\0" + of_b + b"\x00000000": large[:CHUNK_BYTES],
        b"/chunk/b\0" + of_b + b"\x00000001": large[CHUNK_BYTES:],
        b"/chunk/d\0" + of_d + b"\x00000000": large[:CHUNK_BYTES],
        b"/chunk/d\0" + of_d + b"\x00000001": large[CHUNK_BYTES:],
        b"/lease/lead": numbers(1, lease.expires) + b"me",
    }


# Time


def test_time_increases_over_nodes_whose_clocks_differ_by_hours(place: EtcdPlace) -> None:
    ahead, behind = ManualWall(9 * HOUR_MS), ManualWall(HOUR_MS)
    fast, slow = place.node(ahead), place.node(behind)
    times = []
    for _ in range(3):
        times += [put(fast, "a").time, slow.check().time, put(slow, "b").time, fast.check().time]
        lease = slow.acquire_lease("lead", "me", ttl_ms=1)
        assert lease is not None
        ahead.now -= HOUR_MS
    assert times == sorted(set(times))
    assert times[0] >= timestamp(9 * HOUR_MS)


def test_a_writer_whose_time_was_overtaken_retries_with_a_later_time(place: EtcdPlace) -> None:
    """The check happens between the writer's view, which it remembers, and its write."""
    behind = ManualWall(HOUR_MS)
    writer, other = place.node(behind), place.node(ManualWall(5 * HOUR_MS))
    put(writer, "a")
    checked = other.check()
    outcome = writer.invoke([Exists("a")], [Put("a", b"2")])
    assert (outcome.succeeded, outcome.revision) == (True, 2)
    assert outcome.time > checked.time


def test_a_lease_is_not_granted_at_a_time_that_was_overtaken(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check happens between the decision about the lease and its write."""
    store, other = place.node(ManualWall(HOUR_MS)), place.node(ManualWall(5 * HOUR_MS))
    checked: list[Timestamp] = []

    def take_time(clock: HybridClock, stored: Timestamp, *, bounded: bool = True) -> Timestamp:
        now = etcd_time_above(clock, stored, bounded=bounded)
        if not checked:
            checked.append(other.check().time)
        return now

    etcd_time_above = etcd_leases.time_above
    monkeypatch.setattr(etcd_leases, "time_above", take_time)
    lease = store.acquire_lease("lead", "me", ttl_ms=1_000)
    assert lease is not None
    assert lease.expires > checked[0] + (1_000 << 16)
    assert store.lease("lead") == other.lease("lead") == lease


def test_a_write_that_relies_on_a_lease_fails_if_its_holder_changes_before_it_arrives(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new holder's clock is behind, so the times do not show that it came later."""
    store, other = place.node(ManualWall(5 * HOUR_MS)), place.node(ManualWall(HOUR_MS))
    lease = other.acquire_lease("lead", "me", ttl_ms=9 * HOUR_MS)
    assert lease is not None
    view = Invoke.view

    def read_then_release(self: Invoke, gateway: EtcdGateway) -> View:
        monkeypatch.undo()
        read = view(self, gateway)
        other.release_lease(lease)
        assert other.acquire_lease("lead", "you", ttl_ms=9 * HOUR_MS) is not None
        return read

    monkeypatch.setattr(Invoke, "view", read_then_release)
    assert not store.invoke([LeaseHeld("lead", lease.token)], [Put("a", b"")]).succeeded
    assert store.get("a") is None


def test_a_check_and_a_lease_are_tried_however_late_their_thread_runs(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hours = place.node(), count()
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * next(hours))  # between any two lines
    for module in (etcd_store, etcd_leases):
        monkeypatch.setattr(module, "time", clock)
    assert store.check().revision == 0
    assert store.acquire_lease("lead", "me", ttl_ms=1_000) is not None


def test_the_time_of_an_idle_store_follows_the_clock(place: EtcdPlace) -> None:
    wall = ManualWall(HOUR_MS)
    store = place.node(wall)
    put(store, "a")
    wall.now += HOUR_MS
    head = store.check()
    assert (head.revision, head.time) == (1, timestamp(2 * HOUR_MS))


# The view remembered between invokes


def test_the_remembered_view_never_hides_writes_of_other_nodes(place: EtcdPlace) -> None:
    store, other = place.node(), place.node()
    put(store, "a", b"1")
    put(other, "a", b"2")
    assert not store.invoke([ValueIs("a", b"1")], [Put("a", b"3")]).succeeded
    assert store.invoke([ValueIs("a", b"2")], [Put("a", b"3")]).succeeded
    other.invoke([], [Delete("a")])
    assert not store.invoke([Exists("a")], []).succeeded
    assert store.invoke([Absent("a")], [Put("a", b"4")]).succeeded
    put(other, "b")
    assert store.invoke([], [Delete("b")]).revision == 7
    assert keys(other) == ["a"]


def test_the_remembered_view_never_has_a_value_that_a_longer_one_replaced(
    store: EtcdMetastorage,
) -> None:
    put(store, "a", b"1")
    put(store, "a", b"2" * 8192)  # too long to be remembered
    assert not store.invoke([ValueIs("a", b"1")], [Put("a", b"3")]).succeeded


@pytest.mark.parametrize("operation", [Delete("a"), DeleteRange("a", "b")])
def test_the_remembered_view_never_has_a_key_that_its_own_invoke_deleted(
    store: EtcdMetastorage, operation: Delete | DeleteRange
) -> None:
    put(store, "a")
    store.invoke([Exists("a")], [operation])
    assert not store.invoke([Exists("a")], [Put("a", b"2")]).succeeded


@pytest.mark.parametrize("is_compacted", [False, True])
def test_many_keys_are_compared_as_they_were_at_one_moment(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    store, other = place.node(), place.node()
    names = [f"{number:02d}" for number in range(40)]  # more than one request reads
    both = names[0], names[-1]
    other.invoke([], [Put(name, b"before") for name in names])
    changes, txn = [[Put(name, b"after") for name in both]], EtcdGateway.txn

    def read_then_change(self: EtcdGateway, *arguments: Any, **options: Any) -> TxnAnswer:
        answer = txn(self, *arguments, **options)
        if self is store._gateway and changes:
            other.invoke([], changes.pop())
            if is_compacted:  # then that moment cannot be read any longer
                place.server.compact()
        return answer

    monkeypatch.setattr(EtcdGateway, "txn", read_then_change)
    torn: list[Condition] = [ValueIs(both[0], b"before"), ValueIs(both[1], b"after")]
    torn[1:1] = map(Exists, names)
    assert not store.invoke(torn, []).succeeded
    assert changes == []


def test_a_range_of_many_pages_is_read_as_it_was_at_one_moment(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PAGE_KEYS", 2)
    store, other = place.node(), place.node()
    read, writes = EtcdGateway.range, [Put(key, b"") for key in "abcdefg"]

    def read_then_change(self: EtcdGateway, *arguments: Any, **options: Any) -> Page:
        page = read(self, *arguments, **options)
        if self is store._gateway:
            other.invoke([], writes)
        return page

    other.invoke([], writes)
    monkeypatch.setattr(EtcdGateway, "range", read_then_change)
    assert [(entry.key, entry.revision) for entry in store.range("", "~")] == [
        (key, 1) for key in "abcdefg"
    ]


def test_a_single_writer_needs_one_request_per_invoke(place: EtcdPlace) -> None:
    requests: list[bytes] = []

    def count(data: bytes) -> None:
        requests.extend([data] * data.count(b"POST "))

    with Proxy(place.server.port, count) as proxy:
        store = place.node(url=place.url.replace(str(place.server.port), str(proxy.port)))
        put(store, "version", b"0")
        requests.clear()
        for number in range(5):
            condition = ValueIs("version", b"%d" % number)
            writes = [Put("version", b"%d" % (number + 1)), Put(f"update.{number}", b"x")]
            assert store.invoke([condition], writes).succeeded
        assert len(requests) == 5
        store.close()


# Waiting


def test_a_waiter_is_not_disturbed_by_a_compaction_of_the_history_of_etcd(place: EtcdPlace) -> None:
    store, other = place.node(), place.node()
    seen = put(store, "b").revision
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(store.wait_for_change, prefix, seen, timeout=60) for prefix in "ab"
        ]
        put(other, "b")
        assert waiting[1].result()
        place.server.compact()
        assert not store.wait_for_change("a", 1, timeout=0)
        put(other, "a")
        assert waiting[0].result()
    place.server.compact()
    assert store.wait_for_change("a", seen, timeout=0)
    assert not store.wait_for_change("c", seen, timeout=0)


def test_a_wait_from_before_the_recorded_changes_reports_a_change(
    place: EtcdPlace,
) -> None:
    store = place.node(changes_kept=3)
    for _ in range(5):
        put(store, "a")
    assert store.wait_for_change("else", 1, timeout=0)
    assert not store.wait_for_change("else", 2, timeout=0)
    assert store.wait_for_change("a", 4, timeout=0)


def test_old_changes_are_removed_a_few_revisions_after_they_are_no_longer_kept(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_invoke, "_PRUNE_EVERY", 4)
    store, left = place.node(changes_kept=6), []
    for _ in range(12):
        put(store, "a")
        first, end = place.keys.change(0), place.keys.changes_end
        left.append(len(place.gateway.range(first, end, keys_only=True).pairs))
    assert left == [1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 6]


def test_a_delete_of_many_keys_wakes_waiters_for_every_prefix_in_its_range(
    store: EtcdMetastorage,
) -> None:
    for first in range(0, 300, 60):
        store.invoke([], [Put(f"k{n:03d}", b"") for n in range(first, first + 60)])
    assert store.invoke([], [DeleteRange("k001", "k300")]).revision == 6
    assert store.wait_for_change("k299", 5, timeout=0)
    assert not store.wait_for_change("k000", 5, timeout=0)
    assert not store.wait_for_change("l", 5, timeout=0)
    assert keys(store) == ["k000"]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_change_between_the_check_and_the_watch_is_not_missed(
    place: EtcdPlace, lost: int
) -> None:
    """Nor is a change missed that is made while the watch cannot be opened."""
    other = place.node()
    requests: list[bytes] = []

    def at_the_watch(data: bytes) -> Cut | None:
        if b"/v3/watch" not in data:
            return None
        requests.append(data)
        if len(requests) <= lost:
            return Cut.REQUEST
        if len(requests) == lost + 1:
            put(other, "a")
        return None

    with Proxy(place.server.port, at_the_watch) as proxy:
        store = place.node(url=place.url.replace(str(place.server.port), str(proxy.port)))
        began = time.monotonic()
        assert store.wait_for_change("a", 0, timeout=60)
        assert time.monotonic() - began < 30
        store.close()


def test_a_waiter_older_than_the_remembered_changes_checks_again(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.metastorage.etcd.gateway._IDLE_WATCH_SECONDS", 60.0)
    store = place.node()
    gateway = EtcdGateway(parse_etcd_url(place.url), timeout=30)
    feed = ChangeFeed(gateway, place.keys, remembered=4)
    try:
        assert not feed.wait("a", "b", 0, generation=0, timeout=60)
        for key in "abbbbbbc":
            put(store, key)
        began = time.monotonic()
        assert feed.wait("c", "d", 7, generation=feed.generation, timeout=60)
        assert not feed.wait("a", "b", 0, generation=feed.generation, timeout=60)
        # Before the idle watch is renewed, when all waiters check.
        assert time.monotonic() - began < 30
    finally:
        gateway.close()
        feed.close()


@pytest.mark.parametrize("record", [b"no change", b"[[1],[]]", b'[["a"],[["a"]]]', b"[[],[[1,2]]]"])
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_corrupt_change_record_wakes_all_waiters_and_is_logged(
    place: EtcdPlace, record: bytes, is_watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They read the store, which is whole; later waits go on as usual."""
    store, other = place.node(), place.node()
    seen = put(other, "a").revision
    with ThreadPoolExecutor(1) as threads:
        if is_watched:
            waiting = threads.submit(store.wait_for_change, "b", seen, timeout=60)
            place.do(put_operation(place.keys.change(seen + 1), record))
            assert waiting.result()
        seen = put(other, "a").revision
        place.do(put_operation(place.keys.change(seen), record))
        assert store.wait_for_change("b", seen - 1, timeout=60)
        errors = [line.message for line in caplog.records if line.levelname == "ERROR"]
        assert errors
        assert all("a change in etcd cannot be decoded" in error for error in errors)
        assert not store.wait_for_change("b", seen, timeout=0)
        waiting = threads.submit(store.wait_for_change, "b", seen, timeout=60)
        put(other, "b")
        assert waiting.result()


# Ends


def in_use(port: int) -> set[object]:
    """The threads of this process, and the ends of its connections to a port of the server."""
    connections = psutil.Process().net_connections("tcp4")
    ends = {c.laddr for c in connections if c.raddr and c.raddr.port == port}
    return {*threading.enumerate(), *ends}


def test_a_defect_in_the_thread_of_the_watch_reaches_its_waiters(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(feed: ChangeFeed, message: Json) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ChangeFeed, "_take", defective)
    store = place.node()
    seen = put(store, "a").revision
    with pytest.raises(RuntimeError, match="planted"):
        store.wait_for_change("b", seen, timeout=60)


def test_a_closed_store_leaves_no_thread_and_no_connection(place: EtcdPlace) -> None:
    place.gateway.close()
    before = in_use(place.server.port)
    store = place.node()
    seen = put(store, "a").revision
    with ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(store.wait_for_change, prefix, seen, timeout=60) for prefix in "bcd"
        ]
        assert not store.wait_for_change("b", seen, timeout=0.05)
        store.close()
        assert all(isinstance(waiter.exception(), Stopping) for waiter in waiting)
    assert in_use(place.server.port) <= before


def test_closing_the_store_ends_calls_that_wait_for_the_server(place: EtcdPlace) -> None:
    store = place.node()
    put(store, "a")
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        store.check,
        lambda: put(store, "a"),
        lambda: put(store, "b"),
        lambda: store.wait_for_change("b", 1, timeout=60),
    ]
    begun = threading.Barrier(len(calls) + 1)
    place.server.pause()
    try:
        with ThreadPoolExecutor(len(calls)) as threads:

            def begin(call: Callable[[], object]) -> object:
                begun.wait(60)
                return call()

            pending = [threads.submit(begin, call) for call in calls]
            begun.wait(60)
            store.close()
            errors = [call.exception(timeout=60) for call in pending]
    finally:
        place.server.resume()
    sent = {2, 3}  # they may or may not have been sent before the close
    for number, error in enumerate(errors):
        assert isinstance(error, (Stopping, UnknownOutcome) if number in sent else Stopping)


def test_a_store_that_gives_up_ends_calls_that_the_server_does_not_answer(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "GIVE_UP_SECONDS", 0.1)
    store = place.node(timeout=3600)
    put(store, "a")
    place.server.pause()
    with ThreadPoolExecutor(1) as threads:
        try:
            pending = threads.submit(store.get, "a")
            store.give_up()
            error = pending.exception(timeout=60)
        finally:
            place.server.resume()
    assert isinstance(error, Unavailable)
    assert store._gateway._ending is not None
    store._gateway._ending.join(60)  # now it ends no later call
    store._gateway.timeout = 60.0  # a busy server may need longer than before it gave up
    assert put(store, "b").succeeded


# The server


def test_an_unreachable_server_is_named_with_advice(place: EtcdPlace) -> None:
    with closing(ReservedPort()) as port:
        named = rf"127\.0\.0\.1:{port.number}.*refused.*Start etcd"
        with pytest.raises(Unavailable, match=named):
            place.node(url=f"etcd://127.0.0.1:{port.number}/p")


def test_another_endpoint_is_used_if_one_is_unreachable(place: EtcdPlace) -> None:
    """For writes too, because nothing was sent to the unreachable endpoint."""
    with closing(ReservedPort()) as gone, Proxy(place.server.port, lambda _: None) as proxy:
        store = place.node(url=f"etcd://127.0.0.1:{gone.number},127.0.0.1:{proxy.port}/two")
        assert put(store, "a").revision == 1
        for _ in range(3):
            assert put(store, "a").succeeded
        assert store.revision() == 4
        store.close()


def test_a_server_that_is_not_etcd_is_unavailable(place: EtcdPlace) -> None:
    with pytest.raises(Unavailable):
        place.node(url=f"etcd://127.0.0.1:{place.server.peers_port}/p", timeout=5)


@pytest.mark.parametrize("key", ["time", "head", "data", "chunk", "lease"])
def test_damaged_keys_raise_corrupt_data(place: EtcdPlace, key: str) -> None:
    store = place.node()
    put(store, "a", b"x" * LARGE)
    store.acquire_lease("lead", "me", ttl_ms=1_000)
    place.do(
        {
            "time": delete_operation(place.keys.time),
            "head": put_operation(place.keys.head, b"?"),
            "data": put_operation(place.keys.data("a"), b"?"),
            "chunk": delete_operation(place.chunks()[1].key),
            "lease": put_operation(place.keys.lease("lead"), b"?"),
        }[key]
    )
    call: Callable[[], object] = {
        "time": lambda: put(store, "b"),
        "head": store.revision,
        "data": lambda: store.range("", "~"),
        "chunk": lambda: store.get("a"),
        "lease": lambda: store.lease("lead"),
    }[key]
    with pytest.raises(CorruptData):
        call()


def test_the_smallest_time_is_never_given_twice(place: EtcdPlace) -> None:
    store, other = place.node(ManualWall(0)), place.node(ManualWall(0))
    times = [node.check().time for node in (store, other, store, other)]
    assert times == sorted(set(times))
    assert times[0] > Timestamp(0)
