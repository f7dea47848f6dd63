"""What makes each Spark that the tests start faster: options, and an archive of its classes.

A JVM spends half of a Spark start on reading and checking some 15,000 classes. Java can store them
as they are in memory (class data sharing) and map them into the next JVM. The archive belongs to
one Java and one PySpark and is in ``build/``; another Java ignores it. Run as a script, this module
makes the archive if it is missing. Without it the tests do the same and take longer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = "JDK_JAVA_OPTIONS"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
BRIEF = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m -XX:-UsePerfData "
    "-XX:MetaspaceSize=256m"
)
"""Tests run each piece of code only a few times: optimizing it does not pay.

Nor does a collection of the whole heap each time that so many classes need more room. In the 48 MB
that Java gives to code without optimization, Spark's does not fit: Java would throw some away, and
compile it again.
"""
SUBMIT_OPTIONS = "PYSPARK_SUBMIT_ARGS"
FOR_FEW_ROWS = (
    "--conf spark.ui.enabled=false "
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
)
"""Each query of a test has a few rows: interpreting it is cheaper than compiling it."""
SECONDS = 300

# Uses what most tests use: planning, Parquet both ways, an exchange, SQL.
JOB = """
import sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", sys.argv[1] + "/warehouse")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.range(100).selectExpr("id", "id % 7 AS k").write.parquet(sys.argv[1] + "/rows")
spark.read.parquet(sys.argv[1] + "/rows").createOrReplaceTempView("t")
spark.sql("SELECT k, count(*) FROM t GROUP BY k ORDER BY k").collect()
spark.stop()
"""


def archive() -> Path | None:
    """The path of the archive for the current Java and PySpark; None without a Java."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None:
        return None
    # With options in the environment, Java prints them too.
    environment = {name: value for name, value in os.environ.items() if name != OPTIONS}
    run = subprocess.run([java, "-version"], capture_output=True, check=False, env=environment)
    said = run.stderr
    digest = hashlib.sha256(said + version("pyspark").encode() + sys.prefix.encode()).hexdigest()
    return ROOT / "build" / f"spark-classes-{digest[:16]}.jsa"


def use(environment: MutableMapping[str, str]) -> None:
    """Give every Spark that is started with ``environment`` the options, and the archive."""
    environment.setdefault(SUBMIT_OPTIONS, f"{FOR_FEW_ROWS}pyspark-shell")
    path = archive()
    share = f"-XX:SharedArchiveFile={path} " if path is not None and path.exists() else ""
    environment[OPTIONS] = f"{environment.get(OPTIONS, '')} {share}{BRIEF} {QUIET}".strip()


def make(target: Path) -> bool:
    """Make the archive; False if this Java cannot, or not in time."""
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, "classes.jsa")
        options = f"-XX:ArchiveClassesAtExit={made} {BRIEF} {QUIET}"
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", JOB, folder],
                env={**os.environ, OPTIONS: options},
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        if not made.exists():
            return False
        made.replace(target)
    return True


def main() -> None:
    """Make the archive unless it exists."""
    target = archive()
    if target is None or target.exists():
        return
    print("archiving the classes of Spark, once for this Java, so that the tests start it faster")
    if not make(target):
        print("the classes were not archived; the tests take longer without")


if __name__ == "__main__":
    main()
