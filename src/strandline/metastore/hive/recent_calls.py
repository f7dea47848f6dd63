"""What a client asked just before: only its calls tell some of Spark's statements apart.

=================================  ===============================================================
statement                          calls, where o is a transactional table and ``o@…`` a hidden one
=================================  ===============================================================
``DROP TABLE o``                   get o, get o, get o, **drop o**
overwrite with ``saveAsTable``     get ``o@…``, get o, get database, get o, **drop o**, create o
``DROP VIEW o``                    get ``o@…``, get o, **drop o**
``DROP SCHEMA … CASCADE``          get all tables, get t, **drop t**, … (by Hive's client)
=================================  ===============================================================

These are the calls of Spark 4.3. A rule that takes another statement for one of these only makes a
client repeat it: the calls of the second attempt are not the same. ``CREATE OR REPLACE VIEW o``
makes the calls of ``DROP TABLE o``, and drops the table; `strandline undrop` brings it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strandline.errors import ProtocolError
from strandline.metastore.hive.snapshot_views import parse_hidden
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift.messages import ApplicationException, decode_head

_LISTING = "get_all_tables"
_GET_TABLE = ("get_table", "get_table_req")
_LOOKS_OF_A_DROP = 3
"""How often Spark asks for a table that it is told to drop."""


class RecentCalls:
    """The requests of one client before the one in work, as they came, the latest last."""

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._messages = messages

    def listed(self) -> str | None:
        """The schema whose tables the client has just listed, to drop one after the other."""
        for method, args in self._latest_first():
            if method not in _GET_TABLE:
                return str(args.get("db_name")).lower() if method == _LISTING else None
        return None

    def drop_replaces(self, name: str) -> bool:
        """Whether a drop of the transactional table ``name`` now is no DROP TABLE of a user."""
        looks = 0
        for method, args in self._latest_first():
            if method == "get_database":
                continue
            if method not in _GET_TABLE:
                return False
            asked = _table_of(args)
            if asked != name.lower():
                hidden = parse_hidden(asked)
                return (
                    hidden is not None and hidden.table == name.lower() and looks < _LOOKS_OF_A_DROP
                )
            looks += 1
        return False

    def _latest_first(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for message in reversed(self._messages):
            if not message:
                return  # one that was too long to be kept
            head = decode_head(message)
            try:
                args = HIVE_CODEC.decode_args(head.name, message, at=head.body)
            except (ApplicationException, ProtocolError):
                return  # a call of another service, or one that was refused
            yield head.name, args


NOTHING_BEFORE = RecentCalls()


def _table_of(args: dict[str, Any]) -> str:
    request = args.get("req") or {}
    return str(args.get("tbl_name") or request.get("tblName")).lower()
