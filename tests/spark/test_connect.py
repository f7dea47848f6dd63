"""A client of Spark Connect, which Spark 4 starts with ``spark.api.mode=connect``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.cli.demo.node_process import NodeProcess
from tests.project.checkout import ROOT
from tests.spark import connect_client

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_client_of_spark_connect_reads_and_writes_plain_and_transactional_tables(
    tmp_path: Path,
) -> None:
    node = NodeProcess(tmp_path / "lake", log=tmp_path / "log")
    node.start()
    try:
        places = (node.thrift_uri, node.http_uri, str(tmp_path / "warehouse"))
        client = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", connect_client.__name__, *places],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_TESTING": "1",  # a free port
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        node.stop()
    assert client.returncode == 0, client.stderr
