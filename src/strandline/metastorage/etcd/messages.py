"""What is said to etcd's JSON gateway and what it answers: operations, conditions, ranges.

Keys and values cross as base64, numbers of 64 bits as text, and what is zero or empty is left out.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from strandline.errors import CorruptData

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A key of etcd; ``modified`` is etcd's own revision of its last write."""

    key: bytes
    value: bytes
    modified: int


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one range; ``revision`` is etcd's at the moment of the read."""

    pairs: list[Pair]
    more: bool
    revision: int


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """Which branch was taken, at which revision of etcd, and what its ranges found, in order."""

    succeeded: bool
    revision: int
    pages: list[Page]


def range_operation(
    key: bytes,
    end: bytes | None = None,
    *,
    limit: int = 0,
    revision: int = 0,
    keys_only: bool = False,
) -> Json:
    """Read one key, or those from ``key`` on and below ``end``; ``revision`` 0 is the present."""
    return {
        "request_range": {
            "key": to_text(key),
            **({} if end is None else {"range_end": to_text(end)}),
            "limit": limit,
            "revision": revision,
            "keys_only": keys_only,
        }
    }


def put_operation(key: bytes, value: bytes) -> Json:
    """Write one key."""
    return {"request_put": {"key": to_text(key), "value": to_text(value)}}


def delete_operation(key: bytes, end: bytes | None = None) -> Json:
    """Delete one key, or those from ``key`` on and below ``end``."""
    bounds = {"key": to_text(key)} | ({} if end is None else {"range_end": to_text(end)})
    return {"request_delete_range": bounds}


def if_modified_at(key: bytes, modified: int) -> Json:
    """The key's last write was in that revision of etcd; 0 means that it is not there."""
    return {"key": to_text(key), "target": "MOD", "result": "EQUAL", "mod_revision": modified}


def if_value_below(key: bytes, value: bytes) -> Json:
    """The key is there with a value whose bytes order before ``value``."""
    return {"key": to_text(key), "target": "VALUE", "result": "LESS", "value": to_text(value)}


def if_present(key: bytes) -> Json:
    return {"key": to_text(key), "target": "VERSION", "result": "GREATER", "version": 0}


def page_of(answer: Json, revision: int = 0) -> Page:
    """A range as the gateway writes it: numbers as text, what is zero or empty left out."""
    pairs = [
        Pair(from_text(pair["key"]), from_text(pair.get("value", "")), int(pair["mod_revision"]))
        for pair in answer.get("kvs", ())
    ]
    return Page(pairs, bool(answer.get("more")), revision or int(answer["header"]["revision"]))


def to_text(raw: bytes) -> str:
    """The bytes as the gateway reads them: base64."""
    return base64.b64encode(raw).decode()


def from_text(text: str) -> bytes:
    """The bytes that the gateway wrote as base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise CorruptData(f"etcd's gateway sent {text[:40]!r} where base64 was expected") from None
