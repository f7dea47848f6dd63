"""The peer: Hive's own metastore, 2.3.10, from the jars of PySpark, on PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg

from strandline.metastore.thrift.messages import ApplicationException
from tests.servers import postgresql
from tests.servers.loopback import ReservedPort
from tests.servers.postgresql import PostgresServer
from tests.servers.thrift_client import ThriftClient

DRIVER = Path("/usr/share/java/postgresql.jar")
START_SECONDS = 300
STOP_SECONDS = 120
_SETTINGS = {
    "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
    "hive.async.log.enabled": "false",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "datanucleus.connectionPoolingType": "HikariCP",
    # With this cache, it answers with the statistics of partitions that were not asked for.
    "hive.metastore.aggregate.stats.cache.enabled": "false",
    # It retries what the database refuses ten times, and waits two seconds between the tries.
    "hive.hmshandler.retry.interval": "1ms",
}
_MUTEXES = b"""CREATE TABLE AUX_TABLE (
    MT_KEY1 varchar(128) NOT NULL, MT_KEY2 bigint NOT NULL, MT_COMMENT varchar(255),
    PRIMARY KEY (MT_KEY1, MT_KEY2))"""
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


@contextmanager
def hive_metastore(
    folder: Path, *, transactions: bool = False, server: PostgresServer | None = None
) -> Iterator[int]:
    """Run Hive's metastore with its warehouse in ``folder``; yields the port that it listens on.

    Its database is on ``server``, or else on `postgresql.running`. Without ``transactions`` it has
    no tables for transactions and locks: they cost one more start.
    """
    server = server or postgresql.running()
    database = server.new_empty_database()
    settings = {
        **_SETTINGS,
        "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://127.0.0.1:{server.port}/{database}",
        "javax.jdo.option.ConnectionUserName": postgresql.USER,
        "javax.jdo.option.ConnectionPassword": "",
        "hive.metastore.warehouse.dir": f"file:{warehouse(folder)}",
    }
    if transactions:
        # A setting for Hive's own tests creates these tables. It fails at one with a type of
        # Derby's; the locks need one of those after it.
        with (
            _running(folder, {**settings, "hive.in.test": "true"}) as port,
            ThriftClient("127.0.0.1", port) as client,
            suppress(ApplicationException),
        ):
            client.call("get_open_txns_info")
        with psycopg.connect(server.url(database=database)) as connection:
            connection.execute(_MUTEXES)
    with _running(folder, settings) as port:
        yield port


@contextmanager
def _running(folder: Path, settings: dict[str, str]) -> Iterator[int]:
    _configure(folder, settings)
    command = [_java(), "-cp", f"{folder}:{_driver()}:{_jars()}/*"]
    with closing(ReservedPort()) as reserved, (folder / "hive.log").open("wb") as log:
        port = reserved.number
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            _await_port(port, process, folder / "hive.log")
            yield port
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def warehouse(folder: Path) -> Path:
    """The warehouse of the metastore that runs in ``folder``."""
    return folder / "warehouse"


def _configure(folder: Path, settings: dict[str, str]) -> None:
    lines = (
        f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items()
    )
    text = "\n".join(("<configuration>", *lines, "</configuration>\n"))
    (folder / "hive-site.xml").write_text(text)
    (folder / "log4j2.properties").write_text(_LOGGING)


def _driver() -> Path:
    if not DRIVER.exists():
        raise RuntimeError("there is no JDBC driver for PostgreSQL here; run scripts/setup jdbc")
    return DRIVER


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("the peer comes with PySpark, which is not installed")
    return Path(spec.origin).parent / "jars"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java:
        raise RuntimeError("the peer needs Java 17 or newer")
    return java


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Hive does not report when it accepts connections, so try until it does, or ends."""
    for _ in range(START_SECONDS * 4):
        if process.poll() is not None:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Hive's metastore ended with {process.returncode}: {said}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
    raise RuntimeError(f"Hive's metastore did not listen within {START_SECONDS} s")
