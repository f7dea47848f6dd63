"""A client's previous calls: only they distinguish some of Spark's statements.

=================================  ===============================================================
statement                          calls, where o is a transactional table and ``o@…`` a hidden one
=================================  ===============================================================
``DROP TABLE o``                   get o, get o, get o, **drop o**
overwrite with ``saveAsTable``     get ``o@…``, get o, get database, get o, **drop o**, create o
``DROP VIEW o``                    get ``o@…``, get o, **drop o**
``CREATE OR REPLACE VIEW o``       get database (8 times), get o, get o, get o, **drop o**, create o
``DROP SCHEMA … CASCADE``          get all tables, get t, **drop t**, … (by Hive's client)
=================================  ===============================================================

These are the calls of Spark 4.3. Spark 3.5, 4.0 and 4.1 send no drop for ``DROP TABLE o``, and end
the other statements with get database, get o, get database, get o, **drop o**.

All threads of an application share one connection, so calls of other statements may come in
between. Therefore a drop passes only if the last calls that concern its table are those of ``DROP
TABLE``, or if the client has read no rows of the table, like most clients other than Spark. If a
drop is refused wrongly, the client only has to repeat it: the calls after the refusal are counted
from the start.

Spark reopens its connection before the drop of the first overwrite with ``format("hive")``. So the
calls of its last connection count too (`strandline.metastore.thrift.dispatch.BaseService`), unless
that was one to another node.

Calls that come in between hide a ``CREATE OR REPLACE VIEW``, which then drops the table, and calls
of another thread for the same table within the last millisecond before the drop can hide an
overwrite. `strandline undrop` restores the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import takewhile

from strandline.errors import StrandlineError
from strandline.metastore.hive.arguments import renamed, request_of
from strandline.metastore.hive.names import present_schema
from strandline.metastore.hive.snapshot_parts import parse_hidden
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift.messages import ApplicationException, decode_head


class _Call(Enum):
    """What a call has to do with one table."""

    LOOK = auto()
    """It requests the table."""
    READ = auto()
    """It requests a hidden table, whose files have rows of the table."""
    SCHEMA = auto()
    """It requests the schema of the table."""
    LIST = auto()
    """It lists all tables of the schema, as Hive's client does for ``CASCADE``."""
    DROP = auto()
    """It is an earlier drop of the table, perhaps a refused one."""
    OTHER = auto()
    """It does not concern the table, or was not kept."""


_LIST_METHOD = b"get_all_tables"
_SCHEMA_CALLS = {_LIST_METHOD.decode(): _Call.LIST, "get_database": _Call.SCHEMA}
_TABLE_CALLS = {
    "get_table": _Call.LOOK,
    "get_table_req": _Call.LOOK,
    "drop_table": _Call.DROP,
    "drop_table_with_environment_context": _Call.DROP,
    "drop_table_req": _Call.DROP,
}
_SCHEMA = ("db_name", "name")
_TABLE = ("tbl_name", "name")
"""The arguments that name the schema and the table, in the order in which they are tried."""

_DROP_TABLE_CALLS = [_Call.LOOK] * 3
_OR_REPLACE_CALLS = [*_DROP_TABLE_CALLS, *[_Call.SCHEMA] * 7]
"""Seven of the eight are enough: all other statements send fewer."""
_OLDER_SPARK_CALLS = [_Call.LOOK, _Call.SCHEMA] * 2


class RecentCalls:
    """The requests of one client before the present one, as they arrived, the latest last."""

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._messages = messages

    def cascades(self, schema: str, name: str) -> bool:
        """Whether a drop of the table ``name`` now may be part of ``DROP SCHEMA … CASCADE``.

        The caller checks that the table is the first of the schema, which Hive's client requests
        once and then drops.
        """
        # Decoding all calls before each drop would cost as much as the drop.
        if not any(_LIST_METHOD in message for message in self._messages):
            return False
        looks = 0
        for call in self._latest_first(schema, name):
            match call:
                case _Call.LOOK:
                    looks += 1
                case _Call.LIST:
                    return looks <= 1
                case _Call.DROP:
                    return False
        return False

    def drop_replaces(self, schema: str, name: str) -> bool:
        """Whether a drop of the transactional table ``name`` now is not a user's DROP TABLE."""
        calls = list(self._latest_first(schema, name))
        if calls[: len(_OR_REPLACE_CALLS)] == _OR_REPLACE_CALLS:
            return True
        concerned = (call for call in calls if call is not _Call.OTHER)
        since = list(takewhile(lambda call: call is not _Call.DROP, concerned))
        if since[: len(_OLDER_SPARK_CALLS)] == _OLDER_SPARK_CALLS:
            return True
        return _Call.READ in since and since[: len(_DROP_TABLE_CALLS)] != _DROP_TABLE_CALLS

    def _latest_first(self, schema: str, name: str) -> Iterator[_Call]:
        for message in reversed(self._messages):
            yield _classify(message, schema, name.lower()) if message else _Call.OTHER


NOTHING_BEFORE = RecentCalls()


def _classify(message: bytes, schema: str, name: str) -> _Call:
    """What the request ``message`` has to do with a table. The names are in lower case."""
    try:
        head = decode_head(message)
        sent = HIVE_CODEC.decode_args(head.name, message, at=head.body)
        request, _ = request_of(head.name)
        args = renamed((sent.get(request) or {}) if request else sent)
        of_schema, table = (
            next((args[key] for key in keys if args.get(key)), "") for keys in (_SCHEMA, _TABLE)
        )
        if present_schema(of_schema) != schema:
            return _Call.OTHER
    except (ApplicationException, StrandlineError):
        return _Call.OTHER  # a call of another service, a refused one, or one that reads the past
    if head.name not in _TABLE_CALLS:
        return _SCHEMA_CALLS.get(head.name, _Call.OTHER)
    if table.lower() == name:
        return _TABLE_CALLS[head.name]
    hidden = parse_hidden(table)
    return _Call.READ if hidden is not None and hidden.table == name else _Call.OTHER
