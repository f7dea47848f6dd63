"""Migrations: how a catalog of an older release gets the meaning that this release reads.

A new *shape* of an object is a new version of its format: old bytes stay as they are, and are read
by their own format (`strandline.wire`). A new *meaning* is a migration: a step that changes the
objects of the whole catalog, in one version. The catalog's configuration says how many steps it has
had (`FORMAT`), a new catalog has all of them from its first version on.

`OpenableState.open` makes the steps that are missing, each in a version of its own, behind the new
epoch: so no older program works on the catalog meanwhile, and a crash leaves it between two steps,
where the next `open` goes on. To join or read a catalog takes one whose steps are exactly those of
this program. Versions before a migration keep their old meaning, so what reads the past has to know
it.

What the program itself brings into a catalog (its system views) is no migration: it is brought by
fingerprint (`strandline.catalog.system_views.synchronization`), and by no step. Its number is the
**content version**, a setting of the catalog. A program with a lower one refuses the catalog: it
would take back what the newer program has brought.

Rejected: a migration when an object is next written (every reader would have to know both meanings
for ever).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.durable.contents import Contents
from strandline.durable.state import DurableCatalogState, config_in
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import CorruptData, IncompatibleFormat
from strandline.model.descriptors import ConfigEntry, Setting

FORMAT = "format_version"
CONTENT = "content_version"
CONTENT_VERSION = 1
"""Raised by each release that brings other system views."""
MIGRATE = "migrate"
"""The verb of the entry that a migration is."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. ``change`` puts and deletes objects, inside an entry; it reads no present code.

    A step that was released never changes: catalogs that had it are not looked at again.
    """

    name: str
    change: Callable[[CatalogTransaction], None]


MIGRATIONS: list[Migration] = []
"""All steps, in their order; `strandline.catalog.migrations` registers them."""


class NeedsMigration(IncompatibleFormat):
    """An older release wrote the catalog, and it was not opened by this one yet."""


def present_format() -> ConfigEntry:
    """What a catalog of this program says of its format."""
    return ConfigEntry(FORMAT, str(len(MIGRATIONS)))


def present_content() -> Setting:
    """What a catalog says of its content that has what this program brings."""
    return Setting(CONTENT, str(CONTENT_VERSION))


def format_of(contents: Contents) -> int:
    """How many steps a catalog has had; 0 for those of releases before the first one."""
    return _number(FORMAT, config_in(contents, FORMAT))


def content_of(contents: Contents) -> int:
    """The content version of a catalog; 0 for those of releases before the first one."""
    setting = contents.get("setting", CONTENT.encode())
    return _number(CONTENT, None if setting is None else str(setting.value.value))


def _number(name: str, text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise CorruptData(f"the catalog's {name} is {text!r}; restore the store from a backup")
    return int(text)


def refuse_newer(contents: Contents) -> None:
    """Raise `IncompatibleFormat` for a catalog that this program does not understand."""
    for name, found, known in (
        ("format", format_of(contents), len(MIGRATIONS)),
        ("content version", content_of(contents), CONTENT_VERSION),
    ):
        if found > known:
            raise IncompatibleFormat(
                f"the catalog has {name} {found}, this release knows {name}s up to {known}: a newer"
                " release has opened it; use that one, or restore a backup from before"
            )


def refuse_other(contents: Contents) -> None:
    """Raise `NeedsMigration` or `IncompatibleFormat` unless the format is this program's."""
    refuse_newer(contents)
    found, known = format_of(contents), len(MIGRATIONS)
    if found < known:
        raise NeedsMigration(
            f"the catalog has format {found} of an older release, and this one has format {known};"
            " start a node of this release (`strandline serve`), which migrates it"
        )


def migrate(state: DurableCatalogState) -> bool:
    """Make the steps that are missing; whether there were any. Raises `OutOfSync`, `Fenced`."""
    position = state.recovered[-1]
    first = format_of(position.contents)
    for number, migration in enumerate(MIGRATIONS[first:], start=first + 1):
        transaction = state.transaction(position, author="system")
        with transaction.entry(MIGRATE, {"step": migration.name}):
            migration.change(transaction)
            transaction.put(ConfigEntry(FORMAT, str(number)))
        position = state.commit_transaction(transaction)
    return first < len(MIGRATIONS)
