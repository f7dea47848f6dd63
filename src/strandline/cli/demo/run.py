"""The main job from start to end."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from strandline.cli.demo import step_crashes, step_data, step_versions
from strandline.cli.demo.context import USER, Demo, load
from strandline.cli.demo.node_process import NodeProcess
from strandline.cli.demo.report import Report
from strandline.cli.options import new_console
from strandline.cli.signals import ending_at_signals
from strandline.config import Settings
from strandline.metastore.interface import Session
from strandline.metastore.session import HttpSession
from strandline.node import Node
from strandline.node.address import shown_address
from strandline.spark import Tables
from strandline.spark.schemas import SETTINGS


def run(
    folder: Path | None, *, store: str, settings: Settings, client: str, months: int, keep: bool
) -> bool:
    """Run all steps, and return True if every check holds. With ``keep``, keep folder and node.

    ``store`` is the address of a store on servers, or empty for a store in the folder. ``settings``
    are those of the new store. The warehouse of a store on servers is in the folder.
    """
    began = time.monotonic()
    report = Report(new_console())
    with ending_at_signals(), ExitStack() as stack:
        workspace = folder or Path(tempfile.mkdtemp(prefix="strandline-demo-"))
        if folder is None and not keep:
            stack.callback(shutil.rmtree, workspace, ignore_errors=True)
        workspace.mkdir(parents=True, exist_ok=True)
        address = store or str(workspace / "store")
        settings = replace(settings, warehouse=str(workspace / "warehouse") if store else "")
        where = "in new databases" if store else "in an empty folder"
        report.heading(1, "node", f"A node, a process of its own, on a store {where}")
        node = NodeProcess(address, settings=settings, log=workspace / "node.log")
        if not keep:
            stack.callback(node.stop)
        node.start()
        served = f"serves {shown_address(address)} at {node.thrift_uri} and {node.http_uri}"
        report.say(f"process {node.pid} {served}")
        spark = stack.enter_context(_spark(node, workspace))
        session = stack.enter_context(_session(client, node, settings))
        demo = Demo(
            node=node,
            plain=spark,
            session=session,
            tables=Tables(_with_settings(spark.newSession()), session),
            input=load(workspace / "input", months=months),
            report=report,
        )
        step_data.plain_tables(demo)
        step_data.append_months(demo)
        step_data.two_tables(demo)
        before = step_versions.read_older_versions(demo)
        step_crashes.run(demo)
        step_versions.trim_history(demo, before)
        report.summary(seconds=time.monotonic() - began)
        if keep:
            _how_to_connect(report, node, workspace)
        return not report.failures()


@contextmanager
def _spark(node: NodeProcess, workspace: Path) -> Iterator[SparkSession]:
    """Open an unmodified session, which knows only the address of the metastore."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("strandline demo")
        .config("spark.hadoop.hive.metastore.uris", node.thrift_uri)
        .config("spark.sql.warehouse.dir", (workspace / "spark-warehouse").as_uri())
        # Each query runs only a few times: optimizing its code takes longer than it saves.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.pyspark.python", sys.executable)
        .enableHiveSupport()
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _session(client: str, node: NodeProcess, settings: Settings) -> Iterator[Session]:
    if client == "http":
        with closing(HttpSession(node.http_uri, user=USER)) as session:
            yield session
        return
    with Node.open(node.store, settings=settings) as embedded:
        yield embedded.session(user=USER)


def _how_to_connect(report: Report, node: NodeProcess, workspace: Path) -> None:
    node.leave_running()
    report.say(f"The data is in {workspace}. The node keeps running as process {node.pid}.")
    report.say("Connect your own Spark to it:")
    report.say(
        f"  spark-sql --conf spark.hadoop.hive.metastore.uris={node.thrift_uri} "
        "--conf spark.sql.catalogImplementation=hive -e 'SHOW TABLES IN nyc'"
    )
    report.say(f"Stop it with: kill {node.pid}")


def _with_settings(spark: SparkSession) -> SparkSession:
    """Set the options that transactional tables need on ``spark``, and return it."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    return spark
