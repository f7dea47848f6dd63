"""The parameters of the whole catalog: their names, values and meaning.

Each parameter is declared once, here. Users set it with one command (`SetConfiguration`), which
creates a version like any other command. So every node has the value as soon as it has the version,
and the history says who set it. The catalog stores the text as it was written. A parameter that is
not stored has its default. So a release can change a default without changing what an operator has
set.

Some parameters are also settings of a process (`strandline.config.Settings`), as they have been
since the first release. **A value in the catalog wins**, on every node and at once. The process's
setting applies only while the catalog has no value. Such a parameter has no default here.

What must stay true: every stored value can be read. A text that does not parse is refused when it
is set. The parser of a text that was ever stored never becomes stricter, because an old catalog
must open. Rejected: values of several types in the log (a number and its text would be two
spellings of one value), and parameters that take effect only after a restart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from strandline.catalog.catalog import Catalog
from strandline.clock import MILLISECONDS
from strandline.errors import InvalidInput

T = TypeVar("T")

_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)")
_COUNT = re.compile(r"[0-9]{1,18}")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}[kmgt]", re.IGNORECASE)
_SWITCH = {"true": True, "on": True, "false": False, "off": False}
MAX_DURATION_MS = 100 * 366 * 86_400_000
"""A hundred years. A longer duration is a mistake in the unit."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """The resources of one replica of a cluster: cores, and memory in Spark's spelling (``4g``)."""

    cores: int
    memory: str


@dataclass(frozen=True, slots=True)
class Parameter(Generic[T]):
    """One parameter. If ``default`` is None, the setting of each node's process applies instead.

    ``type`` is a description for people. ``parse`` returns the value of a text, or None if the text
    is invalid.
    """

    name: str
    type: str
    default: str | None
    parse: Callable[[str], T | None]
    doc: str

    def read(self, text: str) -> T:
        """The value of ``text``. Raises `InvalidInput`, which says what is allowed."""
        value = self.parse(text.strip())
        if value is None:
            raise InvalidInput(
                f"configuration parameter {self.name} cannot be {text[:80]!r}: it must be "
                f"{self.type}"
            )
        return value

    def value(self, catalog: Catalog) -> T | None:
        """The value in ``catalog``, or None if the setting of each process applies."""
        text = catalog.configuration(self.name)
        text = self.default if text is None else text
        return None if text is None else self.read(text)

    def required(self, catalog: Catalog) -> T:
        """The value in ``catalog`` of a parameter that has a default."""
        value = self.value(catalog)
        if value is None:
            raise InvalidInput(f"configuration parameter {self.name} has no value")
        return value


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def _switch(text: str) -> bool | None:
    return _SWITCH.get(text.lower())


def _duration(text: str) -> int | None:
    """The duration in milliseconds, or None. A number without a unit is in milliseconds."""
    match = _DURATION.fullmatch(text.lower())
    factor = MILLISECONDS.get(match[2] or "ms") if match else None
    if match is None or factor is None:
        return None
    value = int(match[1]) * factor
    return value if value <= MAX_DURATION_MS else None


def _sizes(text: str) -> Mapping[str, ClusterSize] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    sizes = {name: _size(size) for name, size in parsed.items()}
    if not all(name.strip() and size is not None for name, size in sizes.items()):
        return None
    return {name: size for name, size in sizes.items() if size is not None}


def _size(value: object) -> ClusterSize | None:
    if not isinstance(value, dict) or set(value) != {"cores", "memory"}:
        return None
    cores, memory = value["cores"], value["memory"]
    if type(cores) is not int or not 1 <= cores <= 100_000:
        return None
    if not isinstance(memory, str) or not _MEMORY.fullmatch(memory):
        return None
    return ClusterSize(cores, memory)


_A_DURATION = "a duration up to 100 years, such as 7d, 12h, 30min, 1s, 500ms (without a unit: ms)"

MAX_TABLES: Parameter[int] = Parameter(
    "max_tables",
    "a whole number, 0 or more",
    "1000000",
    _count,
    "The maximum number of tables. CREATE TABLE fails beyond it; existing tables stay.",
)
HISTORY_RETENTION: Parameter[int] = Parameter(
    "history_retention",
    _A_DURATION,
    None,
    _duration,
    "How long history is kept without a hold. Unset: each node's `history_retention_ms`.",
)
METADATA_STALENESS: Parameter[int] = Parameter(
    "metadata_staleness",
    _A_DURATION,
    None,
    _duration,
    "How old an answer about a plain table's rows may be; 0 checks the store each time. "
    "Unset: each node's `metadata_staleness_ms`.",
)
ENFORCE_PRIVILEGES: Parameter[bool] = Parameter(
    "enforce_privileges",
    "true or false (or on, off)",
    "false",
    _switch,
    "Whether privileges are enforced. Off: every user may do everything.",
)
CLUSTER_SIZES: Parameter[Mapping[str, ClusterSize]] = Parameter(
    "cluster_sizes",
    'a JSON object of sizes, such as {"small":{"cores":2,"memory":"4g"}}',
    '{"small":{"cores":2,"memory":"4g"},"medium":{"cores":4,"memory":"8g"},'
    '"large":{"cores":8,"memory":"16g"}}',
    _sizes,
    "The sizes that a replica of a cluster can have. A size in use cannot be removed.",
)

PARAMETERS: Mapping[str, Parameter[Any]] = {  # Any: each has a value type of its own
    declared.name: declared
    for declared in (
        CLUSTER_SIZES,
        ENFORCE_PRIVILEGES,
        HISTORY_RETENTION,
        MAX_TABLES,
        METADATA_STALENESS,
    )
}
"""Every parameter, by name."""


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """A parameter and its value in a catalog; ``value`` is None if it has its default."""

    name: str
    value: str | None
    default: str | None
    doc: str


def parameter_values(catalog: Catalog) -> list[ParameterValue]:
    """Every parameter with its value in ``catalog``, by name."""
    return [
        ParameterValue(of.name, catalog.configuration(of.name), of.default, of.doc)
        for of in PARAMETERS.values()
    ]


def parameter(name: str) -> Parameter[Any]:  # Any: see `PARAMETERS`
    """The parameter of that name. Raises `InvalidInput`, which lists the known ones, if unknown."""
    try:
        return PARAMETERS[name.strip().lower()]
    except KeyError:
        raise InvalidInput(
            f"configuration parameter {name[:80]!r} is unknown; known parameters are "
            f"{', '.join(PARAMETERS)}"
        ) from None
