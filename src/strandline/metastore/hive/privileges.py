"""Methods on roles and privileges: what clients ask before they show anything.

The answers are those of a metastore that knows no privileges. What is enforced is not told in
Hive's terms: a refusal names what is missing.
"""

from __future__ import annotations

from strandline.metastore.hive.registry import Request, answers
from strandline.metastore.hive.storage import Struct


@answers("get_role_names")
def get_role_names(request: Request) -> list[str]:
    return ["admin", "public"]


@answers("list_roles")
def list_roles(request: Request) -> list[Struct]:
    """Everybody has the role ``public``."""
    return [{"roleName": "public", "createTime": 0, "ownerName": "public"}]


@answers("get_privilege_set")
def get_privilege_set(request: Request) -> Struct:
    return {"userPrivileges": {}, "groupPrivileges": {}, "rolePrivileges": {}}


@answers("list_privileges")
def list_privileges(request: Request) -> list[Struct]:
    return []
