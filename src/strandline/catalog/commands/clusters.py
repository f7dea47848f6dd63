"""Commands on clusters and their replicas: named Spark compute that jobs run on.

A **managed** cluster is told a size and a number of replicas, and the commands here keep replicas
``r1`` … ``rN`` of that size for it. Where they are is ``address``; by default each is a local Spark
with the cores of its size. Of an **unmanaged** cluster people make the replicas one by one.

An **introspection index** says where one can look into a replica: the address of its Spark UI and
of its event log. It goes with its replica, and a replica goes with its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.commands.replicas import (
    check_address,
    drop_replica,
    local_address,
    put_replica,
    size_of,
)
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.planning import Planning
from strandline.catalog.verbs import Action
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import ClusterDescriptor, ClusterReplica
from strandline.model.identifiers import check_name

MAX_REPLICATION_FACTOR = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCluster:
    """CREATE CLUSTER. With a ``size`` it is managed, without one it is empty and unmanaged.

    ``address`` is that of each replica of a managed one; empty is a local Spark.
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
                f"cluster {self.name} has no size, so it has no replicas that an address could be "
                "for; give it a size, or create its replicas with their addresses"
            )
        existing = planning.catalog.cluster(self.name)
        if existing is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"cluster {existing.name} already exists")
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
    """ALTER CLUSTER … SET. What is None stays as it is.

    A managed cluster's replicas follow: their owner, their size, their number (the last ones go
    first), and their address. New ones get ``address``, else that of the first.
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
        new = replace(
            old,
            owner=old.owner if self.owner is None else self.owner,
            size=self.size or old.size,
            replication_factor=old.replication_factor
            if self.replication_factor is None
            else self.replication_factor,
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
        if holder is not None and holder.id != cluster.id:
            raise AlreadyExists(f"cluster {holder.name} already exists")
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
    """Remove a cluster, its replicas first, each in an entry of its own."""
    for replica in planning.catalog.replicas(cluster.id):
        drop_replica(planning, replica)
    with planning.entry("drop_cluster", cluster=cluster.name) as transaction:
        delete_with_comment(transaction, "cluster", cluster.id)


def find_cluster(
    planning: Planning, name: str, *, if_exists: bool = False
) -> ClusterDescriptor | None:
    """The cluster of that name; `ObjectNotFound` if there is none, unless that is no error."""
    cluster = planning.catalog.cluster(name)
    if cluster is None and not if_exists:
        raise ObjectNotFound(f"cluster {name!r} does not exist")
    return cluster


def _check_factor(factor: int) -> None:
    if not 0 <= factor <= MAX_REPLICATION_FACTOR:
        raise InvalidInput(
            f"a cluster cannot have {factor} replicas; 0 to {MAX_REPLICATION_FACTOR} are possible"
        )


def keep_replicas(planning: Planning, cluster: ClusterDescriptor, *, address: str | None) -> None:
    """Bring the replicas of a managed cluster to what it says, each change an entry of its own.

    ``address`` None leaves each where it is; empty moves each to a local Spark of its size.
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
    kept = replicas[: cluster.replication_factor]
    for replica in kept:
        place = _address_of(planning, replica, local) if address is None else address or local
        put_replica(
            planning,
            cluster,
            replace(replica, owner=cluster.owner, size=size, address=place),
            action=Action.ALTER,
        )
    place = address or local
    if address is None and kept:
        place = _address_of(planning, kept[0], local)
    for number in range(len(kept) + 1, cluster.replication_factor + 1):
        put_replica(
            planning,
            cluster,
            ClusterReplica(0, cluster.id, f"r{number}", cluster.owner, size, place),
            action=Action.CREATE,
        )


def _address_of(planning: Planning, replica: ClusterReplica, local: str) -> str:
    """Where a replica stays when its size may change: a local Spark grows with it."""
    was_local = replica.address == local_address(size_of(planning, replica.size))
    return local if was_local else replica.address
