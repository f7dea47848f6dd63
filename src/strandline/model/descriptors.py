"""Descriptors: the catalog's definitions of its objects, as frozen values.

Every object has an ``id`` that is never reused, a ``name`` and an ``owner``. Objects refer to
each other by id, so a rename changes one descriptor. A change creates a new descriptor
(`dataclasses.replace`), which shares all unchanged parts with the old one.

Text maps (properties, parameters) are tuples of pairs sorted by key. They compare by value, always
encode to the same bytes, and cannot be modified in place.

The states of an index::

    (none) ── CREATE INDEX on an existing table ──▶ REGISTERED ──▶ BUILDING ──▶ AVAILABLE
    (none) ── created with its table ─────────────────────────────────────────▶ AVAILABLE
    AVAILABLE ── DROP INDEX ──▶ STOPPING ── remove ──▶ (gone)
    REGISTERED, BUILDING ── DROP INDEX ──▶ (gone)        any ── DROP TABLE ──▶ (gone)

A stopping index still serves transactions that began before it was dropped. Its name can be reused.

The catalog keeps its own state (ids, configuration, fence, comments) in descriptors too, keyed by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.model.identifiers import normalize
from strandline.model.partitioning import PartitionField
from strandline.model.privileges import Grants, ObjectKind
from strandline.model.types import DataType

Properties = Annotated[tuple[tuple[str, str], ...], "a map of texts"]
"""Text pairs, sorted by key, each key once. The annotation marks a map, not a list of pairs."""


def properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Properties:
    """Return the canonical form of a text map."""
    return tuple(sorted(dict(pairs).items()))


class PrincipalType(Enum):
    """The type of an object's owner. The numbers are those of the Hive Metastore protocol."""

    USER = 1
    ROLE = 2
    GROUP = 3


class TableKind(Enum):
    """MANAGED: Strandline may move and delete the table's files. EXTERNAL: it may not."""

    MANAGED = 1
    EXTERNAL = 2


class ConsistencyMode(Enum):
    """STRONG answers only from fresh data; HIGH_AVAILABILITY answers from the last known data."""

    STRONG = 1
    HIGH_AVAILABILITY = 2


class SystemViewKind(Enum):
    """NODE: each node returns its own rows. CLUSTER: every node returns the same rows."""

    NODE = 1
    CLUSTER = 2


@dataclass(frozen=True, slots=True)
class DatabaseDescriptor:
    """A top-level namespace. Hive 3 and later call it a catalog."""

    id: int
    name: str
    owner: str
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class SchemaDescriptor:
    """A schema, called a database in Hive and Spark. ``location`` is its managed tables' folder."""

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
    """One column. ``id`` never changes and is the column's Parquet field id.

    ``metadata`` is the JSON text of Spark's field metadata without the comment, or empty.
    ``default`` is a SQL expression.
    """

    id: int
    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The columns of schema version ``number`` of a table. Numbers start at 1."""

    number: int
    columns: tuple[ColumnDescriptor, ...]


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """How a Hive client reads the files of a table. Spark uses the table's ``provider`` instead.

    ``hive_columns`` holds (name, type, comment) as a Hive client declared them. It is None if
    they equal the table's columns in Hive's spelling. A ``buckets`` below 1 means no buckets (Hive
    writes −1, some clients 0). ``sort_columns`` are (name, order), where order is 1 for ascending
    and 0 for descending.
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

    @property
    def names_format(self) -> bool:
        """Whether a Hive client gave a format. If not, it follows from the table's provider."""
        return bool(self.serde or self.input_format)


class ConstraintKind(Enum):
    """The kinds of constraints. The numbers are stored."""

    PRIMARY_KEY = 1
    FOREIGN_KEY = 2
    UNIQUE = 3
    NOT_NULL = 4
    DEFAULT = 5
    CHECK = 6


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint that a client declared on a table. It is not enforced; engines may plan with it.

    ``columns`` and ``parent_columns`` are column ids. ``parent_id`` is the id of the table that a
    foreign key refers to, 0 otherwise. ``text`` is the value of a default or the condition of a
    check. ``update_rule`` and ``delete_rule`` are JDBC's numbers for the action on an update or
    delete of the parent row. ``enabled``, ``validated`` and ``rely`` have Hive's meaning.
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
    ``colocation`` are column ids. A plain table uses ``partition_columns``, a transactional table
    uses ``partitioning``. ``created`` is in seconds since 1970. ``next_column_id`` is above every
    column id and nested field id ever assigned in this table. ``primary_key_index`` is the id of
    the index that was created with the primary key, or 0. ``storage_profile`` is a profile of the
    zone; empty means the zone's first. The table's statistics are stale when more than
    ``min_stale_rows`` rows and more than ``stale_rows_fraction`` (0 to 1) of all rows changed.
    ``partition_storage`` is the format of those partitions of a plain table that store none of
    their own; None if that is ``storage``.
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
    partition_storage: StorageFormat | None = None

    @property
    def columns(self) -> tuple[ColumnDescriptor, ...]:
        """The columns of the latest schema version, partition columns last."""
        return self.schema_versions[-1].columns

    @property
    def schema_version(self) -> int:
        """The number of the latest schema version."""
        return self.schema_versions[-1].number

    def versions_with(self, columns: tuple[ColumnDescriptor, ...]) -> tuple[SchemaVersion, ...]:
        """The schema versions after a change to ``columns``; the same if nothing differs.

        A transactional table keeps older versions, because its data files refer to them.
        """
        if columns == self.columns:
            return self.schema_versions
        kept_versions = self.schema_versions if self.transactional else ()
        return (*kept_versions, SchemaVersion(self.schema_version + 1, columns))

    def with_storage(self, storage: StorageFormat) -> TableDescriptor:
        """This table with another format, which only partitions that are added later have.

        The files of the present partitions stay as they were written.
        """
        partition_storage = None
        if self.partition_columns and self.storage.names_format:
            present = self.partition_storage or replace(self.storage, hive_columns=None)
            if present != replace(storage, hive_columns=None):
                partition_storage = present
        return replace(self, storage=storage, partition_storage=partition_storage)

    def column(self, name: str) -> ColumnDescriptor | None:
        """Return the column with this name, ignoring case, or None if it does not exist."""
        wanted = normalize(name)
        return next((c for c in self.columns if normalize(c.name) == wanted), None)


@dataclass(frozen=True, slots=True)
class ViewDescriptor:
    """A view: its text (as written, and with all names resolved) and its result columns."""

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
    """A view built into Strandline. Its rows are computed from the catalog or from a node."""

    id: int
    schema_id: int
    name: str
    owner: str
    columns: tuple[ColumnDescriptor, ...]
    kind: SystemViewKind
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class FunctionDescriptor:
    """A function in a schema, as Hive clients create it: a class and the files that contain it.

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
    """Return how many of ``replicas`` must agree by default. None means one on every node."""
    if replicas is None or replicas > 4:
        return 3
    return min(replicas, 2)


@dataclass(frozen=True, slots=True)
class ZoneDescriptor:
    """A zone: where table data is stored and how it is distributed over nodes.

    ``replicas`` None means one on every node. Auto-adjust times are in seconds; None means never.
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
    """HASH finds equal values, SORTED also finds ranges."""

    HASH = 1
    SORTED = 2


class IndexStatus(Enum):
    """The state of an index; see the diagram in the module docstring."""

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


class Collation(Enum):
    """The order of one column of a sorted index."""

    ASC_NULLS_FIRST = 1
    ASC_NULLS_LAST = 2
    DESC_NULLS_FIRST = 3
    DESC_NULLS_LAST = 4


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column of an index, by column id. ``collation`` is None in a hash index."""

    column_id: int
    collation: Collation | None = None


@dataclass(frozen=True, slots=True)
class IndexDescriptor:
    """An index. It belongs to its table's schema. While it is alive, its name is unique there."""

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
        """Whether the index still owns its name. This is true in every state but STOPPING."""
        return self.status is not IndexStatus.STOPPING


@dataclass(frozen=True, slots=True)
class ClusterDescriptor:
    """A cluster. For a managed one, the catalog keeps ``replication_factor`` replicas of ``size``.

    A cluster whose ``size`` is None is unmanaged: users create its replicas one by one. Sizes are
    the names in the configuration parameter ``cluster_sizes``.
    """

    id: int
    name: str
    owner: str
    size: str | None = None
    replication_factor: int = 1
    privileges: Grants = ()


@dataclass(frozen=True, slots=True)
class ClusterReplica:
    """One Spark installation of a cluster. ``address`` is a Spark master or a Spark Connect URL."""

    id: int
    cluster_id: int
    name: str
    owner: str
    size: str
    address: str


@dataclass(frozen=True, slots=True)
class IntrospectionIndex:
    """The address of a replica's Spark UI or event log.

    ``name`` is ``spark_ui`` or ``event_log``, each at most once for each replica.
    """

    id: int
    replica_id: int
    name: str
    owner: str
    address: str


@dataclass(frozen=True, slots=True)
class IdAllocator:
    """The next id that the allocator ``name`` will assign."""

    name: str
    next_id: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A fact about the catalog itself: fixed at its creation, or changed by Strandline only."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FenceEntry:
    """The fence token, stored as a row of the catalog. ``name`` is always ``catalog``."""

    name: str
    deploy_generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A note that the program leaves for other nodes and for later releases."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class SystemConfiguration:
    """A catalog-wide parameter that users set: ``max_tables``, ``history_retention``, …"""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TimestampEntry:
    """A named 64-bit timestamp that only moves forward."""

    name: str
    time: int


@dataclass(frozen=True, slots=True)
class SystemObjectFingerprint:
    """The fingerprint of a system object's definition in the catalog.

    ``name`` is ``schema.object``.
    """

    name: str
    object_id: int
    object_kind: ObjectKind
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an object whose descriptor has no comment field.

    ``name`` is the key, ``kind/id`` (`comment_name`). Schemas, tables, views and columns have the
    comment in their descriptors.
    """

    name: str
    object_kind: ObjectKind
    object_id: int
    text: str


def comment_name(object_kind: ObjectKind, object_id: int) -> str:
    """Return the key of a `Comment`."""
    return f"{object_kind.name.lower()}/{object_id}"


@dataclass(frozen=True, slots=True)
class StorageUsageEvent:
    """The sizes of tables at the time ``collected``, in milliseconds since 1970. Append-only.

    ``sizes`` are pairs of a table id and a number of bytes. ``time`` is the time of the version
    that added the event.
    """

    sizes: tuple[tuple[int, int], ...]
    collected: int
    time: Timestamp = MIN_TIMESTAMP
