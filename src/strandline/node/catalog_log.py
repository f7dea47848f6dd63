"""Which update log keeps the catalog of a store, and how it is opened.

====================  =============================================================================
``metastorage``       the store's metastorage: its SQL database, or etcd
``stash``             tables of rows in the store's SQL database
``persist``           a shard: its state on the metastorage, its rows in files or a bucket of S3
``shadow``            the metastorage and the stash, which must say the same; the first decides.
                      ``shadow:FIRST+SECOND`` are two others
====================  =============================================================================

`LOGS` is the registry: a log that is added there can be named by the setting ``catalog_log``.

A store remembers its log in one row, which the first node writes before there is a catalog; a store
of an older release has no row and the log ``metastorage``. Another log would begin with an empty
catalog beside the rows of all tables, so it is refused. Where the remembered log is still empty
(the first start failed), another one may take its place. Nodes that start at once on a new store
write the row one after the other, so all but the first are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table

from strandline.clock import HybridClock
from strandline.durable import VERSION as CATALOG_VERSION
from strandline.durable import (
    MetastorageLog,
    ShadowLog,
    StashLog,
    UpdateLog,
    stash_log,
    upper_within,
)
from strandline.errors import CorruptData, InvalidInput
from strandline.metastorage import Metastorage, SqlMetastorage, open_metastorage
from strandline.metastorage.sql_tables import PART as METASTORAGE_PART
from strandline.metastore.store.transaction_order import UpperWithin
from strandline.node.address import StoreAddress
from strandline.sql import Database, change, ground, value
from strandline.sql.ground import whole_row

PART = "catalog_log"
VERSION = 1
METADATA = MetaData()
KEPT = Table(
    "strandline_catalog_log",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False),
)
whole_row(KEPT)
DEFAULT, _SHADOW = "metastorage", "shadow"
BLOBS_FOLDER = "_catalog"
"""Below the warehouse of a store on servers; Spark does not read what begins so."""
_READ = "SELECT name FROM strandline_catalog_log WHERE id = 1"
_PUT = (
    "INSERT INTO strandline_catalog_log (id, name) VALUES (1, ?)"
    " ON CONFLICT (id) DO UPDATE SET name = excluded.name"
)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """What a log is opened with: the store's SQL database, and its address.

    ``blobs`` is where the catalog keeps blobs, as the user says; empty if it is not said. Those of
    a new catalog then go below ``warehouse``, or the folder of the store.
    """

    database: Database
    address: StoreAddress
    clock: HybridClock
    blobs: str = ""
    warehouse: str = ""


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log. ``upper_within`` is None where it does not lie in the store's SQL database."""

    log: UpdateLog
    upper_within: UpperWithin | None


OpenLog = Callable[[LogPlace, ExitStack], OpenedLog]
"""Opens a log; what is to be closed goes to the stack."""


def _metastorage_of(
    place: LogPlace, opened: ExitStack, version_key: str
) -> tuple[Metastorage, UpperWithin | None]:
    """The store's metastorage, and what reads the upper of the log whose last version it keeps."""
    if not place.address.is_one_database:
        metastorage = open_metastorage(place.address.catalog, place.clock)
        opened.callback(metastorage.close)
        return metastorage, None
    store = SqlMetastorage(place.database, place.clock)
    opened.callback(store.close)
    within = UpperWithin(upper_within(store.get_on, version_key), store.getting(version_key))
    return store, within


def _open_metastorage_log(place: LogPlace, opened: ExitStack) -> OpenedLog:
    store, within = _metastorage_of(place, opened, CATALOG_VERSION)
    return OpenedLog(MetastorageLog(store), within)


def _open_stash(place: LogPlace, opened: ExitStack) -> OpenedLog:
    log = StashLog(place.database, place.clock)
    opened.callback(log.close)
    return OpenedLog(log, UpperWithin(stash_log.upper_within, stash_log.READ_UPPER))


def _open_persist(place: LogPlace, opened: ExitStack) -> OpenedLog:
    # Imported here, because only its users need Parquet and S3.
    from strandline.durable.persist.opening import VERSION as PERSIST_VERSION
    from strandline.durable.persist.opening import open_persist_log

    store, within = _metastorage_of(place, opened, PERSIST_VERSION)
    log = open_persist_log(
        store,
        folder=place.address.folder,
        blobs=place.blobs,
        otherwise=place.warehouse and f"{place.warehouse.rstrip('/')}/{BLOBS_FOLDER}",
    )
    return OpenedLog(log, within)


def _alone(opening: OpenLog) -> OpenLog:
    """A log in the SQL database, for a store that has its catalog there by its address."""

    def open_alone(place: LogPlace, opened: ExitStack) -> OpenedLog:
        if not place.address.is_one_database:
            raise InvalidInput(
                f"a log in SQL keeps the catalog in {place.database.name}, and the store is"
                f" {place.address.name}; name the store by the address of that database"
            )
        return opening(place, opened)

    return open_alone


def _shadow(first: OpenLog, second: OpenLog, *, names: tuple[str, str]) -> OpenLog:
    """Two logs, of which the first decides."""

    def open_shadow(place: LogPlace, opened: ExitStack) -> OpenedLog:
        one, other = first(place, opened), second(place, opened)
        log = ShadowLog(one.log, other.log, names=names)
        return OpenedLog(log, one.upper_within)

    return open_shadow


LOGS: dict[str, OpenLog] = {
    DEFAULT: _open_metastorage_log,
    "stash": _alone(_open_stash),
    "persist": _open_persist,
    _SHADOW: _shadow(_open_metastorage_log, _open_stash, names=(DEFAULT, "stash")),
}
"""Every log that a store may have, by the name in the setting."""
_BESIDE: dict[str, OpenLog] = {**LOGS, "stash": _open_stash}
"""The second log of a shadow; it need not lie where the address of the store says."""
_PAIR = "shadow:FIRST+SECOND"


def open_catalog_log(place: LogPlace, opened: ExitStack, *, wanted: str) -> OpenedLog:
    """The log of a store, which from now on remembers it; ``wanted`` is empty for the one it has.

    Raises `InvalidInput` for another log than the store has.
    """
    if wanted and _opening(wanted) is None:
        raise InvalidInput(f"catalog_log is {wanted!r}; it is one of {', '.join(LOGS)}, {_PAIR}")
    name = remembered(place)
    if name is None or (wanted not in ("", name) and _is_empty(place, name)):
        chosen = wanted or DEFAULT
        new_log = _known(chosen, place)(place, opened)  # it may refuse the store: then none is kept
        name = _remember(place, chosen, instead_of=name)
        if name == chosen:
            return new_log
    if wanted not in ("", name):
        raise InvalidInput(
            f"catalog_log is {wanted}, and the catalog of the store {place.address.name} is kept in"
            f" the log {name}; leave catalog_log out, or set it to {name}"
        )
    return _known(name, place)(place, opened)


@contextmanager
def reading_catalog_log(place: LogPlace) -> Iterator[UpdateLog]:
    """The log of a store that is there, as it is."""
    with ExitStack() as opened:
        yield _known(remembered(place) or DEFAULT, place)(place, opened).log


def remembered(place: LogPlace) -> str | None:
    """The name of the log that the store has; None for a store without a catalog."""
    with place.database.read() as connection:
        if ground.version_of(connection, PART) is not None:
            name: str | None = value(connection, _READ)
            return name
        has_tables = ground.version_of(connection, METASTORAGE_PART) is not None
    # Of an older release, or new.
    if place.address.is_one_database and not has_tables:
        return None
    return None if _is_empty(place, DEFAULT) else DEFAULT


def _is_empty(place: LogPlace, name: str) -> bool:
    with ExitStack() as opened:
        return _known(name, place)(place, opened).log.token() is None


def _remember(place: LogPlace, name: str, *, instead_of: str | None) -> str:
    """Write the row, unless another node was first; what it says then."""
    place.database.ensure_schema(PART, VERSION, METADATA)
    with place.database.write() as connection:
        kept: str | None = value(connection, _READ)
        if kept == instead_of:
            change(connection, _PUT, (name,))
            return name
    return kept or name


def _opening(name: str) -> OpenLog | None:
    """What opens the log ``name``, which may be a shadow of two; None for an unknown one."""
    kind, _, pair = name.partition(":")
    first, _, second = pair.partition("+")
    if kind == _SHADOW and first != second and {first, second} <= LOGS.keys() - {_SHADOW}:
        return _shadow(LOGS[first], _BESIDE[second], names=(first, second))
    return LOGS.get(name)


def _known(name: str, place: LogPlace) -> OpenLog:
    opening = _opening(name)
    if opening is None:
        raise CorruptData(
            f"{place.database.name} says that its catalog is kept in the log {name!r}, which this"
            f" program does not know; known are {', '.join(LOGS)}. Use the release that wrote it"
        )
    return opening
