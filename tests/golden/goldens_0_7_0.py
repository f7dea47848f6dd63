"""The formats that 0.7.0 added: a table of several schema versions that has each column once."""

from __future__ import annotations

from strandline.model import descriptors as d
from strandline.model.types import INT
from tests.golden.goldens_0_2_0 import INT_TREE
from tests.golden.layout import NO, NONE, YES, n, nested, sealed, text

A, B, C = (d.ColumnDescriptor(number, name, INT) for number, name in enumerate("abc", 1))
A_PAYLOAD, B_PAYLOAD, C_PAYLOAD = (
    n(number) + text(name) + INT_TREE + YES + NONE + NONE + text("")
    for number, name in enumerate("abc", 1)
)

GOLDENS: list[tuple[object, bytes]] = [
    (
        d.TableDescriptor(
            id=6,
            schema_id=5,
            name="t",
            owner="ann",
            kind=d.TableKind.MANAGED,
            transactional=True,
            provider="strandline",
            schema_versions=(
                d.SchemaVersion(1, (A, B)),
                d.SchemaVersion(2, (A, B, C)),
                d.SchemaVersion(4, (C, A)),
                d.SchemaVersion(5, ()),
            ),
            next_column_id=4,
            zone_id=3,
            min_stale_rows=5,
        ),
        sealed(
            *(12, 4, n(6, 5), text("t"), text("ann"), n(1), YES, text("strandline")),
            *(n(3), nested(15, 1, A_PAYLOAD, B_PAYLOAD, C_PAYLOAD), n(4)),
            *(n(1, 1, 0, 2), n(2, 1, 0, 3), n(4, 2, 2, 1, 0, 1), n(5, 0)),
            *(n(4, 3), n(0), n(0), n(0)),
            nested(17, 1, NONE, NONE, NONE, NONE, n(0), NO, n(1), n(0), n(0), n(0), NONE),
            *(NONE, n(0), NONE, n(0)),
            *(n(0), n(0), text(""), b"\x9a\x99\x99\x99\x99\x99\xc9\x3f", n(5)),
            *(n(0), n(0)),
        ),
    ),
]
