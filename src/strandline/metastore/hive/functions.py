"""Methods on functions. There are none: what Spark calls a permanent function is a class in a jar.

They are answered, and not unknown, because clients ask for functions whenever a name in a query is
none that they know themselves.
"""

from __future__ import annotations

from strandline.errors import ObjectNotFound, UnsupportedOperation
from strandline.metastore.hive.registry import Call, answers
from strandline.metastore.hive.storage import Struct


@answers("get_functions")
def get_functions(call: Call) -> list[str]:
    return []


@answers("get_all_functions")
def get_all_functions(call: Call) -> Struct:
    return {"functions": []}


@answers("get_function")
def get_function(call: Call) -> Struct:
    raise ObjectNotFound(f"Function {call.text('dbName')}.{call.text('funcName')} does not exist")


@answers("drop_function", "alter_function")
def drop_function(call: Call) -> None:
    raise ObjectNotFound(f"Function {call.text('funcName')} does not exist")


@answers("create_function")
def create_function(call: Call) -> None:
    name = call.struct("func").get("functionName")
    raise UnsupportedOperation(
        f"function {name} cannot be created: this metastore keeps no functions; register it in the "
        "session, with CREATE TEMPORARY FUNCTION or spark.udf.register"
    )
