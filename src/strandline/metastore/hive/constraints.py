"""Constraints: the methods that list them. There are none to list."""

from __future__ import annotations

from strandline.metastore.hive.registry import Request, answers
from strandline.metastore.hive.storage import Struct

_LISTS = {
    "get_primary_keys": "primaryKeys",
    "get_foreign_keys": "foreignKeys",
    "get_unique_constraints": "uniqueConstraints",
    "get_not_null_constraints": "notNullConstraints",
    "get_default_constraints": "defaultConstraints",
    "get_check_constraints": "checkConstraints",
}


def _register(method: str, field: str) -> None:
    @answers(method)
    def none(request: Request) -> Struct:
        return {field: []}


for _method, _field in _LISTS.items():
    _register(_method, _field)
