"""Transactional tables for PySpark: create, append, delete, and read at any snapshot.

Needs the extra ``spark``. No row passes through the metastore: Spark reads and writes Parquet
files, and a `strandline.metastore.interface.Session` says which files.
"""

try:
    import numpy as _numpy  # noqa: F401  # only to check whether it is installed
    import pyspark as _pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"strandline.spark needs PySpark and numpy, but {error.name} is not installed: pip "
        "install 'strandline[spark]'",
        name=error.name,
    ) from error
if _pyspark.__version__.startswith(("3.", "4.0.")):
    raise ImportError(
        f"strandline.spark needs PySpark 4.1 or newer, but {_pyspark.__version__} is installed: "
        "pip install 'strandline[spark]'"
    )

from strandline.spark.schemas import configure
from strandline.spark.tables import ReaderSnapshot, Tables
from strandline.spark.transaction import Counts, TablesTransaction

__all__ = ["Counts", "ReaderSnapshot", "Tables", "TablesTransaction", "configure"]
