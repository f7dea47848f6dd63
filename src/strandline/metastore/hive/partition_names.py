"""Names of partitions: ``year=2013/carrier=A%2FB``, one ``key=value`` for each partition key.

The name of a partition is also its path below the table, so a character that means something in a
path is written as ``%`` and two hexadecimal digits. Which characters these are is Hive's rule, and
Spark's; both read each other's folders, so the set is exact, and ``}`` is not in it although ``{``
is. NUL, which Hive forgets, is escaped here too: no file system could hold it.

NULL and the empty text have the same name, `DEFAULT_PARTITION`. A name therefore does not always
give back the values it was made from; values are kept beside it, as they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.errors import InvalidInput

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for NULL in names and among values."""

_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """``text`` as one component of a path: ``a/b`` → ``a%2Fb``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(component: str) -> str:
    """What `escape` made ``component`` of. A ``%`` without two digits stands for itself."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), component)


def is_default(value: str | None) -> bool:
    """Whether a partition value means NULL."""
    return not value or value == DEFAULT_PARTITION


def partition_name(keys: Sequence[str], values: Sequence[str | None]) -> str:
    """The name of the partition with these values. Keys are written in lower case, as Hive does.

    Raises `InvalidInput` if there are no keys, or as many values as keys are not there.
    """
    if not keys or len(keys) != len(values):
        raise InvalidInput(
            f"a partition needs one value for each partition key: found the values "
            f"{list(values)} for the keys {list(keys)}"
        )
    return "/".join(
        f"{escape(key.lower())}={escape(value) if value else DEFAULT_PARTITION}"
        for key, value in zip(keys, values, strict=True)
    )


def parse_partition_name(name: str) -> tuple[tuple[str, str], ...]:
    """The (key, value) pairs of a partition name, unescaped; `DEFAULT_PARTITION` stays as it is.

    Raises `InvalidInput` if some part is not ``key=value``.
    """
    pairs = []
    for part in name.split("/"):
        key, equals, value = part.partition("=")
        if not key or not equals or not value:
            raise InvalidInput(
                f"{name!r} is not the name of a partition: expected key=value, found {part!r}"
            )
        pairs.append((unescape(key), unescape(value)))
    return tuple(pairs)


def partition_values(name: str, keys: Sequence[str]) -> tuple[str, ...]:
    """The values in a partition name in the order of ``keys``; the name may have them in any order.

    Raises `InvalidInput` unless the name has each key once and no other.
    """
    pairs = parse_partition_name(name)
    found = {key.lower(): value for key, value in pairs}
    wanted = [key.lower() for key in keys]
    if len(pairs) != len(found) or sorted(found) != sorted(wanted):
        raise InvalidInput(
            f"{name!r} is not the name of a partition with the keys {', '.join(keys)}"
        )
    return tuple(found[key] for key in wanted)
