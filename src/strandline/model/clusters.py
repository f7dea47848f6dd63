"""Clusters: named Spark compute that jobs run on."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.model.privileges import Grants


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
