"""The places of partitions: of present ones, of dropped ones moved aside, and of past ones.

Only own folders of partitions are moved: those at the location that the partition's name gives, in
the folder of a managed table. A partition at a place that a user named is external, even if the
table is managed: only its row is added and removed, and its files stay.

The folder of a dropped partition goes to ``.dropped/<table id>.partitions/<row id>`` beside its
table. `strandline.metastore.store.partition_moves` records each move; `unfinished_moves` finishes
those that a process left, and `partition_undrop` undoes a drop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from strandline.catalog import CatalogManager
from strandline.errors import IllegalChange, ObjectNotFound, StrandlineError, WriteConflict
from strandline.metastore.store.folder_effects import PARTITIONS_SUFFIX, PURGED_SUFFIX
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.partition_moves import (
    PURGED,
    PartitionMove,
    PartitionMoves,
    name_of,
)
from strandline.metastore.store.rows import PartitionRow, Row, RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import (
    FolderMoves,
    FolderRefused,
    Unsynced,
    delete_or_leave,
    relative_location,
    resolve_location,
)
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.places import Place

logger = logging.getLogger(__name__)

GONE = "the-files-of-this-partition-were-deleted:/"
"""The location of a past partition whose files are gone. Spark shows the first part."""


class PartitionPlaces:
    """The folders of one table's present partitions, and how dropped ones are moved aside.

    ``location`` is the URI of the table's folder.
    """

    def __init__(self, table: TableDescriptor, *, location: str, folders: StoreFolders) -> None:
        self._table = table
        self._location = location
        self._folders = folders

    def is_own(self, row: Row) -> bool:
        """Whether Strandline may move the folder of the partition."""
        location = row.as_(PartitionRow).location
        if self._table.kind is not TableKind.MANAGED or name_of(location) != row.name:
            return False
        try:
            self._folders.verify_below(self._at(location), table=self._location)
        except StrandlineError:
            return False
        return True

    def stored_location(self, location: str) -> str:
        """The location of a partition as a row stores it: relative to the folder it moves with."""
        if self._table.kind is TableKind.EXTERNAL:
            return location
        return relative_location(self._location, location)

    def was_moved(self, row: Row, location: str) -> bool:
        """Whether a client has moved the partition's folder to another spelling of its name.

        Spark does this after a rename if the keys of the table have capitals. ``location`` is where
        the folder must be now.
        """
        if name_of(location) != row.name or not self.is_own(row):
            return False
        old, new = self._at(row.as_(PartitionRow).location), self._at(location)
        return self._folders.exists(new) and not self._folders.exists(old)

    def drop(self, rows: Sequence[Row], *, purge: bool) -> list[PartitionMove]:
        """The moves of these partitions when they are dropped with their files."""
        return [
            PartitionMove(
                location=row.as_(PartitionRow).location,
                up_to_row=row.row_id,
                target=PURGED if purge else f"{self._dropped.text}{PARTITIONS_SUFFIX}/{row.row_id}",
            )
            for row in rows
            if self.is_own(row)
        ]

    def finish_moves(self, store: SqlObjectStore, moves: Collection[PartitionMove]) -> None:
        """Finish those of ``moves`` that are unfinished; others may belong to changes in progress.

        Folders of dropped partitions are moved aside, and deleted if they were purged. The folder
        of a rename or return that was not committed goes back. A move that the system refuses is
        logged and stays unfinished. So do all moves if the table was dropped meanwhile: its
        partitions are aside with it. (A restored table may be aside, if its folder stayed there.)
        """
        purged: list[Path] = []

        def carry_out(
            moves: Sequence[PartitionMove],
            place: Place | None,
            present: Container[str],
            check_write: Callable[[], None],
        ) -> Sequence[PartitionMove]:
            was_moved = place != self._folders.place(self._location)
            if place is None or (was_moved and place == place.aside(self._table.id)):
                return ()
            # The table may have been renamed, and another one may have got its folder.
            location = self._folders.location(place)
            here = PartitionPlaces(self._table, location=location, folders=self._folders)
            return here._carry_out(moves, purged, present, check_write)

        store.finish_moves(self._table.id, set(moves), carry_out)
        for path in purged:  # after the transaction: this may take long, and others may write
            delete_or_leave(path)

    @contextmanager
    def undone_by(self, store: SqlObjectStore, moves: Sequence[PartitionMove]) -> Iterator[None]:
        """For a block that moves folders and then commits: ``moves`` undo it if it does not commit.

        Until then they are marked as unfinished, so that they are made even if the process dies.
        """
        if moves:
            store.begin_moves(self._table.id, moves)
        try:
            yield
        except BaseException:
            with suppress(StrandlineError):  # if that fails, the next node that starts does it
                self.finish_moves(store, moves)
            raise

    def require_present(self, change: Staging) -> None:
        """Raise `WriteConflict` if the table has moved since its location was read.

        Another table may have its folder now. While the ``change`` runs, no table moves.
        """
        place = self._folders.place(self._location)
        is_own = self._table.kind is TableKind.MANAGED and place.is_of_table
        if is_own and change.place() != place:
            raise WriteConflict(
                f"table {self._table.name} was renamed or dropped meanwhile; nothing was changed,"
                " try again"
            )

    def require_kind(self, change: Staging, catalogs: CatalogManager) -> None:
        """Raise `WriteConflict` if the table was managed and has got another location since.

        Or the other way round: only in a managed table, locations are relative to the table's.
        """
        present = catalogs.catalog(change.catalog_version).table_by_id(self._table.id)
        if present is None or present.kind is not self._table.kind:
            raise WriteConflict(
                f"table {self._table.name} was dropped or got another location meanwhile; nothing"
                " was changed, try again"
            )

    def require_begun(self, change: Staging, moves: Iterable[PartitionMove]) -> None:
        """Raise `WriteConflict` unless all of these moves are marked as unfinished.

        While the change waited for its turn, another node may have taken it for that of a process
        that died, and ended its marks; or another change of these partitions came first.
        """
        if not set(moves) <= set(change.unfinished_moves()):
            raise WriteConflict(
                f"the partitions of {self._table.name} were changed meanwhile, or this change "
                "waited too long for the database; nothing was changed, try again"
            )

    def return_folders(
        self, change: Staging, rows: Collection[Row], *, except_for: str = ""
    ) -> None:
        """Move back the folders of these partitions that a rename has moved but not committed.

        The process of such a rename died, because no other rename runs during the ``change``. The
        caller's own rename, to the location ``except_for``, is left alone: it may be a second try.
        """
        row_ids = {row.row_id for row in rows}
        for move in change.unfinished_moves():
            if move.undoes_rename and move.up_to_row in row_ids and move.location != except_for:
                moved, place = self._at(move.location), self._at(move.target)
                self._folders.verify_below(moved, table=self._location)
                self._folders.verify_below(place, table=self._location)
                if self._folders.exists(moved) and not self._folders.exists(place):
                    self._folders.move(moved, place)

    def refuse_unfinished(self, change: Staging, locations: Collection[str]) -> None:
        """Raise `IllegalChange` if a dropped partition's files are still at one of the locations.

        A client may already have written there, and its files look like the old ones.
        """
        for move in change.unfinished_moves():
            place = self._at(move.location)
            if (
                move.location in locations
                and not move.is_relocation
                and self._folders.exists(place)
            ):
                raise IllegalChange(
                    f"partition {move.location} of {self._table.name} cannot be created: the files"
                    f" of another partition are still in {place}, because they could not be moved"
                    " away. Move them away or delete them, write the new files, and try again"
                )

    def _carry_out(
        self,
        moves: Sequence[PartitionMove],
        purged: list[Path],
        present: Container[str],
        check_write: Callable[[], None],
    ) -> Sequence[PartitionMove]:
        unsynced, finished = Unsynced(), []
        # The newest first: it has the folder if several partitions had one location.
        for move in sorted(moves, key=lambda move: -move.up_to_row):
            was_changed = move.undoes_rename and move.target not in present
            if move.location in present or was_changed:
                finished.append(move)  # what is there now belongs to a later partition
                continue
            place = self._at(move.location)
            aside = self._aside_of(move)
            if aside is None:
                aside = self._folders.shown(f"{self._dropped.text}.{move.up_to_row}{PURGED_SUFFIX}")
                purged.append(self._folders.path(aside))
            check_write()
            try:
                self._folders.verify_below(place, table=self._location)
                self._folders.verify(self._dropped)
                # If it is aside already, the files at the old place were written after the move.
                if self._folders.exists(place) and not self._folders.exists(aside):
                    self._folders.move(place, aside, unsynced=unsynced)
                finished.append(move)
            except StrandlineError:
                logger.warning(
                    "the folder %s of another partition could not be moved away; move it "
                    "before a partition of that name is created again",
                    place,
                    exc_info=True,
                )
        self._remove_empty_above([move.location for move in finished], unsynced)
        try:
            unsynced.sync()
        except StrandlineError:
            logger.warning(
                "folders of dropped partitions may reappear after a crash", exc_info=True
            )
            return ()
        return finished

    def _remove_empty_above(self, locations: Iterable[str], unsynced: Unsynced) -> None:
        """Remove the folders above these, in the folder of the table, that are empty now.

        So does Hive, whose MSCK REPAIR TABLE fails on a folder without the next key below it.
        """
        above = {location.rpartition("/")[0] for location in locations}
        while above:
            emptied = {folder for folder in above if self._remove_if_empty(folder, unsynced)}
            above = {folder.rpartition("/")[0] for folder in emptied}

    def _remove_if_empty(self, location: str, unsynced: Unsynced) -> bool:
        place = self._at(location)
        try:
            self._folders.verify_below(place, table=self._location)
            return self._folders.remove_empty(place, unsynced=unsynced)
        except StrandlineError:  # the table's own folder, or one that the system does not remove
            return False

    def _at(self, location: str) -> str:
        return resolve_location(self._location, location)

    @property
    def _dropped(self) -> Place:
        """The place to which the folder of the table goes when the table is dropped."""
        return self._folders.place(self._location).aside(self._table.id)

    def _aside_of(self, move: PartitionMove) -> str | None:
        if move.undoes_rename:
            return self._at(move.target)
        return None if move.target == PURGED else self._folders.shown(move.target)


class PastPlaces(PartitionPlaces):
    """The places of one table's partitions, past ones too, after all ``moves`` of the table."""

    def __init__(
        self,
        table: TableDescriptor,
        *,
        location: str,
        folders: StoreFolders,
        moves: PartitionMoves,
    ) -> None:
        super().__init__(table, location=location, folders=folders)
        self._moves = moves

    def place(self, row: Row) -> str:
        """The present location of a past or present partition; below `GONE` if it was deleted."""
        place, move = self._follow(row)
        if move is None:
            return self._folders.shown(place)
        aside = self._aside_of(move)
        if aside is not None and self._folders.exists(aside):
            return aside
        # The folder may not have been moved: the process died, or the system refused.
        if aside is not None and self._folders.exists(place):
            return place
        return f"{GONE}{self._table.name}/{row.name}"

    def went_aside(self, row: Row) -> bool:
        """Whether the files of a dropped partition were moved aside with it.

        For an INSERT OVERWRITE, Spark deletes the files itself, and drops the partition without
        them.
        """
        return bool(self.moves_aside([row]))

    def was_renamed(self, row: Row) -> bool:
        """Whether the folder of the partition went to another one, by a rename."""
        return self._follow(row)[0] != self._at(self._location_of(row))

    def restored(self, row: Row) -> PartitionRow:
        """The partition of a row that was dropped, perhaps while the table was external."""
        location = self.stored_location(self._location_of(row))
        return replace(row.as_(PartitionRow), location=location)

    def moves_aside(self, rows: Iterable[Row]) -> list[PartitionMove]:
        """The moves aside of those of these dropped partitions whose files are kept."""
        moves = (self._follow(row)[1] for row in rows)
        return [move for move in moves if move is not None and move.target != PURGED]

    def bring_back(self, row: Row, moves: FolderMoves) -> None:
        """Move the folder of a dropped partition back, if it was moved.

        Raises `ObjectNotFound` if its files are gone, `IllegalChange` if other files are there.
        """
        place, move = self._follow(row)
        if move is None:
            if self.is_own(row) and not self._folders.exists(place):
                raise ObjectNotFound(
                    f"partition {row.name} of {self._table.name} cannot be brought back: its files"
                    " were deleted before it was dropped, as INSERT OVERWRITE does"
                )
            return
        aside = self._aside_of(move)
        if aside is not None and self._folders.exists(aside):
            try:
                self._folders.verify_below(place, table=self._location)
                moves.move(aside, place)
            except FolderRefused as refused:
                raise IllegalChange(
                    f"partition {row.name} of {self._table.name} cannot be brought back:"
                    f" {refused.message}"
                ) from refused
        elif aside is None or not self._folders.exists(place):
            reason = "dropped with PURGE" if aside is None else "cleaned up"
            raise ObjectNotFound(
                f"partition {row.name} of {self._table.name} cannot be brought back: its files"
                f" were deleted, it was {reason}"
            )

    def refuse_shared(self, rows: Sequence[Row], change: Staging) -> None:
        """Raise `IllegalChange` if a present partition has the files of one of these.

        A partition at a location that a user named keeps it when it is renamed.
        """
        named = {self.place(row): row for row in rows if not self.is_own(row)}
        for present in change.visible(RowKind.PARTITION).values() if named else ():
            row = named.get(self.place(present))
            if row is not None:
                raise IllegalChange(
                    f"partition {row.name} of {self._table.name} cannot be brought back: partition"
                    f" {present.name} has its location, and its rows would be read twice. Rename or"
                    f" drop {present.name}, or add {row.name} with that location"
                )

    def record_return(self, change: Staging, row: Row, new_row_id: int) -> None:
        """Record that the folder of a dropped partition belongs to a new row now."""
        _, move = self._follow(row)
        if move is not None:
            change.return_move(move, new_row_id)

    def _follow(self, row: Row) -> tuple[str, PartitionMove | None]:
        """The last place of this row's folder below the table, and its move aside, if any."""
        location, move = self._moves.follow(self._location_of(row), row.row_id)
        return self._at(location), move

    def _location_of(self, row: Row) -> str:
        """The location in the row, relative if the folder was that of the managed table then."""
        location = row.as_(PartitionRow).location
        if self._table.kind is TableKind.EXTERNAL:
            return location
        return self._moves.location_of(row.row_id, location)
