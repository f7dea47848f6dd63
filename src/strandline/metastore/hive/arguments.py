"""The arguments of methods: one name for each, also if they are the fields of a request.

Hive has two forms of many methods. The later form has one argument, a request (a struct whose name
ends in ``Request``). The two forms often write the name of the same argument differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from strandline.metastore.thrift.field_table import HIVE_METASTORE

ONE_NAME: Mapping[str, str] = {
    **dict.fromkeys(("dbname", "dbName", "oldDbName"), "db_name"),
    "newDb": "db",
    **dict.fromkeys(("tablename", "table_name", "tableName", "tblName"), "tbl_name"),
    **dict.fromkeys(("tbl", "new_tbl"), "table"),
    "tblNames": "tbl_names",
    "partName": "part_name",
    "partVals": "part_vals",
    "newPart": "new_part",
    "maxParts": "max_parts",
    **dict.fromkeys(("envContext", "environmentContext"), "environment_context"),
    "roleName": "role_name",
    "principalName": "principal_name",
    "principalType": "principal_type",
    "grantOption": "grant_option",
}
"""The names that handlers use for arguments with several names in the protocol."""


@cache
def request_of(method: str) -> tuple[str, Sequence[str]]:
    """The name of the request in which the method has its arguments, or ""; and their names."""
    fields, request = HIVE_METASTORE.methods[method].args.fields, ""
    if len(fields) == 1 and fields[0].type.name.endswith("Request"):
        fields, request = HIVE_METASTORE.structs[fields[0].type.name].fields, fields[0].name
    return request, [field.name for field in fields]


def renamed(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a client has sent, by the names that handlers use."""
    return {ONE_NAME.get(name, name): sent[name] for name in sent}
