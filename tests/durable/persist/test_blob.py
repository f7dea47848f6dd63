"""What every blob store promises: on files, on the S3 protocol, and in obstore's memory store."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from strandline.durable.persist.blob import UNFINISHED, Blob, FileBlob, ObjectBlob, open_bucket
from strandline.errors import InvalidInput, Unavailable
from strandline.files import try_lock
from tests.servers import s3

OpenBlob = Callable[[str], Blob]


@pytest.fixture
def s3_server() -> s3.S3Server:
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    server = s3.running()
    server.objects.clear()
    return server


@pytest.fixture(params=["files", "s3", "memory"])
def open_blob(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBlob:
    """Opens the blob store of a place, as one more node does."""
    if request.param == "files":
        return lambda place: FileBlob(tmp_path / place)
    if request.param == "s3":
        server: s3.S3Server = request.getfixturevalue("s3_server")
        return lambda place: open_bucket(server.url(place))
    memory = pytest.importorskip("obstore.store", reason="the extra s3 is not installed")
    stores: dict[str, Any] = {}
    return lambda place: ObjectBlob(stores.setdefault(place, memory.MemoryStore()), name="memory")


@pytest.fixture
def blob(open_blob: OpenBlob) -> Blob:
    return open_blob("here")


def test_a_blob_that_was_never_set_does_not_exist(blob: Blob) -> None:
    assert blob.get("a") is None
    assert list(blob.list()) == list(blob.list("a")) == []
    blob.delete("a")


def test_a_blob_set_by_one_node_is_read_by_another(open_blob: OpenBlob) -> None:
    first, second, elsewhere = open_blob("here"), open_blob("here"), open_blob("there")
    first.set("k0", b"value")
    assert first.get("k0") == second.get("k0") == open_blob("here").get("k0") == b"value"
    assert elsewhere.get("k0") is None
    assert list(elsewhere.list()) == []


@pytest.mark.parametrize("key", ["k0", "shard/part/k0", "a.b.tmp", "Ä", "a b", "a%2Fb"])
def test_setting_a_key_again_replaces_the_whole_value(blob: Blob, key: str) -> None:
    blob.set(key, b"a long value")
    blob.set(key, b"short")
    assert blob.get(key) == b"short"
    assert list(blob.list()) == [key]


def test_a_deleted_blob_is_gone_and_its_key_can_be_set_again(blob: Blob) -> None:
    blob.set("k0", b"value")
    blob.set("empty", b"")
    assert blob.get("empty") == b""
    blob.delete("k0")
    assert blob.get("k0") is None
    assert list(blob.list()) == ["empty"]
    blob.delete("k0")
    blob.delete("empty")
    assert blob.get("empty") is None
    assert list(blob.list()) == []
    blob.set("k0", b"another")
    assert blob.get("k0") == b"another"


def test_list_returns_the_keys_with_a_prefix(blob: Blob) -> None:
    keys = {"k", "k-prefix", "k/a", "k/ab", "l/a", "k/b/c"}
    for key in keys:
        blob.set(key, b"value")
    assert set(blob.list()) == keys
    for prefix in ("k", "k-", "k/", "k/a", "k/ab", "k/b/", "m"):
        assert set(blob.list(prefix)) == {key for key in keys if key.startswith(prefix)}


def test_an_invalid_key_is_refused(blob: Blob) -> None:
    for key in ("", ".unfinished", "/a", "a\nb", "a" * 201, "Ä" * 40):
        with pytest.raises(InvalidInput, match="a blob's key"):
            blob.set(key, b"x")
    assert list(blob.list()) == []


# -- files -----------------------------------------------------------------------------------------


def test_a_file_is_renamed_into_place_only_after_its_bytes_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = FileBlob(tmp_path)
    blob.set("k0", b"old")
    calls = recorded_calls(monkeypatch, "write", "fsync", "rename")
    blob.set("k0", b"value")
    unfinished = calls[0][1]
    assert unfinished.startswith(f"{tmp_path}/{UNFINISHED}/")
    assert calls == [
        ("write", unfinished),
        ("fsync", unfinished),
        ("rename", unfinished),
        ("fsync", str(tmp_path)),
    ]


def test_new_folders_are_synced_before_the_first_blob_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parent folders, including those that another process has made and not synced."""
    folder = tmp_path / "a" / "b" / "blobs"
    (tmp_path / "a").mkdir()
    calls = recorded_calls(monkeypatch, "mkdir", "fsync", "rename")
    FileBlob(folder).set("k0", b"value")
    ready = calls.index(("mkdir", str(folder / UNFINISHED)))
    made = calls.index(("mkdir", str(folder)))
    synced = [path for call, path in calls[made:ready] if call == "fsync"]
    assert synced == [str(above) for above in folder.parents]
    assert [call for call, _ in calls[ready:]] == ["mkdir", "fsync", "rename", "fsync"]


def recorded_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, str]]:
    """From now on, record the calls of these functions of `os`, each with the path it acts on."""
    calls: list[tuple[str, str]] = []
    for name in names:
        real = getattr(os, name)

        def record(first: Any, *rest: Any, name: str = name, real: Any = real) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            calls.append((name, os.fspath(place)))
            return real(first, *rest)

        monkeypatch.setattr(os, name, record)
    return calls


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failed_write_leaves_the_old_value_and_no_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    blob = FileBlob(tmp_path)
    blob.set("k0", b"old")

    def fail(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(Unavailable, match="cannot be written: No space left"):
            blob.set("k0", b"new")
    assert blob.get("k0") == b"old"
    assert list((tmp_path / UNFINISHED).iterdir()) == []


def test_a_file_of_another_user_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = FileBlob(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Unavailable) as raised:
        blob.get("part")
    assert raised.value.message == (
        f"{tmp_path}/part cannot be read by this user; give the folder {tmp_path} and its files to "
        "the user that the nodes run as"
    )


def test_unfinished_files_of_killed_writers_are_removed_and_locked_files_stay(
    tmp_path: Path,
) -> None:
    blob = FileBlob(tmp_path)
    assert blob.remove_unfinished() == 0
    blob.set("k0", b"value")
    (tmp_path / UNFINISHED / "killed").write_bytes(b"half a val")
    with open(tmp_path / UNFINISHED / "written now", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert blob.remove_unfinished() == 1
    assert [path.name for path in (tmp_path / UNFINISHED).iterdir()] == ["written now"]
    assert list(blob.list()) == ["k0"]


def test_a_file_that_is_being_written_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, write = FileBlob(tmp_path), os.write
    removed: list[int] = []

    def cleaned_meanwhile(descriptor: int, data: bytes) -> int:
        removed.append(FileBlob(tmp_path).remove_unfinished())
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", cleaned_meanwhile)
    blob.set("k0", b"value")
    assert removed == [0]
    assert blob.get("k0") == b"value"


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = FileBlob(tmp_path)
    removed: list[int] = []

    def cleaned_first(descriptor: int) -> bool:
        if not removed:
            removed.append(0)
            removed[0] = FileBlob(tmp_path).remove_unfinished()
        return try_lock(descriptor)

    monkeypatch.setattr("strandline.durable.persist.blob.try_lock", cleaned_first)
    before = psutil.Process().num_fds()
    blob.set("k0", b"value")
    assert removed == [1]
    assert blob.get("k0") == b"value"
    assert psutil.Process().num_fds() <= before


def test_no_file_stays_open_also_if_it_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> bool:
        raise OSError(37, "No locks available")

    blob = FileBlob(tmp_path)
    before = psutil.Process().num_fds()
    blob.set("k0", b"value")
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="No locks"):
        patch.setattr("strandline.durable.persist.blob.try_lock", fail)
        blob.set("k1", b"value")
    assert blob.remove_unfinished() == 1
    assert psutil.Process().num_fds() <= before


# -- S3 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["get", "set", "delete", "list"])
def test_an_error_answer_of_the_s3_server_raises_unavailable(
    s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("strandline.durable.persist.blob.RETRIES", 0)
    blob = open_bucket(s3_server.url("failing"))
    blob.set("k0", b"old")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: blob.get("k0"),
        "set": lambda: blob.set("k0", b"new"),
        "delete": lambda: blob.delete("k0"),
        "list": lambda: list(blob.list()),
    }
    for status in (500, 503, 403):
        monkeypatch.setattr(s3_server, "fail", lambda method, key, status=status: status)
        with pytest.raises(Unavailable, match=r"s3://bucket/failing.* did not answer"):
            calls[call]()
    monkeypatch.setattr(s3_server, "fail", lambda method, key: None)
    assert blob.get("k0") == b"old"


def test_a_bucket_that_does_not_exist_is_not_taken_for_a_missing_blob(
    s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = open_bucket(s3_server.url("deleted"))
    blob.set("k0", b"value")
    with monkeypatch.context() as patch:
        patch.setattr(s3_server, "fail", lambda method, key: s3.NO_BUCKET)
        with pytest.raises(Unavailable, match=r"bucket of s3://bucket/deleted.* does not exist"):
            blob.get("k0")
        with pytest.raises(Unavailable, match="does not exist"):
            blob.set("k0", b"new")
    assert blob.get("k0") == b"value"


@pytest.mark.parametrize("url", ["s3:///catalog", "http://host/bucket", "s3://b?user=me", "b"])
def test_an_invalid_bucket_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="address of a bucket"):
        open_bucket(url)
