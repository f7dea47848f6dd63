"""A client's previous calls: only they distinguish some of Spark's statements.

=================================  ===============================================================
statement                          calls, where o is a transactional table and ``o@…`` a hidden one
=================================  ===============================================================
``DROP TABLE o``                   get o, get o, get o, **drop o**
overwrite with ``saveAsTable``     get ``o@…``, get o, get database, get o, **drop o**, create o
``DROP VIEW o``                    get ``o@…``, get o, **drop o**
``DROP SCHEMA … CASCADE``          get all tables, get t, **drop t**, … (by Hive's client)
=================================  ===============================================================

These are the calls of Spark 4.3. If a rule takes another statement for one of these, the client
only has to repeat it: the calls of the second attempt are different. ``CREATE OR REPLACE VIEW o``
makes the calls of ``DROP TABLE o``, and drops the table; `strandline undrop` restores it.
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
"""How often Spark requests a table before it drops it."""


class RecentCalls:
    """The requests of one client before the present one, as they arrived, the latest last."""

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._messages = messages

    def listed(self) -> str | None:
        """Return the schema whose tables the client has just listed, to drop them, or None."""
        for method, args in self._latest_first():
            if method not in _GET_TABLE:
                return str(args.get("db_name")).lower() if method == _LISTING else None
        return None

    def drop_replaces(self, name: str) -> bool:
        """Whether a drop of the transactional table ``name`` now is not a user's DROP TABLE."""
        looks = 0
        for method, args in self._latest_first():
            if method == "get_database":
                continue
            if method not in _GET_TABLE:
                return False
            requested_table = _table_of(args)
            if requested_table != name.lower():
                hidden = parse_hidden(requested_table)
                return (
                    hidden is not None and hidden.table == name.lower() and looks < _LOOKS_OF_A_DROP
                )
            looks += 1
        return False

    def _latest_first(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for message in reversed(self._messages):
            if not message:
                return  # it was too long to be kept
            head = decode_head(message)
            try:
                args = HIVE_CODEC.decode_args(head.name, message, at=head.body)
            except (ApplicationException, ProtocolError):
                return  # a call of another service, or a refused one
            yield head.name, args


NOTHING_BEFORE = RecentCalls()


def _table_of(args: dict[str, Any]) -> str:
    request = args.get("req") or {}
    return str(args.get("tbl_name") or request.get("tblName")).lower()
