"""Cleaning of a store that was not restored as a whole, or not to one time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.catalog.commands import RenameTable
from strandline.metastore.inspection import FindingKind
from strandline.metastore.store.file_scans import DATA_FOLDER, DELETES_FOLDER
from strandline.metastore.store.rows import FILE_NUMBER_BITS
from strandline.sql import change
from tests.metastore.store.lake import LATER, SETTINGS, Lake


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` looks at damage a second time at once."""
    monkeypatch.setattr("strandline.node.verification.SETTLING_SECONDS", 0.0)


def test_a_table_in_the_folder_that_a_renamed_one_had_in_an_older_warehouse_deletes_no_files(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = lake.write(lake.create())
    warehouse = lake.node.folders.warehouse
    shutil.copytree(warehouse, tmp_path / "older")
    lake.session.execute(RenameTable(schema="default", table="t", new_name="renamed"))
    missing = lake.write(lake.create())
    shutil.rmtree(warehouse)
    shutil.copytree(tmp_path / "older", warehouse)
    assert lake.clean() == []
    assert lake.on_disk() == {path}
    assert f"the leftovers of default.t stay: its file {missing} is missing" in caplog.text


def test_a_table_that_got_its_missing_file_back_is_cleaned_again(lake: Lake) -> None:
    table_id = lake.create()
    folder, path = lake.folder(), lake.write(table_id)
    txn_id = lake.session.begin().txn_id
    lake.write(table_id, txn_id=txn_id)
    lake.session.abort(txn_id)
    (folder / path).rename(folder / "kept")
    assert lake.clean() == []
    (folder / "kept").rename(folder / path)
    assert lake.clean() == [("leftovers", 0, 1)]
    assert lake.on_disk() == {path}


@pytest.mark.parametrize("leftovers", [0, 1])
def test_a_folder_that_cannot_be_read_keeps_its_leftovers_and_stops_no_cleaning(
    lake: Lake, leftovers: int
) -> None:
    table_id, other_id = lake.create(), lake.create("u")
    folder = lake.folder()
    lake.write(table_id)
    txn_id = lake.session.begin().txn_id
    lake.write(other_id, "u", txn_id=txn_id)
    lake.session.abort(txn_id)
    (folder / DATA_FOLDER).rename(folder / "kept")
    (folder / DATA_FOLDER).touch()
    (folder / DELETES_FOLDER).mkdir()
    for _ in range(leftovers):
        (folder / DELETES_FOLDER / f"{txn_id}-{'0' * 32}.parquet").touch()
    assert lake.clean() == [("leftovers", 0, 1)]
    assert len(list((folder / DELETES_FOLDER).iterdir())) == leftovers


def test_files_stay_whose_rows_a_restore_left_out(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    table_id, other_id = lake.create(), lake.create("u")
    written = [lake.write(table_id) for _ in range(3)]
    txn_id = lake.session.begin().txn_id
    aborted = [lake.write(table_id, txn_id=txn_id), lake.write(other_id, "u", txn_id=txn_id)]
    lake.session.abort(txn_id)
    with lake.node.database.write() as connection:
        change(connection, "DELETE FROM store_row WHERE table_id = ?", (table_id,))
    errors = [finding for finding in lake.session.verify().findings if finding.is_error]
    files = {str(lake.folder() / path) for path in written}
    assert {finding.place: finding.message for finding in errors} == {
        **dict.fromkeys(files, "it was committed, but the rows of its transaction are missing"),
        f"table {table_id}": "3 rows that were added to it, and not removed, are missing",
    }
    assert lake.clean() == [("leftovers", 0, 1)]
    lake.wait(SETTINGS.notification_retention_ms + LATER)
    assert ("transactions", 1, 0) in lake.clean()  # those of the first and the last write stay
    assert lake.on_disk() == {*written, aborted[0]}
    assert lake.on_disk("u") == set()
    assert "the leftovers of default.t stay: the rows of transaction" in caplog.text


def test_what_a_job_left_in_its_own_folder_goes_although_it_committed_no_rows(lake: Lake) -> None:
    table_id, txn_id = lake.create(), lake.session.begin().txn_id
    lake.put("t", f"_staging/{txn_id}-{'0' * 32}/part-0.parquet")
    lake.session.stage(txn_id, table_id)
    lake.session.commit(txn_id)
    assert lake.clean() == [("leftovers", 0, 1)]
    assert lake.on_disk() == set()


@pytest.mark.parametrize("events_are_kept", [True, False])
def test_a_file_goes_if_the_log_shows_that_its_transaction_committed_without_having_staged_it(
    lake: Lake, events_are_kept: bool
) -> None:
    table_id = lake.create()
    kept = lake.write(table_id)
    txn_id = lake.session.begin().txn_id
    left = f"{DATA_FOLDER}/{txn_id << FILE_NUMBER_BITS}-{'0' * 32}.parquet"
    lake.put("t", left)
    lake.session.stage(txn_id, table_id)
    lake.session.commit(txn_id)
    if not events_are_kept:  # a restore left them out, and maybe those of files too
        with lake.node.database.write() as connection:
            change(connection, "DELETE FROM notification_log WHERE txn_id = ?", (txn_id,))
    kinds = {finding.place: finding.kind for finding in lake.session.verify().findings}
    is_leftover = kinds.get(str(lake.folder() / left)) is FindingKind.LEFTOVER
    assert is_leftover == events_are_kept
    assert lake.clean() == ([("leftovers", 0, 1)] if events_are_kept else [])
    assert lake.on_disk() == ({kept} if events_are_kept else {kept, left})
