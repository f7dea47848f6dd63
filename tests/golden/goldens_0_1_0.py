"""What 0.1.0 wrote. It is frozen: every later release reads these bytes.

The values are those that this release reads: in classes that got fields later, these have their
defaults.
"""

from __future__ import annotations

from strandline.clock import Timestamp
from strandline.durable.update import AuditEvent, CatalogSnapshot, Change, Entry, Update
from strandline.fencing import FenceToken
from strandline.model import descriptors as d
from strandline.model import types as t
from strandline.wire.types import TypeTree
from tests.golden import goldens_metastore
from tests.golden.layout import NO, NONE, YES, n, nested, record, some, text

INT_TREE = nested(18, 1, n(4))
COLUMN_PAYLOAD = n(1) + text("id") + INT_TREE + NO + some(text("key")) + NONE + text("")
STORAGE_PAYLOAD = (
    some(text("in")) + NONE + some(text("sd")) + NONE
    + n(1) + text("k") + text("v") + YES + n(8)
    + n(1) + text("id") + n(1) + text("id") + n(1) + n(0) + NONE
)  # fmt: skip
COLUMN = d.ColumnDescriptor(1, "id", t.INT, nullable=False, comment="key")
STORAGE = d.StorageFormat(
    input_format="in",
    serde="sd",
    serde_properties=(("k", "v"),),
    compressed=True,
    buckets=4,
    bucket_columns=("id",),
    sort_columns=(("id", 1),),
)
CHANGE_PAYLOAD = text("zone") + n(1) + b"\x07" + NONE + some(n(2) + b"\xfe\xff")
CHANGE = Change("zone", b"\x07", None, b"\xfe\xff")
ENTRY_PAYLOAD = text("create_zone") + text('{"zone":"z"}') + n(1) + nested(3, 1, CHANGE_PAYLOAD)
ENTRY = Entry("create_zone", {"zone": "z"}, (CHANGE,))
ID = bytes(range(16))

CATALOG: list[tuple[object, bytes]] = [
    (
        Update(300, ID, "ann", "m1", (ENTRY,)),
        record(
            1, 1,
            b"\xac\x02", n(16), ID, text("ann"), text("m1"), n(1), nested(2, 1, ENTRY_PAYLOAD),
        ),
    ),
    (ENTRY, record(2, 1, ENTRY_PAYLOAD)),
    (CHANGE, record(3, 1, CHANGE_PAYLOAD)),
    (
        CatalogSnapshot(7, Timestamp(1 << 16), (("zone", (b"\x01\x02", b"")),)),
        record(4, 1, n(7), b"\x80\x80\x04", n(1), text("zone"), n(2), n(2, 1, 2), n(0)),
    ),
    (FenceToken(2, 130), record(5, 1, n(2), b"\x82\x01")),
    (
        d.DatabaseDescriptor(1, "hive", "system"),
        record(10, 1, n(1, 0), text("hive"), text("system")),
    ),
    (
        d.SchemaDescriptor(
            5, 1, "nyc", "ann", d.PrincipalType.ROLE, None, "file:/w", (("a", "b"),)
        ),
        record(
            11, 1,
            n(5, 1), text("nyc"), text("ann"), n(2), NONE, text("file:/w"),
            n(1), text("a"), text("b"),
        ),
    ),
    (
        d.TableDescriptor(
            id=6,
            schema_id=5,
            name="t",
            owner="ann",
            kind=d.TableKind.EXTERNAL,
            transactional=True,
            provider="parquet",
            schema_versions=(d.SchemaVersion(1, (COLUMN,)),),
            next_column_id=2,
            zone_id=3,
            primary_key=(1,),
            storage=STORAGE,
            location="s3://b",
            comment="c",
            created=100,
        ),
        record(
            12, 1,
            n(6, 5), text("t"), text("ann"), n(2), YES, text("parquet"),
            n(1), nested(16, 1, n(1), n(1), nested(15, 1, COLUMN_PAYLOAD)),
            n(2, 3), n(0), n(1, 1), n(0),
            nested(17, 1, STORAGE_PAYLOAD),
            some(text("s3://b")), n(0), some(text("c")), n(100),
        ),
    ),
    (
        d.ViewDescriptor(
            8, 5, "v", "ann", (COLUMN,), "SELECT 1", "SELECT 1", STORAGE, (), None, 9
        ),
        record(
            13, 1,
            n(8, 5), text("v"), text("ann"), n(1), nested(15, 1, COLUMN_PAYLOAD),
            text("SELECT 1"), text("SELECT 1"), nested(17, 1, STORAGE_PAYLOAD), n(0), NONE, n(9),
        ),
    ),
    (
        d.ZoneDescriptor(3, "default", "system", auto_adjust_scale_down=30, quorum_size=3),
        record(
            14, 1,
            n(3, 0), text("default"), text("system"), n(1), NONE, text(""),
            n(1), text("default"), NONE, some(n(0)), some(n(30)), n(1),
        ),
    ),
    (COLUMN, record(15, 1, COLUMN_PAYLOAD)),
    (d.SchemaVersion(1, ()), record(16, 1, n(1), n(0))),
    (STORAGE, record(17, 1, STORAGE_PAYLOAD)),
    (d.IdAllocator("object", 1000), record(20, 1, text("object"), b"\xe8\x07")),
    (d.ConfigEntry("k", "v"), record(21, 1, text("k"), text("v"))),
    (d.FenceEntry("catalog", 0, 3), record(22, 1, text("catalog"), n(0, 3))),
    (
        AuditEvent(300, ID, "ann", "m1", (("create_zone", {"b": 1, "a": ["x"]}),)),
        record(
            30, 1,
            b"\xac\x02", n(16), ID, text("ann"), text("m1"),
            n(1), text("create_zone"), text('{"a":["x"],"b":1}'),
        ),
    ),
]  # fmt: skip

TREES: list[tuple[t.DataType, bytes]] = [
    (t.BOOLEAN, n(1)),
    (t.TINYINT, n(2)),
    (t.SMALLINT, n(3)),
    (t.INT, n(4)),
    (t.BIGINT, n(5)),
    (t.FLOAT, n(6)),
    (t.DOUBLE, n(7)),
    (t.BINARY, n(8)),
    (t.DATE, n(9)),
    (t.TIMESTAMP, n(10)),
    (t.TIMESTAMP_NTZ, n(11)),
    (t.CALENDAR_INTERVAL, n(12)),
    (t.VARIANT, n(13)),
    (t.VOID, n(14)),
    (t.DecimalType(38, 10), n(64, 38, 10)),
    (t.STRING, n(65) + NONE),
    (t.CharType(3), n(66, 3)),
    (t.VarcharType(300), n(67) + b"\xac\x02"),
    (t.TimeType(6), n(68, 6)),
    (t.YearMonthIntervalType("year", "month"), n(69) + text("year") + text("month")),
    (t.DayTimeIntervalType("day", "second"), n(70) + text("day") + text("second")),
    (t.ArrayType(t.INT, contains_null=False), n(71, 4) + NO),
    (t.MapType(t.STRING, t.INT), n(72, 65) + NONE + n(4) + YES),
    (
        t.StructType(
            (t.StructField("a", t.INT, field_id=4), t.StructField("b", t.DATE, comment="c"))
        ),
        n(73, 2)
        + text("a") + n(4) + YES + NONE + text("") + n(5)
        + text("b") + n(9) + YES + some(text("c")) + text("") + n(0),
    ),
]  # fmt: skip

GOLDENS: list[tuple[object, bytes]] = [
    *CATALOG,
    *goldens_metastore.GOLDEN,
    *((TypeTree(tree), record(18, 1, payload)) for tree, payload in TREES),
]
