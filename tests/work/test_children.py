"""Child processes: tasks, replies, and the loss of either end of the connection.

In most tests a child is a thread at the other end of the connection; only tests about processes
start real ones.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from strandline.errors import LimitExceeded, NotFound, StrandlineError, Unavailable, UnknownOutcome
from strandline.work import children as child_processes
from strandline.work.children import Announce, ForkServer, receive_packet, send_packet, serve_tasks
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore
from tests.work.pool_children import WAIT, ask, begun, running_pool

pytestmark = pytest.mark.usefixtures("in_this_process")


@contextmanager
def every_descriptor_taken() -> Iterator[None]:
    """In the block, this process can open no more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        descriptors = [stack.enter_context(Path(os.devnull).open("rb"))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors[0].fileno() + 1, limits[1]))
        yield


def open_pipes() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this iteration
            found.add(os.readlink(link))
    return {target for target in found if target.startswith("pipe:")}


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
async def test_a_task_and_its_reply_can_have_any_size(size: int) -> None:
    async with running_pool() as (pool, _):
        data = os.urandom(size)
        assert await ask(pool, "echo", data) == data
        assert await ask(pool, "echo", Content.of(data)) == data
        reply = await pool.run("echo", {"word": "é"}, b"", only_reads=True)
        assert reply.fields["echo"] == "é"
        reply.content.close()


async def test_a_child_continues_after_the_node_has_recorded_its_announcement() -> None:
    noted: list[bytes] = []

    async with running_pool(on_announced=noted.append) as (pool, _):
        for data in (b"first", os.urandom(3_000_000)):
            assert await ask(pool, "announce", data) == data
            assert noted.pop() == data


async def test_a_child_continues_if_the_node_fails_to_record_its_announcement() -> None:
    async with running_pool(on_announced=lambda data: 1 // 0) as (pool, _):
        assert await ask(pool, "announce", b"x") == b"x"
        assert await ask(pool, "echo", b"y") == b"y"


async def test_the_end_of_a_task_is_told_after_its_announcement_even_if_its_caller_left() -> None:
    told: list[bytes] = []

    async with running_pool(on_announced=told.append, on_ended=lambda: told.append(b"end")) as (
        pool,
        children,
    ):
        left = asyncio.create_task(ask(pool, "announce when told to", b"x"))
        await begun(children)
        left.cancel()
        await asyncio.wait([left])
        assert told == []
        children.go.set()
        while pool.statistics().running:
            await asyncio.sleep(0)
        assert told == [b"x", b"end"]
        with pytest.raises(UnknownOutcome):
            await ask(pool, "announce and end", b"y")
        assert told[2:] == [b"y", b"end"]


async def test_the_end_of_a_task_is_not_told_while_another_one_has_announced_something() -> None:
    announced, go = threading.Event(), threading.Event()
    ends: list[None] = []

    def note(data: bytes) -> None:
        if data == b"first":
            announced.set()
            assert go.wait(WAIT)

    async with running_pool(
        on_announced=note, on_ended=lambda: ends.append(None), max_children=2
    ) as (pool, _):
        first = asyncio.create_task(ask(pool, "announce", b"first"))
        assert await asyncio.to_thread(announced.wait, WAIT)
        await ask(pool, "announce", b"second")
        assert not ends
        go.set()
        await first
        assert len(ends) == 1


async def test_the_end_of_a_task_that_announced_nothing_is_not_told() -> None:
    """Else each large write of a client would end the priority of another child's update."""
    ends: list[None] = []

    async with running_pool(on_ended=lambda: ends.append(None)) as (pool, _):
        await ask(pool, "announce")
        await ask(pool, "echo")
        await ask(pool, "echo", only_reads=True)
        with pytest.raises(UnknownOutcome):
            await ask(pool, "end")
        assert len(ends) == 1


async def test_a_child_that_cannot_announce_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[bytes] = []

    def full(_: bytes) -> Content:
        monkeypatch.undo()
        raise OSError(errno.EMFILE, "too many open files")

    async with running_pool(on_announced=noted.append) as (pool, _):
        assert await ask(pool, "echo", b"x") == b"x"
        monkeypatch.setattr(Content, "of", full)
        assert await ask(pool, "announce", b"x") == b"x"
    assert noted == []


@pytest.mark.parametrize(("only_reads", "error"), [(True, Unavailable), (False, UnknownOutcome)])
async def test_a_reply_whose_file_does_not_fit_into_the_process_counts_as_lost(
    only_reads: bool, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """The system delivers the packet, and drops the descriptor without an error."""
    async with running_pool() as (pool, _):
        with pytest.raises(error):
            await ask(pool, "bare", only_reads=only_reads)
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("only_reads", [True, False])
async def test_a_task_is_refused_while_the_process_can_open_no_more_files(only_reads: bool) -> None:
    async with running_pool() as (pool, _):
        await ask(pool, "echo", only_reads=only_reads)
        with every_descriptor_taken(), pytest.raises(Unavailable, match="nothing was done"):
            await ask(pool, "echo", only_reads=only_reads)
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"


def test_no_child_is_started_while_the_process_can_open_no_more_files() -> None:
    control, fork_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused = pytest.raises(Unavailable, match="Too many open files")
    with control, fork_server, every_descriptor_taken(), refused:
        child_processes.ForkServer(control).child(only_reads=True)


def test_a_node_that_may_start_no_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def never_opened(_: Announce, __: ServedStore | None) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(Unavailable, match="the pids limit of a container"):
        ForkServer.start(never_opened)


def test_a_child_whose_reply_is_not_read_exits_without_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @contextmanager
    def open_service(*_: object) -> Iterator[child_processes.Service]:
        yield child_processes.Service(lambda fields, data: ({}, data), lambda: None)

    with theirs:
        with ours, closing(Content.of(b"x")) as content:
            child_processes.send_packet(ours, {"name": "echo"}, content)
            child = threading.Thread(
                target=serve_tasks, args=(theirs, open_service), kwargs={"only_reads": False}
            )
            child.start()
            assert receive_packet(ours) is not None  # it has opened the store
            assert select.select([ours], [], [], WAIT)[0]
        child.join(WAIT)
        assert not child.is_alive()


async def test_a_child_that_works_for_longer_than_idle_seconds_is_not_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_pool(idle_seconds=0.1) as (pool, children):
        await ask(pool, "echo")
        waiting = asyncio.create_task(ask(pool, "wait", b"x"))
        for _ in range(2):
            await begun(children)
        asyncio.get_running_loop().call_later(0.2, children.go.set)  # later than the idle time
        assert await waiting == b"x"
    assert caplog.messages == []


async def test_a_task_leaves_no_pipe_open_in_its_child() -> None:
    before = open_pipes()
    async with running_pool() as (pool, _):
        for word in (b"a", b"b", b"c"):
            await ask(pool, "echo", word)
    assert open_pipes() <= before


def test_a_peer_that_closes_with_an_unread_packet_has_closed_the_connection() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs, closing(Content.of(b"x")) as content:
            send_packet(ours, {}, content)
        assert receive_packet(ours) is None


async def test_errors_of_tasks_reach_the_caller_and_unexpected_ones_show_their_text_only_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_pool() as (pool, _):
        with pytest.raises(NotFound, match=r"^it is not there$"):
            await ask(pool, "missing")
        with pytest.raises(NotFound, match=r"^it is not there"):
            await ask(pool, "missing", "🌊".encode() * 100_000)
        with pytest.raises(LimitExceeded, match="greedy needs more than the 4 GiB"):
            await ask(pool, "greedy")
        with pytest.raises(StrandlineError, match="fails failed with an internal error") as failure:
            await ask(pool, "fails")
        assert "secret" not in str(failure.value)
        assert "secret" in caplog.text
        assert pool.statistics().children == 1


def test_a_reader_that_is_abandoned_while_it_opens_the_store_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node counts it no longer and starts another, so their number would have no limit."""
    exits = threading.Event()
    monkeypatch.setattr(child_processes, "_exit", exits.set)

    @contextmanager
    def open_service(*_: object) -> Iterator[child_processes.Service]:
        ours.close()
        assert exits.wait(WAIT)
        checked.set()
        yield child_processes.Service(lambda fields, data: (fields, data), lambda: None)

    checked = threading.Event()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        serve_tasks(theirs, open_service, only_reads=True)
    assert checked.is_set()  # what goes wrong while a child opens the store is not raised


@pytest.mark.parametrize(("only_reads", "expected"), [(True, Unavailable), (False, UnknownOutcome)])
async def test_a_child_that_exits_without_a_reply_is_an_error(
    only_reads: bool, expected: type[StrandlineError]
) -> None:
    async with running_pool() as (pool, _):
        with pytest.raises(expected):
            await ask(pool, "end", only_reads=only_reads)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().lost == 1


FORKS = """
import os, resource, signal, socket, sys, time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from strandline.work.children import MEMORY_BYTES, ForkServer, Service, receive_packet, send_packet
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore

@contextmanager
def service(announce, served):
    kept = []
    def serve(fields, data):
        if fields["name"] == "sleep":
            signal.pause()
        kept.append([bytes(1_000) for _ in range(100_000)][-1])
        place = {"session": os.getsid(0), "niceness": os.nice(0)}
        place["served"] = served
        place["limits"] = resource.getrlimit(resource.RLIMIT_DATA)
        return {"pid": os.getpid(), "parent": os.getppid(), **place}, data
    yield Service(serve, bool)

server = ForkServer.start(service)
children = [server.child(ServedStore("lake", 3), only_reads=True) for _ in range(2)]
pids = []
for child in children:
    assert receive_packet(child)[0] == {"opened": True}
    for word in (b"first", b"second"):
        content = Content.of(word)
        send_packet(child, {"name": "echo"}, content)
        fields, answer = receive_packet(child)
        assert answer.read() == word
        assert not fields["ends"]  # it has given back the memory that it took
        pids.append(fields["pid"])
        # They give way to the clients of the node too, in whatever sessions those are.
        assert fields["session"] == fields["parent"] and fields["niceness"] > os.nice(0)
        assert fields["limits"] == [MEMORY_BYTES, MEMORY_BYTES]
        assert fields["served"] == ["lake", 3]
assert len(set(pids)) == 2 and os.getpid() not in pids
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # to all processes of a service
    os.kill(fields["parent"], number)
writer = server.child(only_reads=False)
assert receive_packet(writer)[0] == {"opened": True}
send_packet(writer, {"name": "echo"}, Content.of(b""))
fields, _ = receive_packet(writer)
assert fields["session"] == fields["pid"] and fields["niceness"] == os.nice(0)
writer.close()
end = time.monotonic() + 60
while Path(f"/proc/{fields['pid']}").exists():  # not even as a zombie
    assert time.monotonic() < end
send_packet(children[0], {"name": "sleep"}, Content.of(b""))
print(fields["parent"], *set(pids), flush=True)
sys.stdin.readline()
"""


LIMITED = """
import resource
from contextlib import nullcontext
from strandline.work.children import ForkServer, Service, receive_packet, send_packet
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore

def serve(fields, data):
    if fields["name"] == "greedy":
        raise MemoryError
    return {"limits": resource.getrlimit(resource.RLIMIT_DATA)}, data

resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))
server = ForkServer.start(lambda announce, served: nullcontext(Service(serve, bool)))
child = server.child(only_reads=True)
receive_packet(child)
for name in ("limits", "greedy"):
    send_packet(child, {"name": name}, Content.of(b"task"))
    fields, _ = receive_packet(child)
    print(fields.get("limits") or fields["error"][1])
"""


def test_a_child_keeps_a_memory_limit_of_the_system_that_is_lower() -> None:
    """A process without privileges could not raise it, and would not start."""
    python = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LIMITED]
    limits, error = subprocess.run(
        python, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert limits == f"[{1 << 29}, {1 << 29}]"
    assert error.startswith("greedy needs more than the 0.5 GiB of memory")


FAILING_FORKS = """
import errno, os
from contextlib import nullcontext
from strandline.work.children import ForkServer, Service, receive_packet, send_packet
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore

forks, fork = [], os.fork

def fork_or_fail():
    forks.append("one")
    if len(forks) == 2:  # the first starts the fork server
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()

os.fork = fork_or_fail
echo = Service(lambda fields, data: ({}, data), bool)
server = ForkServer.start(lambda announce, served: nullcontext(echo))
assert receive_packet(server.child(only_reads=True)) is None
child = server.child(only_reads=True)
receive_packet(child)
send_packet(child, {"name": "echo"}, Content.of(b"word"))
_, answer = receive_packet(child)
print(answer.read())
"""


def test_a_child_that_cannot_be_forked_is_lost_and_the_next_one_is_forked() -> None:
    # From Python 3.12 on, a fork beside other threads, which pyarrow has, is deprecated.
    options = ("-W", "ignore::DeprecationWarning")
    completed = subprocess.run(
        [sys.executable, *options, "-c", FAILING_FORKS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (0, "b'word'\n"), completed.stderr
    assert completed.stderr == (
        "a child process could not be started: Resource temporarily unavailable\n"
    )


def test_all_child_processes_exit_when_the_node_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        watched = [os.pidfd_open(pid) for pid in pids]
        process.send_signal(signal.SIGKILL)
    for descriptor in watched:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(WAIT * 1000)
        os.close(descriptor)
