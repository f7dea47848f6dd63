"""Making a folder the place of the store in it, after it was moved or copied.

See `strandline.node.store_place` for what a place is. A process cannot tell whether the folder was
moved, or copied while the original stays in use. So the caller has to say.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from shlex import quote

from sqlalchemy import Connection, update

from strandline.clock import HybridClock
from strandline.durable import ReadOnlyState, UpdateLog, durable_state
from strandline.durable.opening import new_environment_id
from strandline.durable.state import ENVIRONMENT
from strandline.errors import Conflict, CorruptData, NotFound
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry
from strandline.model.privileges import SYSTEM_NAME
from strandline.node.address import DATABASE_FILE, StoreAddress
from strandline.node.catalog_log import LogPlace, part_from_blobs, reading_catalog_log
from strandline.node.membership import new_member_id
from strandline.node.sequences import skip_ids
from strandline.node.store_database import open_store_database
from strandline.node.store_place import (
    RecordedPlace,
    current_place,
    made_at,
    put,
    recorded_place,
    refuse_lost_database,
    united,
)
from strandline.sql import Database, FenceRow
from strandline.sql.schema_versions import FENCE


def relocate(folder: str | Path, *, copy: bool) -> str:
    """Make ``folder`` the place of the store in it, which was moved or copied there.

    Return the environment id that the store has now.

    ``copy`` means that the original stays in use: the copy gets its own environment id, and every
    node that has the copy open is fenced. The copy shares the external tables outside of the folder
    with the original. The transactions and holds that clients of the original had when it was
    copied time out in the copy. If the call was interrupted, run it again.

    Raises `NotFound` if there is no store, `Conflict` if the folder is said to be moved and the
    store is still at its old place, and `CorruptData` if the database is damaged or lacks commits
    that the head file names.
    """
    path = Path(folder).absolute()
    if not (path / DATABASE_FILE).is_file():
        refuse_lost_database(path)
        raise NotFound(f"there is no store in {path}; name the folder that holds {DATABASE_FILE}")
    with closing(open_store_database(path)) as database:
        recorded = recorded_place(database)
        old = recorded.path if recorded else made_at(database)
        log_place = LogPlace(database, StoreAddress(path), HybridClock())
        return take_place(log_place, current_place(path), old=old, copy=copy)


def take_place(log_place: LogPlace, present: RecordedPlace, *, old: str | None, copy: bool) -> str:
    """Make ``present`` the place of the store, which was at ``old``; see `relocate`."""
    database = log_place.database
    recorded = recorded_place(database)
    with reading_catalog_log(log_place) as log:
        environment = ReadOnlyState(log, latest_only=True).environment or ""
        if copy:
            part_from_blobs(log_place)
            environment = _new_environment(database, log)
        else:
            _refuse_half_copied(database, environment, path=present.path)
            if old is not None and log_place.address.folder is not None:
                refuse_unmoved_folder(Path(old), log_place.address.folder, environment)
    names = united(recorded.names if recorded else (), [old] if old else (), present.names)
    with database.write() as connection:
        if not copy:  # it may be an older state of the store
            skip_ids(connection)
        put(connection, RecordedPlace(present.path, present.inode, names))
    return environment


def _refuse_half_copied(database: Database, environment: str, *, path: str) -> None:
    """Raise `Conflict` if the catalog has an environment of its own already, but not the rows."""
    fence = FenceRow.stored(database)
    if fence is not None and fence.environment != environment:
        raise Conflict(
            f"{path} was being made a separate store, which was interrupted; run"
            f" `strandline relocate {quote(path)} --copy` again"
        )


def refuse_unmoved_folder(old: Path, folder: Path, environment: str) -> None:
    """Raise `Conflict` if the store that is said to be moved is still in the folder ``old``."""
    old_database, new_database = old / DATABASE_FILE, folder / DATABASE_FILE
    if not old_database.exists() or (new_database.exists() and old_database.samefile(new_database)):
        return
    try:
        with closing(sqlite3.connect(f"{old_database.as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT environment FROM strandline_fence").fetchall()
    except sqlite3.Error as error:
        raise Conflict(
            f"{folder} cannot be recorded as the new folder of the store at {old}: there is still "
            f"a database at {old}, which cannot be read ({error}). If {folder} is a copy of it, "
            f"run `strandline relocate {quote(str(folder))} --copy`; otherwise move that database "
            "away"
        ) from error
    if any(row[0] == environment for row in rows):
        raise Conflict(
            f"{folder} was not moved: the store that it was copied from is still at {old}. Run"
            f" `strandline relocate {quote(str(folder))} --copy`"
        )


def _new_environment(database: Database, log: UpdateLog) -> str:
    """Give the store its own environment id, in the catalog first and then in the fence row."""
    fence = FenceRow.stored(database)

    def raise_fence(token: FenceToken, environment: str | None) -> None:
        # Written unconditionally: an interrupted attempt leaves halves with different ids.
        with database.write() as connection:
            _fence(connection, token, environment or "")

    openable = durable_state(log)
    if fence is None or openable.epoch() is None:
        raise CorruptData(
            f"{database.name} does not contain a complete store; restore it from a backup"
        )
    state = openable.open(
        member=new_member_id(),
        initialize=lambda _: None,
        raise_fence=raise_fence,
        deploy_generation=openable.deploy_generation() or 0,
    )
    environment = new_environment_id()
    transaction = state.transaction(state.recovered[-1], author=SYSTEM_NAME)
    with transaction.entry("configure", {"name": ENVIRONMENT}):
        transaction.put(ConfigEntry(ENVIRONMENT, environment))
    state.commit_transaction(transaction)
    with database.write() as connection:
        _fence(connection, state.token, environment)
    return environment


def _fence(connection: Connection, token: FenceToken, environment: str) -> None:
    connection.execute(
        update(FENCE).values(
            environment=environment,
            deploy_generation=token.deploy_generation,
            epoch=token.epoch,
        )
    )
