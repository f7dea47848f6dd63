"""A version and all objects at it, made by hand: what a transaction begins on."""

from __future__ import annotations

from typing import NamedTuple

from strandline.durable import Contents
from strandline.durable.contents import EMPTY


class At(NamedTuple):
    """See the module."""

    version: int
    contents: Contents


NOTHING = At(0, EMPTY)
