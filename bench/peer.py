"""Compares Strandline with Hive Metastore 2.3.10, call by call, with HMSBench's names.

Both servers store their objects in databases of one PostgreSQL, which syncs each commit. Four
client processes call one server, then the other. The clients, the server and PostgreSQL share the
machine. A rate is the mean of three windows that agree (`bench.peers.windows`).
"""

from __future__ import annotations

import os
from functools import partial

from bench.catalog import disk_sync
from bench.peers.apache_client import own_seconds
from bench.peers.hive_pair import PROCESSES, rate, running
from bench.peers.metastore_calls import Connection, GetTable
from bench.peers.windows import MOST_WINDOWS
from bench.registry import Measured, benchmark

INSERTS = 2.0
"""Allocating a write id may take this many times the time of one INSERT."""


def held_against_hive(
    operation: str, times: float, *, most: int = MOST_WINDOWS, delayed: bool = False
) -> Measured:
    """Return the rate of Strandline. Its target is ``times`` the rate of Hive.

    ``delayed``: of the catalog with the default delay.
    """
    pair = running()
    node = pair.ours_delayed if delayed else pair.ours
    print(f"  {PROCESSES} clients, the server and PostgreSQL on {os.cpu_count()} processor cores")
    ours, hive = (rate(operation, port, most=most) for port in (node, pair.hive))
    print(f"  {operation}: {ours:.4g} a second, the peer {hive:.4g}")  # the table is printed later
    return Measured(ours, reference=hive, target=times * hive)


@benchmark(group="peer", name="sync of the disk", unit="ms", better="lower")
def sync_of_the_disk() -> float:
    """The p50 of writing and syncing a page. Each commit on either side waits for at least one."""
    return disk_sync(running().folder) * 1000


read_against_hive = partial(held_against_hive, delayed=True)
AGAINST_HIVE = {
    "getTable, prepared request bytes": partial(read_against_hive, "GetTable", 30),
    "getTable, Apache Thrift client": partial(read_against_hive, "GetTableThroughApache", 6),
    "createTable": partial(held_against_hive, "CreateTable", 12),
    "addPartitions.1000": partial(held_against_hive, "AddPartitions", 30),
    "getPartitions.1000": partial(read_against_hive, "GetPartitions", 12),
    "getPartitionNames.1000": partial(read_against_hive, "GetPartitionNames", 12),
    # Selects a hundred of ten thousand partitions.
    "getPartitionsByFilter.10000": partial(read_against_hive, "GetPartitionsByFilter", 12),
    "renameTable.1000, managed": partial(held_against_hive, "RenameManaged", 50),
    "renameTable.1000, external": partial(held_against_hive, "RenameExternal", 5),
    # Drops four databases in a window; Hive takes most of a minute to create their tables.
    "dropDatabase.1000": partial(held_against_hive, "DropDatabase", 30, most=5),
    "openTxn and commit": partial(held_against_hive, "OpenAndCommit", 5),
}

for _name, _run in AGAINST_HIVE.items():
    benchmark(group="peer", name=_name, unit="1/s", better="higher")(_run)


@benchmark(
    group="peer", name="getTable, the Apache Thrift client alone", unit="1/s", better="higher"
)
def apache_client_alone() -> Measured:
    """The calls that the client's code allows, on all cores, if the server answers instantly."""
    answer = Connection(running().ours).answer(GetTable.request)
    cores = min(PROCESSES, os.cpu_count() or 1)
    return Measured(cores / own_seconds(answer))


@benchmark(group="peer", name="allocate a write id", unit="1/s", better="higher")
def allocate_write_id() -> Measured:
    """Hive has no write ids. The reference is a transaction of one INSERT with psycopg."""
    pair = running()
    inserts = rate("Insert", pair.database)
    return Measured(rate("AllocateWriteId", pair.ours), reference=inserts, target=inserts / INSERTS)
