"""The file of a backup: damaged, truncated and foreign files are refused."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.errors import (
    AlreadyExists,
    CorruptData,
    InvalidInput,
    NotFound,
    StrandlineError,
    Unavailable,
)
from strandline.files import try_lock
from strandline.node.backup import taking
from strandline.node.backup.archive import ArchiveWriter, open_backup
from strandline.node.backup.manifest import MANIFEST, Manifest
from strandline.node.backup.taking import _unfinished


def new_manifest() -> Manifest:
    return Manifest(2, "0.4.0", "/lake", "e", 7, "2026-11-20T10:00:00Z")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A backup with a database, two files and an empty folder."""
    (tmp_path / "source").mkdir()
    for name in ("strandline.db", "a", "b"):
        (tmp_path / "source" / name).write_bytes(name.encode() * 40)
    with (tmp_path / "archive").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_folder(tmp_path / "source", "warehouse/empty")
        for name in ("a", "b", "strandline.db"):
            writer.add_file(tmp_path / "source" / name, name)
        writer.finish()
    return tmp_path / "archive"


def read(archive: Path, target: Path) -> dict[str, bytes]:
    """The contents of all files of a backup, which are copied to ``target``."""
    with open_backup(archive) as backup:
        for name in backup.manifest.files:
            backup.copy_file(name, target / name)
        return {name: (target / name).read_bytes() for name in backup.manifest.files}


@pytest.mark.slow
def test_a_flipped_byte_is_refused_or_changes_nothing(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    whole = read(archive, tmp_path / "whole")
    end = content.rindex(b"}") + 1  # zeros follow
    refused = 0
    for position in range(0, end, 31):
        damaged = bytearray(content)
        damaged[position] ^= 0x11
        archive.write_bytes(damaged)
        try:
            assert read(archive, tmp_path / str(position)) == whole
        except (CorruptData, NotFound):
            refused += 1
    assert refused > end // 31 // 10


def test_a_truncated_file_is_refused(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    end = content.rindex(b"}") + 1
    for size in (0, 1, 511, 512, 513, 1024, 1600, 2048, end // 2, end - 600, end - 1):
        archive.write_bytes(content[:size])
        with pytest.raises((CorruptData, NotFound)):
            read(archive, tmp_path / str(size))


def linked(info: tarfile.TarInfo) -> None:
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"


def hard_linked(info: tarfile.TarInfo) -> None:
    info.type, info.linkname = tarfile.LNKTYPE, "a"


def a_device(info: tarfile.TarInfo) -> None:
    info.type = tarfile.CHRTYPE


def named(name: str) -> Callable[[tarfile.TarInfo], None]:
    return lambda info: setattr(info, "name", name)


@pytest.mark.parametrize(
    "change", [linked, hard_linked, a_device, named("../x"), named("/x"), named("a/../../x")]
)
def test_a_link_a_device_or_a_path_outside_the_backup_is_refused(
    archive: Path, tmp_path: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    made = tmp_path / "made"
    with tarfile.open(archive) as tar, tarfile.open(made, "w") as other:
        for info in tar:
            content = tar.extractfile(info)
            if info.name == MANIFEST:
                foreign = tarfile.TarInfo("foreign")
                change(foreign)
                other.addfile(foreign)
            other.addfile(info, content)
    with pytest.raises(CorruptData, match="is not a file"):
        read(made, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("mtime", "nan"),
        ("mtime", "inf"),
        ("mtime", "1e300"),
        ("size", "99999999999999999999"),
        ("size", "-5"),
        ("GNU.sparse.map", "a,b"),
        ("GNU.sparse.size", "q"),
    ],
)
def test_a_header_with_an_invalid_number_is_refused(
    archive: Path, tmp_path: Path, field: str, text: str
) -> None:
    made = tmp_path / "made"
    with (
        tarfile.open(archive) as tar,
        tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as other,
    ):
        for info in tar:
            content = tar.extractfile(info)
            if info.name == "b":
                info.pax_headers = {field: text}
            other.addfile(info, content)
    with pytest.raises(CorruptData, match=r"is damaged (after|at)"):
        read(made, tmp_path / "new")


def test_an_endless_chain_of_headers_is_refused(archive: Path, tmp_path: Path) -> None:
    header = tarfile.TarInfo._create_pax_generic_header(  # type: ignore[attr-defined]  # private
        {"comment": "x"}, tarfile.XHDTYPE, "utf-8"
    )
    archive.write_bytes(header * 2000 + archive.read_bytes())
    with pytest.raises((CorruptData, NotFound)):
        read(archive, tmp_path / "new")


def test_a_member_of_the_wrong_size_is_refused_before_it_is_written(
    archive: Path, tmp_path: Path
) -> None:
    with open_backup(archive) as backup:
        _, digest = backup.manifest.files["a"]
        backup.manifest.files["a"] = 7, digest
        with pytest.raises(CorruptData, match="40 bytes instead of 7"):
            backup.copy_file("a", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_pipe_in_a_copied_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "pipe")
    with (tmp_path / "archive").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_tree(tmp_path / "source", "t")
    assert writer.manifest.files == {}


def test_a_backup_does_not_write_to_a_hard_link_or_a_pipe(tmp_path: Path) -> None:
    other, unfinished = tmp_path / "other", tmp_path / "b.unfinished"
    other.write_text("x")
    unfinished.hardlink_to(other)
    with (
        pytest.raises(InvalidInput, match=r"b\.unfinished"),
        _unfinished(tmp_path / "b", mode=0o600),
    ):
        pass
    assert other.read_text() == "x"
    unfinished.unlink()
    os.mkfifo(unfinished)
    with pytest.raises((InvalidInput, OSError)), _unfinished(tmp_path / "b", mode=0o600):
        pass
    assert unfinished.exists()


def test_the_last_copy_of_a_file_is_restored_and_removed_folders_are_not(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    with (tmp_path / "archive").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        for text in ("first", "second and longer"):
            for name in ("strandline.db", "in/a"):
                (source / name).write_text(text)
                writer.add_file(source / name, f"t/{name}" if "/" in name else name)
        writer.add_folder(source, "t/in")
        writer.add_tree(source / "in", "t/deep/in")
        writer.remove_folder("t")
        writer.add_tree(source / "in", "u")
        writer.finish()
    expected = {"strandline.db": b"second and longer", "u/a": b"second and longer"}
    assert read(tmp_path / "archive", tmp_path / "new") == expected
    with open_backup(tmp_path / "archive") as backup:
        assert backup.manifest.folders == ["u"]


def test_an_archive_is_written_to_its_end_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strandline.db").touch()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda of: synced.append(os.fstat(of).st_size))
    with (tmp_path / "archive").open("wb", buffering=1 << 20) as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_file(tmp_path / "strandline.db", "strandline.db")
        writer.finish()
    assert synced == [(tmp_path / "archive").stat().st_size]


def test_a_folder_keeps_its_permissions_and_its_owner_gets_all(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o550)
    (tmp_path / "strandline.db").touch()
    with (tmp_path / "archive").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_folder(tmp_path / "shared", "shared")
        writer.add_file(tmp_path / "strandline.db", "strandline.db")
        writer.finish()
    with open_backup(tmp_path / "archive") as backup:
        assert backup.folder_mode("shared") == 0o750


def test_a_restored_file_has_its_permissions_whatever_the_umask(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    source.chmod(0o666)
    with (tmp_path / "shared").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_file(source, "strandline.db")
        writer.finish()
    before = os.umask(0o077)
    try:
        read(tmp_path / "shared", tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "strandline.db").stat().st_mode) == 0o666


def test_a_file_truncated_while_it_is_copied_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)
    add = ArchiveWriter._add
    sizes = [500, 200]

    def shortening(writer: ArchiveWriter, info: tarfile.TarInfo, content: io.IOBase) -> None:
        if sizes and info.name == "strandline.db":
            os.truncate(source, sizes.pop(0))
        add(writer, info, content)

    monkeypatch.setattr(ArchiveWriter, "_add", shortening)
    with (tmp_path / "archive").open("wb") as file:
        writer = ArchiveWriter(file, new_manifest())
        writer.add_file(source, "strandline.db")
        writer.finish()
    assert read(tmp_path / "archive", tmp_path / "new") == {"strandline.db": b"x" * 200}
    sizes[:] = range(190, 100, -10)
    with (tmp_path / "other").open("wb") as file, pytest.raises(Unavailable, match="truncated"):
        ArchiveWriter(file, new_manifest()).add_file(source, "strandline.db")


def test_a_backup_is_renamed_when_finished_and_two_cannot_write_the_same_file(
    tmp_path: Path,
) -> None:
    target = tmp_path / "b"
    (tmp_path / "b.unfinished").write_bytes(b"left by a killed backup")
    with _unfinished(target, mode=0o600) as file:
        with pytest.raises(AlreadyExists, match="is running"), _unfinished(target, mode=0o600):
            pass
        file.write(b"whole")
        file.flush()
        assert not target.exists()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("b", b"whole")]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_backup_does_not_overwrite_one_that_ends_before_its_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b"
    (tmp_path / "b.unfinished").write_bytes(b"whole")

    def end_first(descriptor: int) -> bool:
        (tmp_path / "b.unfinished").rename(target)
        return try_lock(descriptor)

    monkeypatch.setattr(taking, "try_lock", end_first)
    with pytest.raises((AlreadyExists, OSError)), _unfinished(target, mode=0o600):
        pass
    assert target.read_bytes() == b"whole"


def test_a_backup_whose_name_cannot_be_synced_fails_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(taking, "sync_folder", fail)
    with pytest.raises(OSError, match="Input/output"), _unfinished(tmp_path / "b", mode=0o600):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_no_unfinished_file_and_keeps_the_old_backup(
    archive: Path, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="No space left"), _unfinished(archive, mode=0o600):
        raise OSError(28, "No space left on device")
    assert not archive.with_name("archive.unfinished").exists()
    with pytest.raises(StrandlineError), _unfinished(archive, mode=0o600):
        pass
    assert archive.stat().st_size
