"""Scenarios of calls that two metastores answer, and how answers are made comparable.

A call is a tuple of a method and its arguments in the order of the protocol; an argument that is
None is not sent. Four names are not methods of Hive:

* ``file`` writes a file of the given size below the warehouse.
* ``place`` tells whether a path below the warehouse is a folder, a file or nothing.
* ``values`` calls the method that follows it, and keeps only the values of the partitions in its
  answer.
* ``first`` takes the first id of a list in an earlier answer (`Given` refers to answers).

``{warehouse}`` in a text stands for the warehouse of the metastore that is called.

Values that must differ between two metastores are replaced in the answers, by `_comparable` and
nowhere else: the location of the warehouse, the times of changes, ids of locks and transactions.
Lists whose order the protocol does not define are sorted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.metastore.thrift import ThriftException
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.messages import ApplicationException
from tests.servers.thrift_client import ThriftClient

# Arguments and answers may have any type of the protocol: hence Any, here and below.
Call = tuple[Any, ...]
Answer = dict[str, Any]
"""``returns`` with the value, or ``throws`` with the exception's name and its ``message``."""

WAREHOUSE = "{warehouse}"
NO_ID = 999_999_999
"""An id that no metastore has assigned.

It is also used instead of an id that a metastore should have assigned and did not.
"""
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
"""A class that Hive's metastore has, and that it does not ask for the columns of a table."""


@dataclass(frozen=True)
class Scenario:
    """Calls in their order. Each scenario uses its own schemas."""

    name: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Given:
    """As an argument: a field or item of the answer to an earlier call; calls count from 0."""

    call: int
    part: str | int


def ask(scenario: Scenario, client: ThriftClient, warehouse: Path) -> list[Answer]:
    """The answers of the metastore with that warehouse, made comparable."""
    answers: list[Answer] = []
    for call in scenario.calls:
        method, *args = _placed(call, warehouse, answers)
        if method == "first":
            answered = answers[args[0]].get("returns")
            answers.append({"returns": {"id": answered[args[1]][0] if answered else NO_ID}})
            continue
        answers.append(_answer(method, args, client, warehouse))
    return [
        _comparable(call[0], answer, warehouse)
        for call, answer in zip(scenario.calls, answers, strict=True)
    ]


def shown(call: Call) -> str:
    """The call in one line."""
    method, *args = call
    texts = (json.dumps(arg, ensure_ascii=False, default=str) for arg in args)
    return f"{method}({', '.join(texts)})"


def _answer(method: str, args: list[Any], client: ThriftClient, warehouse: Path) -> Answer:
    if method == "file":
        path, size = warehouse / args[0], args[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return {"returns": None}
    if method == "place":
        path = warehouse / args[0]
        return {"returns": "folder" if path.is_dir() else "file" if path.is_file() else None}
    if method == "values":
        answer = _answer(args[0], args[1:], client, warehouse)
        if "returns" in answer:
            answer["returns"] = [partition["values"] for partition in answer["returns"]]
        return answer
    names = [field.name for field in HIVE_CODEC.method(method).args.fields]
    try:
        return {"returns": client.call(method, **dict(zip(names, args, strict=False)))}
    except ThriftException as error:
        return {"throws": error.name, "message": error.value.get("message")}
    except ApplicationException as error:
        return {"throws": f"TApplicationException {error.kind}", "message": error.message}


def _placed(value: Any, warehouse: Path, answers: list[Answer]) -> Any:
    """The arguments, with the location of the warehouse and values of earlier answers filled in."""
    if isinstance(value, Given):
        answered = answers[value.call].get("returns")
        return answered[value.part] if answered else NO_ID
    if isinstance(value, str):
        return value.replace(WAREHOUSE, str(warehouse))
    if isinstance(value, dict):
        return {name: _placed(item, warehouse, answers) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(item, warehouse, answers) for item in value]
    return value


_TIMES = frozenset(
    {
        *("createTime", "transient_lastDdlTime", "grantTime", "lastAnalyzed"),
        *("lastheartbeat", "acquiredat", "startedTime", "lastHeartbeatTime"),
    }
)
_IDS = frozenset(
    {
        *("lockid", "txnid", "id", "txn_ids", "txn_high_water_mark", "open_txns", "min_open_txn"),
        *("aborted", "nosuch", "blockedByExtId"),
    }
)
_UNORDERED = frozenset(
    {
        "get_table_objects_by_name",
        "get_table_meta",
        "get_table_names_by_filter",
        "get_partitions_by_names",
        "get_partitions_ps",
        "get_partitions_ps_with_auth",
        "get_partition_names_ps",
        "get_partition_values",
        "get_functions",
        "show_locks",
        "get_role_names",
        "get_principals_in_role",
        "list_privileges",
        "get_table_statistics_req",
        "get_partitions_statistics_req",
        "get_aggr_stats_for",
    }
)
_LISTS = ("locks", "partitionValues", "tableStats", "colStats", "principalGrants")


def _comparable(method: str, answer: Answer, warehouse: Path) -> Answer:
    plain: Answer = _plain(answer, str(warehouse))
    if method in _UNORDERED:
        for listed in _lists(plain.get("returns")):
            listed.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return plain


def _lists(answered: Any) -> list[list[Any]]:
    """The lists of an answer that may be in any order."""
    if isinstance(answered, dict):
        parts = [answered.get(name) for name in _LISTS]
        parts += (answered.get("partStats") or {}).values()
        return [part for part in parts if isinstance(part, list)]
    return [answered] if isinstance(answered, list) else []


_PARTITION = re.compile(
    r":\s?Partition\((values:\[.*?\], dbName:\w+, tableName:\w+).*\)", re.DOTALL
)
"""A partition in a message; Hive prints all its fields."""
_JAVA = re.compile(r"(java\.lang\.(NullPointer|\w*IndexOutOfBounds)Exception).*", re.DOTALL)
"""Java omits the message of such an exception once it has compiled the code that throws it."""
_NUMBERED = re.compile(r"\b(lockid|txnid|lock|transaction|Transaction|txn)([: ]+)\d+")


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        return dict(_plain_items(value, place))
    if isinstance(value, list | tuple):
        return [_plain(item, place) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item, place) for item in value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        text = _PARTITION.sub(r": Partition(\1)", value.replace(place, WAREHOUSE))
        return _NUMBERED.sub(r"\1\2#", _JAVA.sub(r"\1", text))
    return value


def _plain_items(value: dict[Any, Any], place: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if name in _TIMES and item not in (0, "0", None):
            yield name, "a time"
        elif name in _IDS and not isinstance(item, str):
            yield name, _ids(item, place)
        else:
            yield str(name), _plain(item, place)


def _ids(value: Any, place: str) -> Any:
    if isinstance(value, list | set | frozenset):
        return [_ids(item, place) for item in value]
    return "an id" if isinstance(value, int) and value else _plain(value, place)


# -- structs as a client writes them


def fields(text: str) -> list[dict[str, str]]:
    """``a int, b string`` as ``FieldSchema`` structs; what follows a ``#`` is the comment."""
    listed = []
    depth, part = 0, ""
    for letter in f"{text},":
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and depth == 0:
            spelled, sign, comment = part.strip().partition("#")
            name, _, kind = spelled.strip().partition(" ")
            field = {"name": name, "type": kind.strip()}
            if sign:
                field["comment"] = comment
            if part.strip():
                listed.append(field)
            part = ""
        else:
            part += letter
    return listed


def storage(columns: str = "a int, b string", **parts: Any) -> dict[str, Any]:
    """A ``StorageDescriptor``."""
    return {
        "cols": fields(columns),
        "inputFormat": "in",
        "outputFormat": "out",
        "numBuckets": -1,
        "serdeInfo": {"serializationLib": SERDE, "parameters": {"serialization.format": "1"}},
        "bucketCols": [],
        "sortCols": [],
        "parameters": {},
        **parts,
    }


def table(
    schema: str, name: str, columns: str = "a int, b string", *, keys: str = "", **parts: Any
) -> dict[str, Any]:
    """A ``Table``; ``sd`` in ``parts`` takes the place of the columns, None leaves a part out."""
    struct = {
        "tableName": name,
        "dbName": schema,
        "owner": "ann",
        "sd": storage(columns),
        "partitionKeys": fields(keys),
        "parameters": {},
        "tableType": "MANAGED_TABLE",
        **parts,
    }
    return {name: part for name, part in struct.items() if part is not None}


def view(schema: str, name: str, **parts: Any) -> dict[str, Any]:
    """A ``Table`` that is a view."""
    struct = {
        "tableType": "VIRTUAL_VIEW",
        "viewOriginalText": "select 1 a",
        "viewExpandedText": "select 1 as a",
        **parts,
    }
    return table(schema, name, "a int", **struct)


def partition(
    schema: str, name: str, *values: str, columns: str = "a int, b string", **parts: Any
) -> dict[str, Any]:
    """A ``Partition``."""
    struct = {
        "values": list(values),
        "dbName": schema,
        "tableName": name,
        "sd": storage(columns),
        "parameters": {},
        **parts,
    }
    return {name: part for name, part in struct.items() if part is not None}
