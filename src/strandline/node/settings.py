"""One registry of all settings of a node, with their options, environment variables and file keys.

`REGISTRY` is derived from the fields of `strandline.config.Settings`. A new field there gets its
option (``--thrift-port``), its variable (``STRANDLINE_THRIFT_PORT``), its key in a file
(``thrift_port``), its help and its line in ``strandline config`` automatically.

A value is taken from the first place that has one:

1. the option of the command;
2. the environment variable;
3. the file that ``--config`` (or the variable ``STRANDLINE_CONFIG``) names;
4. the file ``strandline.toml`` in the folder of the store;
5. the default.

What must stay true: a file with an unknown key or an invalid value is refused, with an error that
names the file, the key and what is allowed. Unknown variables are accepted, because the program
that starts this one may set variables with the same prefix (Kubernetes does, for a service called
``strandline``). ``strandline config`` shows them. An empty variable counts as unset, but an
empty ``users`` or ``users_file`` is refused in each place: a missing secret must not open the HTTP
port. Nothing that shows settings to users (`shown_settings`) contains a secret.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from strandline.clock import MILLISECONDS
from strandline.config import Settings, SettingValue, ShownValue
from strandline.errors import InvalidInput, StrandlineError
from strandline.faults import ENVIRONMENT_VARIABLE as FAULT_VARIABLE
from strandline.node.address import shown_address

FILE_NAME = "strandline.toml"
PREFIX = "STRANDLINE_"
CONFIG_VARIABLE = "STRANDLINE_CONFIG"
DEFAULT = "default"
PROGRAM = "program"
"""The origin of a value that the program that embeds the node has set."""

_NEVER_EMPTY = {"users": "the lines of a users file", "users_file": "the path of a users file"}
"""What to give to the settings without which a node does not authenticate its clients."""
_UNITS: Mapping[str, Mapping[str, int]] = {
    "_ms": MILLISECONDS,
    "_bytes": {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30},
}
_NUMBER_WITH_UNIT = re.compile(r"(-?[0-9]{1,18})\s*([a-z]*)", re.IGNORECASE)
_PARAGRAPH = re.compile(r"``(\w+)``:\s*(.*?)(?=\n\s*``\w+``:|\n\s*\n|\Z)", re.DOTALL)


def _without_hashes(users: str) -> str:
    names = (line.partition(":")[0] for line in users.splitlines() if ":" in line)
    return ", ".join(f"{name}:…" for name in names if not name.startswith("#"))


_SHOWN: Mapping[str, Callable[[str], str]] = {
    "objects": shown_address,
    "users": _without_hashes,
}
"""How settings that contain secrets are shown."""


@dataclass(frozen=True)
class Setting:
    """One setting of a node, as users see it. ``kind`` is the type of its values."""

    name: str
    kind: Any  # Any: a type or a construct of typing
    default: object
    meaning: str

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def is_list(self) -> bool:
        """Whether it has several values."""
        return get_origin(self.kind) is tuple

    @property
    def units(self) -> Mapping[str, int]:
        """The units that its number can have, the smallest first. Its value is in the smallest."""
        return next((u for ending, u in _UNITS.items() if self.name.endswith(ending)), {})

    @cached_property
    def allowed(self) -> str:
        """The values that it accepts, in words."""
        if get_origin(self.kind) is Literal:
            return "one of " + ", ".join(map(str, get_args(self.kind)))
        if self.is_list:
            return "a list of strings"
        if self.kind is str:
            return "a string"
        if self.name.endswith("_ms"):
            return "a whole number of milliseconds, or a number with a unit (500, 30s, 7d)"
        if self.name.endswith("_bytes"):
            return "a whole number of bytes, or a number with a unit (65536, 256MiB)"
        return "a whole number"

    def read(self, source: object) -> object:
        """Convert a text, or a value from a file. Raises `InvalidInput` if it is not valid."""
        value = self._read(source)
        if value is None:
            shown = "this value" if self.name in _SHOWN else repr(source)
            raise InvalidInput(f"{self.name} cannot be {shown}: it is {self.allowed}")
        return value

    def shown(self, value: Any) -> ShownValue:
        """Return the value without secrets."""
        if isinstance(value, tuple):
            return list(value)
        shown: ShownValue = value
        return _SHOWN[self.name](value) if self.name in _SHOWN and isinstance(value, str) else shown

    def _read(self, source: object) -> object | None:
        if self.kind is int:  # of which bool is a kind in Python
            is_number = isinstance(source, int) and not isinstance(source, bool)
            return source if is_number else self._number(str(source))
        if self.is_list:
            parts = source.split(",") if isinstance(source, str) else source
            if not isinstance(parts, list | tuple) or not all(isinstance(p, str) for p in parts):
                return None
            return tuple(part.strip() for part in parts if part.strip())
        if not isinstance(source, str):
            return None
        choices = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        return source if not choices or source in choices else None

    def _number(self, text: str) -> int | None:
        match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
        if match is None:
            return None
        number, unit = int(match[1]), match[2].lower()
        factor = 1 if not unit else self.units.get(unit)
        return None if factor is None else number * factor


def registry_of(declared: type[Any]) -> dict[str, Setting]:  # Any: a dataclass such as `Settings`
    """Return the settings that a dataclass declares, by name; its docstring describes them."""
    described = _PARAGRAPH.findall(declared.__doc__ or "")
    meanings = {name: " ".join(text.split()).replace("``", "`") for name, text in described}
    kinds = get_type_hints(declared)
    registry = {}
    for field in fields(declared):
        kind = kinds[field.name]
        if get_origin(kind) is types.UnionType:  # ``str | None``: None is "not set"
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        meaning = meanings.get(field.name, "")
        registry[field.name] = Setting(field.name, kind, field.default, meaning)
    return registry


REGISTRY: Mapping[str, Setting] = registry_of(Settings)
"""Every setting of a node, by name, in the order of `Settings`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings of a node, the origin of each value, and the unknown variables."""

    settings: Settings
    origins: Mapping[str, str]
    unknown_variables: Sequence[str]


def load(
    store: Path | str | None = None,
    *,
    config: Path | None = None,
    options: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Return the settings of a node on ``store``; see the module.

    ``options`` maps the names of settings to values, or to None for an option that was not given.
    Raises `InvalidInput`, with the origin, the key and what is allowed.
    """
    variables = os.environ if environment is None else environment
    config_variable = variables.get(CONFIG_VARIABLE, "").strip()
    if config is None and config_variable:
        config = Path(config_variable)
    values: dict[str, object] = {}
    origins = dict.fromkeys(REGISTRY, DEFAULT)
    folder = store if isinstance(store, Path) else None
    for origin, place_values in _places(folder, config, options or {}, variables):
        for setting, value in place_values:
            try:
                values[setting.name] = setting.read(value)
                if setting.name in _NEVER_EMPTY and not str(value).strip():
                    raise InvalidInput(
                        f"{setting.name} is empty, so a node would not authenticate its clients; "
                        f"give it {_NEVER_EMPTY[setting.name]}, or unset it"
                    )
            except InvalidInput as error:
                raise InvalidInput(f"{origin(setting)}: {error.message}") from None
            origins[setting.name] = origin(setting)
    try:
        settings = Settings(**values)  # type: ignore[arg-type]  # `Setting.read` checks them
    except InvalidInput as error:
        raise InvalidInput(f"{error.message}{_where(error, origins)}") from None
    known = {setting.variable for setting in REGISTRY.values()} | {CONFIG_VARIABLE, FAULT_VARIABLE}
    unknown = sorted(v for v in variables if v.startswith(PREFIX) and v not in known)
    return Loaded(settings, origins, unknown)


_Place = tuple[Callable[[Setting], str], list[tuple[Setting, object]]]


def _places(
    folder: Path | None,
    config: Path | None,
    options: Mapping[str, object],
    variables: Mapping[str, str],
) -> list[_Place]:
    """Return the values that each place gives; the last place wins."""
    places: list[_Place] = []
    if folder is not None and _has_settings(folder):
        places.append(_of_file(folder / FILE_NAME))
    if config is not None:
        places.append(_of_file(config))
    set_variables: list[tuple[Setting, object]] = [
        (setting, variables[setting.variable])
        for setting in REGISTRY.values()
        if variables.get(setting.variable, "").strip()
        or (setting.name in _NEVER_EMPTY and setting.variable in variables)
    ]
    places.append((lambda setting: f"environment variable {setting.variable}", set_variables))
    option_values = [
        (REGISTRY[name], value) for name, value in options.items() if value is not None
    ]
    places.append((lambda setting: f"option {setting.option}", option_values))
    return places


def _has_settings(folder: Path) -> bool:
    try:
        (folder / FILE_NAME).lstat()  # a folder or a dangling link is refused when it is read
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise InvalidInput(
            f"this user may not read the folder {folder}; run the command as the owner of the "
            "folder, or let the owner set file_access and the permissions of the folder"
        ) from error
    return True


def _of_file(file: Path) -> _Place:
    try:
        with file.open("rb") as opened:
            entries = tomllib.load(opened)
    except OSError as error:
        raise InvalidInput(f"the settings in {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the settings in {file} are not TOML: {error}") from error
    for key in entries:
        if key not in REGISTRY:
            raise InvalidInput(
                f"{file}: {key!r} is not a setting of a node{_suggestion(key)}; the settings are "
                f"{', '.join(REGISTRY)}"
            )
    return (lambda _: str(file)), [(REGISTRY[key], value) for key, value in entries.items()]


def _suggestion(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.lower().replace("-", "_"), REGISTRY, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _where(error: StrandlineError, origins: Mapping[str, str]) -> str:
    """Return a text with the origins of the settings that the error names."""
    named_settings = [
        f"{name} comes from {origin}"
        for name, origin in origins.items()
        if origin != DEFAULT and re.search(rf"\b{name}\b", error.message)
    ]
    return f" ({'; '.join(named_settings)})" if named_settings else ""


def shown_settings(settings: Settings, origins: Mapping[str, str] | None) -> list[SettingValue]:
    """Return each of the ``settings`` without secrets, in the order of `REGISTRY`.

    ``origins`` are those of `Loaded`. Without them, a program has made the ``settings``.
    """
    shown = []
    for name, setting in REGISTRY.items():
        value = getattr(settings, name)
        by_program = DEFAULT if value == setting.default else PROGRAM
        shown.append(
            SettingValue(
                setting=name,
                value=setting.shown(value),
                origin=by_program if origins is None else origins[name],
                default=setting.shown(setting.default),
                option=setting.option,
                variable=setting.variable,
                allowed=setting.allowed,
                meaning=setting.meaning,
            )
        )
    return shown
