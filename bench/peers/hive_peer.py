"""The peer: Hive's own metastore, 2.3.10, out of the jars that PySpark brings, on Derby."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 90
CONFIGURATION = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name>
<value>jdbc:derby:;databaseName={folder}/db;create=true</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{folder}/warehouse</value></property>
</configuration>
"""


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("the peer comes with PySpark, which is not installed")
    return Path(spec.origin).parent / "jars"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found:
        raise RuntimeError("the peer needs Java 17 or newer")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@contextmanager
def hive_metastore(folder: Path) -> Iterator[int]:
    """Run Hive's metastore in ``folder``; gives the port that it listens on."""
    (folder / "hive-site.xml").write_text(CONFIGURATION.format(folder=folder))
    port = _free_port()
    command = [_java(), "-cp", f"{folder}:{_jars()}/*"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with (folder / "hive.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            _await_port(port, process, folder / "hive.log")
            yield port
        finally:
            process.terminate()
            process.wait(30)
