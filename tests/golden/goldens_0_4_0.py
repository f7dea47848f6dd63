"""The formats that 0.4.0 added: partitioned tables, and files with typed partition values."""

from __future__ import annotations

from strandline.durable.persist.shard_state import (
    NO_REPLACEMENT,
    Batch,
    BlobRef,
    Replacement,
    ShardDiff,
    ShardState,
    Writer,
)
from strandline.durable.rows import UpdateHead
from strandline.fencing import FenceToken
from strandline.metastore.store.rows import (
    AnalyzedColumn,
    ColumnStatistics,
    DataFile,
    StatisticsRow,
)
from strandline.model import descriptors as d
from strandline.model.partitioning import PartitionField, PartitionValue, Transform, TransformKind
from strandline.node.database_mark import DatabaseTime
from tests.golden.goldens_0_1_0 import STORAGE, STORAGE_PAYLOAD
from tests.golden.goldens_0_2_0 import COLUMN, COLUMNS, GRANT_LIST, GRANTS
from tests.golden.goldens_0_2_1 import TIME, TIME_BYTES
from tests.golden.layout import NONE, YES, n, nested, sealed, some, text

FIELDS = (
    PartitionField(1000, 1, Transform(TransformKind.BUCKET, 16), "id_bucket"),
    PartitionField(1001, 2, Transform(TransformKind.DAY), "ts_day"),
)
BUCKET_PAYLOAD = b"\xe8\x07" + n(1, 6, 16) + text("id_bucket")
DAY_PAYLOAD = b"\xe9\x07" + n(2, 4, 0) + text("ts_day")
VALUES: list[tuple[PartitionValue, bytes]] = [
    (PartitionValue(1000, None), b"\xe8\x07" + n(0)),
    (PartitionValue(1, False), n(1, 1)),
    (PartitionValue(1, True), n(1, 2)),
    (PartitionValue(2, -1), n(2, 3, 1) + b"\xff"),
    (PartitionValue(3, 128), n(3, 3, 2) + b"\x00\x80"),
    (PartitionValue(4, "Lyon"), n(4, 4) + text("Lyon")),
    (PartitionValue(5, b"\xfe"), n(5, 5, 1) + b"\xfe"),
]
PARTITION = b"".join(data for _, data in VALUES)
FOREIGN_KEY = d.Constraint(
    name="fk",
    kind=d.ConstraintKind.FOREIGN_KEY,
    columns=(1, 2),
    text="t",
    parent_id=7,
    parent_columns=(3, 4),
    update_rule=1,
    delete_rule=2,
    enabled=False,
    validated=True,
    rely=True,
)
FOREIGN_KEY_PAYLOAD = (
    text("fk") + n(2, 2, 1, 2) + text("t") + n(7, 2, 3, 4) + n(1, 2) + n(0) + n(1) + n(1)
)
ANALYZED = AnalyzedColumn(
    column_id=3, name="e", type="int", engine="hive", analyzed=300, summary=b"\x0c\x00"
)
ANALYZED_PAYLOAD = n(3) + text("e") + text("int") + text("hive") + b"\xac\x02" + n(2) + b"\x0c\x00"

PART = BlobRef("s/7-part-a", 300, 65_536)
PART_PAYLOAD = text("s/7-part-a") + b"\xac\x02" + b"\x80\x80\x04"
IN_PARTS = Batch(0, 3, 9, TIME, b"", (PART,))
IN_PARTS_PAYLOAD = n(0, 3, 9) + TIME_BYTES + n(0) + n(1) + nested(70, 1, PART_PAYLOAD)
INLINE = Batch(3, 5, 2, TIME, b"\xfe")
INLINE_PAYLOAD = n(3, 5, 2) + TIME_BYTES + n(1) + b"\xfe" + n(0)
REPLACED = Replacement(3, 5, (INLINE,))
REPLACED_PAYLOAD = n(3, 5, 1) + nested(71, 1, INLINE_PAYLOAD)
NOTHING_PAYLOAD = n(0, 0, 0)
WRITER = Writer(b"\x01", b"\x02\x03", TIME)
WRITER_PAYLOAD = n(1, 1) + n(2, 2, 3) + TIME_BYTES
TOKEN_PAYLOAD = n(0, 2)

GOLDENS: list[tuple[object, bytes]] = [
    (FIELDS[0], sealed(67, 1, BUCKET_PAYLOAD)),
    (
        d.TableDescriptor(
            id=6,
            schema_id=5,
            name="t",
            owner="ann",
            kind=d.TableKind.MANAGED,
            transactional=True,
            provider="strandline",
            schema_versions=(d.SchemaVersion(1, (COLUMN,)),),
            next_column_id=3,
            zone_id=3,
            primary_key=(1,),
            storage=STORAGE,
            comment="c",
            created=100,
            privileges=GRANTS,
            primary_key_index=12,
            storage_profile="fast",
            stale_rows_fraction=0.25,
            min_stale_rows=300,
            partitioning=FIELDS,
            constraints=(FOREIGN_KEY,),
        ),
        sealed(
            12, 3,
            n(6, 5), text("t"), text("ann"), n(1), YES, text("strandline"),
            n(1), nested(16, 1, n(1), COLUMNS),
            n(3, 3), n(0), n(1, 1), n(0),
            nested(17, 1, STORAGE_PAYLOAD),
            NONE, n(0), some(text("c")), n(100),
            GRANT_LIST, n(12), text("fast"), b"\x00\x00\x00\x00\x00\x00\xd0\x3f", b"\xac\x02",
            n(2), nested(67, 1, BUCKET_PAYLOAD, DAY_PAYLOAD),
            n(1), nested(68, 1, FOREIGN_KEY_PAYLOAD),
        ),
    ),
    (FOREIGN_KEY, sealed(68, 1, FOREIGN_KEY_PAYLOAD)),
    (
        d.StorageUsageEvent(((6, 300), (7, 0)), 128, TIME),
        sealed(64, 2, TIME_BYTES, n(2), n(6), b"\xac\x02", n(7, 0), b"\x80\x01"),
    ),
    (
        DataFile(
            file_id=1 << 20,
            path="_files/1048576-a.parquet",
            rows=300,
            bytes=128,
            partition=tuple(value for value, _ in VALUES),
            statistics=(ColumnStatistics(column_id=3, lower="1", upper="9", nulls=0),),
            schema_version=2,
        ),
        sealed(
            41, 3,
            b"\x80\x80\x40", text("_files/1048576-a.parquet"), b"\xac\x02", b"\x80\x01",
            n(len(PARTITION)), PARTITION,
            n(1), nested(45, 1, n(3), some(text("1")), some(text("9")), some(n(0))), n(2),
        ),
    ),
    (
        UpdateHead(7, b"\x0a\x0b", "ann", "m1", (("touch", {"a": 1}, (0, 2, 1, 3)),), TIME),
        sealed(
            7, 1,
            TIME_BYTES, n(7), n(2, 10, 11), text("ann"), text("m1"),
            n(1), text("touch"), text('{"a":1}'), n(4, 0, 2, 1, 3),
        ),
    ),
    (PART, sealed(70, 1, PART_PAYLOAD)),
    (IN_PARTS, sealed(71, 1, IN_PARTS_PAYLOAD)),
    (REPLACED, sealed(72, 1, REPLACED_PAYLOAD)),
    (WRITER, sealed(73, 1, WRITER_PAYLOAD)),
    (
        ShardDiff(
            8, 5, 2, TIME, TIME, 6, FenceToken(0, 2), PART, (b"\x01", b"\x02\x03"),
            REPLACED, NO_REPLACEMENT, ("storage_usage_event", 3), TIME,
        ),
        sealed(
            74, 1,
            TIME_BYTES, n(8, 5), some(nested(70, 1, PART_PAYLOAD)),
            n(2), TIME_BYTES, TIME_BYTES, n(6), some(nested(5, 1, TOKEN_PAYLOAD)),
            some(n(1, 1) + n(2, 2, 3)),
            nested(72, 1, REPLACED_PAYLOAD), nested(72, 1, NOTHING_PAYLOAD),
            some(text("storage_usage_event") + n(3)),
        ),
    ),
    (
        ShardState(
            "s", 8, TIME, 2, TIME, 5, TIME, 6, None, (WRITER,), None, (IN_PARTS, INLINE), (),
            (("b", 4), ("storage_usage_event", 3)),
        ),
        sealed(
            75, 1,
            text("s"), n(8), TIME_BYTES, n(2), TIME_BYTES, n(5), TIME_BYTES, n(6),
            NONE, n(1), nested(73, 1, WRITER_PAYLOAD), NONE,
            n(2), nested(71, 1, IN_PARTS_PAYLOAD, INLINE_PAYLOAD), n(0),
            n(2), text("b"), n(4), text("storage_usage_event"), n(3),
        ),
    ),
    (DatabaseTime(TIME), sealed(76, 1, TIME_BYTES)),
    (ANALYZED, sealed(48, 1, ANALYZED_PAYLOAD)),
    (StatisticsRow(columns=(ANALYZED,)), sealed(49, 1, n(1), nested(48, 1, ANALYZED_PAYLOAD))),
]  # fmt: skip
