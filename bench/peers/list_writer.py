"""A writer process that reads each of its writes back on another node.

About every `PERIOD` seconds, at random intervals that differ between writers, it commits a file
through one node and gets the list of write ids that includes this write. With that list it requests
the files of its partition from the other node. When standard input ends, it writes the milliseconds
of the answers, and how many of them lacked the file, to standard output as one line of JSON.

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

    threading.Thread(target=wait_for_end, daemon=True).start()
    times: list[float] = []
    lacking = 0
    with HttpSession(writing, user="bench") as here, HttpSession(reading, user="bench") as there:
        descriptor = here.table(table).descriptor
        (field,) = descriptor.partitioning
        bounds = [ColumnBounds(field.source_id, values=(str(key),))]
        while not ended.wait(PERIOD * rhythm.uniform(0.5, 1.5)):
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
            times.append((time.perf_counter() - began) * 1000)
            lacking += file not in files
    print(json.dumps([times, lacking]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
