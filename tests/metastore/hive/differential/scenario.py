"""Scenarios of calls that two metastores answer, and how answers are made comparable.

A call is a tuple: the method, and its arguments in the order of the protocol; None is left out.
Three words are no methods of Hive. ``file`` writes a file of some bytes below the warehouse,
``place`` says whether a path there is a folder, a file or nothing, and ``values`` asks the method
that follows it for partitions, of which it keeps the values alone. ``{warehouse}`` in a text is the
warehouse of the metastore that is asked.

What must differ between two metastores is replaced in the answers, here and nowhere else
(`comparable`): the place of the warehouse and the times of changes. Lists in an order that the
protocol leaves open are sorted.
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

# Arguments and answers are of as many types as the protocol has: hence Any, here and below.
Call = tuple[Any, ...]
Answer = dict[str, Any]
"""``returns`` with the value, or ``throws`` with the exception's name and its ``message``."""

WAREHOUSE = "{warehouse}"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
"""A class that the peer has, and whose columns it does not ask the class for."""


@dataclass(frozen=True)
class Scenario:
    """Calls in their order. A scenario uses schemas of its own."""

    name: str
    calls: tuple[Call, ...]


def ask(scenario: Scenario, client: ThriftClient, warehouse: Path) -> list[Answer]:
    """What the metastore with that warehouse answers, made comparable."""
    return [
        _comparable(call, _answer(call, client, warehouse), warehouse) for call in scenario.calls
    ]


def shown(call: Call) -> str:
    """The call in one line."""
    method, *args = call
    texts = (json.dumps(arg, ensure_ascii=False) for arg in args)
    return f"{method}({', '.join(texts)})"


def _answer(call: Call, client: ThriftClient, warehouse: Path) -> Answer:
    method, *args = (_placed(part, warehouse) for part in call)
    if method == "file":
        path, size = warehouse / args[0], args[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return {"returns": None}
    if method == "place":
        path = warehouse / args[0]
        return {"returns": "folder" if path.is_dir() else "file" if path.is_file() else None}
    if method == "values":
        answer = _answer(tuple(args), client, warehouse)
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


def _placed(value: Any, warehouse: Path) -> Any:
    """The arguments with the place of the warehouse."""
    if isinstance(value, str):
        return value.replace(WAREHOUSE, str(warehouse))
    if isinstance(value, dict):
        return {name: _placed(item, warehouse) for name, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, warehouse) for item in value]
    return value


_TIMES = frozenset({"createTime", "transient_lastDdlTime", "grantTime"})
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
    }
)


def _comparable(call: Call, answer: Answer, warehouse: Path) -> Answer:
    place = str(warehouse)
    plain: Answer = _plain(answer, place)
    listed = plain.get("returns")
    if call[0] == "get_partition_values" and isinstance(listed, dict):
        listed = listed["partitionValues"]
    if call[0] in _UNORDERED and isinstance(listed, list):
        listed.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return plain


_PARTITION = re.compile(
    r":\s?Partition\((values:\[.*?\], dbName:\w+, tableName:\w+).*\)", re.DOTALL
)
"""A partition in a message; Hive prints all of it."""


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        return dict(_plain_items(value, place))
    if isinstance(value, list | tuple):
        return [_plain(item, place) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item, place) for item in value)
    if isinstance(value, str):
        return _PARTITION.sub(r": Partition(\1)", value.replace(place, WAREHOUSE))
    return value


def _plain_items(value: dict[Any, Any], place: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        known = name in _TIMES and item not in (0, "0", None)
        yield str(name), "a time" if known else _plain(item, place)


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
