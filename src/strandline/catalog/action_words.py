"""What a version did, in words: for the history that people read, and for the log of a node."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.durable.update import Arguments
from strandline.logs import in_one_line

_SUBJECTS = (
    "table",
    "view",
    "index",
    "function",
    "schema",
    "database",
    "zone",
    "role",
    "cluster",
    "replica",
    "system_view",
    "name",
)
"""Arguments that name what an action was done to, the likeliest first."""

_NOT_SHOWN = ("id", "location", "location_given", "instead_of")
_MOST_ACTIONS = 20
_MOST_CHARACTERS = 300


def describe(verb: str, arguments: Arguments) -> str:
    """One action in words: the verb, what it was done to, and the rest of its arguments."""
    named = [key for key in _SUBJECTS if key in arguments]
    subject = next((key for key in named if key in verb), named[0] if named else "")
    rest = {
        name: value
        for name, value in arguments.items()
        if name not in (subject, *_NOT_SHOWN) and value not in ([], None)
    }
    shown = ", ".join(
        f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in sorted(rest.items())
    )
    said = f"{verb.replace('_', ' ')} {arguments.get(subject, '')}".strip()
    return in_one_line(f"{said} ({shown})" if shown else said)


def describe_all(actions: Sequence[tuple[str, Arguments]]) -> str:
    """All actions of a version, in a text whose length is bounded."""
    words = []
    for verb, arguments in actions[:_MOST_ACTIONS]:
        description = describe(verb, arguments)
        words.append(
            description
            if len(description) <= _MOST_CHARACTERS
            else f"{description[:_MOST_CHARACTERS]}…"
        )
    if len(actions) > _MOST_ACTIONS:
        words.append(f"and {len(actions) - _MOST_ACTIONS} actions more")
    return "; ".join(words)
