"""The formats that 0.8.0 added: a table whose partitions keep a format that it had before."""

from __future__ import annotations

from strandline.model import descriptors as d
from strandline.model.types import INT
from tests.golden.goldens_0_1_0 import STORAGE, STORAGE_PAYLOAD
from tests.golden.goldens_0_2_0 import INT_TREE
from tests.golden.layout import NO, NONE, YES, n, nested, sealed, some, text

KEY_PAYLOAD = n(1) + text("p") + INT_TREE + YES + NONE + NONE + text("")

GOLDENS: list[tuple[object, bytes]] = [
    (
        d.TableDescriptor(
            id=6,
            schema_id=5,
            name="t",
            owner="ann",
            kind=d.TableKind.MANAGED,
            transactional=False,
            provider="hive",
            schema_versions=(d.SchemaVersion(2, (d.ColumnDescriptor(1, "p", INT),)),),
            next_column_id=2,
            zone_id=3,
            partition_columns=(1,),
            min_stale_rows=5,
            partition_storage=STORAGE,
        ),
        sealed(
            *(12, 5, n(6, 5), text("t"), text("ann"), n(1), NO, text("hive")),
            *(n(1), nested(15, 1, KEY_PAYLOAD), n(1), n(2, 1, 0, 1)),
            *(n(2, 3), n(1, 1), n(0), n(0)),
            nested(17, 1, NONE, NONE, NONE, NONE, n(0), NO, n(1), n(0), n(0), n(0), NONE),
            *(NONE, n(0), NONE, n(0)),
            *(n(0), n(0), text(""), b"\x9a\x99\x99\x99\x99\x99\xc9\x3f", n(5)),
            *(n(0), n(0), some(nested(17, 1, STORAGE_PAYLOAD))),
        ),
    ),
]
