"""The warehouse: the one seam through which folders of tables are made and moved.

A location is text as Hive writes it: a URI with the scheme ``file``, or a plain absolute path; the
path of a URI stands there as it is, without percent escapes. Nothing but local folders can be
reached in this release.

Each operation may be done again after a crash that left it done: `make` finds the folder there,
`move` finds nothing at the old place and the folder at the new one. A move is on disk when it
returns (the folders above both places are synced), since the fact of where a table lies is about
to be committed.
"""

from __future__ import annotations

import errno
import os
import re
from enum import Enum
from pathlib import Path

from strandline.errors import InvalidInput, Unavailable, UnsupportedOperation

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
DROPPED = ".dropped"
"""The folder, beside those of the tables, that keeps what was dropped."""


class Moved(Enum):
    """What became of a `Warehouse.move`."""

    MOVED = "moved"
    DONE_BEFORE = "done before"
    MISSING = "missing"
    OCCUPIED = "occupied"


class Warehouse:
    """Folders of tables and schemas. Holds nothing."""

    def reaches(self, location: str) -> bool:
        """Whether ``location`` lies where this warehouse can make and move folders."""
        try:
            self.path(location)
        except (UnsupportedOperation, InvalidInput):
            return False
        return True

    def path(self, location: str) -> Path:
        """The folder on this machine that ``location`` names.

        Raises `UnsupportedOperation` for another scheme or machine, `InvalidInput` for a path that
        is not absolute.
        """
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

    def make(self, location: str) -> None:
        """Make the folder and those above it, unless it is there; they outlive a power cut."""
        path = self.path(location)
        try:
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                _sync_folder(folder.parent)
        except OSError as error:
            raise _failed("make", location, error) from error

    def exists(self, location: str) -> bool:
        """Whether the folder is there."""
        return self.path(location).is_dir()

    def move(self, source: str, target: str) -> Moved:
        """Move the folder ``source`` to ``target``, making the folders above it.

        An empty folder at ``target`` is replaced. `OCCUPIED`: something else is there, or it is on
        another file system; `MISSING`: there is nothing at either; then nothing was done.
        """
        old, new = self.path(source), self.path(target)
        try:
            if old == new:
                return Moved.DONE_BEFORE
            if not os.path.lexists(old):
                return Moved.DONE_BEFORE if os.path.lexists(new) else Moved.MISSING
            new.parent.mkdir(parents=True, exist_ok=True)
            os.rename(old, new)
            # Two levels of the new place: the folder above it may have been made just now.
            for folder in (new.parent, new.parent.parent, old.parent):
                _sync_folder(folder)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                return Moved.OCCUPIED
            raise _failed("move", f"{source} to {target}", error) from error
        return Moved.MOVED

    def remove_empty(self, location: str) -> bool:
        """Remove the folder if there is nothing in it; whether it is gone."""
        path = self.path(location)
        try:
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                return False
            raise _failed("remove", location, error) from error
        return True

    def dropped_place(self, location: str, table_id: int) -> str:
        """Where the folder of a dropped table goes: ``.dropped/<table id>`` beside it."""
        parent = location.rstrip("/").rpartition("/")[0]
        return f"{parent}/{DROPPED}/{table_id}"


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


_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EXDEV, errno.EINVAL)


def _comparable(location: str) -> str:
    return re.sub(r"^file:(//)?(?=/)", "", location)


def _absolute(text: str, location: str) -> Path:
    if not text.startswith("/") or "\x00" in text:
        raise InvalidInput(f"{location!r} is not an absolute path or a URI; write file:/path")
    return Path(os.path.normpath(text))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(what: str, where: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"could not {what} the folder {where}: {error.strerror or error}; check permissions and"
        " space, and try again"
    )
