"""The update log that keeps the catalog of a store: which one it is, and how it is opened.

====================  =============================================================================
``metastorage``       the store's metastorage: its SQL database, or etcd
``stash``             tables of rows in the store's SQL database
``persist``           a shard: its state on the metastorage, its rows in files or an S3 bucket
``shadow``            the metastorage and the stash, which must have the same content; the first
                      decides. ``shadow:FIRST+SECOND`` names two other logs
====================  =============================================================================

The setting ``catalog_log`` can name each of these `LOGS`.

A store remembers its log in one row of its SQL database (`RememberedLog`). The first node writes
the row before it creates the catalog. A store of an older release has no row, and its log is
``metastorage``. A node that wants another log is refused, since that log would begin with an empty
catalog beside the rows of all tables. If the remembered log is still empty (the first start
failed), another log may replace it, until the rows have a fence. The transaction that writes the
first fence requires that the row still names the log of the new catalog (`RequireLog`). So of
several nodes that start a new store with different logs at the same time, one creates the catalog,
and the others are refused.

`strandline.node.catalog_move` changes the row of a store that has a catalog. From then on, the new
log counts. The next process that opens the store finishes the move (`finish_move`): it copies the
seal of the former log (`strandline.durable.log_copy`) and begins a new epoch after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table

from strandline.clock import HybridClock
from strandline.durable import VERSION as CATALOG_VERSION
from strandline.durable import (
    MetastorageLog,
    ShadowLog,
    StashLog,
    Superseded,
    UpdateLog,
    stash_log,
    upper_within,
)
from strandline.durable.log_copy import FILLING, LogCopy, unseal
from strandline.durable.persist import persist_log
from strandline.errors import Conflict, CorruptData, InvalidInput, NotFound
from strandline.metastorage import (
    DeleteRange,
    Metastorage,
    Put,
    SqlMetastorage,
    open_metastorage,
    prefix_end,
)
from strandline.metastorage.sql_tables import PART as METASTORAGE_PART
from strandline.metastore.store.transaction_order import UpperWithin
from strandline.node.address import StoreAddress, shown_address
from strandline.node.membership import RequireLog, accept_log, new_member_id, raises_fence_of
from strandline.sql import Database, FenceRow, change, first_row, schema_versions
from strandline.sql.schema_versions import Part, whole_row

METADATA = MetaData()
PART = Part("catalog_log", 1, METADATA)
REMEMBERED = Table(
    "strandline_catalog_log",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False),
    Column("address", String, nullable=False),
    Column("former", String, nullable=False),
    Column("sealed_epoch", BigInteger, nullable=False),
)
whole_row(REMEMBERED)
DEFAULT, _SHADOW = "metastorage", "shadow"
BLOBS_FOLDER = "_catalog"
"""Below the warehouse of a store on servers. Spark ignores names that begin with ``_``."""
PERSIST, _SHARD = "persist", "persist."
"""The name of the log, and the prefix of its keys."""
_READ = "SELECT name, address, former, sealed_epoch FROM strandline_catalog_log WHERE id = 1"
_PUT = (
    "INSERT INTO strandline_catalog_log (id, name, address, former, sealed_epoch)"
    " VALUES (1, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET name = excluded.name, address = excluded.address,"
    " former = excluded.former, sealed_epoch = excluded.sealed_epoch"
)


@dataclass(frozen=True, slots=True)
class RememberedLog:
    """The log that keeps the catalog of a store, as the store remembers it.

    ``address`` is the shown address of etcd if the catalog is there, and empty if it is in the SQL
    database of the store. ``former`` is not empty while a move to this log is unfinished: no epoch
    has begun yet after the seal of the former log, which sealed ``sealed_epoch``. It is the name of
    the former log if that is in the SQL database. Otherwise it is its address, and the seal was
    copied already.
    """

    name: str
    address: str = ""
    former: str = ""
    sealed_epoch: int = 0

    def __str__(self) -> str:
        return f"{self.name} in {self.address}" if self.address else self.name


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The arguments that open a log: the store's SQL database, its address, and more.

    If the database was opened for reading, etcd is opened for reading too. ``blobs`` is where the
    user wants the blobs of the catalog, or empty if the user did not say. The blobs of a new
    catalog then go below ``warehouse`` or the folder of the store. ``folder_mode`` is the mode of a
    new folder of blobs. ``environment`` is the environment id of a catalog that moves here from
    another log.
    """

    database: Database
    address: StoreAddress
    clock: HybridClock
    blobs: str = ""
    warehouse: str = ""
    folder_mode: int = 0o777
    environment: str = ""

    @property
    def catalog_address(self) -> str:
        """The `RememberedLog.address` of a log at this place."""
        return "" if self.address.is_one_database else shown_address(self.address.catalog)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log. ``upper_within`` reads its upper in a transaction on the store's SQL database.

    It is None if the log is elsewhere. ``metastorage`` is the one that the log uses, or None.
    ``require_log`` is the argument of `join_or_create`. ``check_blobs`` raises if the blobs of the
    catalog cannot be written, and is None if it has none.
    """

    log: UpdateLog
    upper_within: UpperWithin | None
    metastorage: Metastorage | None = None
    require_log: RequireLog = accept_log
    check_blobs: Callable[[], object] | None = None


def _metastorage_of(
    place: LogPlace, stack: ExitStack, version_key: str
) -> tuple[Metastorage, UpperWithin | None]:
    """Return the store's metastorage and the reader of the log's upper, or None for etcd.

    The metastorage has the last version of that log under ``version_key``.
    """
    if not place.address.is_one_database:
        metastorage = open_metastorage(
            place.address.catalog, place.clock, read_only=place.database.read_only
        )
        stack.callback(metastorage.close)
        return metastorage, None
    store = SqlMetastorage(place.database, place.clock)
    stack.callback(store.close)
    within = UpperWithin(upper_within(store.get_on, version_key), store.get_query(version_key))
    return store, within


def _open_metastorage_log(place: LogPlace, stack: ExitStack) -> OpenedLog:
    store, within = _metastorage_of(place, stack, CATALOG_VERSION)
    return OpenedLog(MetastorageLog(store), within, store)


def _open_stash(place: LogPlace, stack: ExitStack) -> OpenedLog:
    log = StashLog(place.database, place.clock)
    stack.callback(log.close)
    return OpenedLog(log, UpperWithin(stash_log.upper_within, stash_log.UPPER_QUERY))


def _open_persist(place: LogPlace, stack: ExitStack) -> OpenedLog:
    store, within = _metastorage_of(place, stack, persist_log.VERSION)
    log = persist_log.open_persist_log(
        store,
        folder=place.address.folder,
        blobs=place.blobs,
        default_blobs=place.warehouse and f"{place.warehouse.rstrip('/')}/{BLOBS_FOLDER}",
        folder_mode=place.folder_mode,
        environment=place.environment,
    )
    return OpenedLog(log, within, store, check_blobs=log.maintenance.check)


_OPENERS: dict[str, Callable[[LogPlace, ExitStack], OpenedLog]] = {
    DEFAULT: _open_metastorage_log,
    "stash": _open_stash,
    PERSIST: _open_persist,
}
"""They register on the stack what must be closed later."""
LOGS = (*_OPENERS, _SHADOW)
"""Every log that a store may have, by its name in the setting."""
_PAIR = "shadow:FIRST+SECOND"


def open_catalog_log(place: LogPlace, stack: ExitStack, *, wanted: str) -> OpenedLog:
    """Open the log of a store, and remember it if the store is new.

    ``wanted`` is the name of the log, or empty for the one that the store remembers. Raises
    `InvalidInput` if the catalog of the store is in another log.
    """
    present = remembered_log(place)
    if present is None or (wanted not in ("", present.name) and _is_empty(place, present.name)):
        chosen = wanted or DEFAULT
        new_log = open_log(chosen, place, stack)  # if it raises, no row is written
        new = RememberedLog(chosen, place.catalog_address)
        present = remember(place, new, instead_of=present, if_new=True)
        _compare_address(place, present)
        if present.name == chosen:
            return replace(new_log, require_log=_requires(chosen, place))
    if wanted not in ("", present.name):
        raise InvalidInput(
            f"catalog_log is {wanted}, but the catalog of the store {place.address.name} is kept "
            f"in the log {present.name}; leave catalog_log out, or set it to {present.name}. "
            "`strandline durable migrate` moves a catalog to another log"
        )
    finish_move(place, present)
    opened_log = open_log(present.name, place, stack)
    return replace(opened_log, require_log=_requires(present.name, place))


def refuse_unknown(name: str, *, option: str) -> None:
    """Raise `InvalidInput` if ``name`` is not the name of a log. An empty ``name`` is accepted."""
    if name and not _is_known(name):
        raise InvalidInput(f"{option} is {name!r}; it must be one of {', '.join(LOGS)}, {_PAIR}")


def keep_blobs_at(place: LogPlace, blobs: str) -> None:
    """Record that the blobs of the catalog, which have been copied, are now at ``blobs``.

    ``blobs`` is a folder, or empty for the default one in the folder of the store. If the catalog
    has moved from its shard to another log, the keys of the shard are deleted, because its blobs
    were not copied. If the catalog moves back later, it starts a new shard.
    """
    if not _has_metastorage(place):
        return
    with closing(SqlMetastorage(place.database, place.clock)) as store:
        if store.get(persist_log.BLOBS) is None:
            return
        present = remembered_log(place)
        if present is not None and PERSIST in parts_of(present.name):
            store.invoke([], [Put(persist_log.BLOBS, blobs.encode())])
        else:
            store.invoke([], [DeleteRange(_SHARD, prefix_end(_SHARD))])


def has_other_blobs(part: str, place: LogPlace) -> bool:
    """Whether the log ``part`` has a shard whose blobs are not where ``place`` says."""
    if part != PERSIST or not place.blobs:
        return False
    with ExitStack() as stack:
        store, _ = _metastorage_of(place, stack, persist_log.VERSION)
        recorded = store.get(persist_log.BLOBS)
        return recorded is not None and recorded.value.decode() != place.blobs


def forget_shard(place: LogPlace) -> None:
    """Delete the keys of the shard, so that the log `persist` starts a new one. Its blobs stay."""
    with ExitStack() as stack:
        store, _ = _metastorage_of(place, stack, persist_log.VERSION)
        store.invoke([], [DeleteRange(_SHARD, prefix_end(_SHARD))])


def part_from_blobs(place: LogPlace) -> None:
    """Make sure that a copy of a store does not share blobs with its original.

    If the catalog has moved from its shard to another log, the move is finished, which may need the
    blobs, and the keys of the shard are deleted, as in `keep_blobs_at`. Raises `InvalidInput` if
    the catalog itself has its blobs outside of the store's folder.
    """
    if not _has_metastorage(place):
        return
    with closing(SqlMetastorage(place.database, place.clock)) as store:
        blobs = store.get(persist_log.BLOBS)
        outside = "" if blobs is None else blobs.value.decode()
        present = remembered_log(place)
        if outside and present is not None and PERSIST in parts_of(present.name):
            raise InvalidInput(
                f"the blobs of the catalog are in {outside}, and a copy would share them with the"
                " original; make the copy with `strandline backup` and `strandline restore --copy`"
            )
        if present is not None:
            finish_move(place, present)
        if outside:
            store.invoke([], [DeleteRange(_SHARD, prefix_end(_SHARD))])


def _has_metastorage(place: LogPlace) -> bool:
    with place.database.read() as connection:
        return schema_versions.version_of(connection, METASTORAGE_PART) is not None


def bring_catalog(place: LogPlace, log: UpdateLog) -> None:
    """Copy the catalog from ``log`` to the SQL database of ``place``, and remember it there.

    The rows of the database get the fence token of the catalog, which may be newer. Raises
    `CorruptData` if the copy differs from the original.
    """
    with closing(SqlMetastorage(place.database, place.clock)) as store:
        copied = MetastorageLog(store)
        copy = LogCopy(log, copied, names=(place.address.name, place.database.name))
        while True:
            since = log.frontier().since
            try:
                frontier, _ = copy.level()
                copy.prove(frontier)
                break
            except (CorruptData, NotFound):
                if log.frontier().since == since:
                    raise
                # A node has trimmed the log meanwhile: try again.
        token = copied.token()
    place.database.ensure_schema(PART)
    with place.database.write() as connection:
        put_remembered(connection, RememberedLog(DEFAULT))
        fence = FenceRow.read(connection)
        if fence is not None and token is not None and fence.token < token:
            FenceRow.raise_to(connection, token)


@contextmanager
def reading_catalog_log(place: LogPlace) -> Iterator[UpdateLog]:
    """Open the log of an existing store as it is, without finishing a move."""
    present = remembered_log(place)
    with ExitStack() as stack:
        yield open_log(DEFAULT if present is None else present.name, place, stack).log


def remembered_log(place: LogPlace) -> RememberedLog | None:
    """Return the log that the store remembers, or None if the store has no catalog.

    Raises `InvalidInput` if the catalog is not where the address of the store says.
    """
    with place.database.read() as connection:
        if schema_versions.version_of(connection, PART) is not None:
            present = read_remembered(connection)
            if present is not None:
                _compare_address(place, present)
            return present
        has_tables = schema_versions.version_of(connection, METASTORAGE_PART) is not None
    # Without a row, the store is new or was made by an older release.
    if place.address.is_one_database and not has_tables:
        return None
    return None if _is_empty(place, DEFAULT) else RememberedLog(DEFAULT, place.catalog_address)


def log_name(place: LogPlace) -> str:
    """Return the name of the log that keeps the catalog, as users see it."""
    return str(remembered_log(place) or RememberedLog(DEFAULT))


def read_remembered(connection: Connection) -> RememberedLog | None:
    """Return the row, or None if it is not written yet."""
    row = first_row(connection, _READ)
    return None if row is None else RememberedLog(*row)


def _compare_address(place: LogPlace, present: RememberedLog) -> None:
    """Raise `InvalidInput` if only one of row and address puts the catalog in etcd.

    The addresses of etcd are not compared, since several may name the same cluster. If the address
    names a log that the catalog has left, joining it fails because it is sealed.
    """
    if present.address and place.address.is_one_database:
        raise InvalidInput(
            f"the catalog of {place.address.name} is kept in {present.address}; name the store by "
            "that address, and this database by the setting objects"
        )
    if not present.address and not place.address.is_one_database:
        raise InvalidInput(
            f"the catalog of {place.address.name} is kept in {place.database.name}; name the store"
            " by the address of that database"
        )


def _is_empty(place: LogPlace, name: str) -> bool:
    with ExitStack() as stack:
        return open_log(name, place, stack).log.token() is None


def remember(
    place: LogPlace,
    new: RememberedLog,
    *,
    instead_of: RememberedLog | None,
    if_new: bool = False,
) -> RememberedLog:
    """Write ``new`` if the row is still ``instead_of`` or missing; return the row.

    With ``if_new``, the row is not replaced once the store has a fence.
    """
    place.database.ensure_schema(PART)
    with place.database.write() as connection:
        present = read_remembered(connection)
        is_settled = if_new and FenceRow.read(connection) is not None
        if present is None or (present == instead_of and not is_settled):
            put_remembered(connection, new)
            return new
    return present


def _requires(name: str, place: LogPlace) -> RequireLog:
    def require_log(connection: Connection) -> None:
        if schema_versions.version_of(connection, PART) is None:
            return  # an older release made the store, and knew one log only
        present = read_remembered(connection)
        if present is None:
            return
        _compare_address(place, present)
        if present.name != name:
            raise Conflict(
                f"the catalog of {place.address.name} is now kept in the log {present.name}, not in"
                f" {name}: another node started the new store at the same time, or the catalog was"
                f" moved; start this node again, with catalog_log left out or {present.name}"
            )

    return require_log


def put_remembered(connection: Connection, present: RememberedLog) -> None:
    """Write the row."""
    change(connection, _PUT, (present.name, present.address, present.former, present.sealed_epoch))


def finish_move(place: LogPlace, present: RememberedLog) -> RememberedLog:
    """Finish a move to the log ``present``; return the row. Several processes may do so at once.

    After a crash between two steps, the next process that opens the store does the rest. If the
    catalog has moved on meanwhile, a late process changes nothing, because the seal that it finds
    is not that of ``present``.
    """
    if not present.former:
        return present
    name = deciding_part(present.name)
    with ExitStack() as stack:
        log = open_log(name, place, stack).log
        if present.former in LOGS:
            original = open_log(present.former, _in_database(place), stack).log
            with suppress(Superseded):  # another process has finished the move
                LogCopy(original, log, names=(present.former, name), token=FILLING).level()
        unseal(
            log,
            present.sealed_epoch,
            member=new_member_id(),
            raise_fence=raises_fence_of(place.database, place.clock),
        )
    return remember(place, replace(present, former="", sealed_epoch=0), instead_of=present)


def _in_database(place: LogPlace) -> LogPlace:
    """Return the place of a log in the store's SQL database, with its blobs where they are."""
    address = place.address
    if not address.is_one_database:
        address = StoreAddress(None, address.objects, address.objects)
    return replace(place, address=address, blobs="")


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of the logs that the log ``name`` consists of. The first decides."""
    if name == _SHADOW:
        return (DEFAULT, "stash")
    kind, _, pair = name.partition(":")
    return tuple(pair.split("+")) if kind == _SHADOW else (name,)


def deciding_part(name: str) -> str:
    """Return the name of the deciding log among the parts of the log ``name``."""
    return parts_of(name)[0]


def _is_known(name: str) -> bool:
    parts = parts_of(name)
    is_pair = len(parts) == 2 and parts[0] != parts[1]
    return name in LOGS or (is_pair and _OPENERS.keys() >= {*parts})


def open_log(name: str, place: LogPlace, stack: ExitStack) -> OpenedLog:
    """Open the remembered log ``name``. Raises `CorruptData` if it is unknown.

    Raises `InvalidInput` if the stash decides, but the address puts the catalog outside of the
    store's SQL database. Only the second log of a shadow may be a stash beside etcd.
    """
    if not _is_known(name):
        raise CorruptData(
            f"{place.database.name} says that its catalog is kept in the log {name!r}, which this "
            f"program does not know; it knows {', '.join(LOGS)}. Use the release that wrote it"
        )
    parts = parts_of(name)
    if parts[0] == "stash" and not place.address.is_one_database:
        raise InvalidInput(
            f"a log in SQL keeps the catalog in {place.database.name}, but the store is "
            f"{place.address.name}; name the store by the address of that database"
        )
    if name in _OPENERS:
        return _OPENERS[name](place, stack)
    first, second = parts
    deciding, following = _OPENERS[first](place, stack), _OPENERS[second](place, stack)
    return replace(
        deciding,
        log=ShadowLog(deciding.log, following.log, names=(first, second)),
        check_blobs=deciding.check_blobs or following.check_blobs,
    )
