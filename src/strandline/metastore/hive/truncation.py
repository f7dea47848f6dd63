"""Methods that remove the files of a managed plain table, or of some of its partitions.

As with Spark's TRUNCATE, the files are deleted at once: the metastore has no history of the rows of
a plain table. Only folders that the store chose are emptied, and never through a link. If one of
the folders is not such a one, nothing is deleted.

The transaction that sets the counts to 0 also moves the folders aside, because only a transaction
keeps the table from being dropped and another from being created in its folder. The files are
deleted after it. If it fails, the folders are moved back, except if the transaction may have been
committed: by then, their place may belong to another table. After that, or if a process dies in
between, the request can be repeated, and cleaning deletes what was moved aside after a day.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from strandline.clock import system_wall_clock
from strandline.errors import IllegalChange, ObjectNotFound, UnsupportedOperation
from strandline.metastore.hive.accuracy import EMPTY
from strandline.metastore.hive.parameters import time_of_change
from strandline.metastore.hive.partition_changes import named_table
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.registry import Call, changes
from strandline.metastore.store.folder_effects import TRUNCATED_SUFFIX
from strandline.metastore.store.rows import (
    PartitionRow,
    RowKind,
    TableParametersRow,
    new_parameters,
)
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import FolderMoves, delete_or_leave
from strandline.model.descriptors import Properties, TableKind, properties
from strandline.model.privileges import Privilege

_OF_SPARK = "spark.sql.statistics."


@changes("truncate_table", "truncate_table_req")
async def truncate_table(call: Call) -> None:
    schema, name, names = call.text("db_name"), call.text("tbl_name"), call.args.get("partNames")
    partitioned = await named_table(call, need=Privilege.DELETE, what="rows")
    table = partitioned.table
    if table.kind is not TableKind.MANAGED or not call.folders.is_own_table(partitioned.location):
        raise UnsupportedOperation(
            f"{schema}.{name} is an external table, so the metastore does not delete its files; "
            "delete them yourself"
        )
    if "metadata_location" in dict(table.properties):
        raise UnsupportedOperation(
            f"{schema}.{name} is an Iceberg table; delete its rows with an Iceberg client"
        )
    if partitioned.keys:
        await _truncate_partitions(call, partitioned, names)
    elif names:
        raise IllegalChange(f"{schema}.{name} has no partitions to truncate")
    else:
        _truncate_all(call, partitioned)


def _truncate_all(call: Call, partitioned: Partitioned) -> None:
    call.folders.verify(call.folders.place(partitioned.location))
    with _emptying(call, partitioned) as emptying:
        old = list(emptying.change.visible(RowKind.TABLE_PARAMETERS).values())
        counted = next((row.as_(TableParametersRow).parameters for row in old), ())
        statistics = emptying.change.visible(RowKind.STATISTICS).values()
        emptying.change.stage(
            add=[new_parameters(_emptied(counted))],
            remove=[row.row_id for row in (*old, *statistics)],
        )
        emptying.empty(partitioned.location)


async def _truncate_partitions(
    call: Call, partitioned: Partitioned, names: Collection[str] | None
) -> None:
    reader = call.reader
    rows = await reader.rows(reader.present, partitioned.table, RowKind.PARTITION, names)
    missing = set(names or ()) - {row.name for row in rows}
    if missing:
        raise ObjectNotFound(f"partition {min(missing)} does not exist")
    if not rows:
        return
    with _emptying(call, partitioned) as emptying:
        present = emptying.change.visible(RowKind.PARTITION, {row.name for row in rows})
        places = partitioned.places
        places.return_folders(emptying.change, present.values())
        for row in present.values():
            if not places.is_own(row):
                raise UnsupportedOperation(
                    f"the files of partition {row.name} are at a location that a user chose, so "
                    "the metastore does not delete them; delete them yourself"
                )
        statistics = emptying.change.visible(RowKind.STATISTICS, present.keys())
        staged = []
        for name, row in present.items():
            removed = [row, statistics[name]] if name in statistics else [row]
            partition = row.as_(PartitionRow)
            emptied = replace(partition, parameters=_emptied(partition.parameters))
            staged.append(([row.replaced_by(emptied)], [each.row_id for each in removed]))
        emptying.change.stage_each(staged)
        for row in present.values():
            emptying.empty(partitioned.place(row.as_(PartitionRow)))


class _Emptying:
    """A change of a table that empties folders. Each folder is moved aside, and made again."""

    def __init__(self, call: Call, partitioned: Partitioned, change: Staging) -> None:
        self.change = change
        self._folders = call.folders
        self._dropped = call.folders.place(partitioned.location).aside(partitioned.table.id)
        call.folders.verify(self._dropped)
        self.moves = FolderMoves(call.folders, change.if_undone)

    def empty(self, location: str) -> None:
        # Not an id of a row or write: a request that died may have left a folder of that name.
        number = secrets.randbelow(10**18)
        name = f"{self._dropped.text}.{number}.{system_wall_clock()}{TRUNCATED_SUFFIX}"
        aside = self._folders.shown(name)
        self.moves.move(location, aside)
        self.moves.make(location)

    def finish(self) -> None:
        """Delete the old files. Cleaning later deletes those that the system refuses to delete."""
        for _, aside in self.moves.moved:
            delete_or_leave(self._folders.path(aside))


@contextmanager
def _emptying(call: Call, partitioned: Partitioned) -> Iterator[_Emptying]:
    """A change that commits when the block ends. Then the files are deleted.

    While the block runs, nothing drops or renames the table, gives it another location, or creates
    another in its folder. Raises `WriteConflict` if that has happened since the request was read.
    """
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        partitioned.places.require_present(change)
        partitioned.places.require_kind(change, call.metastore.catalogs)
        emptying = _Emptying(call, partitioned, change)
        yield emptying
        emptying.moves.sync()
    # After the transaction: this may take long, and others may write.
    emptying.finish()


def _emptied(parameters: Properties) -> Properties:
    kept = {name: value for name, value in parameters if not name.startswith(_OF_SPARK)}
    return properties({**kept, **EMPTY, **time_of_change()})
