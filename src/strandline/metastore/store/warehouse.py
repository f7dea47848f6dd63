"""The warehouse: the one seam through which folders of tables are made and moved.

A folder is named by a `Place`, or by a location: text as Hive writes it, a URI with the scheme
``file`` or a plain absolute path; the path of a URI stands there as it is, without percent escapes.
Nothing but local folders can be reached in this release.

Each operation may be done again after a crash that left it done: `make` finds the folder there,
`move` finds nothing at the old place and the folder at the new one. What was done is on disk before
the fact of where a table lies is committed: when the operation returns, or, where several are
committed together, when their `Unsynced` is synced.

What the system does not do it either *refuses*, and would refuse again (`FolderRefused`), or it is
*short* of something at the moment (`Unavailable`). What was done and could not be synced is short,
whatever the reason: it was not refused, and is recognized when it is done again.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from strandline.errors import InvalidInput, Unavailable, UnsupportedOperation
from strandline.model.places import Place

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LOCAL = re.compile(r"^file:(//(localhost)?)?(?=/)", re.IGNORECASE)
MAX_PART_BYTES = 255
MAX_PATH_BYTES = 4095
"""What file systems and the kernel allow a name, and a path, to have."""

REFUSED = frozenset(
    {
        # Not for this node.
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        # Not at this place: one above it is missing, is no folder, or cannot have such a name.
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EILSEQ,
        errno.EINVAL,
        # Not beside what is there, or what is at work there.
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EISDIR,
        errno.EBUSY,
        errno.EMLINK,
        # Not in this file system, or not across two of them.
        errno.EXDEV,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
    }
)
"""What the system answers about the place: the same until it is changed, perhaps for ever.

Everything else (no space, no quota, no memory, no descriptors, a disk that fails) is short: it may
be there the next time without a look at this folder.
"""
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class FolderRefused(Unavailable):
    """The system refuses it for a reason that lies in the place (`REFUSED`); nothing was done."""


class Moved(Enum):
    """What became of a `Warehouse.move`."""

    MOVED = "moved"
    DONE_BEFORE = "done before"
    MISSING = "missing"


class Unsynced:
    """Folders in which something was made, moved or removed, and that are not on disk yet."""

    def __init__(self) -> None:
        self._folders: dict[str, None] = {}  # thousands of paths are slow to compare

    def add(self, folders: Iterable[str | Path]) -> None:
        """Note folders; each is synced once, however often it is noted."""
        self._folders |= dict.fromkeys(os.fspath(folder) for folder in folders)

    def sync(self) -> None:
        """Put them on disk. Raises `Unavailable`, also for what would otherwise be refused."""
        for folder in self._folders:
            try:
                sync_folder(Path(folder))
            except OSError as error:
                raise Unavailable(
                    f"could not put the folder {folder} on disk: {_reason(error)}; check the disk,"
                    " and try again"
                ) from error
        self._folders.clear()


class Warehouse:
    """Folders of tables and schemas. New ones get the permission bits ``mode``."""

    def __init__(self, *, mode: int = 0o700) -> None:
        self._mode = mode

    def reaches(self, location: str | Place) -> bool:
        """Whether ``location`` lies where this warehouse can make and move folders."""
        try:
            self.path_text(location)
        except (UnsupportedOperation, InvalidInput):
            return False
        return True

    def path(self, location: str | Place) -> Path:
        """`path_text` as a path."""
        return Path(self.path_text(location))

    def path_text(self, location: str | Place) -> str:
        """The folder on this machine that ``location`` names, as an absolute path.

        Raises `UnsupportedOperation` for another scheme or machine, `InvalidInput` for a path that
        is not absolute, or too long for any folder to be there.
        """
        if isinstance(location, Place):
            location = location.text
        scheme = _SCHEME.match(location)
        if scheme is None:
            return _absolute(location, location)
        if scheme.group(1).lower() != "file":
            raise UnsupportedOperation(
                f"{location!r} has the scheme {scheme.group(1)!r}; this release keeps tables in"
                " local folders only: give a path, or a URI that starts with file:"
            )
        rest = location[scheme.end() :]
        if rest.startswith("//"):
            host, slash, tail = rest[2:].partition("/")
            if host.lower() not in ("", "localhost"):
                raise UnsupportedOperation(
                    f"{location!r} names the machine {host!r}; only this one can be reached:"
                    " write file:/path"
                )
            rest = slash + tail
        return _absolute(rest, location)

    def refuse_unmakeable(self, location: str | Place) -> None:
        """Raise `InvalidInput` where a folder cannot be made, as far as can be seen now.

        What lies out of reach is not looked at. This is asked before a change is appended: after
        that, a folder that cannot be made is left unmade.
        """
        try:
            path = self.path(location)
        except UnsupportedOperation:
            return
        existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        if not os.path.isdir(existing):
            raise InvalidInput(f"no folder can be made at {path}: {existing} is not a folder")
        if existing != path and not os.access(existing, os.W_OK | os.X_OK):
            raise InvalidInput(
                f"no folder can be made at {path}: this node may not make one in {existing}; give "
                "it the permission, or name another place"
            )

    def exists(self, location: str | Place) -> bool:
        """Whether the folder is there."""
        return os.path.isdir(self.path_text(location))

    # Each of these raises `FolderRefused` and `Unavailable`, and with ``unsynced`` leaves the
    # syncing to the caller. Then what was done before is synced too: perhaps that attempt was not.

    def make(self, location: str | Place, *, unsynced: Unsynced | None = None) -> None:
        """Make the folder and those above it, unless it is there."""
        path = self.path_text(location)
        try:
            made = make_folders(path, mode=self._mode)
        except OSError as error:
            raise _failed("make", path, error) from error
        if made or unsynced is None:
            _note(unsynced, map(os.path.dirname, made))
        else:
            _note(unsynced, _folders_above(path))

    def move(
        self, source: str | Place, target: str | Place, *, unsynced: Unsynced | None = None
    ) -> Moved:
        """Move the folder ``source`` to ``target``, making the folders above it.

        An empty folder at ``target`` is replaced; anything else there, and another file system, is
        refused. `MISSING`: there is nothing at either, and nothing was done.
        """
        old, new = self.path_text(source), self.path_text(target)
        try:
            if old == new:
                return Moved.DONE_BEFORE
            made: list[str] = []
            try:
                os.rename(old, new)
            except (FileNotFoundError, NotADirectoryError):
                if _is_missing(old):
                    if _is_missing(new):
                        return Moved.MISSING
                    if unsynced is not None:
                        unsynced.add([os.path.dirname(old), *_folders_above(new)])
                    return Moved.DONE_BEFORE
                made = make_folders(os.path.dirname(new), mode=self._mode)
                os.rename(old, new)
        except OSError as error:
            raise _failed("move", f"{old} to {new}", error) from error
        _note(unsynced, map(os.path.dirname, (new, old, *made)))
        return Moved.MOVED

    def remove_empty(self, location: str | Place, *, unsynced: Unsynced | None = None) -> bool:
        """Remove the folder if there is nothing in it; whether it is gone."""
        path = self.path_text(location)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise _failed("remove", path, error) from error
        _note(unsynced, [os.path.dirname(path)])
        return True


def delete_folder(path: Path) -> None:
    """Delete a folder with all that is in it, unless it is gone. Raises `OSError`."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def resolve_location(base: str, location: str) -> str:
    """``location`` as a URI or absolute path; a relative one lies below ``base``."""
    if not location:
        return base
    if location.startswith("/") or _SCHEME.match(location):
        return location
    return f"{base.rstrip('/')}/{location}"


def relative_location(base: str, location: str) -> str:
    """``location`` relative to ``base`` if it lies below it, else as it is.

    The form to keep for what must move with its table. ``file:/a`` and ``/a`` are the same place.
    """
    below, inner = _comparable(base).rstrip("/"), _comparable(location).rstrip("/")
    if inner == below:
        return ""
    rest = inner.removeprefix(f"{below}/")
    # A relative text that looks like a URI would be read back as one.
    if rest == inner or rest.startswith("/") or _SCHEME.match(rest):
        return location
    return rest


def _comparable(location: str) -> str:
    return _LOCAL.sub("", location)


def _absolute(text: str, location: str) -> str:
    if not text.startswith("/") or "\x00" in text:
        raise InvalidInput(f"{location!r} is not an absolute path or a URI; write file:/path")
    path = os.path.normpath(text)
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidInput(f"{location!r} is no path: it holds half a character") from None
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_PART_BYTES or len(encoded) > MAX_PATH_BYTES:
        raise InvalidInput(
            f"the path {location[:80]!r}… is too long: it may have {MAX_PATH_BYTES} bytes, and "
            f"{MAX_PART_BYTES} in each part"
        )
    return path


def _is_missing(path: str) -> bool:
    """Whether nothing is there. What cannot be looked at is an error."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def make_folders(folder: str | Path, *, mode: int) -> list[str]:
    """Make the folder and those above it, each with ``mode``; those that were not there."""
    path = os.fspath(folder)
    try:
        os.mkdir(path, mode)
    except (FileExistsError, FileNotFoundError):
        pass  # it is there, or others are missing
    else:
        return [path]
    missing = [place for place in (path, *_folders_above(path)) if not os.path.isdir(place)]
    for place in reversed(missing):
        try:
            os.mkdir(place, mode)
        except FileExistsError:
            if not os.path.isdir(place):
                raise
    return missing


def _folders_above(path: str) -> Iterator[str]:
    """The folders that a folder lies in, the innermost first."""
    while (above := os.path.dirname(path)) not in ("", path):
        path = above
        yield path


def _note(unsynced: Unsynced | None, folders: Iterable[str]) -> None:
    """Leave the folders to be synced, or sync them now if no caller will."""
    now = Unsynced() if unsynced is None else unsynced
    now.add(folders)
    if unsynced is None:
        now.sync()


def sync_folder(folder: Path) -> None:
    """Put the entries of a folder on disk, unless it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        os.sync()  # its entries may be changed, but not read: with everything else
        return
    except (FileNotFoundError, NotADirectoryError):
        return  # it was removed meanwhile, and what was in it with it
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text


def _failed(what: str, where: object, error: OSError) -> Unavailable:
    said = f"could not {what} the folder {where}: {_reason(error)}"
    if error.errno in REFUSED:
        return FolderRefused(f"{said}; check what is there and who may write there")
    return Unavailable(f"{said}; check the space and the disk, and try again")
