"""The warehouse of a store on servers: which folder it is, and that it belongs to this store.

The tables of such a store are in a folder that every node reaches at the same path (on a local disk
if there is one node, else on a shared file system). Two mistakes would be costly: two stores with
one warehouse would move each other's folders, and a node whose file system is not mounted would
create every table again in an empty folder.

So each side names the other. The database records the real path of the warehouse, and a file in the
warehouse (`MARKER`) has the environment id of the store. A node serves the store only if both
agree. The first node writes the marker, then the path. After a crash in between, the next node
writes the path. `WAREHOUSE_HEAD` is beside the marker.

The database also records its own identity (`Database.identity`). A copy of the database has the
record of the original, but another identity. No node opens it, because it would share the warehouse
with the original. `accept_database` records the new identity, after a restore or a move to another
server. A physical copy of a whole server has the same identity and is not recognized.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from strandline.errors import CorruptData, InvalidInput, StoreMoved, Unavailable, WrongEnvironment
from strandline.files import give_to_owner, sync_folder
from strandline.metastore.store.warehouse import make_synced_folders
from strandline.node import store_place
from strandline.node.address import DATABASE_FILE
from strandline.node.sequences import skip_ids
from strandline.node.store_place import RecordedPlace, recorded_place
from strandline.sql import Database, FenceRow

MARKER = ".strandline-store"
WAREHOUSE_HEAD = f"{MARKER}.head"
"""The file of `strandline.metastore.store.warehouse_head`."""


@dataclass(frozen=True, slots=True)
class WarehousePlace:
    """The folder of a warehouse, absolute and as the user wrote it, and its store's database.

    ``recorded`` is the place that the database recorded when it was opened.
    """

    folder: Path
    database: Database
    recorded: RecordedPlace | None = None

    def refuse_foreign(self, *, is_new: Callable[[], bool]) -> None:
        """Raise if the folder is not that of the store, before this node joins it or takes it over.

        Raises what `claim` raises, `WrongEnvironment` if a new store would take the warehouse of
        another store or if the catalog of this one is lost, and `InvalidInput` if the folder of a
        new store is inside the folder of another store. ``is_new`` returns whether there is no
        catalog yet.
        """
        fence = FenceRow.stored(self.database)
        if self.recorded is not None and fence is not None:
            self._require_same(self.recorded.path, os.path.realpath(self.folder))
            self.check(fence.environment)
            if is_new():
                raise lost_catalog(self.database)
            return
        environment = marked_environment(self.folder)
        # In this order: a node that creates this store writes the catalog before the marker.
        if environment is not None and is_new():
            raise WrongEnvironment(
                f"the warehouse {self.folder} holds the tables of another store (environment "
                f"{environment!r}), but {self.database.name} does not contain a store yet. If its "
                "database was lost, restore it from a backup; for a new store, name another "
                "folder"
            )
        if environment is None and is_new():
            refuse_nested(self.folder)

    def make(self, *, mode: int) -> None:
        """Make the folder if it does not exist. Raises `InvalidInput` if that fails."""
        try:
            make_synced_folders(self.folder, mode=mode)
        except OSError as error:
            raise InvalidInput(
                f"the warehouse {self.folder} cannot be created: {error.strerror}"
            ) from error

    def claim(self, environment: str, *, mode: int) -> None:
        """Make the folder the warehouse of the store, or check that it is.

        Raises `StoreMoved` if the store has another warehouse, `WrongEnvironment` if the folder
        belongs to another store, and `CorruptData` if the marker is missing.
        """
        recorded = recorded_place(self.database)
        real = os.path.realpath(self.folder)
        if recorded is not None:
            self._require_same(recorded.path, real)
            if not recorded.inode:
                accept_database(self.database)
        else:
            self.make(mode=mode)
            self.mark(environment, mode=mode & 0o666)
        self.check(environment)
        if recorded is None:
            identity = self.database.identity()
            with self.database.write() as connection:
                other = store_place.read(connection)
                if other is not None:  # another node was first, perhaps with another folder
                    self._require_same(other.path, real)
                    return
                names = store_place.united([str(self.folder), real])
                store_place.put(connection, RecordedPlace(real, identity, names))

    def _require_same(self, recorded: str, real: str) -> None:
        if recorded != real:
            link = "" if real == str(self.folder) else f", which leads to {real}"
            raise StoreMoved(
                f"the tables of the store in {self.database.name} are in {recorded}, but "
                f"warehouse is {self.folder}{link}. Name {recorded}; if the tables were moved, "
                "mount their folder there, since a symbolic link is not enough"
            )

    def check(self, environment: str) -> None:
        """Raise unless the folder exists and belongs to the store of ``environment``."""
        marked = marked_environment(self.folder)
        if marked is None:
            raise CorruptData(
                f"the warehouse {self.folder} is not the one of the store in {self.database.name}:"
                f" it has no file {MARKER}. If its file system is not mounted, mount it; if the"
                " tables were lost, restore the folder from a backup"
            )
        if marked != environment:
            raise WrongEnvironment(
                f"the warehouse {self.folder} belongs to the store {marked!r}, but "
                f"{self.database.name} is the store {environment!r}; name the folder of this "
                "store"
            )

    def mark(self, environment: str, *, mode: int) -> None:
        """Write the marker if there is none.

        The file gets its name last, so a marker that exists is complete. Two nodes that write it at
        once write the same content. The temporary name is random, because nodes on two machines or
        in two containers may have the same process id.
        """
        path = self.folder / MARKER
        try:
            if not path.exists():
                self._write(path, environment, mode=mode)
            sync_folder(self.folder)  # the node that wrote it may have ended before it did that
        except OSError as error:
            raise Unavailable(
                f"the warehouse {self.folder} cannot be marked as that of the store: "
                f"{error.strerror}; check its permissions and the disk, and try again"
            ) from error

    def _write(self, path: Path, environment: str, *, mode: int) -> None:
        written = self.folder / f"{MARKER}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(written, flags, mode), "w") as file:
                give_to_owner(file.fileno(), of=self.folder)
                file.write(f"{json.dumps({'environment': environment})}\n")
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(written, path)
        finally:
            written.unlink(missing_ok=True)


def marked_environment(warehouse: Path) -> str | None:
    """Return the environment id in the marker of ``warehouse``, or None without a marker."""
    path = warehouse / MARKER
    try:
        return str(json.loads(path.read_bytes())["environment"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read: {error.strerror}; check its permissions and the disk, and try"
            " again"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path} is damaged: {error}; restore it from a backup") from error


def lost_catalog(database: Database) -> WrongEnvironment:
    """The error of a store on servers that has rows in ``database``, and an empty catalog."""
    return WrongEnvironment(
        f"the catalog of the store is empty, but {database.name} has the rows of its tables. If "
        "etcd keeps the catalog, restore etcd from a snapshot, or correct its address and prefix; "
        "else restore the store from a backup. Keep the database and the warehouse as they are"
    )


def refuse_nested(folder: Path) -> None:
    """Raise `InvalidInput` if ``folder`` is inside the folder or the warehouse of a store.

    That store would clean and move the files of the new one.
    """
    for above in Path(os.path.realpath(folder)).parents:
        if (above / DATABASE_FILE).exists() or (above / MARKER).exists():
            raise InvalidInput(
                f"{folder} is inside {above}, which is a folder of another store; name a folder "
                "outside of it"
            )


def refuse_copied(database: Database, *, address: str) -> None:
    """Raise `StoreMoved` if ``database`` is a copy of the one that has the store.

    ``address`` is the address of the store as messages show it.
    """
    recorded = recorded_place(database)
    identity = database.identity()
    if recorded is not None and recorded.inode and identity not in (0, recorded.inode):
        raise StoreMoved(
            f"{database.name} is a copy of the database that the store was last opened in: it was "
            "cloned, restored, or moved to another or an upgraded server. If it replaces that "
            f"database, run `strandline relocate` with the address of the store ({address}, with "
            "its user and options); if both stay in use, make a separate store with `strandline "
            "backup` and `strandline restore --copy`"
        )


def accept_database(database: Database) -> str | None:
    """Record that the store is in ``database`` from now on.

    Return the path of its warehouse, or None without a store.
    """
    recorded = recorded_place(database)
    if recorded is None:
        return None
    identity = database.identity()
    if identity != recorded.inode:
        with database.write() as connection:
            if recorded.inode:  # else the first node of a restored store takes it
                skip_ids(connection)
            store_place.put(connection, replace(recorded, inode=identity))
    return recorded.path


def place_of_warehouse(database: Database, warehouse: str) -> WarehousePlace:
    """Return the warehouse that the setting names, or the recorded one if the setting is empty.

    Raises `InvalidInput` if there is neither, or if the path is not absolute.
    """
    recorded = recorded_place(database)
    folder = warehouse or (recorded and recorded.path)
    if not folder:
        raise InvalidInput(
            f"the store in {database.name} is new, and no folder is set for its tables; add "
            "--warehouse FOLDER, at a path that every node reaches"
        )
    if not os.path.isabs(folder):
        raise InvalidInput(f"warehouse is {folder!r}; name an absolute path")
    return WarehousePlace(Path(folder), database, recorded)
