"""The peer: Hive's own metastore, 2.3.10, out of the jars that PySpark brings, on PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers import postgresql
from tests.servers.loopback import free_port

DRIVER = Path("/usr/share/java/postgresql.jar")
START_SECONDS = 90
STOP_SECONDS = 30
_SETTINGS = {
    "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
    "hive.async.log.enabled": "false",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "datanucleus.connectionPoolingType": "HikariCP",
    # What the database refuses it tries ten times, and waits two seconds in between.
    "hive.hmshandler.retry.interval": "1ms",
}
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


@contextmanager
def hive_metastore(folder: Path) -> Iterator[int]:
    """Run Hive's metastore with its warehouse in ``folder``; gives the port that it listens on.

    Its database is one of the server of `postgresql.running`.
    """
    port = free_port()
    _configure(folder)
    command = [_java(), "-cp", f"{folder}:{_driver()}:{_jars()}/*"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with (folder / "hive.log").open("wb") as log:
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


def _configure(folder: Path) -> None:
    server = postgresql.running()
    settings = {
        **_SETTINGS,
        "javax.jdo.option.ConnectionURL": f"jdbc:{server.new_empty_database()}",
        "javax.jdo.option.ConnectionUserName": postgresql.USER,
        "javax.jdo.option.ConnectionPassword": "",
        "hive.metastore.warehouse.dir": f"file:{warehouse(folder)}",
    }
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
    """Hive says nowhere when it accepts, so this knocks until it does, or ends."""
    for _ in range(START_SECONDS * 4):
        if process.poll() is not None:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Hive's metastore ended with {process.returncode}: {said}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
    raise RuntimeError(f"Hive's metastore did not listen within {START_SECONDS} s")
