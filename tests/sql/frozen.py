"""Excludes what the fork server of `tests.sql.processes` has imported from garbage collection.

Otherwise the first collection in each process copies every page of it, which takes a process as
long as it takes to create a store.
"""

import gc

gc.collect()
gc.freeze()
