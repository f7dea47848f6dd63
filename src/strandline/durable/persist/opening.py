"""Opening the shard of a catalog on a metastorage, which remembers where its parts are.

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

import os
import secrets
from pathlib import Path

from strandline.durable.opening import new_environment_id
from strandline.durable.persist.blob import Blob, FileBlob, blobs_in, open_bucket
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.persist_log import PersistLog, shard_name
from strandline.errors import CorruptData, InvalidInput
from strandline.metastorage import Absent, Metastorage, Put

ENVIRONMENT = "persist.environment"
BLOBS = "persist.blobs"
VERSION = "persist.version"
FOLDER = "catalog"
"""The folder of the blobs, below the folder of a store."""


def open_persist_log(
    store: Metastorage,
    *,
    folder: Path | None,
    blobs: str = "",
    otherwise: str = "",
    environment: str = "",
) -> PersistLog:
    """The log of the catalog in ``store``; ``folder`` is the folder of the store, or None.

    ``blobs`` is where the blobs are, or empty if not configured. Then a new catalog puts them into
    ``otherwise``, or below ``folder``. ``environment`` is the id of a catalog that is moved here
    from another log; a new catalog gets a new id. Raises `InvalidInput` if the place is invalid or
    is not the catalog's place, and `Unavailable` if no blob can be written to ``blobs``.
    """
    if store.get(ENVIRONMENT) is None:
        place = blobs or otherwise
        if not place and folder is None:
            raise InvalidInput(
                "catalog_log is persist, but catalog_blobs is not set; set it to a folder that "
                "every node reaches, or s3://bucket/prefix"
            )
        # An invalid or unwritable place is refused before it is recorded.
        chosen = _open_blobs(place, folder)
        if blobs:
            _refuse_unwritable(chosen)
        name = environment or new_environment_id()
        made = [Put(ENVIRONMENT, name.encode()), Put(BLOBS, place.encode())]
        store.invoke([Absent(ENVIRONMENT)], made)
    made_for, kept = store.get(ENVIRONMENT), store.get(BLOBS)
    if made_for is None or kept is None:
        raise CorruptData(
            "the store does not say where the blobs of its catalog are; restore it from a backup"
        )
    place = kept.value.decode()
    if blobs not in ("", place):
        raise InvalidInput(
            f"catalog_blobs is {blobs}, but the blobs of the catalog are in "
            f"{place or 'the folder of the store'}; leave catalog_blobs out, or set it to that"
        )
    name = made_for.value.decode()
    return PersistLog(
        Consensus(store),
        _open_blobs(place, folder),
        shard_name(name),
        environment=name,
        version_key=VERSION,
    )


def _refuse_unwritable(blobs: Blob) -> None:
    """Raise `Unavailable` if no blob can be written."""
    key = f"probe-{secrets.token_hex(8)}"
    blobs.set(key, b"")
    blobs.delete(key)


def _open_blobs(place: str, folder: Path | None) -> Blob:
    if place.startswith("s3:"):
        return open_bucket(place)
    if place:
        if not os.path.isabs(place):
            raise InvalidInput(
                f"catalog_blobs is {place!r}; it must be an absolute path or s3://bucket/prefix"
            )
        return FileBlob(Path(place))
    if folder is None:
        raise CorruptData(
            "the blobs of the catalog are in the folder of its store, but this address of the "
            "store has no folder; open the store by its folder"
        )
    return blobs_in(folder / FOLDER)
