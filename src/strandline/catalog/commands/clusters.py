"""Commands on clusters and their replicas: named Spark compute that jobs run on.

A **managed** cluster has a size and a number of replicas. The commands maintain its replicas ``r1``
… ``rN`` of that size. ``address`` says where they are; by default each is a local Spark with the
cores of its size. The replicas of an **unmanaged** cluster are created one by one.

An **introspection index** is an address at which a replica can be inspected: its Spark UI or its
event log. It is dropped with its replica, and a replica is dropped with its cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.catalog.configuration import CLUSTER_SIZES, ClusterSize
from strandline.catalog.kinds import delete_with_comment, kind_named, object_name
from strandline.catalog.planning import Planning, altered, must_exist, refuse_holder, required
from strandline.catalog.verbs import Action
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import ClusterDescriptor, ClusterReplica, IntrospectionIndex
from strandline.model.identifiers import check_name

MAX_REPLICATION_FACTOR = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCluster:
    """CREATE CLUSTER. With a ``size`` it is managed; without one it is empty and unmanaged.

    ``address`` is the address of each replica of a managed cluster; empty means a local Spark.
    """

    name: str
    owner: str = ""
    size: str | None = None
    replication_factor: int = 1
    address: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `InvalidInput`, `AlreadyExists`."""
        check_name(self.name, "cluster")
        _check_factor(self.replication_factor)
        if self.size is None and self.address:
            raise InvalidInput(
                f"cluster {self.name} has no size, so it has no replicas that could use the "
                "address; give it a size, or create its replicas with their own addresses"
            )
        existing = planning.catalog.cluster(self.name)
        if existing is not None and self.if_not_exists:
            return
        refuse_holder(existing, "cluster")
        if self.size is not None:
            size_of(planning, self.size)
        if self.address:
            check_address(self.address)
        with planning.entry("create_cluster", cluster=self.name, size=self.size) as transaction:
            cluster = ClusterDescriptor(
                planning.new_id(),
                self.name,
                self.owner or planning.author,
                self.size,
                self.replication_factor,
            )
            transaction.put(cluster)
        keep_replicas(planning, cluster, address=self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterCluster:
    """ALTER CLUSTER … SET. None leaves a property unchanged.

    The replicas of a managed cluster change with it: their owner, their size, their number (the
    last ones are dropped first), and their address. New replicas get ``address`` or, if it is None,
    the address of the first replica.
    """

    name: str
    owner: str | None = None
    size: str | None = None
    replication_factor: int | None = None
    address: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `IllegalChange`."""
        old = find_cluster(planning, self.name, if_exists=self.if_exists)
        if old is None:
            return
        of_managed = (self.size, self.replication_factor, self.address)
        if old.size is None and any(value is not None for value in of_managed):
            raise IllegalChange(
                f"cluster {old.name} is unmanaged: its replicas have sizes and addresses of their "
                "own; alter those, or create a managed cluster"
            )
        if self.size is not None:
            size_of(planning, self.size)
        if self.replication_factor is not None:
            _check_factor(self.replication_factor)
        if self.address:
            check_address(self.address)
        new = altered(
            old, owner=self.owner, size=self.size, replication_factor=self.replication_factor
        )
        with planning.entry("alter_cluster", cluster=old.name) as transaction:
            transaction.put(new)
        keep_replicas(planning, new, address=self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameCluster:
    """ALTER CLUSTER … RENAME TO."""

    name: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`."""
        cluster = find_cluster(planning, self.name, if_exists=self.if_exists)
        if cluster is None:
            return
        check_name(self.new_name, "cluster")
        holder = planning.catalog.cluster(self.new_name)
        refuse_holder(holder, "cluster", own_id=cluster.id)
        with planning.entry(
            "rename_cluster", cluster=cluster.name, to=self.new_name
        ) as transaction:
            transaction.put(replace(cluster, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCluster:
    """DROP CLUSTER, with its replicas and their introspection indexes."""

    name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        cluster = find_cluster(planning, self.name, if_exists=self.if_exists)
        if cluster is not None:
            drop_cluster(planning, cluster)


def drop_cluster(planning: Planning, cluster: ClusterDescriptor) -> None:
    """Drop a cluster, its replicas first, each in a separate entry."""
    for replica in planning.catalog.replicas(cluster.id):
        drop_replica(planning, replica)
    with planning.entry("drop_cluster", cluster=cluster.name) as transaction:
        delete_with_comment(transaction, "cluster", cluster.id)


def find_cluster(planning: Planning, name: str, *, if_exists: bool) -> ClusterDescriptor | None:
    """The cluster of that name. Raises `ObjectNotFound` if it is missing, unless ``if_exists``."""
    return required(planning.catalog.cluster(name), f"cluster {name!r}", if_exists=if_exists)


def _check_factor(factor: int) -> None:
    if not 0 <= factor <= MAX_REPLICATION_FACTOR:
        raise InvalidInput(
            f"a cluster cannot have {factor} replicas; 0 to {MAX_REPLICATION_FACTOR} are possible"
        )


def keep_replicas(planning: Planning, cluster: ClusterDescriptor, *, address: str | None) -> None:
    """Make the replicas of a managed cluster match its descriptor, each change in a separate entry.

    ``address`` None keeps the address of each; empty moves each to a local Spark of its size.
    """
    if cluster.size is None:
        return
    size = cluster.size
    replicas = sorted(
        planning.catalog.replicas(cluster.id), key=lambda replica: int(replica.name[1:])
    )
    local = local_address(size_of(planning, size))
    for replica in replicas[cluster.replication_factor :]:
        drop_replica(planning, replica)
    kept_replicas = replicas[: cluster.replication_factor]
    for replica in kept_replicas:
        new_address = _address_of(planning, replica, local) if address is None else address or local
        put_replica(
            planning,
            cluster,
            replace(replica, owner=cluster.owner, size=size, address=new_address),
            action=Action.ALTER,
        )
    new_address = address or local
    if address is None and kept_replicas:
        new_address = _address_of(planning, kept_replicas[0], local)
    for number in range(len(kept_replicas) + 1, cluster.replication_factor + 1):
        put_replica(
            planning,
            cluster,
            ClusterReplica(0, cluster.id, f"r{number}", cluster.owner, size, new_address),
            action=Action.CREATE,
        )


def _address_of(planning: Planning, replica: ClusterReplica, local: str) -> str:
    """The address to keep when the size changes; a local Spark gets the cores of the new size."""
    was_local = replica.address == local_address(size_of(planning, replica.size))
    return local if was_local else replica.address


SPARK_UI = "spark_ui"
EVENT_LOG = "event_log"

_UNCHANGED: Mapping[str, str | None] = {}

_HOST = r"(?:[A-Za-z0-9_.\-]+|\[[0-9A-Fa-f:.]+\])"
_PORT = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS = re.compile(
    r"local(?:\[(?:\*|[1-9][0-9]{0,3})(?:,[0-9]{1,4})?\])?"
    rf"|spark://{_HOST}:{_PORT}(?:,{_HOST}:{_PORT})*"
    rf"|sc://{_HOST}(?::{_PORT})?(?:/\S*)?"
    rf"|k8s://(?:https?://)?{_HOST}(?::{_PORT})?(?:/\S*)?"
    r"|yarn"
)
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+")


def check_address(address: str) -> None:
    """Raise `InvalidInput` unless ``address`` is an address of Spark."""
    if not _ADDRESS.fullmatch(address):
        raise InvalidInput(
            f"a replica cannot be at {address[:200]!r}: an address is local[N], spark://host:port, "
            "sc://host:port (Spark Connect), k8s://host:port or yarn"
        )


def size_of(planning: Planning, name: str) -> ClusterSize:
    """The configured size of that name. Raises `InvalidInput`, which lists the known sizes."""
    sizes = CLUSTER_SIZES.required(planning.catalog)
    if name not in sizes:
        raise InvalidInput(
            f"size {name!r} is not configured; "
            f"{CLUSTER_SIZES.name} has {', '.join(sizes) or 'none'}"
        )
    return sizes[name]


def local_address(size: ClusterSize) -> str:
    """The address of a Spark in one process, with the cores of a size."""
    return f"local[{size.cores}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClusterReplica:
    """CREATE CLUSTER REPLICA, in an unmanaged cluster.

    ``spark_ui`` and ``event_log`` are the addresses at which the replica can be inspected.
    """

    cluster: str
    name: str
    size: str
    address: str
    owner: str = ""
    spark_ui: str = ""
    event_log: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `InvalidInput`, `IllegalChange`, …"""
        cluster = must_exist(planning.catalog.cluster(self.cluster), f"cluster {self.cluster!r}")
        check_name(self.name, "cluster replica")
        holder = planning.catalog.replica(cluster.id, self.name)
        if holder is not None and self.if_not_exists:
            return
        refuse_holder(holder, "replica", inside=cluster.name)
        _refuse_managed(cluster, "get another replica", "its replication factor")
        size_of(planning, self.size)
        check_address(self.address)
        put_replica(
            planning,
            cluster,
            ClusterReplica(
                0, cluster.id, self.name, self.owner or planning.author, self.size, self.address
            ),
            action=Action.CREATE,
            introspection={SPARK_UI: self.spark_ui, EVENT_LOG: self.event_log},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClusterReplica:
    """ALTER CLUSTER REPLICA … SET. None changes nothing; "" removes an introspection address.

    In a managed cluster only the introspection addresses of a replica can be set.
    """

    cluster: str
    replica: str
    size: str | None = None
    address: str | None = None
    owner: str | None = None
    spark_ui: str | None = None
    event_log: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `IllegalChange`."""
        cluster_and_replica = _find(planning, self.cluster, self.replica, if_exists=self.if_exists)
        if cluster_and_replica is None:
            return
        cluster, old = cluster_and_replica
        if (self.size, self.address, self.owner) != (None, None, None):
            _refuse_managed(cluster, "have its replicas altered one by one", "the cluster")
        if self.size is not None:
            size_of(planning, self.size)
        if self.address is not None:
            check_address(self.address)
        new = altered(old, size=self.size, address=self.address, owner=self.owner)
        put_replica(
            planning,
            cluster,
            new,
            action=Action.ALTER,
            introspection={SPARK_UI: self.spark_ui, EVENT_LOG: self.event_log},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameClusterReplica:
    """ALTER CLUSTER REPLICA … RENAME TO, in an unmanaged cluster."""

    cluster: str
    replica: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`, `IllegalChange`."""
        cluster_and_replica = _find(planning, self.cluster, self.replica, if_exists=self.if_exists)
        if cluster_and_replica is None:
            return
        cluster, old = cluster_and_replica
        _refuse_managed(cluster, "have its replicas renamed", "the cluster's name")
        check_name(self.new_name, "cluster replica")
        holder = planning.catalog.replica(cluster.id, self.new_name)
        refuse_holder(holder, "replica", own_id=old.id, inside=cluster.name)
        with planning.entry(
            "rename_cluster_replica",
            replica=f"{cluster.name}.{old.name}",
            to=f"{cluster.name}.{self.new_name}",
        ) as transaction:
            transaction.put(replace(old, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropClusterReplica:
    """DROP CLUSTER REPLICA, of an unmanaged cluster, with its introspection indexes."""

    cluster: str
    replica: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        cluster_and_replica = _find(planning, self.cluster, self.replica, if_exists=self.if_exists)
        if cluster_and_replica is None:
            return
        _refuse_managed(cluster_and_replica[0], "lose a replica", "its replication factor")
        drop_replica(planning, cluster_and_replica[1])


def put_replica(
    planning: Planning,
    cluster: ClusterDescriptor,
    replica: ClusterReplica,
    *,
    action: Action,
    introspection: Mapping[str, str | None] = _UNCHANGED,
) -> None:
    """Create or alter a replica, with its introspection addresses, in a separate entry.

    A new replica has id 0 and gets an id. An address None is left unchanged, an empty one is
    removed.
    """
    for name, address in introspection.items():
        if address and not _PLACE.fullmatch(address):
            raise InvalidInput(
                f"the {name} of a replica cannot be {address[:200]!r}: it is not a URI"
            )
    verb = kind_named("cluster_replica").verb(action)
    with planning.entry(verb, replica=f"{cluster.name}.{replica.name}") as transaction:
        if not replica.id:
            replica = replace(replica, id=planning.new_id())
        transaction.put(replica)
        present = {
            index.name: index for index in planning.catalog.introspection_indexes(replica.id)
        }
        for name, address in introspection.items():
            old = present.get(name)
            if address:
                index_id = planning.new_id() if old is None else old.id
                transaction.put(
                    IntrospectionIndex(index_id, replica.id, name, replica.owner, address)
                )
            elif old is not None and address is not None:
                transaction.delete("introspection_index", old.id)
        for index in planning.catalog.introspection_indexes(replica.id):
            transaction.put(replace(index, owner=replica.owner))


def drop_replica(planning: Planning, replica: ClusterReplica) -> None:
    """Drop a replica and its introspection indexes, in a separate entry."""
    name = object_name(planning.catalog, replica)
    with planning.entry("drop_cluster_replica", replica=name) as transaction:
        for index in planning.catalog.introspection_indexes(replica.id):
            transaction.delete("introspection_index", index.id)
        delete_with_comment(transaction, "cluster_replica", replica.id)


def _find(
    planning: Planning, cluster: str, name: str, *, if_exists: bool
) -> tuple[ClusterDescriptor, ClusterReplica] | None:
    parent = planning.catalog.cluster(cluster)
    replica = None if parent is None else planning.catalog.replica(parent.id, name)
    if parent is not None and replica is not None:
        return parent, replica
    if if_exists:
        return None
    raise ObjectNotFound(f"cluster replica {cluster}.{name} does not exist")


def _refuse_managed(cluster: ClusterDescriptor, what: str, instead: str) -> None:
    if cluster.size is not None:
        raise IllegalChange(f"cluster {cluster.name} is managed and cannot {what}; alter {instead}")
