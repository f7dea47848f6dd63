"""What every `Session` shows to the operator of a store, with the words of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from strandline.catalog.commands import CreateSchema
from strandline.cli import main
from strandline.config import Settings
from strandline.errors import InvalidInput
from strandline.metastore import inspection
from strandline.metastore.inspection import Finding, FindingKind
from strandline.metastore.interface import Session
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.node import Node, verification
from strandline.node import inspection as node_inspection
from strandline.node.settings import PROGRAM, REGISTRY
from tests.metastore.interface.calls import Served, create, write
from tests.metastore.session.served import serving
from tests.servers import stores

ROWS = 100
HASH = "0123456789abcdef" * 4


@pytest.fixture
def lake(store_kind: str, tmp_path: Path) -> Iterator[Served]:
    """A node with a secret in its settings, and the transactional table shop.t."""
    settings = Settings(users=f"ann:sha256:{HASH}", slow_call_ms=5_000)
    store = stores.new_store(store_kind, tmp_path / "lake", settings=settings)
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        node.session(user="ann").execute([CreateSchema(name="shop"), create("shop")])
        yield Served(node, url)


@pytest.fixture
def session(kind: str, lake: Served) -> Iterator[Session]:
    opened = lake.open(kind)
    yield opened
    opened.close()


def strandline(node: Node, *words: str) -> bytes:
    """What a command on the store prints."""
    store = str(node.address.folder or node.address.catalog)
    return CliRunner().invoke(main, [*words, store]).stdout_bytes


def lines(node: Node, *words: str) -> list[dict[str, Any]]:
    """The objects that a command on the store prints as JSON."""
    return [json.loads(line) for line in strandline(node, *words, "--output", "json").splitlines()]


def file_of(node: Node, path: str) -> Path:
    """A file of the table shop.t."""
    return node.folders.warehouse / "shop.db" / "t" / path


def put(node: Node, *, txn_id: int) -> DataFile:
    """Write a data file into the folder of shop.t, as transaction ``txn_id`` would name it."""
    file_id = txn_id << FILE_NUMBER_BITS
    path = data_path(file_id, uuid4().hex)
    file = file_of(node, path)
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"k": range(ROWS), "v": ["x"] * ROWS}), file)
    return DataFile(file_id=file_id, path=path, rows=ROWS, bytes=file.stat().st_size)


def leave(node: Node) -> str:
    """Leave a file of a transaction that was aborted in the folder of shop.t."""
    session = node.session(user="ann")
    txn_id = session.begin().txn_id
    session.abort(txn_id)
    return put(node, txn_id=txn_id).path


def test_settings_are_listed_without_secrets(session: Session) -> None:
    settings = {setting.setting: setting for setting in session.config()}
    assert list(settings) == list(REGISTRY)
    assert (settings["slow_call_ms"].value, settings["slow_call_ms"].origin) == (5_000, PROGRAM)
    assert (settings["host"].value, settings["host"].origin) == ("127.0.0.1", "default")
    assert settings["deploy_generation"].value is None
    assert settings["location_roots"].value == settings["location_roots"].default == []
    assert settings["users"].value == "ann:…"
    assert HASH not in str(settings)


def test_settings_have_the_words_of_the_command(session: Session) -> None:
    printed = {}
    result = CliRunner().invoke(main, ["config", "--output", "json"])
    for setting in map(json.loads, result.stdout.splitlines()):
        printed[setting.pop("setting")] = setting
    for setting in session.config():
        words = printed[setting.setting]
        assert (setting.default, setting.option) == (words["default"], words["option"])
        assert (setting.variable, setting.allowed) == (words["variable"], words["allowed"])
        assert setting.meaning == words["meaning"]


def test_what_cleaning_would_remove_is_listed_and_kept(
    session: Session, lake: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.clean().parts == ()
    path = leave(lake.node)
    cleanable = session.clean()
    (leftovers,) = cleanable.parts
    assert (leftovers.what, leftovers.table, leftovers.names) == ("leftovers", "shop.t", [path])
    assert cleanable.limit is not None
    assert cleanable.limit < session.status().version_time
    (line,) = lines(lake.node, "clean")
    assert line == {**asdict(leftovers), "removed": False}
    assert file_of(lake.node, path).exists()
    monkeypatch.setattr(node_inspection, "MAX_NAMED", 0)
    (leftovers,) = session.clean().parts
    assert (leftovers.files, leftovers.names) == (1, [])


def test_nothing_can_be_cleaned_while_a_backup_copies_files(session: Session, lake: Served) -> None:
    leave(lake.node)
    now = session.status().version_time
    hold = session.hold("backup", at=now)
    cleanable = session.clean()
    assert (cleanable.limit, cleanable.parts) == (None, ())
    session.release_hold(hold.hold_id)
    assert session.clean().parts


def test_a_dump_has_the_bytes_of_the_command(session: Session, lake: Served) -> None:
    dump = session.dump()
    assert dump == strandline(lake.node, "debug", "dump")
    tables = json.loads(dump)["collections"]["table"]
    assert [of["value"]["name"] for of in tables["objects"]] == ["t"]


def test_a_dump_leaves_out_kinds_and_objects(session: Session) -> None:
    collections = json.loads(session.dump(ignore=["table"], stats_only=True))["collections"]
    assert "table" not in collections
    assert collections["schema"] == {"count": 3}
    with pytest.raises(InvalidInput, match="'tables' is not a kind of object; the kinds are"):
        session.dump(ignore=["tables"])


def test_damage_is_found_as_by_the_command(
    session: Session, lake: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SETTLING_SECONDS", 0.0)
    node = lake.node
    txn_id = session.begin().txn_id
    file = put(node, txn_id=txn_id)
    session.stage(txn_id, session.table("shop.t").descriptor.id, add=[file])
    session.commit(txn_id)
    report = session.verify(pages=True)
    assert report.findings == ()
    assert (report.summary.errors, report.summary.files) == (0, 1)
    assert (report.summary.rows, report.summary.bytes) == (ROWS, file.bytes)
    path = file_of(node, file.path)
    path.write_bytes(path.read_bytes()[:-1])
    report = session.verify()
    message = f"it has {file.bytes - 1} bytes, but {file.bytes} were written"
    assert report.findings == (Finding(FindingKind.FILE, str(path), message, "shop.t"),)
    place = {"place": str(path), "table": "shop.t", "message": message}
    assert lines(node, "verify") == [
        {"finding": "file", **place},
        {"finding": "summary", **asdict(report.summary)},
    ]


def test_only_the_first_errors_and_leftovers_are_listed(
    session: Session, lake: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SETTLING_SECONDS", 0.0)
    for number in range(3):
        put(lake.node, txn_id=100 + number)
        lost = DataFile(file_id=number + 1, path=f"lost{number}.parquet", rows=1, bytes=1)
        write(session, session.table("shop.t").descriptor.id, lost)
    monkeypatch.setattr("strandline.node.inspection.MAX_FINDINGS", 2)
    report = session.verify()
    assert (report.summary.errors, report.summary.leftovers) == (3, 3)
    kinds = [finding.kind for finding in report.findings]
    assert (
        sorted(kinds, key=lambda kind: kind.value)
        == [FindingKind.FILE] * 2 + [FindingKind.LEFTOVER] * 2
    )
    assert inspection.MAX_FINDINGS == 1_000
