"""The update log as a shard.

An append is one diff of the shard (`strandline.durable.persist.shard_state`) with the rows of its
updates. The rows are inline, or, if there are many, in parts that were uploaded before. So an
append of a few objects costs one compare-and-set and no blob. The versions of the log are the
versions of the rows.

A crash before the compare-and-set leaves parts that no state names, which a later sweep removes.
After the compare-and-set, the whole append is in the log. An append that got no answer is settled
by the token that the state has for each writer, and by the id at its version.

The metastorage of the shard remembers where its parts are:

=======================  ===========================================================================
``persist.environment``  the environment id of the catalog, created before the catalog; the name of
                         the shard is a hash of it
``persist.blobs``        where the blobs are: ``s3://bucket/prefix``, an absolute path, or empty
                         for a folder below that of the store
``persist.version``      the last version, 20 decimal digits, for SQL that reads it
``persist.{shard}.…``    the changes of the shard (`Consensus`)
=======================  ===========================================================================

The first process that opens the shard writes the first two in one step; later ones read them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.collections import AUDIT_EVENT, LASTING
from strandline.durable.log import (
    Checked,
    Frontier,
    LogAppend,
    Scanned,
    UpdateLog,
    refuse_absent,
    refuse_lasting,
    refuse_unreadable,
)
from strandline.durable.opening import new_environment_id
from strandline.durable.persist.blob import Blob, FileBlob, blobs_in, open_bucket
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.maintenance import EVERY, Maintenance
from strandline.durable.persist.shard import REFUSED, Shard, batches_between
from strandline.durable.persist.shard_state import (
    AlreadyMaintained,
    Append,
    Batch,
    Batches,
    ShardState,
    UploadExpired,
    compare_and_append,
    prune,
)
from strandline.durable.rows import (
    UPDATE,
    Row,
    Unordered,
    UpdateHead,
    snapshot_of_rows,
    updates_between,
)
from strandline.durable.update import AuditEvent, CatalogSnapshot, Update
from strandline.errors import CorruptData, Fenced, InvalidInput, OutOfSync, Unavailable
from strandline.fencing import FenceToken
from strandline.metastorage import Absent, Metastorage, Operation, Put
from strandline.metastorage.store import digits
from strandline.wire.registry import decode, decode_up_to

MAX_UPDATES = 50_000
ENVIRONMENT = "persist.environment"
BLOBS = "persist.blobs"
VERSION = "persist.version"
FOLDER = "catalog"
"""The folder of the blobs, below the folder of a store."""
_CATALOG = b"catalog"


def shard_name(environment: str) -> str:
    digest = hashlib.sha256(environment.encode() + b"\0" + _CATALOG).digest()
    return f"s{uuid.UUID(bytes=digest[:16])}"


class PersistLog(UpdateLog):
    """See the module.

    The last version is also written at ``version_key``, for SQL that reads it.
    """

    max_updates = MAX_UPDATES

    def __init__(
        self,
        consensus: Consensus,
        blob: Blob,
        shard: str,
        *,
        environment: str | None = None,
        version_key: str | None = None,
        tidied_every: int = EVERY,
    ) -> None:
        self.shard = Shard(consensus, blob, shard)
        self.maintenance = Maintenance(self.shard, every=tidied_every)
        self.environment = environment
        self.frontier_is_cheap = consensus.revision_is_cheap
        self._version_key = version_key
        self._writer = secrets.token_bytes(8)

    def frontier(self) -> Frontier:
        return _frontier_in(self.shard.recent())

    def check(self) -> Checked:
        head = self.shard.consensus.check()
        return Checked(self.frontier(), head.time)

    def look(self) -> Checked:
        head = self.shard.consensus.look()
        return Checked(self.frontier(), head.time)

    def token(self) -> FenceToken | None:
        return self.shard.refresh().fence  # not `recent`; see `time_of`

    # -- appending ---------------------------------------------------------------------------------

    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        updates = append.updates
        if append.times is not None:
            recent = self.shard.recent()
            if recent.upper == append.expected_upper:  # else it is out of sync in any case
                latest = self.shard.consensus.check().time
                append.check_times(earliest=recent.last_time, latest=latest)
        self.maintenance.before_append()
        given_times = append.times or [MIN_TIMESTAMP] * len(updates)
        rows = [
            row
            for update, time in zip(updates, given_times, strict=True)
            for row in Unordered(update).at(time)
        ]
        beside: list[Operation] = []
        if self._version_key is not None:
            beside.append(Put(self._version_key, digits(updates[-1].version)))
        beside += append.beside()
        try:
            after = self._commit(append, rows, given_times[-1], beside)
        except (Fenced, OutOfSync):
            return self._refused(append)
        except (Unavailable, OSError) as error:
            return self._settle(append, error)
        self.maintenance.after_append(after)
        return append.at(after.time)

    def _commit(
        self,
        append: LogAppend,
        rows: Sequence[Row],
        last_time: Timestamp,
        beside: Sequence[Operation],
    ) -> ShardState:
        """Commit the append. Returns the state that it led to; unused uploads are removed."""
        lower, upper = append.expected_upper, append.next_upper
        while True:
            batch, appended = self._batches(lower, upper, rows)
            command = Append(
                batch=batch,
                appended=appended,
                writer=self._writer,
                token=append.updates[-1].id,
                fence=append.token,
                new_fence=append.new_token,
                last_time=last_time,
            )
            try:
                return self.shard.commit(compare_and_append(command), beside=beside)
            except REFUSED as refused:  # after any other error its parts may be named
                self.shard.remove_unused(command.uploads())
                if not isinstance(refused, UploadExpired):
                    raise

    def _batches(self, lower: int, upper: int, rows: Sequence[Row]) -> tuple[Batch, Batches]:
        """The batch of all rows, inline or in parts; parts of lasting kinds are separate."""
        state = self.shard.known
        batch = self.shard.inline_batch(lower, upper, rows)
        if batch is not None:
            return batch, ()
        history = [row for row in rows if row.kind not in LASTING]
        lasting = [row for row in rows if row.kind in LASTING]
        in_parts = self.shard.batch_in_parts
        appended = (in_parts(lower, upper, lasting, state),) if lasting else ()
        return in_parts(lower, upper, history, state), appended

    def time_of(self, update: Update) -> Timestamp | None:
        self.shard.refresh()  # a log that was set back may have the revision that was seen before
        return self.shard.reading(lambda state: self._time_in(state, update))

    def _time_in(self, state: ShardState, update: Update) -> Timestamp | None:
        version = update.version
        if state.since < version < state.upper:
            for row in self.shard.history(state, version, version + 1):
                if row.kind == UPDATE:
                    is_same_update = decode_up_to(row.value, UpdateHead, "id")["id"] == update.id
                    return row.time if is_same_update else None
        # If the version was trimmed since, its audit event still has the id and the time.
        events, _ = self._next_appended(AUDIT_EVENT, version, version + 1, state)
        for row in events:
            if decode(row.value, AuditEvent).id == update.id:
                return row.time
        # A silent update has no event, but the state has the token of this writer's last append.
        own_writers = (writer for writer in state.writers if writer.id == self._writer)
        return next((writer.time for writer in own_writers if writer.token == update.id), None)

    # -- reading -----------------------------------------------------------------------------------

    def first_snapshot(self) -> CatalogSnapshot:
        return self.shard.reading(
            lambda state: snapshot_of_rows(
                state.since, state.since_time, self.shard.snapshot(state)
            )
        )

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        if start >= end:
            return ()
        return self.shard.reading(lambda state: self._updates_in(state, start, end))

    def _updates_in(self, state: ShardState, start: int, end: int) -> tuple[Update, ...]:
        refuse_unreadable(start, end, since=state.since, upper=state.upper)
        return updates_between(self.shard.history(state, start, end), start, end)

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        lower = start
        while lower < end:
            rows, lower = self.shard.reading(partial(self._next_appended, kind, lower, end))
            yield from (Scanned(row.version, row.time, row.value) for row in rows)

    def _next_appended(
        self, kind: str, start: int, end: int, state: ShardState
    ) -> tuple[list[Row], int]:
        """Rows of an append-only kind from version ``start`` on, and the version to continue at."""
        start = max(start, _frontier_in(state).pruned_up_to(kind) + 1)
        if kind in LASTING:
            batches = self.shard.lasting_batches(state, start, end)
        else:
            batches = batches_between(state.batches, start, end)
        for batch in batches:
            stop = min(batch.upper, end)
            rows = list(self.shard.rows_of(batch, start, stop, kind=kind))
            if rows:
                return sorted(rows, key=lambda row: row.key), stop
        return [], end

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        # The revision is read before the frontier, so the wait misses no change between the two.
        revision = self.shard.consensus.revision()
        if self.frontier() != after:
            return True
        return self.shard.consensus.wait(self.shard.name, revision, timeout=timeout)

    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        refuse_lasting(kind)
        refuse_absent(up_to, _frontier_in(self.shard.recent()))
        try:
            self.shard.commit(prune(kind, up_to, token))
        except AlreadyMaintained:
            return False
        return True

    def compact(self, up_to: int, token: FenceToken) -> bool:
        return self.maintenance.compact(up_to, token)

    def copy_blobs(self, folder: Path) -> frozenset[str]:
        return self.shard.copy_blobs(blobs_in(folder))


def _frontier_in(state: ShardState) -> Frontier:
    return Frontier(state.since, state.upper, state.pruned)


def open_persist_log(
    store: Metastorage,
    *,
    folder: Path | None,
    blobs: str,
    default_blobs: str,
    folder_mode: int,
    environment: str,
) -> PersistLog:
    """The log of the catalog in ``store``; ``folder`` is the folder of the store, or None.

    ``blobs`` is where the blobs are, or empty if not configured. Then a new catalog puts them into
    ``default_blobs``, or below ``folder``. ``folder_mode`` is the mode of a new folder that is not
    below ``folder``. ``environment`` is the id of a catalog that is moved here from another log; a
    new catalog gets a new id. Raises `InvalidInput` if the location is invalid or is not the
    catalog's, and `Unavailable` if no blob can be written to ``blobs``.
    """
    if store.get(ENVIRONMENT) is None:
        location = blobs or default_blobs
        if not location and folder is None:
            raise InvalidInput(
                "catalog_log is persist, but catalog_blobs is not set; set it to a folder that "
                "every node reaches, or s3://bucket/prefix"
            )
        # An invalid or unwritable location is refused before it is recorded.
        chosen = _open_blobs(location, folder, folder_mode)
        if blobs:
            _refuse_unwritable(chosen)
        name = environment or new_environment_id()
        first_keys = [Put(ENVIRONMENT, name.encode()), Put(BLOBS, location.encode())]
        store.invoke([Absent(ENVIRONMENT)], first_keys)
    recorded, recorded_blobs = store.get(ENVIRONMENT), store.get(BLOBS)
    if recorded is None or recorded_blobs is None:
        raise CorruptData(
            "the store does not say where the blobs of its catalog are; restore it from a backup"
        )
    location = recorded_blobs.value.decode()
    if blobs not in ("", location):
        raise InvalidInput(
            f"catalog_blobs is {blobs}, but the blobs of the catalog are in "
            f"{location or 'the folder of the store'}; leave catalog_blobs out, or set it to that"
        )
    name = recorded.value.decode()
    return PersistLog(
        Consensus(store),
        _open_blobs(location, folder, folder_mode),
        shard_name(name),
        environment=name,
        version_key=VERSION,
    )


def _refuse_unwritable(blobs: Blob) -> None:
    """Raise `Unavailable` if no blob can be written."""
    key = "probe"  # always the same one: a killed process leaves it
    blobs.set(key, b"")
    blobs.delete(key)


def _open_blobs(location: str, folder: Path | None, folder_mode: int) -> Blob:
    if location.startswith("s3:"):
        return open_bucket(location)
    if location:
        if not os.path.isabs(location):
            raise InvalidInput(
                f"catalog_blobs is {location!r}; it must be an absolute path or s3://bucket/prefix"
            )
        return FileBlob(Path(location), folder_mode=folder_mode)
    if folder is None:
        raise CorruptData(
            "the blobs of the catalog are in the folder of its store, but this address of the "
            "store has no folder; open the store by its folder"
        )
    return blobs_in(folder / FOLDER)
