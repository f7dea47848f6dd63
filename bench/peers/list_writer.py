"""A writer process that reads each of its writes back on another node.

About every `PERIOD` seconds, at random intervals that differ between writers, it commits a file
through one node and gets the list of write ids that includes this write. With that list it requests
the files of its partition from the other node.

It writes the line ``null`` to standard output after its first write, which is not measured, and
waits for a line on standard input. When standard input ends, it writes the milliseconds of the
answers, and how many of them lacked the file, as one line of JSON.

It requests short time slices, so that it waits little for a processor. With real-time priority
(`bench.peers.own_machine`), ten writers would keep the nodes waiting: a writer needs much processor
time for an answer, compared with the node.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

from strandline.metastore.interface import ColumnBounds
from strandline.metastore.session import HttpSession
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import PartitionValue
from strandline.work.time_slices import shorten_time_slices

PERIOD = 0.2


def main(writing: str, reading: str, table: str, key: int) -> None:
    """Write and read until standard input ends."""
    shorten_time_slices()
    rhythm = random.Random(key)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    times: list[float] = []
    lacking = 0
    with HttpSession(writing, user="bench") as here, HttpSession(reading, user="bench") as there:
        descriptor = here.table(table).descriptor
        write_and_read(here, there, table, descriptor, key)
        print("null", flush=True)
        sys.stdin.readline()
        threading.Thread(target=wait_for_end, daemon=True).start()
        while not ended.wait(PERIOD * rhythm.uniform(0.5, 1.5)):
            milliseconds, lacks = write_and_read(here, there, table, descriptor, key)
            times.append(milliseconds)
            lacking += lacks
    print(json.dumps([times, lacking]), flush=True)


def write_and_read(
    here: HttpSession, there: HttpSession, table: str, descriptor: TableDescriptor, key: int
) -> tuple[float, bool]:
    """Write a file ``here`` and request the files ``there``.

    Return the milliseconds of the answer, and whether it lacks the file.
    """
    (field,) = descriptor.partitioning
    bounds = [ColumnBounds(field.source_id, values=(str(key),))]
    txn_id = here.begin().txn_id
    file = DataFile(
        file_id=txn_id << 20,
        path=f"_files/{txn_id << 20}-a.parquet",
        rows=1,
        bytes=1,
        partition=(PartitionValue(field.id, key),),
    )
    here.stage(txn_id, descriptor.id, add=[file])
    here.commit(txn_id)
    write_ids = here.open([table]).write_ids_of(table)
    began = time.perf_counter()
    files = there.files(descriptor.id, write_ids, bounds=bounds).data_files
    return (time.perf_counter() - began) * 1000, file not in files


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
