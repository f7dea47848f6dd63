"""The versions that a node holds: consecutive, and found by number or by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.catalog.catalog import Catalog
from strandline.catalog.history import History
from strandline.clock import Timestamp, timestamp
from strandline.durable.contents import EMPTY
from strandline.errors import CorruptData, StrandlineError, VersionNotFound
from tests.case_table import CaseTable

Asked = Callable[[History], object]


def catalog(version: int, ms: int) -> Catalog:
    return Catalog(version, timestamp(ms), EMPTY)


def history() -> History:
    """Versions 4 to 7; the last two were appended together."""
    return History(catalog(4, 100), catalog(5, 200), catalog(6, 300), catalog(7, 300))


def by_version(version: int) -> Asked:
    return lambda past: past.at_version(version).version


def by_time(ms: int) -> Asked:
    return lambda past: past.at_time(timestamp(ms)).version


def ends(version: int) -> Asked:
    return lambda past: past.ends_at(version)


def after_trimming(version: int, ask: Asked) -> Asked:
    return lambda past: ask(past.trimmed(version))


def shown(past: History) -> list[int]:
    """The versions from the earliest to the latest."""
    first, last = past.earliest.version, past.latest.version
    return [past.at_version(version).version for version in range(first, last + 1)]


def appended(version: int, ms: int) -> Asked:
    def ask(past: History) -> list[int]:
        past.append(catalog(version, ms))
        return shown(past)

    return ask


FOUND = CaseTable(
    "the version at a number, and the one active at a time",
    cases=[88],
    rows=[
        *((by_version(version), version) for version in (4, 5, 6, 7)),
        *(
            (by_time(ms), version)
            for ms, version in ((100, 4), (199, 4), (200, 5), (299, 5), (300, 7), (9999, 7))
        ),
        (lambda past: past.at_time(Timestamp(timestamp(200) - 1)).version, 4),
        *((ends(version), timestamp(ms)) for version, ms in ((3, 100), (4, 200), (5, 300))),
        *((ends(version), None) for version in (1, 7, 8)),
        *((lambda past, version=version: past.find(version), None) for version in (-1, 3, 8)),
        (appended(8, 301), [4, 5, 6, 7, 8]),
        (appended(8, 300), [4, 5, 6, 7, 8]),
        (after_trimming(6, shown), [6, 7]),
        (after_trimming(7, shown), [7]),
        (after_trimming(4, shown), [4, 5, 6, 7]),
        (after_trimming(2, shown), [4, 5, 6, 7]),
        (after_trimming(6, by_time(300)), 7),
    ],
    note="versions that were appended together have one time, at which the last of them holds",
)

REFUSED = CaseTable(
    "there is nothing before the earliest or behind the latest, and nothing is added but the next",
    cases=[88],
    rows=[
        (by_version(3), VersionNotFound, "version 3 is no longer kept; the earliest is version 4"),
        (by_version(-1), VersionNotFound, "version -1 is no longer kept"),
        (by_version(8), VersionNotFound, "version 8 does not exist; the latest is 7"),
        (by_time(99), VersionNotFound, "the earliest is version 4"),
        (after_trimming(6, by_version(5)), VersionNotFound, "the earliest is version 6"),
        (after_trimming(6, by_time(299)), VersionNotFound, "the earliest is version 6"),
        (appended(7, 400), CorruptData, "version 7 .* does not follow 7"),
        (appended(5, 400), CorruptData, "version 5 .* does not follow 7"),
        (appended(9, 400), CorruptData, "version 9 .* does not follow 7"),
        (appended(8, 299), CorruptData, "version 8 .* does not follow 7"),
    ],
    note="no version takes the place of another, so none is ever written over",
)


@pytest.mark.parametrize(("ask", "due"), FOUND.rows)
def test_a_history_finds_appends_and_trims_versions(ask: Asked, due: object) -> None:
    assert ask(history()) == due


@pytest.mark.parametrize(("ask", "error", "says"), REFUSED.rows)
def test_a_history_refuses_versions_out_of_range_or_out_of_order(
    ask: Asked, error: type[StrandlineError], says: str
) -> None:
    past = history()
    with pytest.raises(error, match=says):
        ask(past)
    assert shown(past) == [4, 5, 6, 7]


def test_trimming_returns_a_new_history_unless_there_is_nothing_to_trim() -> None:
    past = history()
    assert past.trimmed(4) is past
    assert shown(past.trimmed(6)) == [6, 7]
    assert shown(past) == [4, 5, 6, 7]
