"""Patterns of names, as ``SHOW TABLES LIKE`` sends them: ``flights|air*``.

Hive's rule: ``|`` separates alternatives, ``*`` stands for any characters, everything else is a
regular expression of Java's (so a dot stands for one character), and case does not count. No
pattern at all means every name; an empty one means none.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.metastore.hive.java_regex import JavaRegex


def name_pattern(pattern: str | None) -> Callable[[str], bool]:
    """The test whether a name fits ``pattern``. Raises `InvalidInput` on a wrong pattern."""
    if pattern is None or pattern == "*":
        return lambda _: True
    parts = [part for part in pattern.strip().split("|") if part]
    tests = [JavaRegex(part.replace("*", ".*"), ignore_case=True) for part in parts]
    return lambda name: any(test.matches(name) for test in tests)
