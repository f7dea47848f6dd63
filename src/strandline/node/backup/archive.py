"""The file of a backup: a tar file whose last member is the manifest.

The writer copies a file to the archive and records its size and SHA-256 in the manifest. A member
cannot be removed from a tar file. So if a file is copied again under the same name, the last member
with that name counts, and readers ignore members that the manifest does not name. The manifest is
the last member, so an archive without it is incomplete. Its own SHA-256 is in its tar header.

A reader first scans the headers, then reads the manifest, then each file that the manifest names,
at its offset. So a reader writes only files that the manifest names, and it checks each name before
it uses the name as a path. Links, devices and other members that no backup has are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from strandline.errors import CorruptData, NotFound, Unavailable
from strandline.files import give_to_owner
from strandline.node.backup.manifest import MANIFEST, Manifest, is_below, parsed

_CHUNK = 1 << 20
_TRIES = 5
_OF_FSCK = "lost+found"
_DIGEST = "STRANDLINE.sha256"
_LATEST = float(1 << 40)
"""The upper bound of a file's time, in seconds; every file system accepts times below it."""
_UNREADABLE = (tarfile.TarError, ValueError, OverflowError, RecursionError)
"""The errors that tarfile raises for a header that it cannot read."""
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def is_plain(file: Path) -> bool:
    """Whether ``file`` is a regular file, and not a symbolic link to one."""
    return file.is_file() and not file.is_symlink()


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, but a folder that cannot be listed is an error, unless it was moved or removed.

    The folder of ``fsck`` at the root of a file system, which only root may list, is no error.
    """
    return os.walk(root, onerror=_refuse_unlisted)


def _refuse_unlisted(error: OSError) -> None:
    is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    if not is_gone and os.path.basename(error.filename) != _OF_FSCK:
        raise error


class _Hashed:
    """Hashes what it reads. If the file was truncated, pads with zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.is_whole = True

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            self.is_whole = False
            data += bytes(size - len(data))
        self.digest.update(data)
        return data


class ArchiveWriter:
    """Writes an archive, and adds its files and folders to ``manifest``."""

    def __init__(self, file: BinaryIO, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folders = dict.fromkeys(manifest.folders)  # in the order of the archive
        self._inside = defaultdict[str, set[str]](set)  # the names directly in each folder
        self._file = file
        self._tar = tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `finish` closes it
        self._tar.copybufsize = _CHUNK  # type: ignore[attr-defined]  # tarfile's, without a stub

    def add_folder(self, source: Path, name: str) -> None:
        """Add a folder, with the permissions of ``source`` and full ones for its owner."""
        if name in self._folders:
            return
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, stat.S_IRWXU
        with suppress(FileNotFoundError):  # moved or removed since it was listed
            info.mode |= stat.S_IMODE(source.stat().st_mode)
        self._add(info)
        self._folders[name] = None
        self._note(name)

    def add_file(self, source: Path, name: str) -> None:
        """Copy a file to the archive as ``name``, replacing an earlier copy of that name.

        Raises FileNotFoundError, and `Unavailable` if every attempt finds that the file was
        truncated while it was copied.
        """
        for _ in range(_TRIES):
            with source.open("rb") as file:
                status = os.fstat(file.fileno())
                info = tarfile.TarInfo(name)
                info.size, info.mtime = status.st_size, status.st_mtime
                info.mode = stat.S_IMODE(status.st_mode) | stat.S_IWUSR
                hashed = _Hashed(file)
                self._add(info, hashed)
            if hashed.is_whole:
                self.manifest.files[name] = info.size, hashed.digest.hexdigest()
                self._note(name)
                return
        raise Unavailable(
            f"{source} is repeatedly truncated while it is copied; back up again when its"
            " writer has ended"
        )

    def add_tree(self, source: Path, place: str) -> None:
        """Copy everything below ``source`` to the folder ``place``, except files already there.

        Skips symbolic links, pipes and other special files, and files that are removed meanwhile.
        """
        for path, folders, files in walk(source):
            folders.sort()
            folder = PurePosixPath(place) / Path(path).relative_to(source).as_posix()
            self.add_folder(Path(path), folder.as_posix())
            for file_name in sorted(files):
                file, name = Path(path) / file_name, (folder / file_name).as_posix()
                if name not in self.manifest.files and is_plain(file):
                    with suppress(FileNotFoundError):
                        self.add_file(file, name)

    def remove_folder(self, place: str) -> None:
        """Remove the folder ``place`` and everything in it from the manifest."""
        names = [place]
        while names:
            name = names.pop()
            names += self._inside.pop(name, ())
            self.manifest.files.pop(name, None)
            self._folders.pop(name, None)

    def _note(self, name: str) -> None:
        """Note in which folder a file or folder is, and in which one that is."""
        while name:
            folder = name.rpartition("/")[0]
            if name in self._inside[folder]:
                return
            self._inside[folder].add(name)
            name = folder

    def finish(self) -> None:
        """Write the manifest, and return when the whole archive is on disk."""
        self.manifest.folders[:] = self._folders
        text = json.dumps(asdict(self.manifest), indent=1).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(text)
        info.pax_headers = {_DIGEST: hashlib.sha256(text).hexdigest()}
        self._add(info, BytesIO(text))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _add(self, info: tarfile.TarInfo, content: _Readable | None = None) -> None:
        self._tar.addfile(info, content)  # type: ignore[arg-type]  # it only calls `read`
        self._tar.members.clear()  # type: ignore[attr-defined]  # it would keep all in memory


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Member:
    offset: int
    size: int
    mode: int
    mtime: float


class Backup(ABC):
    """An existing backup. Messages name it by ``path``."""

    path: Path
    manifest: Manifest

    @abstractmethod
    def _open(self, name: str) -> tuple[IO[bytes], _Member]:
        """Open a file of the backup, positioned at its start. Raises FileNotFoundError."""

    @abstractmethod
    def folder_mode(self, name: str) -> int:
        """Return the permission bits of a folder."""

    def copy_file(self, name: str, target: Path) -> None:
        """Copy the file ``name`` to ``target``, which must not exist.

        Raises `CorruptData` if the backup lacks the file, or if its size or SHA-256 differs from
        the manifest.
        """
        size, digest = self.manifest.files[name]
        try:
            read, member = self._open(name)
        except FileNotFoundError:
            raise CorruptData(
                f"the backup {self.path} lacks the file {name}; use another one"
            ) from None
        hashed, remaining, mode = hashlib.sha256(), member.size, member.mode & 0o777
        with read:
            if member.size != size:  # checked first: the member may be as large as the disk
                raise self._differs(name, member.size)
            if not target.parent.is_dir():
                target.parent.mkdir(parents=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(target, flags, mode), "wb") as written:
                give_to_owner(written.fileno(), of=target.parent)
                os.fchmod(written.fileno(), mode)  # overrides the umask
                while remaining and (chunk := read.read(min(remaining, _CHUNK))):
                    hashed.update(chunk)
                    remaining -= len(chunk)
                    written.write(chunk)
        if remaining or hashed.hexdigest() != digest:
            raise self._differs(name, member.size - remaining)
        os.utime(target, (member.mtime, member.mtime))

    def _differs(self, name: str, size: int) -> CorruptData:
        expected = self.manifest.files[name][0]
        actual = "other content" if size == expected else f"{size} bytes instead of {expected}"
        return CorruptData(
            f"the file {name} of the backup {self.path} is not as it was written: it has {actual}; "
            "use another backup"
        )


class _Archive(Backup):
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._members: dict[str, _Member] = {}
        last = self._walk()
        if last is None or last.name != MANIFEST:
            raise CorruptData(
                f"{path} does not end with {MANIFEST}: it was cut off, or is damaged; use another"
                " backup"
            )
        read, member = self._open(MANIFEST)
        with read:
            text = read.read(member.size)
        if hashlib.sha256(text).hexdigest() != last.pax_headers.get(_DIGEST):
            raise CorruptData(f"{MANIFEST} of {path} is not as it was written; use another backup")
        self.manifest = parsed(text, name=path)

    def _walk(self) -> tarfile.TarInfo | None:
        """Record the offset of each member, and return the last one, or None if there is none."""
        last = None
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                while (info := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # it would keep all in memory
                    if info.type not in _PLAIN or info.issparse() or not is_below(info.name):
                        raise CorruptData(
                            f"{self.path} is damaged: {info.name!r} is not a file; use another"
                            " backup"
                        )
                    is_sound = info.size >= 0 and abs(info.mtime) < _LATEST  # NaN fails this
                    if not is_sound or (last is not None and info.offset <= last.offset):
                        raise CorruptData(
                            f"{self.path} is damaged after {info.name!r}; use another backup"
                        )
                    mode = stat.S_IMODE(info.mode)
                    member = _Member(info.offset_data, info.size, mode, float(info.mtime))
                    self._members[info.name] = member
                    last = info
        except _UNREADABLE as error:
            if last is None:
                raise NotFound(f"{self.path} is not a backup: {error}") from None
            raise CorruptData(
                f"{self.path} is damaged after {last.name!r}: {error}; use another backup"
            ) from error
        return last

    def _open(self, name: str) -> tuple[IO[bytes], _Member]:
        member = self._members.get(name)
        if member is None:
            raise FileNotFoundError(name)
        read = self.path.open("rb")
        read.seek(member.offset)
        return read, member

    def folder_mode(self, name: str) -> int:
        member = self._members.get(name)
        return stat.S_IRWXU if member is None else member.mode | stat.S_IRWXU


class _Unpacked(Backup):
    """A folder with a backup of release 0.2.1, or with an unpacked tar file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = (path / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise NotFound(
                f"{path} is not a complete backup: it has no {MANIFEST}; name another backup"
            ) from None
        self.manifest = parsed(text, name=path, mode=stat.S_IMODE(path.stat().st_mode))

    def _open(self, name: str) -> tuple[IO[bytes], _Member]:
        path = self.path / name
        if not is_plain(path) and os.path.lexists(path):
            raise CorruptData(f"{path} is not a file; use another backup")
        read = path.open("rb")
        status = os.fstat(read.fileno())
        mode = stat.S_IMODE(status.st_mode)
        return read, _Member(0, status.st_size, mode, status.st_mtime)

    def folder_mode(self, name: str) -> int:
        with suppress(FileNotFoundError):
            return stat.S_IMODE((self.path / name).stat().st_mode) | stat.S_IRWXU
        return stat.S_IRWXU


@contextmanager
def open_backup(path: Path) -> Iterator[Backup]:
    """Open the backup at ``path``. Raises `NotFound`, `CorruptData`, `IncompatibleFormat`."""
    if path.is_dir():
        yield _Unpacked(path)
        return
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"{path} is not a backup: the file does not exist") from None
    with file:
        yield _Archive(path, file)
