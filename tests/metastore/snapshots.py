"""The files of a table, read by its name in one call."""

from __future__ import annotations

from strandline.metastore.interface import PRESENT, AsOf, Session, TableFiles


def files_of(
    session: Session, name: str, *, at: AsOf = PRESENT, txn_id: int | None = None
) -> TableFiles:
    """Return the files of the table ``name`` as of ``at``, or as a transaction sees them."""
    snapshot = session.open([name], at=at, txn_id=txn_id)
    return session.files(snapshot.table(name).descriptor.id, snapshot.write_ids_of(name))


def paths_of(
    session: Session, name: str, *, at: AsOf = PRESENT, txn_id: int | None = None
) -> list[str]:
    """Return the paths of the data files of the table ``name``."""
    return [file.path for file in files_of(session, name, at=at, txn_id=txn_id).data_files]
