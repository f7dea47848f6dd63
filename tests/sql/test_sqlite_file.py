"""How a SQLite file is opened, what its errors say, and which process holds its write lock."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    Unavailable,
    UnsupportedOperation,
)
from strandline.sql import SqliteDatabase, open_database, open_sqlite
from strandline.sql.schema_versions import Part
from strandline.sql.sqlite_file import (
    describe_holder,
    file_of,
    refuse_network_file_system,
    translate,
)
from tests.servers.sqlite import sqlite_url
from tests.sql.processes import Process
from tests.sql.work import BLOB, METADATA, file_named, ids, put


@pytest.mark.parametrize("name", ["a b", "50%", "what?", "x#y", "é", "a&b=c", "%41"])
def test_every_path_can_be_recovered_from_its_url(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert file_of(sqlite_url(path)) == path.resolve()
    open_sqlite(path).close()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", InvalidInput),
        ("no url", InvalidInput),
        ("sqlite://", InvalidInput),
        ("sqlite:///:memory:", InvalidInput),
        ("sqlite:////tmp/x.db?mode=memory", InvalidInput),
        ("mysql://localhost/x", UnsupportedOperation),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, error: type[StrandlineError]) -> None:
    with pytest.raises(error):
        open_database(url)


def test_a_missing_folder_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        open_sqlite(tmp_path / "none" / "strandline.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a folder"):
        open_sqlite(tmp_path)


def test_a_file_that_is_not_a_database_is_refused_and_not_changed(path: Path) -> None:
    content = b"a letter to a friend, longer than the header of a database file " * 40
    path.write_bytes(content)
    with pytest.raises(CorruptData, match="restore from a backup") as refused:
        open_sqlite(path)
    assert str(path) in refused.value.message
    assert path.read_bytes() == content


def make_damaged(path: Path) -> None:
    database = open_sqlite(path)
    database.ensure_schema(Part("counter", 1, METADATA))
    with database.write() as connection:
        for number in range(200):
            connection.execute(BLOB.insert().values(id=number, value=bytes(1000)))
    database.close()
    whole = bytearray(path.read_bytes())
    whole[4096 * 4 :] = b"\xa5" * (len(whole) - 4096 * 4)
    path.write_bytes(whole)


def test_a_damaged_database_raises_corrupt_data(path: Path) -> None:
    make_damaged(path)
    with pytest.raises(CorruptData, match="restore from a backup") as refused:
        database = open_sqlite(path)
        try:
            with database.read() as connection:
                connection.exec_driver_sql("SELECT sum(length(value)) FROM blob").all()
        finally:
            database.close()
    assert str(path) in refused.value.message


def test_a_database_whose_damage_was_found_later_refuses_every_write(path: Path) -> None:
    with closing(open_sqlite(path)) as database:
        database.ensure_schema(Part("counter", 1, METADATA))
        with closing(sqlite3.connect(path)) as other:
            other.execute("INSERT INTO counter (id, value) VALUES (1, 'text')")
            other.commit()
        (fault,) = database.find_damage()
        for refused in (database.check_damage, lambda: put(database, 2, 2)):
            with pytest.raises(CorruptData) as error:
                refused()
            assert fault in error.value.message
        assert ids(database) == [1]


def test_closing_a_damaged_database_closes_all_its_connections(path: Path) -> None:
    """SQLite keeps the log of a file until its last connection is closed, including failed ones."""
    make_damaged(path)
    gc.disable()  # otherwise the collector might close what the program forgot
    try:
        database = open_sqlite(path, check_bytes=0)
        log = path.with_name(path.name + "-wal")
        with (
            pytest.raises(CorruptData, match=r"check the disk, .* restore from a backup"),
            database.read() as connection,
        ):
            connection.exec_driver_sql("SELECT sum(length(value)) FROM blob").all()
        for _ in range(2):
            with pytest.raises(CorruptData):
                database.rows("SELECT sum(length(value)) FROM blob")
        assert log.exists()
        database.close()
        assert not log.exists()
    finally:
        gc.enable()


def test_a_folder_that_cannot_be_written_is_unavailable() -> None:
    # Not pytest's folder: the user without write permission must be able to reach it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        open_sqlite(file_named(folder)).close()
        folder.chmod(0o555)
        try:
            for path in (file_named(folder), folder / "new.db"):
                with Process("tests.sql.work:open_without_the_right_to", str(path)) as other:
                    code, message = other.hear()
                assert code == "unavailable"
                assert "cannot be written by this user" in message
                assert str(path) in message
        finally:
            folder.chmod(0o755)
        assert os.listdir(folder) == ["strandline.db"]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_file_of_the_database_that_another_user_owns_is_unavailable_for_lack_of_rights(
    suffix: str,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = file_named(folder)
        with closing(open_sqlite(path)):
            path.with_name(f"{path.name}{suffix}").chmod(0)
            folder.chmod(0o777)
            with Process("tests.sql.work:open_without_the_right_to", str(path)) as other:
                code, message = other.hear()
        assert code == "unavailable"
        assert "cannot be written by this user" in message


def test_a_file_system_that_is_mounted_read_only_is_named_in_the_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    translated = translate(error, path)
    assert isinstance(translated, Unavailable)
    assert "mounted read-only" in translated.message
    assert "this user" not in translated.message


def test_a_disk_that_fails_during_the_commit_makes_the_outcome_unknown(path: Path) -> None:
    database = open_sqlite(path)
    database.ensure_schema(Part("counter", 1, METADATA))
    with database.write() as connection:
        connection.execute(BLOB.insert().values(id=1, value=b"kept"))
    with Process("tests.sql.work:write_on_a_failing_disk", str(path)) as other:
        code, message = other.hear()
        assert code == "unknown_outcome"
        assert str(path) in message
        assert other.hear() == [1]
        assert other.finish() == 0
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT id FROM blob").scalars().all() == [1]
    database.close()


MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/export /home nfs4 rw 0 0
/dev/vdb /home/local ext4 rw 0 0
host:/x /mnt/with\\040blank fuse.sshfs rw 0 0
//pc/share /mnt/share cifs rw 0 0
drive /mnt/over 9p rw 0 0
tmpfs /mnt/over tmpfs rw 0 0
/dev/fuse /mnt/app fuse.portal rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/x.db", None),
        ("/home/me/x.db", "nfs4"),
        ("/homes/x.db", None),
        ("/home/local/x.db", None),
        ("/mnt/with blank/x.db", "fuse.sshfs"),
        ("/mnt/share/deep/x.db", "cifs"),
        ("/mnt/over/x.db", None),
        ("/mnt/app/x.db", None),
    ],
)
def test_a_network_file_system_is_refused(tmp_path: Path, path: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    if kind is None:
        refuse_network_file_system(Path(path), mounts=mounts)
        return
    with pytest.raises(UnsupportedOperation, match=kind) as refused:
        refuse_network_file_system(Path(path), mounts=mounts)
    assert path in refused.value.message


def test_no_database_is_created_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/export {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(refuse_network_file_system, "__kwdefaults__", {"mounts": mounts})
    with pytest.raises(UnsupportedOperation, match="network file system"):
        open_sqlite(tmp_path / "store.db")
    assert list(tmp_path.iterdir()) == [mounts]


def test_nothing_is_refused_without_a_list_of_mounts(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path, mounts=tmp_path / "none")


def test_a_schema_with_invalid_text_raises_corrupt_data(path: Path) -> None:
    open_sqlite(path).close()
    data = path.read_bytes()
    name = data.index(b"strandline_fence")
    path.write_bytes(data[:name] + b"\xd1" + data[name + 1 :])
    with pytest.raises(CorruptData, match="restore from a backup"):
        open_sqlite(path)


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with closing(open_sqlite(tmp_path / "strandline.db")) as database:
        yield database


@pytest.fixture
def holder(database: SqliteDatabase) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def write(database: SqliteDatabase) -> None:
    with database.write(deadline=time.monotonic() + 0.01):
        pass


def test_the_error_at_the_deadline_names_the_process_with_the_lock_and_if_it_is_stopped(
    database: SqliteDatabase, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        write(database)
    assert f"process {holder.pid} ({sys.executable} -c" in raised.value.message
    assert raised.value.message.endswith("holds its write lock")
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    with pytest.raises(DeadlineExceeded, match=r"is stopped; resume it \(kill -CONT\)"):
        write(database)
    holder.kill()
    holder.wait()
    write(database)


def test_the_process_with_the_lock_is_named_to_callers_behind_another_waiting_thread(
    database: SqliteDatabase, holder: subprocess.Popen[str]
) -> None:
    def wait_for_the_process() -> None:
        with suppress(DeadlineExceeded), database.write(deadline=time.monotonic() + 60):
            pass

    first = threading.Thread(target=wait_for_the_process)
    first.start()
    while not database.statistics().lost_turns:
        first.join(0.001)
    with pytest.raises(DeadlineExceeded, match=f"process {holder.pid} .* holds its write lock"):
        write(database)
    holder.kill()
    first.join()


def test_a_lock_held_in_this_process_is_reported_as_such(database: SqliteDatabase) -> None:
    late = pytest.raises(DeadlineExceeded, match="another part of this process")
    with closing(open_sqlite(database.path)) as other, other.write(), late:
        write(database)


def test_describing_the_holder_does_not_release_the_lock(database: SqliteDatabase) -> None:
    with closing(open_sqlite(database.path)) as other, database.write():
        for _ in range(2):
            assert describe_holder(database.path) is not None
            with pytest.raises(DeadlineExceeded):
                write(other)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "1: POSIX  ADVISORY  READ 1 08:01:{inode} 120 120",
        "1: POSIX  ADVISORY  WRITE 1 08:01:{inode} 121 122",
        "1: -> POSIX  ADVISORY  WRITE 1 08:01:{inode} 120 120",
        "1: POSIX  ADVISORY  WRITE 0 08:01:{inode} 0 EOF",
        "1: POSIX  ADVISORY  WRITE -1 08:01:{inode} 120 120",
        "2: something else",
    ],
)
def test_no_holder_is_named_if_the_system_lists_none(
    database: SqliteDatabase, tmp_path: Path, lines: str
) -> None:
    write(database)
    inode = os.stat(f"{database.path}-shm").st_ino
    (tmp_path / "locks").write_text(lines.format(inode=inode))
    assert describe_holder(database.path, locks=tmp_path / "locks") is None
    assert describe_holder(database.path, locks=tmp_path / "missing") is None
    assert describe_holder(tmp_path / "no.db") is None
