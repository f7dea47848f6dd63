"""How users name a store: a folder, or the address of the servers that keep it.

==========================  ======================================================================
``/data/lake``              a folder with the database, the head file and the warehouse
``postgresql://…/db``       a PostgreSQL database keeps catalog, transactions and rows
``etcd://…/prefix``         etcd keeps the catalog; the rest is in the PostgreSQL database that
                            the setting ``objects`` names
==========================  ======================================================================

The tables of a store on servers are in the folder that the setting ``warehouse`` names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from strandline.config import Settings
from strandline.errors import InvalidInput, UnsupportedOperation

DATABASE_FILE = "strandline.db"
"""The name of the database in the folder of a store."""
_SEPARATOR = "://"
_SCHEME_ALONE = re.compile("(postgresql|etcd):(?!//)", re.IGNORECASE)
_OPTIONS = re.compile("[?#].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is. ``folder`` is absolute, or None if the store is on servers.

    ``catalog`` is the address of the server that keeps the catalog, ``objects`` that of the SQL
    database that keeps everything else. They are equal if one database keeps both, and empty for a
    folder.
    """

    folder: Path | None
    catalog: str = field(default="", repr=False)
    objects: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The name of the store in messages, without user and password."""
        return str(self.folder) if self.folder is not None else shown_address(self.catalog)

    @property
    def is_one_database(self) -> bool:
        """Whether one database keeps the catalog and everything else."""
        return self.catalog == self.objects


def store_address(store: str | Path | StoreAddress, settings: Settings) -> StoreAddress:
    """Return the address of the store that a user names by ``store`` and by ``settings``.

    Raises `InvalidInput` if the settings do not fit the address, and `UnsupportedOperation` if the
    scheme is unknown.
    """
    if isinstance(store, StoreAddress):
        return store
    if not isinstance(store, str | os.PathLike) or store == "":
        raise InvalidInput(f"a store is named by a folder or an address, not by {store!r:.80}")
    text = str(store)
    scheme_alone = None if isinstance(store, Path) else _SCHEME_ALONE.match(text)
    if scheme_alone is not None:  # not a folder with a password in its name
        start = f"{scheme_alone[1].lower()}{_SEPARATOR}"
        raise InvalidInput(
            f"the address of the store begins with {scheme_alone[0]!r}; write {start}…, or ./ "
            "before the name of a folder"
        )
    if isinstance(store, Path) or _SEPARATOR not in text:
        for name, value in (("objects", settings.objects), ("warehouse", settings.warehouse)):
            if value:
                raise InvalidInput(
                    f"{name} is set to {shown_address(value)}, but the store {text} is a folder, "
                    f"which contains everything; {_leave_out(name)}"
                )
        folder = Path(text).absolute()
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{folder} cannot be the folder of a store, because its path is not UTF-8; rename "
                "the folder"
            ) from None
        return StoreAddress(folder)
    scheme = text.partition(_SEPARATOR)[0].lower()
    if scheme == "postgresql":
        if settings.objects not in ("", text):
            raise InvalidInput(
                f"objects is set to {shown_address(settings.objects)}, but the store "
                f"{shown_address(text)} is a database, which contains everything; "
                + _leave_out("objects")
            )
        return StoreAddress(None, text, text)
    if scheme == "etcd":
        if settings.objects.partition(_SEPARATOR)[0].lower() != "postgresql":
            found = f", not {shown_address(settings.objects)}" if settings.objects else ""
            raise InvalidInput(
                f"etcd keeps the catalog of the store {shown_address(text)}; name the PostgreSQL"
                " database that keeps the rest in the setting objects:"
                f" STRANDLINE_OBJECTS=postgresql://USER@HOST/DATABASE{found}"
            )
        return StoreAddress(None, text, settings.objects)
    raise UnsupportedOperation(
        f"{shown_address(text)} is not the address of a store; name a folder, postgresql://… or etcd://…"
    )


def _leave_out(setting: str) -> str:
    return (
        f"leave {setting} out of the options, the environment (STRANDLINE_{setting.upper()}) and "
        "the configuration file"
    )


def shown_address(address: str) -> str:
    """Return ``address`` without user, password and options."""
    scheme, separator, rest = address.partition(_SEPARATOR)
    if not separator:
        return address
    # As PostgreSQL's driver reads it: a password may contain ? and #, which begin nothing there.
    authority, slash, path = rest.partition("/")
    server = authority.rpartition("@")[2]
    scheme, shown = scheme.lower(), _OPTIONS.sub("", f"{server}{slash}{path}")
    if scheme == "postgresql":
        shown = shown.rpartition("@")[2]  # of a password with /, with which it is not an address
    return f"{scheme}{separator}{shown}"
