"""Geometry and geography in the JSON of Spark's types.

SQL names a reference system by its number (``geometry(3857)``), the JSON by authority and code
(``geometry(EPSG:3857)``). The number is the code, but for the three systems of the OGC, so only
the authority has to be known: EPSG below 37000, ESRI above, and a few runs of ESRI codes that EPSG
never gave. Which numbers exist is Spark's to say: there are ten thousand, and it refuses the rest.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from strandline.errors import InvalidType
from strandline.model.types import GeographyType, GeometryType

ANY_SYSTEM = "SRID:ANY"
"""Where each value has a system of its own."""

_OGC = {4326: "OGC:CRS84", 4267: "OGC:CRS27", 4269: "OGC:CRS83"}
_OGC_NUMBERS = {name: number for number, name in _OGC.items()}
_ESRI_FROM = 37_000
_ESRI_RUNS = (  # first and last
    (2181, 2187),
    (4305, 4305),
    (20062, 20063),
    (24721, 24721),
    (26761, 26765),
    (26788, 26790),
    (30591, 30592),
    (31491, 31495),
    (31917, 31922),
    (32059, 32060),
)
_ESRI_STARTS = tuple(first for first, _ in _ESRI_RUNS)
_NAME = re.compile(r"(?:EPSG|ESRI|SRID):([0-9]{1,10})")
_DEFAULT_NAME = _OGC[4326]
_EDGES = "SPHERICAL"
"""How the points of a geography are joined; Spark knows no other way."""

_GEOMETRY = re.compile(r"geometry(?:\( *(\w+:\w+) *\))?")
_GEOGRAPHY = re.compile(r"geography(?:\( *(?:(\w+:\w+) *(?:, *(\w+) *)?|(\w+) *)\))?")


def is_spatial(text: str) -> bool:
    """Whether ``text`` begins like one of these types."""
    return text.startswith(("geometry", "geography"))


def spatial_json(data_type: GeometryType | GeographyType) -> str:
    """``geometry(EPSG:3857)``, ``geography(OGC:CRS84, SPHERICAL)``."""
    name = system_name(data_type.srid)
    if isinstance(data_type, GeometryType):
        return f"geometry({name})"
    return f"geography({name}, {_EDGES})"


def parse_spatial_json(text: str) -> GeometryType | GeographyType:
    """The type that Spark's JSON ``text`` names; each part may be left out.

    Raises `InvalidType`.
    """
    if found := _GEOMETRY.fullmatch(text):
        return GeometryType(system_number(found[1] or _DEFAULT_NAME))
    found = _GEOGRAPHY.fullmatch(text)
    edges = found and (found[2] or found[3] or _EDGES)
    if found is None or edges is None or edges.upper() != _EDGES:
        raise InvalidType(
            f"expected geometry or geography with a reference system, and no edges but {_EDGES}; "
            f"found {text[:80]!r}"
        )
    return GeographyType(system_number(found[1] or _DEFAULT_NAME))


def system_name(srid: int | None) -> str:
    """Authority and code of a reference system; None is any."""
    if srid is None:
        return ANY_SYSTEM
    if srid in _OGC:
        return _OGC[srid]
    if srid == 0:
        return "SRID:0"
    run = bisect_right(_ESRI_STARTS, srid) - 1
    of_esri = srid >= _ESRI_FROM or (run >= 0 and srid <= _ESRI_RUNS[run][1])
    return f"{'ESRI' if of_esri else 'EPSG'}:{srid}"


def system_number(name: str) -> int | None:
    """The number of the reference system called ``name``; None is any. Raises `InvalidType`."""
    if name.upper() == ANY_SYSTEM:
        return None
    if name in _OGC_NUMBERS:
        return _OGC_NUMBERS[name]
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidType(
            f"{name[:80]!r} names no spatial reference system; expected OGC:CRS84, EPSG:<number>, "
            "ESRI:<number>, SRID:0 or SRID:ANY"
        )
    return int(found[1])
