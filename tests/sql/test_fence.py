from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from strandline.errors import Fenced, InvalidInput, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.sql import Database, FenceRow, open_database, run, value
from strandline.sql.fence import FenceState
from tests.sql.statements import recorded

FIRST, SECOND = FenceToken(1, 1), FenceToken(1, 2)


@pytest.fixture
def fenced(database: Database) -> Database:
    with database.write() as connection:
        FenceRow.initialize(connection, "here", FIRST)
    return database


def state(database: Database) -> FenceState | None:
    with database.read() as connection:
        return FenceRow.read(connection)


def check(database: Database, token: FenceToken, *, environment: str = "here") -> None:
    with database.write() as connection:
        FenceRow.check(connection, environment=environment, token=token)


def test_tokens_are_ordered_by_generation_first() -> None:
    tokens = [FenceToken(2, 1), FenceToken(1, 9), FenceToken(1, 2), FenceToken(0, 0)]
    assert sorted(tokens) == list(reversed(tokens))


@pytest.mark.parametrize("token", [(-1, 0), (0, -1), (1 << 63, 0), (0, 1 << 63)])
def test_the_numbers_of_a_token_are_limited_to_what_every_store_can_hold(
    token: tuple[int, int],
) -> None:
    with pytest.raises(InvalidInput):
        FenceToken(*token)


def test_there_is_no_fence_row_before_initialization(database: Database) -> None:
    assert state(database) is None
    with pytest.raises(WrongEnvironment, match="the object store was not"):
        check(database, FIRST)
    with pytest.raises(WrongEnvironment), database.write() as connection:
        FenceRow.raise_to(connection, FIRST)


def test_initialization_writes_the_fence_row(fenced: Database) -> None:
    assert state(fenced) == FenceState("here", FIRST, 0)
    check(fenced, FIRST)


def test_initialization_can_be_repeated_with_the_same_environment(fenced: Database) -> None:
    with fenced.write() as connection:
        FenceRow.initialize(connection, "here", SECOND)
    assert state(fenced) == FenceState("here", SECOND, 0)
    with pytest.raises(WrongEnvironment, match=r"'there'.*'here'"), fenced.write() as connection:
        FenceRow.initialize(connection, "there", SECOND)
    with pytest.raises(Fenced), fenced.write() as connection:
        FenceRow.initialize(connection, "here", FIRST)


def test_the_token_is_raised_and_never_lowered(fenced: Database) -> None:
    for token in (SECOND, SECOND, FenceToken(2, 0)):
        with fenced.write() as connection:
            FenceRow.raise_to(connection, token)
    with pytest.raises(Fenced) as refused, fenced.write() as connection:
        FenceRow.raise_to(connection, SECOND)
    assert "generation 1, epoch 2" in refused.value.message
    assert "generation 2, epoch 0" in refused.value.message
    assert state(fenced) == FenceState("here", FenceToken(2, 0), 0)


@pytest.mark.parametrize("token", [FenceToken(1, 0), SECOND, FenceToken(0, 9), FenceToken(2, 1)])
def test_a_write_with_another_token_is_refused_with_both_named(
    fenced: Database, token: FenceToken
) -> None:
    with pytest.raises(Fenced) as refused:
        check(fenced, token)
    assert not isinstance(refused.value, WrongEnvironment)
    assert str(token) in refused.value.message
    assert str(FIRST) in refused.value.message


def test_a_write_of_another_environment_is_refused_with_both_named(fenced: Database) -> None:
    with pytest.raises(WrongEnvironment, match=r"'there'.*'here'"):
        check(fenced, FIRST, environment="there")


def test_a_write_that_waited_for_its_turn_sees_a_fence_raised_meanwhile(
    fenced: Database, url: str
) -> None:
    with closing(open_database(url)) as other, ThreadPoolExecutor(1) as pool:
        with fenced.write() as connection:
            waiting = pool.submit(check, other, FIRST)
            FenceRow.raise_to(connection, SECOND)
        with pytest.raises(Fenced):
            waiting.result()
        check(other, SECOND)


def test_a_write_reads_the_fence_as_it_has_changed_it(fenced: Database) -> None:
    with fenced.write() as connection:
        run(connection, *FenceRow.note_query(7))
        assert FenceRow.read(connection) == FenceState("here", FIRST, 7)
        FenceRow.raise_to(connection, SECOND)
        assert FenceRow.read(connection) == FenceState("here", SECOND, 7)


def test_a_query_read_ahead_is_sent_once_and_repeated_after_a_change(
    fenced: Database,
) -> None:
    """Even if the fence is not read, and for values with any characters."""
    noted = "SELECT catalog_version FROM strandline_fence WHERE environment <> ?"
    values = ("50 % of ? isn't, \\",)
    with (
        recorded(of_this_thread=True) as sent,
        fenced.write(first=[(noted, values)]) as connection,
    ):
        assert value(connection, noted, values) == 0
        run(connection, *FenceRow.note_query(7))
        assert value(connection, noted, values) == 7
    assert sum("SELECT catalog_version" in text for text, _ in sent) == 2


def test_the_highest_catalog_version_is_kept(fenced: Database) -> None:
    for version in (3, 2):
        with fenced.write() as connection:
            run(connection, *FenceRow.note_query(version))
    assert state(fenced) == FenceState("here", FIRST, 3)
