"""The operations, conditions and answers of etcd's JSON gateway.

It encodes keys and values as base64 and 64-bit numbers as text, and omits fields that are zero or
empty.
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

    @property
    def value(self) -> bytes | None:
        """The value of the first key, or None if there is none."""
        return self.pairs[0].value if self.pairs else None

    @property
    def modified(self) -> int:
        """`Pair.modified` of the first key, or 0 if there is none."""
        return self.pairs[0].modified if self.pairs else 0


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """Which branch was taken, at which revision of etcd, and what its ranges found, in order.

    ``is_repeated`` says that an earlier try of the same request may have been executed too.
    """

    succeeded: bool
    revision: int
    pages: list[Page]
    is_repeated: bool = False


def range_operation(
    key: bytes,
    end: bytes | None = None,
    *,
    limit: int = 0,
    revision: int = 0,
    keys_only: bool = False,
) -> Json:
    """Read one key, or the keys from ``key`` to below ``end``; ``revision`` 0 is the latest."""
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
    return {"request_put": {"key": to_text(key), "value": to_text(value)}}


def delete_operation(key: bytes, end: bytes | None = None) -> Json:
    bounds = {"key": to_text(key)} | ({} if end is None else {"range_end": to_text(end)})
    return {"request_delete_range": bounds}


def if_modified_at(key: bytes, modified: int) -> Json:
    """The key was last written in that revision of etcd; 0 means that it does not exist."""
    return {"key": to_text(key), "target": "MOD", "result": "EQUAL", "mod_revision": modified}


def if_value_is(key: bytes, value: bytes) -> Json:
    """The key exists with exactly this value."""
    return {"key": to_text(key), "target": "VALUE", "result": "EQUAL", "value": to_text(value)}


def if_value_below(key: bytes, value: bytes) -> Json:
    """The key exists with a value whose bytes order before ``value``."""
    return {"key": to_text(key), "target": "VALUE", "result": "LESS", "value": to_text(value)}


def if_present(key: bytes) -> Json:
    return {"key": to_text(key), "target": "VERSION", "result": "GREATER", "version": 0}


def page_of(answer: Json, revision: int = 0) -> Page:
    """A range decoded from the gateway's JSON."""
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
        raise CorruptData(
            f"etcd's gateway sent {text[:40]!r} where base64 was expected; check that the address"
            " leads to etcd"
        ) from None
