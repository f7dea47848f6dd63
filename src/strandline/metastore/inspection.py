"""What the operator of a store reads of it, beyond its catalog and its rows.

A node provides an `Inspection` (`strandline.node.inspection`), because it takes all parts of a
store to answer. `Session` and the command line show its answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from strandline.config import SettingValue
from strandline.metastore.store.cleaning import Cleanable

MAX_NAMED = 1_000
"""The maximum number of names of files and folders in each part of a `Cleanable`."""
MAX_FINDINGS = 1_000
"""The maximum number of errors, and of leftovers, that a `VerificationReport` lists."""


class FindingKind(Enum):
    """What a finding is about. All kinds except ``LEFTOVER`` are errors."""

    RECORD = "record"
    FILE = "file"
    FOLDER = "folder"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or a leftover. ``table`` is None if it does not belong to a table."""

    kind: FindingKind
    place: str
    message: str
    table: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether something is lost or wrong."""
        return self.kind is not FindingKind.LEFTOVER


@dataclass(slots=True)
class Verified:
    """How much of a store was checked, and the number of findings."""

    tables: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    records: int = 0
    errors: int = 0
    leftovers: int = 0


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The first `MAX_FINDINGS` errors and as many leftovers; ``summary`` counts all."""

    findings: tuple[Finding, ...]
    summary: Verified


class Inspection(Protocol):
    """See the module. Safe to use from several threads."""

    def verify(self, *, pages: bool) -> VerificationReport:
        """Check the records and files of the store."""

    def dump(self, *, ignore: Sequence[str], stats_only: bool) -> Iterator[str]:
        """Yield the text of `strandline.node.catalog_dump` in pieces."""

    def clean(self) -> Cleanable:
        """Return what cleaning would remove."""

    def settings(self) -> list[SettingValue]:
        """Return the settings of the node, without secrets."""

    def catalog_log(self) -> str:
        """Return the name of the log that keeps the catalog."""

    def database_bytes(self) -> int:
        """Return the size of the SQL database."""
