"""What a new catalog holds: the same bytes on each log, apart from its environment and time.

`fresh_catalog.json` is its dump. If a release changes what a new catalog holds, the failing test
prints the path of the new dump: review the difference and copy it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from strandline.catalog import initial_catalog
from strandline.clock import format_timestamp
from strandline.durable import CatalogTransaction
from strandline.node.catalog_dump import dump_pieces
from tests.conftest import LogMember

GOLDEN = Path(__file__).parent / "fresh_catalog.json"
ENVIRONMENT = "00000000-0000-4000-8000-000000000000"


def initialize(transaction: CatalogTransaction) -> None:
    transaction.environment = ENVIRONMENT
    fill = initial_catalog(delay_ms=200, skew_ms=100, default_location="file:/warehouse")
    fill(transaction)


def test_a_new_catalog_equals_the_golden_dump(member: LogMember, tmp_path: Path) -> None:
    state = member.openable().open(
        member="opener", initialize=initialize, raise_fence=lambda token, environment: None
    )
    latest = state.recovered[-1]
    kinds = latest.contents.dump()
    records = hashlib.sha256(b"".join(data for _, of_kind in kinds for data in of_kind))
    dump = tmp_path / GOLDEN.name
    dump.write_text(
        "".join(dump_pieces(state)).replace(format_timestamp(latest.time), "TIME")
        + f'{{"sha256 of all records": "{records.hexdigest()}"}}\n'
    )
    assert dump.read_text() == GOLDEN.read_text(), f"the dump is {dump}"
