"""Golden bytes of the metastore's own objects."""

from __future__ import annotations

GOLDEN: list[tuple[object, bytes]] = []
