"""Descriptors: what the catalog knows about each object, as frozen values.

Every object has an ``id`` that is never given twice, a ``name`` and an ``owner``. Objects refer to
each other by id, so a rename touches one object. A change makes a new value
(`dataclasses.replace`); everything that did not change is shared.

Text maps (properties, parameters) are tuples of pairs sorted by key: they compare by value, encode
to the same bytes always, and cannot be changed behind the catalog's back.

The states of an index::

    (none) ── CREATE INDEX on an existing table ──▶ REGISTERED ──▶ BUILDING ──▶ AVAILABLE
    (none) ── created with its table ─────────────────────────────────────────▶ AVAILABLE
    AVAILABLE ── DROP INDEX ──▶ STOPPING ── remove ──▶ (gone)
    REGISTERED, BUILDING ── DROP INDEX ──▶ (gone)        any ── DROP TABLE ──▶ (gone)

A stopping index still serves transactions that began before it was dropped. Its name is free.

The catalog's own state (ids, configuration, fence, comments) is records of the same kind, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.model.partitioning import PartitionField
from strandline.model.privileges import Grants, ObjectKind
from strandline.model.types import DataType

Properties = Annotated[tuple[tuple[str, str], ...], "a map of texts"]
"""Text pairs, sorted by key, each key once. The mark tells them from a list of pairs."""


def properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Properties:
    """The canonical form of a text map."""
    return tuple(sorted(dict(pairs).items()))


class PrincipalType(Enum):
    """What the owner of an object is; the numbers are those of the Hive Metastore protocol."""

    USER = 1
    ROLE = 2
    GROUP = 3


class TableKind(Enum):
    """MANAGED: its files are ours to move and delete. EXTERNAL: they belong to others."""

    MANAGED = 1
    EXTERNAL = 2


class ConsistencyMode(Enum):
    """STRONG answers only while fresh; HIGH_AVAILABILITY answers with the last known."""

    STRONG = 1
    HIGH_AVAILABILITY = 2


class SystemViewKind(Enum):
    """NODE: each node has rows of its own. CLUSTER: every node answers the same."""

    NODE = 1
    CLUSTER = 2


@dataclass(frozen=True, slots=True)
class DatabaseDescriptor:
    """A top-level namespace; what Hive 3 and later call a catalog."""

    id: int
    name: str
    owner: str
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class SchemaDescriptor:
    """What Hive and Spark call a database. ``location`` is the folder of its managed tables."""

    id: int
    database_id: int
    name: str
    owner: str
    owner_type: PrincipalType = PrincipalType.USER
    comment: str | None = None
    location: str = ""
    properties: Properties = ()
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class ColumnDescriptor:
    """One column. ``id`` stays with the column for life and is its Parquet field id.

    ``metadata`` is JSON text: what Spark keeps beside a field, without the comment; empty if
    there is none. ``default`` is a SQL expression.
    """

    id: int
    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    metadata: str = ""

    def __hash__(self) -> int:
        return hash(self.name)  # columns are looked up by the thousand, and names tell them apart


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The columns of a table from its ``number``-th schema on; numbers start at 1."""

    number: int
    columns: tuple[ColumnDescriptor, ...]


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """How files of a table are read by a Hive client; Spark reads ``provider`` of the table.

    ``hive_columns`` holds (name, type, comment) as a Hive client declared them, and only where
    they are not simply the table's columns in Hive's spelling. ``buckets`` below 1 is none (Hive
    writes −1, some clients 0). ``sort_columns`` are (name, 1 for ascending or 0).
    """

    input_format: str | None = None
    output_format: str | None = None
    serde: str | None = None
    serde_name: str | None = None
    serde_properties: Properties = ()
    compressed: bool = False
    buckets: int = -1
    bucket_columns: tuple[str, ...] = ()
    sort_columns: tuple[tuple[str, int], ...] = ()
    properties: Properties = ()
    hive_columns: tuple[tuple[str, str, str | None], ...] | None = None


class ConstraintKind(Enum):
    """The numbers are what is stored."""

    PRIMARY_KEY = 1
    FOREIGN_KEY = 2
    UNIQUE = 3
    NOT_NULL = 4
    DEFAULT = 5
    CHECK = 6


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a client declares about the rows of a table. Nobody checks it; engines may plan by it.

    ``columns`` and ``parent_columns`` are column ids; ``parent_id`` is the id of the table that a
    foreign key refers to, 0 otherwise. ``text`` is the value of a default or the condition of a
    check. The rules are JDBC's numbers for what an update or delete of the parent's row does.
    ``enabled``, ``validated`` and ``rely`` are as Hive's clients mean them.
    """

    name: str
    kind: ConstraintKind
    columns: tuple[int, ...]
    text: str = ""
    parent_id: int = 0
    parent_columns: tuple[int, ...] = ()
    update_rule: int = 0
    delete_rule: int = 0
    enabled: bool = True
    validated: bool = False
    rely: bool = False


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    """A table's definition: everything that DDL changes and DML does not.

    Partitions, files, counters and the place of a managed table belong to the object store.
    ``location`` is set for external tables only. ``partition_columns``, ``primary_key`` and
    ``colocation`` are column ids. A plain table has ``partition_columns``, a transactional one has
    ``partitioning``. ``created`` is in seconds since 1970. ``next_column_id`` is above every column
    and nested field id ever given in this table. ``primary_key_index`` is the id of the index that
    came with the primary key, 0 where there is none. ``storage_profile`` is one of the zone's;
    empty is the zone's first. Statistics of the table are stale when more than
    ``min_stale_rows`` rows and more than ``stale_rows_fraction`` (0 to 1) of all have changed.
    """

    id: int
    schema_id: int
    name: str
    owner: str
    kind: TableKind
    transactional: bool
    provider: str
    schema_versions: tuple[SchemaVersion, ...]
    next_column_id: int
    zone_id: int
    partition_columns: tuple[int, ...] = ()
    primary_key: tuple[int, ...] = ()
    colocation: tuple[int, ...] = ()
    storage: StorageFormat = StorageFormat()
    location: str | None = None
    properties: Properties = ()
    comment: str | None = None
    created: int = 0
    privileges: Grants = ()
    primary_key_index: int = 0
    storage_profile: str = ""
    stale_rows_fraction: float = 0.2
    min_stale_rows: int = 500
    partitioning: tuple[PartitionField, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def columns(self) -> tuple[ColumnDescriptor, ...]:
        """The columns of the latest schema, partition columns last."""
        return self.schema_versions[-1].columns

    @property
    def schema_version(self) -> int:
        """The number of the latest schema."""
        return self.schema_versions[-1].number

    def column(self, name: str) -> ColumnDescriptor | None:
        """The column of that name, without regard to case."""
        wanted = name.casefold()
        return next((c for c in self.columns if c.name.casefold() == wanted), None)


@dataclass(frozen=True, slots=True)
class ViewDescriptor:
    """A view: its text, as written and with all names resolved, and the columns it gives."""

    id: int
    schema_id: int
    name: str
    owner: str
    columns: tuple[ColumnDescriptor, ...]
    original_text: str
    expanded_text: str
    storage: StorageFormat = StorageFormat()
    properties: Properties = ()
    comment: str | None = None
    created: int = 0
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class SystemViewDescriptor:
    """A view that the program itself provides; its rows are computed from the catalog or a node."""

    id: int
    schema_id: int
    name: str
    owner: str
    columns: tuple[ColumnDescriptor, ...]
    kind: SystemViewKind
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class FunctionDescriptor:
    """A function in a schema, as Hive clients make it: a class, and the files that it lies in.

    ``resources`` are (``JAR``, ``FILE`` or ``ARCHIVE``; URI). ``created`` is in seconds since 1970.
    """

    id: int
    schema_id: int
    name: str
    owner: str
    class_name: str
    owner_type: PrincipalType = PrincipalType.USER
    resources: tuple[tuple[str, str], ...] = ()
    created: int = 0
    privileges: Grants = ()


def default_quorum(replicas: int | None) -> int:
    """How many of ``replicas`` must agree by default; None is a replica on every node."""
    if replicas is None or replicas > 4:
        return 3
    return min(replicas, 2)


@dataclass(frozen=True, slots=True)
class ZoneDescriptor:
    """Where table data lies and how it is spread over nodes.

    ``replicas`` None means one on every node. Auto-adjust times are in seconds, None is never.
    ``storage_location`` None is the store's own warehouse. ``quorum_size`` is how many replicas of
    a partition must agree in a zone whose mode is STRONG. The first storage profile is the default.
    """

    id: int
    name: str
    owner: str
    partitions: int = 1
    replicas: int | None = None
    node_filter: str = ""
    storage_profiles: tuple[str, ...] = ("default",)
    storage_location: str | None = None
    auto_adjust_scale_up: int | None = 0
    auto_adjust_scale_down: int | None = None
    consistency_mode: ConsistencyMode = ConsistencyMode.STRONG
    quorum_size: int = 3
    privileges: Grants = ()


class IndexKind(Enum):
    """HASH finds equal values, SORTED ranges too."""

    HASH = 1
    SORTED = 2


class IndexStatus(Enum):
    """Where an index is in its life; see the module."""

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


class Collation(Enum):
    """How one column of a sorted index is ordered."""

    ASC_NULLS_FIRST = 1
    ASC_NULLS_LAST = 2
    DESC_NULLS_FIRST = 3
    DESC_NULLS_LAST = 4


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column of an index by its id; ``collation`` is None in a hash index."""

    column_id: int
    collation: Collation | None = None


@dataclass(frozen=True, slots=True)
class IndexDescriptor:
    """An index. It stands in the schema of its table, and its name is unique there while alive."""

    id: int
    schema_id: int
    name: str
    owner: str
    table_id: int
    kind: IndexKind
    columns: tuple[IndexColumn, ...]
    status: IndexStatus
    unique: bool = False
    created_with_table: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has its name: anything but stopping."""
        return self.status is not IndexStatus.STOPPING


@dataclass(frozen=True, slots=True)
class ClusterDescriptor:
    """A cluster. Managed: the catalog keeps ``replication_factor`` replicas of ``size``.

    ``size`` None is an unmanaged cluster, whose replicas are made one by one. Sizes are the names
    in the configuration parameter ``cluster_sizes``.
    """

    id: int
    name: str
    owner: str
    size: str | None = None
    replication_factor: int = 1
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class ClusterReplica:
    """One Spark of a cluster. ``address`` is a Spark master or a Spark Connect URL."""

    id: int
    cluster_id: int
    name: str
    owner: str
    size: str
    address: str


@dataclass(frozen=True, slots=True)
class IntrospectionIndex:
    """Where one can look into a replica: an address of its Spark UI or event log.

    ``name`` says what is found there, once for each replica: ``spark_ui`` or ``event_log``.
    """

    id: int
    replica_id: int
    name: str
    owner: str
    address: str


@dataclass(frozen=True, slots=True)
class IdAllocator:
    """The next id that ``name`` will give."""

    name: str
    next_id: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A fact about the catalog itself, fixed at its creation or moved by its own code only."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FenceEntry:
    """The fence token as the catalog's own row; ``name`` is always ``catalog``."""

    name: str
    deploy_generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A note that the program leaves for later releases of itself."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class SystemConfiguration:
    """A parameter of the whole catalog that people set: ``max_tables``, ``history_retention``, …"""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TimestampEntry:
    """A named time that only moves forward, as a 64-bit timestamp."""

    name: str
    time: int


@dataclass(frozen=True, slots=True)
class SystemObjectFingerprint:
    """What definition of a system object the catalog holds; ``name`` is ``schema.object``."""

    name: str
    object_id: int
    object_kind: ObjectKind
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an object that has no place for it of its own.

    ``name`` is ``kind/id``, the key (`comment_name`). Schemas, tables, views and columns carry
    their comments themselves.
    """

    name: str
    object_kind: ObjectKind
    object_id: int
    text: str


def comment_name(object_kind: ObjectKind, object_id: int) -> str:
    """The key of a `Comment`."""
    return f"{object_kind.name.lower()}/{object_id}"


@dataclass(frozen=True, slots=True)
class StorageUsageEvent:
    """How many bytes tables took at some moment, in milliseconds since 1970. Append-only.

    ``sizes`` are pairs of a table id and a number of bytes. ``time`` is that of its version.
    """

    sizes: tuple[tuple[int, int], ...]
    collected: int
    time: Timestamp = MIN_TIMESTAMP
