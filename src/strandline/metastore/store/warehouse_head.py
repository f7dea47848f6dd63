"""The warehouse head: the last version whose folders are done, recorded in the warehouse.

The problem: if etcd has the catalog, the database may be set back alone, by a restore or by a
standby that lacks the last commits. The versions that it has lost are then projected again, but
their folders are as later versions left them: a repeated purge would delete the files of the table
that got the place since.

So a process that has projected a version writes its number to a file in the warehouse, which is
only set back together with the folders. Up to that version, the projection records events and
places again and touches no folder. The id of the update is in the file too: if the catalog was set
back, another version may get that number, and then the file says nothing about folders. But it
shows that versions are lost, also if one database has the catalog and all else.

What must stay true: **the file is never ahead of what was committed.** It is written after the
commit. If it is behind, an effect is repeated as after a crash, so it is not synced.

Rejected: a key in etcd (a warehouse that was restored with its database needs the effects), and a
file in each folder that names its table (Spark replaces the folder when it overwrites the table).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from strandline.durable.update import Update
from strandline.errors import VersionNotFound
from strandline.files import give_to_owner

logger = logging.getLogger(__name__)

_MAX_BYTES = 4096


class WarehouseHead:
    """See the module. ``path`` is that of the file, and ``mode`` its permission bits."""

    def __init__(self, path: Path, *, mode: int) -> None:
        self._path = path
        self._mode = mode
        self._failed = False

    def done_up_to(self, projected: int, updates: Callable[[int, int], Iterable[Update]]) -> int:
        """The version whose folders are done, if that is above ``projected``; otherwise 0.

        ``updates`` is `Projector`'s.
        """
        version, update_id = self._recorded()
        if version <= projected:
            return 0
        try:
            ids = [update.id for update in updates(version, version + 1)]
        except VersionNotFound:  # etcd was set back too
            return 0
        return version if ids == [update_id] else 0

    def lost_version(
        self, latest: Callable[[], int], updates: Callable[[int, int], Iterable[Update]]
    ) -> int | None:
        """The version in the file if the catalog has lost it, or None.

        ``latest`` reads the latest version of the catalog from its log.
        """
        version, update_id = self._recorded()  # first: other nodes append versions, and note them
        if not version:
            return None
        if version <= latest():
            try:
                ids = [update.id for update in updates(version, version + 1)]
            except VersionNotFound:  # trimmed
                return None
            if ids == [update_id]:
                return None
        return version

    def forget(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def note(self, update: Update) -> None:
        """Record that ``update`` is projected, unless a later one is. Never raises."""
        if update.version <= self._recorded()[0]:
            return
        written = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        text = json.dumps({"version": update.version, "update": update.id.hex()})
        try:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(written, flags, self._mode), "w") as file:
                    give_to_owner(file.fileno(), of=self._path.parent)
                    file.write(f"{text}\n")
                written.replace(self._path)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
            self._failed = False
        except OSError as error:
            if not self._failed:  # log it once, until a write succeeds
                logger.warning("%s cannot be written and is not up to date: %s", self._path, error)
            self._failed = True

    def _recorded(self) -> tuple[int, bytes]:
        """The version in the file and the id of its update, or 0 and no id."""
        try:
            with self._path.open("rb") as file:
                recorded = json.loads(file.read(_MAX_BYTES))  # Spark's users may write there
            return int(recorded["version"]), bytes.fromhex(recorded["update"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("%s cannot be read, and is ignored: %s", self._path, error)
        return 0, b""
