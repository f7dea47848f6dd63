"""The manifest of a backup: ``backup.json``, the last of its files.

Format 1, of release 0.2.1, is a folder of files. Format 2 is a tar file, or the folder that
``tar -x`` extracts from it. Only format 2 can hold a store on servers, which has a ``warehouse``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from strandline.errors import AlreadyExists, CorruptData, IncompatibleFormat, InvalidInput
from strandline.metastore.session.json_forms import form_of
from strandline.metastore.session.json_values import Misfit
from strandline.metastore.session.wire_json import parse_json
from strandline.node.address import DATABASE_FILE

MANIFEST = "backup.json"
FORMAT = 2
_PATHS = ("folders", "missing")
"""The fields of a manifest that are lists of paths."""
UNFINISHED = ".unfinished"
"""The suffix of a file until its content is complete and on disk; then the file is renamed."""


@dataclass(slots=True)
class Manifest:
    """The content of a backup. ``files`` maps each path to its size and SHA-256.

    Paths are separated by slashes. ``folders`` lists all folders, also the empty ones of tables
    without files; a parent comes before its children. ``store`` is the folder of the store, or its
    address without user and password. ``warehouse`` is the real path of the warehouse of a store on
    servers, and empty for a folder. ``mode`` is the permission bits of the store's folder.
    """

    format: int
    release: str
    store: str
    environment: str
    catalog_version: int
    time: str
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    warehouse: str = ""
    mode: int = 0o700

    @property
    def total_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def parsed(text: bytes, *, name: Path, mode: int | None = None) -> Manifest:
    """Return the manifest in ``text``, of the backup ``name``.

    ``mode`` is used for format 1, which does not have this field. Raises `CorruptData` and
    `IncompatibleFormat`.
    """
    try:
        stated = parse_json(text)
        _refuse_newer(stated, name=name)
        paths = _pop_paths(stated)
        manifest: Manifest = form_of(Manifest).read(stated)
    except InvalidInput as error:
        raise _damaged(name, error.message) from error
    except Misfit as misfit:
        raise _damaged(name, misfit.error().message) from misfit
    for field_name, listed in paths.items():
        setattr(manifest, field_name, listed)
    if manifest.format == 1 and mode is not None:
        manifest.mode = mode
    if manifest.mode != stat.S_IMODE(manifest.mode):
        raise _damaged(name, f"{manifest.mode} are not permissions")
    for path in (*manifest.files, *manifest.folders):
        if not is_below(path):
            raise _damaged(name, f"{path!r} is not a file of a backup")
    if DATABASE_FILE not in manifest.files:
        raise _damaged(name, f"it does not name {DATABASE_FILE}")
    return manifest


def _damaged(name: Path, reason: str) -> CorruptData:
    return CorruptData(f"{MANIFEST} of {name} is damaged: {reason}; use another backup")


def _refuse_newer(stated: object, *, name: Path) -> None:
    """Raise `IncompatibleFormat` if the manifest ``stated`` names a newer format."""
    number = stated.get("format") if isinstance(stated, dict) else None
    if isinstance(stated, dict) and isinstance(number, int) and number > FORMAT:
        raise IncompatibleFormat(
            f"{name} has the format {number}, this release reads up to {FORMAT}; "
            f"restore it with release {stated.get('release')} or newer"
        )


def _pop_paths(stated: object) -> dict[str, list[str]]:
    """Remove the lists of paths from ``stated`` and return them, by field.

    They are taken out before the manifest is decoded, because a path need not be valid UTF-8.
    """
    path_lists: dict[str, list[str]] = {}
    if not isinstance(stated, dict):
        return path_lists
    for name in _PATHS:
        listed = stated.get(name)
        if isinstance(listed, list) and all(isinstance(path, str) for path in listed):
            path_lists[name] = stated.pop(name)
    return path_lists


def is_below(path: str) -> bool:
    """Whether the path of a backup's file stays below the folder that it is restored to."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def refuse_target(target: Path, *, named_by: str = "") -> None:
    """Raise unless ``target``, which the user names by an option, is empty or does not exist."""
    advice = f"name an empty folder, or one that does not exist{named_by and f', with {named_by}'}"
    if target.exists() and not target.is_dir():
        raise InvalidInput(f"{target} is not a folder; {advice}")
    if target.is_dir() and any(target.iterdir()):
        raise AlreadyExists(f"{target} is not empty; {advice}")


def refuse_inside(first: Path, second: Path) -> None:
    """Raise `InvalidInput` if one of the two paths is inside the other or equal to it."""
    real, real_second = Path(os.path.realpath(first)), Path(os.path.realpath(second))
    if real.is_relative_to(real_second) or real_second.is_relative_to(real):
        raise InvalidInput(
            f"{first} and {second} are one folder, or one is inside the other; choose another place"
        )
