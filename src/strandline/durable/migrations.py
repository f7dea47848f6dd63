"""Migrations: how a catalog of an older release gets the meaning that this release expects.

A new *shape* of an object is a new version of its format: old bytes stay unchanged and are read in
their own format (`strandline.wire`). A new *meaning* is a migration: a step that changes objects of
the whole catalog in one version. The catalog's configuration has the number of steps that were
applied (`FORMAT`). A new catalog has all of them from its first version on.

`OpenableState.open` applies the missing steps after it took the new epoch, each in its own version.
So no older program writes to the catalog in the meantime. A crash leaves the catalog between two
steps, and the next `open` continues. A step may add an object of a kind that is not migratable
(`Collection.migratable`), but not change one that exists, because other releases rely on it. To
join or read a catalog, a program must have exactly the catalog's steps. Versions before a migration
keep their old meaning, so code that reads the past must know it.

The program's own objects in the catalog (its system views) are not a migration. They are updated by
fingerprint (`strandline.catalog.system_views.synchronization`), not by a step. Their number is the
**content version**, a setting of the catalog. A program with a lower one refuses the catalog,
because it would undo what the newer program added.

Rejected: migrating an object when it is next written (every reader would have to know both meanings
for ever).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from strandline.durable.collections import CONFIG, collection
from strandline.durable.contents import Contents
from strandline.durable.state import config_in
from strandline.durable.transaction import CatalogTransaction, Position
from strandline.durable.update import Change
from strandline.errors import CorruptData, IncompatibleFormat
from strandline.model.descriptors import ConfigEntry, Setting
from strandline.model.privileges import SYSTEM_NAME

FORMAT = "format_version"
CONTENT = "content_version"
CONTENT_VERSION = 2
"""Increased by each release that changes the system views."""
MIGRATE = "migrate"
"""The verb of the entry of a migration."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. ``change`` puts and deletes objects, inside an entry.

    It depends on no code that a later release may change. A released step never changes: catalogs
    that have it do not run it again.
    """

    name: str
    change: Callable[[CatalogTransaction], None]


MIGRATIONS: list[Migration] = []
"""All steps, in order; `strandline.catalog.initial` registers them."""


class NeedsMigration(IncompatibleFormat):
    """An older release wrote the catalog, and this release has not opened it yet."""


def present_format() -> ConfigEntry:
    """The format entry of a catalog of this release."""
    return ConfigEntry(FORMAT, str(len(MIGRATIONS)))


def present_content() -> Setting:
    """The content version setting of a catalog with this program's content."""
    return Setting(CONTENT, str(CONTENT_VERSION))


def format_of(contents: Contents) -> int:
    """The number of steps that a catalog has had; 0 before the first release with steps."""
    return _number(FORMAT, config_in(contents, FORMAT))


def content_of(contents: Contents) -> int:
    """The content version of a catalog; 0 before the first release that has one."""
    setting = contents.get("setting", CONTENT.encode())
    return _number(CONTENT, None if setting is None else str(setting.value.value))


def _number(name: str, text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise CorruptData(f"the catalog's {name} is {text!r}; restore the store from a backup")
    return int(text)


def refuse_newer(contents: Contents) -> None:
    """Raise `IncompatibleFormat` if this program does not understand the catalog."""
    for name, present, newest in (
        ("format", format_of(contents), len(MIGRATIONS)),
        ("content version", content_of(contents), CONTENT_VERSION),
    ):
        if present > newest:
            raise IncompatibleFormat(
                f"the catalog has {name} {present}, but this release knows {name}s only up to "
                f"{newest}: a newer release has opened it; use that release, or restore an older "
                "backup"
            )


def refuse_other(contents: Contents) -> None:
    """Raise `NeedsMigration` or `IncompatibleFormat` unless the format is this program's."""
    refuse_newer(contents)
    present, newest = format_of(contents), len(MIGRATIONS)
    if present < newest:
        raise NeedsMigration(
            f"the catalog has format {present} of an older release, but this release has format "
            f"{newest}; start a node of this release (`strandline serve`), which migrates it"
        )


def missing_steps(position: Position) -> Iterator[CatalogTransaction]:
    """Yield a transaction for each step that the catalog lacks, on the one before it."""
    first = format_of(position.contents)
    for number, migration in enumerate(MIGRATIONS[first:], start=first + 1):
        transaction = CatalogTransaction(position, author=SYSTEM_NAME)
        with transaction.entry(MIGRATE, {"step": migration.name}):
            migration.change(transaction)
            transaction.put(ConfigEntry(FORMAT, str(number)))
        _refuse_fixed(migration, transaction.changes())
        yield transaction
        position = transaction


def _refuse_fixed(migration: Migration, changes: Iterable[Change]) -> None:
    """Raise `RuntimeError` if a step changes or removes an object that no step may change."""
    for change in changes:
        is_format = (change.kind, change.key) == (CONFIG.kind, FORMAT.encode())
        if change.old is not None and not collection(change.kind).migratable and not is_format:
            raise RuntimeError(
                f"the migration {migration.name!r} changes {change.kind} {change.key.decode()!r}, "
                "which every release must be able to read; a migration may only add such objects"
            )
