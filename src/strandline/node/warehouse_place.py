"""The warehouse of a store on servers: which folder it is, and that it is this store's.

The tables of such a store lie in a folder that every node reaches at the same path (a local disk
where there is one node, else a shared file system). Two mistakes would be costly: two stores on one
warehouse would move each other's folders, and a node whose file system is not mounted would make
every table anew in an empty folder.

So each side names the other. The database keeps the real path of the warehouse, and a file in the
warehouse (`MARKER`) says to which environment it belongs. A node serves the store only where both
agree. The first node writes the marker, then the path: a crash in between is finished by the next.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strandline.errors import CorruptData, InvalidInput, StoreMoved, Unavailable, WrongEnvironment
from strandline.metastore.store.warehouse import make_folders
from strandline.node import place
from strandline.node.place import Place
from strandline.sql import Database

MARKER = ".strandline-store"


@dataclass(frozen=True, slots=True)
class WarehousePlace:
    """The folder of a warehouse, absolute and as the user wrote it, and its store's database.

    ``names`` are all absolute paths that it had.
    """

    folder: Path
    database: Database
    names: tuple[str, ...] = ()

    def refuse_foreign(self, *, is_new: Callable[[], bool]) -> None:
        """Raise `WrongEnvironment` if the folder has a store and this database has none yet.

        `InvalidInput` if the folder lies in that of a store. ``is_new`` says whether the database
        has none.
        """
        environment = marked_environment(self.folder)
        # In this order: a node that is making this very store marks the folder after the catalog.
        if environment is not None and is_new():
            raise WrongEnvironment(
                f"the warehouse {self.folder} holds the tables of another store (environment"
                f" {environment!r}), and {self.database.name} holds no store yet. If its database"
                " was lost, restore it from a backup; for a new store, name another folder"
            )
        if environment is None and is_new():
            refuse_nested(self.folder)

    def claim(self, environment: str, *, mode: int) -> None:
        """Make the folder the warehouse of the store, or find that it is.

        Raises `StoreMoved` for another folder than the store has, `WrongEnvironment` for a folder
        of another store, `CorruptData` where the marker is gone.
        """
        recorded = recorded_warehouse(self.database)
        real = os.path.realpath(self.folder)
        if recorded is not None:
            self._require_same(recorded.path, real)
        else:
            try:
                make_folders(self.folder, mode=mode)
            except OSError as error:
                raise InvalidInput(
                    f"the warehouse {self.folder} cannot be made: {error.strerror}"
                ) from error
            self.mark(environment, mode=mode & 0o666)
        self.check(environment)
        if recorded is None:
            with self.database.write() as connection:
                other = place.read(connection)
                if other is not None:  # another node was first, perhaps with another folder
                    self._require_same(other.path, real)
                    return
                names = tuple(dict.fromkeys([str(self.folder), real]))
                place.put(connection, Place(real, 0, names))

    def _require_same(self, recorded: str, real: str) -> None:
        if recorded != real:
            raise StoreMoved(
                f"the tables of the store in {self.database.name} lie in {recorded}, and warehouse"
                f" is {self.folder}; mount that folder at its old path, and name it"
            )

    def check(self, environment: str) -> None:
        """Raise unless the folder is there and is this store's."""
        marked = marked_environment(self.folder)
        if marked is None:
            raise CorruptData(
                f"the warehouse {self.folder} is not the one of the store in {self.database.name}:"
                f" it has no file {MARKER}. If its file system is not mounted, mount it; if the"
                " tables were lost, restore the folder from a backup"
            )
        if marked != environment:
            raise WrongEnvironment(
                f"the warehouse {self.folder} belongs to the store {marked!r}, and"
                f" {self.database.name} is the store {environment!r}; name the folder of this store"
            )

    def mark(self, environment: str, *, mode: int) -> None:
        """Write the marker, if there is none. It is whole when it is there: it gets its name last.

        Of two nodes that write it at once, both write the same. Their process ids may be equal: on
        two machines, or in two containers.
        """
        path = self.folder / MARKER
        if path.exists():
            return
        written = self.folder / f"{MARKER}.{secrets.token_hex(8)}"
        file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.write(file, json.dumps({"environment": environment}).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        try:
            os.link(written, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(written)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def marked_environment(warehouse: Path) -> str | None:
    """The environment that the marker in ``warehouse`` names; None without one."""
    path = warehouse / MARKER
    try:
        return str(json.loads(path.read_bytes())["environment"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path} is damaged: {error}; restore it from a backup") from error


def refuse_nested(folder: Path) -> None:
    """Raise `InvalidInput` where ``folder`` lies in that of a store, or in a store's warehouse.

    That store would clean and move what it finds there.
    """
    for above in Path(os.path.realpath(folder)).parents:
        if (above / place.DATABASE_FILE).exists() or (above / MARKER).exists():
            raise InvalidInput(
                f"{folder} lies in {above}, which is a folder of another store; name a folder"
                " outside of it"
            )


def recorded_warehouse(database: Database) -> Place | None:
    """The warehouse of the store in ``database``; None before it has one."""
    database.ensure_schema(place.PART, place.VERSION, place.METADATA)
    with database.read() as connection:
        return place.read(connection)


def place_of_warehouse(database: Database, warehouse: str) -> WarehousePlace:
    """The warehouse that the setting names, or without one the recorded one. `InvalidInput`."""
    recorded = recorded_warehouse(database)
    folder = warehouse or (recorded and recorded.path)
    if not folder:
        raise InvalidInput(
            f"the store in {database.name} is new, and the folder of its tables is not named;"
            " add --warehouse FOLDER, at a path that every node reaches"
        )
    if not os.path.isabs(folder):
        raise InvalidInput(f"warehouse is {folder!r}; name an absolute path")
    return WarehousePlace(Path(folder), database, recorded.names if recorded else ())
