"""The formats that 0.6.0 added: a delete file with its size, grants and roles with times."""

from __future__ import annotations

from strandline.metastore.store.rows import DeleteFile, DeleteForm
from strandline.model.privileges import Grant, Membership, Privilege, RoleDescriptor
from tests.golden.layout import NO, YES, n, nested, sealed, text

GOLDENS: list[tuple[object, bytes]] = [
    (
        DeleteFile(
            path="_deletes/1.parquet",
            file_ids=(1, 2),
            counts=(3, 4),
            form=DeleteForm.BITMAPS,
            bytes=300,
        ),
        sealed(42, 3, text("_deletes/1.parquet"), n(2, 1, 2), n(2, 3, 4), n(2), b"\xac\x02"),
    ),
    (Grant(7, 8, Privilege.SELECT, 300), sealed(65, 2, n(7, 8, 1), b"\xac\x02")),
    (Membership(7, 8, 300), sealed(69, 1, n(7, 8), b"\xac\x02")),
    (
        RoleDescriptor(
            22,
            "ann",
            "system",
            superuser=True,
            inherit=False,
            member_of=(Membership(7, 8, 300), Membership(9, 0)),
            created=301,
        ),
        sealed(
            *(53, 2, n(22, 0), text("ann"), text("system"), YES, NO),
            *(n(2), nested(69, 1, n(7, 8), b"\xac\x02", n(9, 0, 0)), b"\xad\x02"),
        ),
    ),
]
