from __future__ import annotations

from strandline.metastore.store.partition_moves import (
    PartitionMove,
    PartitionMoves,
    forget_rows,
    kept_places,
    note,
    of_table,
)
from tests.metastore.store.lake import Lake

TABLE = "file:/lake/t"


def test_kept_places_lead_from_their_rows_alone_and_move_nothing() -> None:
    """Releases up to 0.20.0 know moves only. They read the record as a move."""
    renamed = PartitionMove("p=1", 12, "p=2", 13)
    dropped = PartitionMove("p=2", 14, ".dropped/7.partitions/14")
    for moves in ([], [renamed], [renamed, dropped]):
        alone, beside = PartitionMoves(moves), PartitionMoves([*moves, kept_places(TABLE, [8, 9])])
        for row_id in (1, 8, 9, 10, 12, 13):
            for location in ("p=1", f"{TABLE}/p=1", TABLE):
                assert beside.follow(location, row_id) == alone.follow(location, row_id)
    assert [beside.location_of(row_id, f"{TABLE}/p=1") for row_id in (8, 9)] == ["p=1", "p=1"]
    for row_id, location in ((7, f"{TABLE}/p=1"), (10, f"{TABLE}/p=1"), (8, "file:/lake/u/p=1")):
        assert beside.location_of(row_id, location) == location


def test_kept_places_stay_when_the_last_of_their_rows_is_cleaned(lake: Lake) -> None:
    with lake.node.database.write() as connection:
        note(connection, 7, [PartitionMove("p=1", 9, "p=2", 10), kept_places(TABLE, [8, 9])])
        forget_rows(connection, 7, [9])
        moves = of_table(connection, 7)
    assert moves.follow("p=1", 9) == ("p=1", None)
    assert moves.location_of(8, f"{TABLE}/p=1") == "p=1"
