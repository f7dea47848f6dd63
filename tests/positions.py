"""A handmade version with all its objects: what a transaction is based on."""

from __future__ import annotations

from typing import NamedTuple

from strandline.durable import Contents
from strandline.durable.contents import EMPTY


class At(NamedTuple):
    """See the module."""

    version: int
    contents: Contents


NOTHING = At(0, EMPTY)
