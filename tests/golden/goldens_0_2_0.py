"""The formats that 0.2.0 added: those of new kinds, and the second versions of older ones."""

from __future__ import annotations

from strandline.clock import Timestamp
from strandline.durable.chunks import ChunkedSnapshot
from strandline.durable.update import CatalogSnapshot
from strandline.model import descriptors as d
from strandline.model import privileges as p
from strandline.model import types as t
from strandline.wire.types import TypeTree
from tests.golden import goldens_0_1_0
from tests.golden.goldens_0_1_0 import STORAGE, STORAGE_PAYLOAD
from tests.golden.layout import NO, NONE, YES, n, nested, record, some, text

INT_TREE = nested(18, 2, n(4))
COLUMN_PAYLOAD = n(1) + text("id") + INT_TREE + NO + some(text("key")) + NONE + text("")
COLUMN = goldens_0_1_0.COLUMN
COLUMNS = n(1) + nested(15, 1, COLUMN_PAYLOAD)

# SELECT and INSERT for all users by role 9; CREATE_ROLE, which takes two bytes, for role 7 by 8.
GRANTS = (
    p.Grant(p.PUBLIC, 9, p.Privilege.SELECT | p.Privilege.INSERT),
    p.Grant(7, 8, p.Privilege.CREATE_ROLE),
)
GRANT_LIST = n(2) + nested(65, 1, n(0, 9, 3), n(7, 8) + b"\x80\x01")
NO_GRANTS = n(0)

CATALOG: list[tuple[object, bytes]] = [
    (
        CatalogSnapshot(
            7,
            Timestamp(1 << 16),
            (("setting", ()), ("zone", (b"\x01\x02", b""))),
            ((), (Timestamp(1), Timestamp(1 << 16))),
        ),
        record(
            4, 2,
            n(7), b"\x80\x80\x04",
            n(2), text("setting"), n(0), text("zone"), n(2), n(2, 1, 2), n(0),
            n(2), n(0), n(16), n(1, 0, 0, 0, 0, 0, 0, 0), n(0, 0, 1, 0, 0, 0, 0, 0),
        ),
    ),
    (ChunkedSnapshot("a1", 3, 300), record(6, 1, text("a1"), n(3), b"\xac\x02")),
    (
        d.DatabaseDescriptor(1, "hive", "system", GRANTS),
        record(10, 2, n(1, 0), text("hive"), text("system"), GRANT_LIST),
    ),
    (
        d.SchemaDescriptor(
            5, 1, "nyc", "ann", d.PrincipalType.ROLE, None, "file:/w", (("a", "b"),), GRANTS
        ),
        record(
            11, 2,
            n(5, 1), text("nyc"), text("ann"), n(2), NONE, text("file:/w"),
            n(1), text("a"), text("b"), GRANT_LIST,
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
            privileges=GRANTS,
            primary_key_index=12,
            storage_profile="fast",
            stale_rows_fraction=0.25,
            min_stale_rows=300,
        ),
        record(
            12, 2,
            n(6, 5), text("t"), text("ann"), n(2), YES, text("parquet"),
            n(1), nested(16, 1, n(1), COLUMNS),
            n(2, 3), n(0), n(1, 1), n(0),
            nested(17, 1, STORAGE_PAYLOAD),
            some(text("s3://b")), n(0), some(text("c")), n(100),
            GRANT_LIST, n(12), text("fast"), b"\x00\x00\x00\x00\x00\x00\xd0\x3f", b"\xac\x02",
        ),
    ),
    (
        d.ViewDescriptor(
            8, 5, "v", "ann", (COLUMN,), "SELECT 1", "SELECT 1", STORAGE, (), None, 9, GRANTS
        ),
        record(
            13, 2,
            n(8, 5), text("v"), text("ann"), COLUMNS,
            text("SELECT 1"), text("SELECT 1"), nested(17, 1, STORAGE_PAYLOAD), n(0), NONE, n(9),
            GRANT_LIST,
        ),
    ),
    (
        d.ZoneDescriptor(
            3,
            "z",
            "ann",
            partitions=8,
            replicas=5,
            node_filter="ssd",
            storage_profiles=("a", "b"),
            storage_location="s3://w",
            auto_adjust_scale_up=None,
            auto_adjust_scale_down=30,
            consistency_mode=d.ConsistencyMode.HIGH_AVAILABILITY,
            quorum_size=2,
            privileges=GRANTS,
        ),
        record(
            14, 2,
            n(3, 0), text("z"), text("ann"), n(8), some(n(5)), text("ssd"),
            n(2), text("a"), text("b"), some(text("s3://w")), NONE, some(n(30)), n(2),
            n(2), GRANT_LIST,
        ),
    ),
    (
        d.IndexDescriptor(
            id=12,
            schema_id=5,
            name="by_day",
            owner="ann",
            table_id=6,
            kind=d.IndexKind.SORTED,
            columns=(d.IndexColumn(2, d.Collation.DESC_NULLS_FIRST), d.IndexColumn(1)),
            status=d.IndexStatus.BUILDING,
            unique=True,
            created_with_table=False,
        ),
        record(
            50, 1,
            n(12, 5), text("by_day"), n(6), text("ann"), n(2),
            n(2), nested(66, 1, n(2) + some(n(3)), n(1) + NONE),
            n(2), YES, NO,
        ),
    ),
    (
        d.FunctionDescriptor(
            id=20,
            schema_id=5,
            name="f",
            owner="ann",
            class_name="org.example.F",
            owner_type=d.PrincipalType.GROUP,
            resources=(("JAR", "s3://b/f.jar"),),
            created=100,
            privileges=GRANTS,
        ),
        record(
            51, 1,
            n(20, 5), text("f"), text("ann"), text("org.example.F"), n(3),
            n(1), text("JAR"), text("s3://b/f.jar"), n(100), GRANT_LIST,
        ),
    ),
    (
        d.SystemViewDescriptor(21, 5, "tables", "system", (COLUMN,), d.SystemViewKind.CLUSTER),
        record(
            52, 1,
            n(21, 5), text("tables"), text("system"), COLUMNS, n(2), NO_GRANTS,
        ),
    ),
    (
        p.RoleDescriptor(
            22, "ann", "system", superuser=True, inherit=False, member_of=(p.Membership(7, 8),)
        ),
        record(53, 1, n(22, 0), text("ann"), text("system"), YES, NO, n(1), n(7, 8)),
    ),
    (
        p.DefaultPrivilege(
            "7/0/5/table/0", 7, 0, 5, p.ObjectKind.TABLE, p.PUBLIC, p.Privilege.SELECT
        ),
        record(54, 1, text("7/0/5/table/0"), n(7, 0, 5, 3, 0, 1)),
    ),
    (
        p.SystemPrivilege("7/8", 7, 8, p.Privilege.CREATE_ROLE | p.Privilege.CREATE_ZONE),
        record(55, 1, text("7/8"), n(7, 8), b"\x80\x05"),
    ),
    (
        d.Comment("zone/3", p.ObjectKind.ZONE, 3, "cold"),
        record(56, 1, text("zone/3"), n(8, 3), text("cold")),
    ),
    (
        d.ClusterDescriptor(30, "etl", "ann", "large", 2, GRANTS),
        record(
            57, 1, n(30, 0), text("etl"), text("ann"), some(text("large")), n(2), GRANT_LIST
        ),
    ),
    (
        d.ClusterReplica(31, 30, "r1", "ann", "large", "spark://h:7077"),
        record(
            58, 1,
            n(31, 30), text("r1"), text("ann"), text("large"), text("spark://h:7077"),
        ),
    ),
    (
        d.IntrospectionIndex(32, 31, "spark_ui", "ann", "http://h:4040"),
        record(59, 1, n(32, 31), text("spark_ui"), text("ann"), text("http://h:4040")),
    ),
    (
        d.SystemConfiguration("max_tables", "5"),
        record(60, 1, text("max_tables"), text("5")),
    ),
    (d.Setting("note", "true"), record(61, 1, text("note"), text("true"))),
    (d.TimestampEntry("boot", 1 << 16), record(62, 1, text("boot"), b"\x80\x80\x04")),
    (
        d.SystemObjectFingerprint("system.tables", 21, p.ObjectKind.SYSTEM_VIEW, "ab"),
        record(63, 1, text("system.tables"), n(21, 6), text("ab")),
    ),
    (d.StorageUsageEvent(((6, 300),), 128), record(64, 1, n(6), b"\xac\x02", b"\x80\x01")),
    (GRANTS[1], record(65, 1, n(7, 8), b"\x80\x01")),
    (
        d.IndexColumn(2, d.Collation.ASC_NULLS_LAST),
        record(66, 1, n(2), some(n(2))),
    ),
]  # fmt: skip

TREES: list[tuple[t.DataType, bytes]] = [
    *goldens_0_1_0.TREES,
    (t.GeometryType(), n(74) + NONE),
    (t.GeometryType(0), n(74) + some(n(0))),
    (t.GeometryType(3857), n(74) + some(b"\x91\x1e")),
    (t.GeographyType(), n(75) + NONE),
    (t.GeographyType(4326), n(75) + some(b"\xe6\x21")),
]

GOLDENS: list[tuple[object, bytes]] = [
    *CATALOG,
    *((TypeTree(tree), record(18, 2, payload)) for tree, payload in TREES),
]
