"""Commands on the replicas of clusters, and what they and those on clusters share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import CLUSTER_SIZES, ClusterSize
from strandline.catalog.kinds import delete_with_comment, kind_named, object_name
from strandline.catalog.planning import Planning
from strandline.catalog.verbs import Action
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import ClusterDescriptor, ClusterReplica, IntrospectionIndex
from strandline.model.identifiers import check_name, normalize

SPARK_UI = "spark_ui"
EVENT_LOG = "event_log"

_UNCHANGED: Mapping[str, str | None] = {}

_HOST = r"(?:[A-Za-z0-9_.\-]+|\[[0-9A-Fa-f:.]+\])"
_PORT = r"[0-9]{1,5}"
_ADDRESS = re.compile(
    r"local(?:\[(?:\*|[1-9][0-9]{0,3})(?:,[0-9]{1,4})?\])?"
    rf"|spark://{_HOST}:{_PORT}(?:,{_HOST}:{_PORT})*"
    rf"|sc://{_HOST}(?::{_PORT})?(?:/\S*)?"
    rf"|k8s://(?:https?://)?{_HOST}(?::{_PORT})?(?:/\S*)?"
    r"|yarn"
)
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+")


def check_address(address: str) -> None:
    """Raise `InvalidInput` unless Spark can be reached under ``address``."""
    if not _ADDRESS.fullmatch(address):
        raise InvalidInput(
            f"a replica cannot be at {address[:200]!r}: an address is local[N], spark://host:port, "
            "sc://host:port (Spark Connect), k8s://host:port or yarn"
        )


def size_of(planning: Planning, name: str) -> ClusterSize:
    """The configured size of that name. Raises `InvalidInput` that lists those that there are."""
    sizes = CLUSTER_SIZES.required(planning.catalog)
    if name not in sizes:
        raise InvalidInput(
            f"size {name!r} is not configured; "
            f"{CLUSTER_SIZES.name} has {', '.join(sizes) or 'none'}"
        )
    return sizes[name]


def local_address(size: ClusterSize) -> str:
    """A Spark in one process, with the cores of a size."""
    return f"local[{size.cores}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateClusterReplica:
    """CREATE CLUSTER REPLICA, of an unmanaged cluster.

    ``spark_ui`` and ``event_log`` are the addresses under which one can look into it.
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
        cluster = _cluster(planning, self.cluster)
        check_name(self.name, "cluster replica")
        existing = _named(planning.catalog, cluster, self.name)
        if existing is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"replica {cluster.name}.{existing.name} already exists")
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
    """ALTER CLUSTER REPLICA … SET. What is None stays, an empty introspection address goes.

    Of a managed cluster's replica only the introspection addresses can be set.
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
        new = replace(
            old,
            size=old.size if self.size is None else self.size,
            address=old.address if self.address is None else self.address,
            owner=old.owner if self.owner is None else self.owner,
        )
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
        holder = _named(planning.catalog, cluster, self.new_name)
        if holder is not None and holder.id != old.id:
            raise AlreadyExists(f"replica {cluster.name}.{holder.name} already exists")
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
    """Create or alter a replica, with its introspection addresses, in an entry of its own.

    A new one has id 0 and gets one. An address None stays as it is, an empty one is taken away.
    """
    for name, address in introspection.items():
        if address and not _PLACE.fullmatch(address):
            raise InvalidInput(f"the {name} of a replica cannot be {address[:200]!r}: it is no URI")
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
    """Remove a replica and its introspection indexes, in an entry of its own."""
    name = object_name(planning.catalog, replica)
    with planning.entry("drop_cluster_replica", replica=name) as transaction:
        for index in planning.catalog.introspection_indexes(replica.id):
            transaction.delete("introspection_index", index.id)
        delete_with_comment(transaction, "cluster_replica", replica.id)


def _cluster(planning: Planning, name: str) -> ClusterDescriptor:
    cluster = planning.catalog.cluster(name)
    if cluster is None:
        raise ObjectNotFound(f"cluster {name!r} does not exist")
    return cluster


def _named(catalog: Catalog, cluster: ClusterDescriptor, name: str) -> ClusterReplica | None:
    wanted = normalize(name)
    return next((r for r in catalog.replicas(cluster.id) if normalize(r.name) == wanted), None)


def _find(
    planning: Planning, cluster: str, name: str, *, if_exists: bool
) -> tuple[ClusterDescriptor, ClusterReplica] | None:
    parent = planning.catalog.cluster(cluster)
    replica = None if parent is None else _named(planning.catalog, parent, name)
    if parent is not None and replica is not None:
        return parent, replica
    if if_exists:
        return None
    raise ObjectNotFound(f"cluster replica {cluster}.{name} does not exist")


def _refuse_managed(cluster: ClusterDescriptor, what: str, instead: str) -> None:
    if cluster.size is not None:
        raise IllegalChange(f"cluster {cluster.name} is managed and cannot {what}; alter {instead}")
