"""The warehouse: the one seam through which folders of tables are made and moved.

A folder is named by a `Place`, or by a location in Hive's notation: a URI with the scheme ``file``
or a plain absolute path. The path of a URI is taken literally, without percent escapes. This
release can reach only local folders.

Each operation can be repeated after a crash, whether it was done or not: `make` finds the folder,
`move` finds nothing at the old place and the folder at the new one. A change of a folder is on disk
before the place of its table is committed: when the operation returns or, if several are committed
together, when their `Unsynced` is synced.

If an operation fails, the system either *refuses* it, and would refuse it again (`FolderRefused`),
or is *short* of something at the moment (`Unavailable`). A change that was made but could not be
synced is always a shortage, whatever the reason: it was not refused, and is recognized when it is
repeated.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from strandline.errors import InvalidInput, StrandlineError, Unavailable, UnsupportedOperation
from strandline.files import give_folder_to_owner, sync_folder
from strandline.model.places import Place

logger = logging.getLogger(__name__)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LOCAL = re.compile(r"^file:(//(localhost)?)?(?=/)", re.IGNORECASE)
MAX_PART_BYTES = 255
MAX_PATH_BYTES = 4095
"""The longest name of a file, and the longest path, that Linux allows."""

REFUSED = frozenset(
    {
        # This node lacks the permission.
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        # The path is wrong: a folder above is missing or not a folder, or a name is not allowed.
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EILSEQ,
        errno.EINVAL,
        # Something is in the way, or uses the folder.
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EISDIR,
        errno.EBUSY,
        errno.EMLINK,
        # This file system cannot do it, or not together with the other one.
        errno.EXDEV,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
    }
)
"""Errors of the place itself: they recur until the place is changed, perhaps for ever.

All other errors (no space, no quota, no memory, no descriptors, a failing disk) are shortages: the
next attempt may succeed although nothing changed at this place.
"""
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class FolderRefused(Unavailable):
    """The system refuses the change for a reason in the place (`REFUSED`); nothing was done."""


class Moved(Enum):
    """The outcome of a `Warehouse.move`."""

    MOVED = "moved"
    DONE_BEFORE = "done before"
    MISSING = "missing"


class Unsynced:
    """Folders whose entries were changed, and whose changes are not synced yet."""

    def __init__(self) -> None:
        self._folders: dict[str, None] = {}  # text: `Path` objects are slow to compare

    def add(self, folders: Iterable[str | Path]) -> None:
        """Note folders; each is synced once, however often it is noted."""
        self._folders |= dict.fromkeys(os.fspath(folder) for folder in folders)

    def sync(self) -> None:
        """Sync the folders. Raises `Unavailable` for every error, also for those in `REFUSED`."""
        for folder in self._folders:
            try:
                sync_folder(Path(folder))
            except (FileNotFoundError, NotADirectoryError):
                pass  # it was removed meanwhile, with its contents
            except OSError as error:
                if _is_of_handler(error):
                    raise
                raise Unavailable(
                    f"could not sync the folder {folder} to disk: {_reason(error)}; check the "
                    "disk, and try again"
                ) from error
        self._folders.clear()


class Warehouse:
    """Folders of tables and schemas. New ones get the permission bits ``mode``."""

    def __init__(self, *, mode: int = 0o700) -> None:
        self._mode = mode

    def reaches(self, location: str | Place) -> bool:
        """Whether ``location`` is a local folder that this warehouse can make or move."""
        return self.path_if_local(location) is not None

    def path(self, location: str | Place) -> Path:
        return Path(self.path_text(location))

    def path_if_local(self, location: str | Place) -> str | None:
        """`path_text`, or None for what that refuses."""
        try:
            return self.path_text(location)
        except (UnsupportedOperation, InvalidInput):
            return None

    def path_text(self, location: str | Place) -> str:
        """The absolute path of the local folder that ``location`` names.

        Raises `UnsupportedOperation` for another scheme or machine, and `InvalidInput` for a path
        that is not absolute or longer than the system allows.
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
        """Raise `InvalidInput` if it is clear now that a folder cannot be made there.

        Does not check locations out of reach. Called before a change is appended: after that, a
        folder that cannot be made is skipped.
        """
        try:
            path = self.path(location)
        except UnsupportedOperation:
            return
        existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        if not os.path.isdir(existing):
            raise InvalidInput(
                f"no folder can be made at {path}: {existing} is not a folder; remove it, or name "
                "another place"
            )
        if existing != path and not os.access(existing, os.W_OK | os.X_OK):
            raise InvalidInput(
                f"no folder can be made at {path}: this node may not make one in {existing}; give "
                "it the permission, or name another place"
            )

    def exists(self, location: str | Place) -> bool:
        """Whether the folder is within reach and exists."""
        path = self.path_if_local(location)
        return path is not None and os.path.isdir(path)

    def is_missing(self, location: str | Place) -> bool:
        """Whether the folder is within reach and does not exist."""
        path = self.path_if_local(location)
        return path is not None and not os.path.isdir(path)

    # Each of these raises `FolderRefused` and `Unavailable`, and with ``unsynced`` leaves the
    # syncing to the caller. What an earlier attempt did is then synced too: it may not have been.

    def make(self, location: str | Place, *, unsynced: Unsynced | None = None) -> None:
        """Make the folder and those above it, unless it exists."""
        path = self.path_text(location)
        try:
            new_folders = self._make_folders(path)
        except OSError as error:
            raise _failed("make", path, error) from error
        if new_folders or unsynced is None:
            _note(unsynced, map(os.path.dirname, new_folders))
        else:
            _note(unsynced, _folders_above(path))

    def move(
        self, source: str | Place, target: str | Place, *, unsynced: Unsynced | None = None
    ) -> Moved:
        """Move the folder ``source`` to ``target``, making the folders above it.

        Replaces an empty folder at ``target``. Refuses if anything else is there, or if the target
        is in another file system. Returns `Moved.MISSING`, and does nothing, if neither exists.
        """
        old, new = self.path_text(source), self.path_text(target)
        try:
            new_folders: list[str] = []
            try:
                os.rename(old, new)
            except (FileNotFoundError, NotADirectoryError):
                if _is_missing(old):
                    if _is_missing(new):
                        return Moved.MISSING
                    if unsynced is not None:
                        unsynced.add([os.path.dirname(old), *_folders_above(new)])
                    return Moved.DONE_BEFORE
                new_folders = self._make_folders(os.path.dirname(new))
                os.rename(old, new)
        except OSError as error:
            raise _failed("move", f"{old} to {new}", error) from error
        _note(unsynced, map(os.path.dirname, (new, old, *new_folders)))
        return Moved.MOVED

    def remove_empty(self, location: str | Place, *, unsynced: Unsynced | None = None) -> bool:
        """Remove the folder if it is empty; return whether it is gone."""
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

    def _make_folders(self, path: str) -> list[str]:
        new_folders = make_folders(path, mode=self._mode)
        for folder in reversed(new_folders):
            give_folder_to_owner(folder)
        return new_folders


class FolderMoves:
    """The folders that a SQL transaction moves and makes. If it is undone, they are moved back.

    ``if_undone`` is `Database.if_undone`.
    """

    def __init__(
        self, folders: Warehouse, if_undone: Callable[[Callable[[], object]], None]
    ) -> None:
        self._folders = folders
        self._unsynced = Unsynced()
        self.moved: list[tuple[str, str]] = []
        self._made: dict[str, os.stat_result] = {}
        if_undone(self._move_back)

    def move(self, source: str, target: str) -> Moved:
        outcome = self._folders.move(source, target, unsynced=self._unsynced)
        if outcome is Moved.MOVED:
            self.moved.append((source, target))
        return outcome

    def make(self, location: str) -> None:
        self._folders.make(location, unsynced=self._unsynced)
        self._made[location] = os.stat(self._folders.path_text(location))

    def sync(self) -> None:
        """Sync what was done. Call it before the change is committed."""
        self._unsynced.sync()

    def _move_back(self) -> None:
        """Move the folders back, as far as the system allows.

        If the connection to the database was lost, another process may have moved the table since,
        and another table may have its folder: a folder that was made must still be the same one.
        """
        while self.moved:
            source, target = self.moved.pop()
            try:
                made = self._made.get(source)
                if made and not os.path.samestat(made, os.stat(self._folders.path_text(source))):
                    raise FolderRefused(f"{source} is now the folder of another table")
                self._folders.move(target, source)
            except (StrandlineError, OSError):
                logger.exception(
                    "a change failed, and the folder %s could not be moved back; move it to %s, "
                    "since cleaning may delete it after a day",
                    target,
                    source,
                )


def delete_folder(path: str | Path, *, below: int | None = None) -> None:
    """Delete a folder with its contents, if it exists. Raises `OSError`.

    ``below`` is the descriptor of the folder that ``path`` is relative to.
    """
    # Another node may delete it too: a file that it was first to delete must not end this.
    shutil.rmtree(path, ignore_errors=True, dir_fd=below)
    with suppress(FileNotFoundError):
        shutil.rmtree(path, dir_fd=below)  # if anything is left, this raises the reason


def delete_or_leave(path: Path) -> None:
    """Delete a folder that nothing needs. If it cannot be deleted, it is left to the cleaning."""
    try:
        delete_folder(path)
    except OSError as error:
        logger.warning("the folder %s is not deleted yet: %s; cleaning tries again", path, error)


def resolve_location(base: str, location: str) -> str:
    """``location`` as a URI or absolute path; a relative one is taken below ``base``."""
    if not location:
        return base
    if location.startswith("/") or _SCHEME.match(location):
        return location
    return f"{base.rstrip('/')}/{location}"


def relative_location(base: str, location: str) -> str:
    """``location`` relative to ``base`` if it is below it, else unchanged.

    Store locations that must move with their table in this form. ``file:/a`` and ``/a`` are equal.
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
        raise InvalidInput(
            f"{location!r} is not a path: it contains half a surrogate pair"
        ) from None
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_PART_BYTES or len(encoded) > MAX_PATH_BYTES:
        raise InvalidInput(
            f"the path {location[:80]!r}… is too long: at most {MAX_PATH_BYTES} bytes are "
            f"allowed, and {MAX_PART_BYTES} in each part"
        )
    return path


def _is_missing(path: str) -> bool:
    """Whether nothing is at ``path``. Raises `OSError` if this cannot be checked."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def make_folders(folder: str | Path, *, mode: int) -> list[str]:
    """Make the folder and those above it, each with ``mode``; return those that were missing."""
    path = os.fspath(folder)
    try:
        os.mkdir(path, mode)
    except (FileExistsError, FileNotFoundError):
        pass  # it exists, or folders above are missing
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


def make_synced_folders(folder: str | Path, *, mode: int) -> None:
    """`make_folders`, and sync the new ones, so that what is synced in them outlasts a power cut.

    Raises `OSError`.
    """
    for new in make_folders(folder, mode=mode):
        sync_folder(Path(new).parent)


def _folders_above(path: str) -> Iterator[str]:
    """The folders above ``path``, the innermost first."""
    while (above := os.path.dirname(path)) not in ("", path):
        path = above
        yield path


def _note(unsynced: Unsynced | None, folders: Iterable[str]) -> None:
    now = Unsynced() if unsynced is None else unsynced
    now.add(folders)
    if unsynced is None:
        now.sync()


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text


def _is_of_handler(error: OSError) -> bool:
    """Whether a signal handler raised it, such as the `TimeoutError` of a time limit."""
    return error.errno is None


def _failed(what: str, where: object, error: OSError) -> Unavailable:
    if _is_of_handler(error):
        raise error
    message = f"could not {what} the folder {where}: {_reason(error)}"
    if error.errno in REFUSED:
        return FolderRefused(f"{message}; check what is there and who may write there")
    return Unavailable(f"{message}; check the space and the disk, and try again")
