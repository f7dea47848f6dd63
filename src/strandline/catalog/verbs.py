"""The verbs: the operations on the catalog, each declared once with all its effects.

Each entry of the update log names its operation with a verb, a text such as ``rename_table``. The
effects of a verb are in its declaration (`Verb`) and are never derived from the text: the kind of
object that it is about, its effect on folders, whether the objects that it creates begin with
default privileges, and the verb that takes it back. The five verbs of a kind (create, alter,
rename, drop, restore) come with the declaration of the kind (`strandline.catalog.kinds`). All other
verbs are declared in `strandline.catalog.declarations`.

Each declared verb has two more, for entries that take it back and do it again: ``undo_…`` and
``redo_…``, each the inverse of the other.

A log may contain verbs of a newer release. Such a verb has no effects here (`verb_named`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from strandline.durable.update import Arguments
from strandline.errors import cut
from strandline.logs import in_one_line


class Action(Enum):
    """What a verb does to the object that it is about."""

    CREATE = "create"
    """The created objects begin with the default privileges of their kind."""
    ALTER = "alter"
    """Any change that is none of the others."""
    RENAME = "rename"
    DROP = "drop"
    RESTORE = "restore"


class FolderEffect(Enum):
    """What a verb does to the folder of the schema or managed table that it is about."""

    MAKE_SCHEMA = auto()
    REMOVE_SCHEMA = auto()
    MAKE_TABLE = auto()
    MOVE_TABLE = auto()
    """Moves the folder to the location in the entry, if the entry has one."""
    REMOVE_TABLE = auto()

    @property
    def only_makes(self) -> bool:
        """Whether it leaves every existing folder in place."""
        return self in (FolderEffect.MAKE_SCHEMA, FolderEffect.MAKE_TABLE)

    @property
    def is_of_table(self) -> bool:
        """Whether it may change the location of a table."""
        return self in _OF_TABLES


_OF_TABLES = frozenset(
    {FolderEffect.MAKE_TABLE, FolderEffect.MOVE_TABLE, FolderEffect.REMOVE_TABLE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb. ``kind`` is the kind of the object that it is about, or None if that varies.

    ``subject`` is the argument of an entry that names the object. ``inverse`` is the verb of an
    entry that takes back one of this verb. ``undone`` is the verb of an entry that takes back the
    rest, if the object itself is already as before. ``why_kept`` is the reason why a version with
    this verb cannot be undone, or None.
    """

    name: str
    kind: str | None = None
    subject: str | None = None
    action: Action = Action.ALTER
    folders: FolderEffect | None = None
    inverse: str = ""
    undone: str = ""
    why_kept: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "undone", self.undone or f"undo_{self.name}")
        object.__setattr__(self, "inverse", self.inverse or self.undone)

    @property
    def spoken(self) -> str:
        """``rename table``."""
        return self.name.replace("_", " ")


_VERBS: dict[str, Verb] = {}


def declare_verb(verb: Verb) -> None:
    """Declare a verb, and with it the verbs that undo and redo it.

    Raises `ValueError` if the name is already declared.
    """
    for added in _with_those_that_undo(verb):
        if added.name in _VERBS:
            raise ValueError(f"the verb {added.name} is declared twice")
        _VERBS[added.name] = added


def _with_those_that_undo(verb: Verb) -> tuple[Verb, Verb, Verb]:
    again, back = f"redo_{verb.name}", f"undo_{verb.name}"
    plain = replace(verb, action=Action.ALTER, folders=None, why_kept=None)
    return (
        verb,
        replace(plain, name=back, inverse=again, undone=again),
        replace(plain, name=again, inverse=back, undone=back),
    )


def verb_named(name: str) -> Verb:
    """The verb of that name. A verb that is not declared has no effects."""
    return _VERBS.get(name) or Verb(name=name)


def declared_verb(name: str) -> Verb:
    """The verb of that name. Raises `LookupError` if it is not declared."""
    return _VERBS[name]


def verbs_of_table_folders() -> tuple[str, ...]:
    """The names of the verbs that may change the location of a table."""
    return tuple(name for name, verb in _VERBS.items() if verb.folders in _OF_TABLES)


# -- descriptions in words -------------------------------------------------------------------------

_NOT_SHOWN = ("id", "location", "location_given", "instead_of")
_MAX_ACTIONS = 20
_MAX_CHARACTERS = 300


def describe(verb_name: str, arguments: Arguments) -> str:
    """Describe one action in words: the verb, its subject, and the other arguments."""
    verb = verb_named(verb_name)
    subject = verb.subject
    if subject not in arguments:
        named = (known.subject for known in _VERBS.values())
        subject = next((name for name in named if name in arguments), None)
    rest = {
        name: value
        for name, value in arguments.items()
        if name not in (subject, *_NOT_SHOWN) and value not in ([], None)
    }
    shown = ", ".join(
        f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in sorted(rest.items())
    )
    text = f"{verb.spoken} {'' if subject is None else arguments[subject]}".strip()
    return in_one_line(f"{text} ({shown})" if shown else text)


def describe_all(actions: Sequence[tuple[str, Arguments]]) -> str:
    """Describe all actions of a version, in a text of bounded length."""
    words = [cut(describe(*action), _MAX_CHARACTERS) for action in actions[:_MAX_ACTIONS]]
    if len(actions) > _MAX_ACTIONS:
        words.append(f"and {len(actions) - _MAX_ACTIONS} more actions")
    return "; ".join(words)
