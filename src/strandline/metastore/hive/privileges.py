"""Methods on roles and privileges: what clients ask before they show anything.

The answers are those of a metastore that knows no privileges. What is enforced is not told in
Hive's terms: a refusal names what is missing.
"""

from __future__ import annotations

from strandline.metastore.hive.registry import Call, answers
from strandline.metastore.hive.storage import Struct


@answers("get_role_names")
def get_role_names(call: Call) -> list[str]:
    return ["admin", "public"]


@answers("list_roles")
def list_roles(call: Call) -> list[Struct]:
    """Everybody has the role ``public``."""
    return [{"roleName": "public", "createTime": 0, "ownerName": "public"}]


@answers("get_privilege_set")
def get_privilege_set(call: Call) -> Struct:
    return {"userPrivileges": {}, "groupPrivileges": {}, "rolePrivileges": {}}


@answers("list_privileges")
def list_privileges(call: Call) -> list[Struct]:
    return []
