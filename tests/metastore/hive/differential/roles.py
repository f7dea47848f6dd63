"""Roles, and privileges of roles and users."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Scenario, table

_USER, _ROLE = 1, 2
_SCHEMA, _TABLE = 2, 3
_GRANT, _REVOKE = 1, 2


def _role(name: str) -> dict[str, Any]:
    return {"roleName": name, "createTime": 0, "ownerName": "root"}


def _on(schema: str, name: str | None = None, *, level: int | None = None) -> dict[str, Any]:
    level = level or (_TABLE if name else _SCHEMA)
    struct = {"objectType": level, "dbName": schema, "objectName": name}
    return {key: part for key, part in struct.items() if part is not None}


def _privilege(
    on: dict[str, Any], text: str, name: str, kind: int = _ROLE, *, option: bool = False
) -> dict[str, Any]:
    return {
        "hiveObject": on,
        "principalName": name,
        "principalType": kind,
        "grantInfo": {
            "privilege": text,
            "createTime": 0,
            "grantor": "root",
            "grantorType": _USER,
            "grantOption": option,
        },
    }


def _bag(*privileges: dict[str, Any]) -> dict[str, Any]:
    return {"privileges": list(privileges)}


def _membership(request: int, role: str, member: str, kind: int = _ROLE) -> dict[str, Any]:
    return {
        "requestType": request,
        "roleName": role,
        "principalName": member,
        "principalType": kind,
        "grantor": "root",
        "grantorType": _USER,
        "grantOption": False,
    }


SCENARIOS = (
    Scenario(
        "roles",
        (
            ("set_ugi", "root", []),
            ("get_role_names",),
            ("create_role", _role("root")),
            ("create_role", _role("r_staff")),
            ("create_role", _role("r_staff")),
            ("create_role", _role("r_chiefs")),
            ("create_role", _role("public")),
            ("create_role", _role("admin")),
            ("create_role", None),
            ("get_role_names",),
            ("grant_role", "r_staff", "r_chiefs", _ROLE, "root", _USER, False),
            ("grant_role", "r_staff", "r_chiefs", _ROLE, "root", _USER, False),
            ("grant_role", "r_chiefs", "r_staff", _ROLE, "root", _USER, False),
            ("grant_role", "r_none", "r_staff", _ROLE, "root", _USER, False),
            ("grant_role", "r_staff", "r_none", _ROLE, "root", _USER, False),
            ("grant_role", "r_staff", "r_zoe", _USER, "root", _USER, False),
            ("grant_role", None, "r_zoe", _USER, "root", _USER, False),
            ("list_roles", "r_chiefs", _ROLE),
            ("list_roles", "r_chiefs", _USER),
            ("list_roles", "r_nobody", _USER),
            ("list_roles", "r_none", _ROLE),
            ("get_principals_in_role", {"roleName": "r_staff"}),
            ("get_principals_in_role", {"roleName": "r_none"}),
            (
                "get_role_grants_for_principal",
                {"principal_name": "r_chiefs", "principal_type": _ROLE},
            ),
            (
                "get_role_grants_for_principal",
                {"principal_name": "r_nobody", "principal_type": _USER},
            ),
            ("revoke_role", "r_staff", "r_chiefs", _ROLE),
            ("revoke_role", "r_staff", "r_chiefs", _ROLE),
            ("revoke_role", "r_none", "r_chiefs", _ROLE),
            ("list_roles", "r_chiefs", _ROLE),
            ("grant_revoke_role", _membership(_GRANT, "r_staff", "r_chiefs")),
            ("list_roles", "r_chiefs", _ROLE),
            ("grant_revoke_role", _membership(_REVOKE, "r_staff", "r_chiefs")),
            ("list_roles", "r_chiefs", _ROLE),
            ("drop_role", "r_staff"),
            ("drop_role", "r_staff"),
            ("drop_role", "public"),
            ("drop_role", None),
            ("drop_role", "r_chiefs"),
            ("drop_role", "root"),
            ("get_role_names",),
        ),
    ),
    Scenario(
        "privileges",
        (
            ("set_ugi", "root", []),
            ("create_role", _role("root")),
            ("create_database", {"name": "pv"}),
            ("create_table", table("pv", "t")),
            ("create_role", _role("p_staff")),
            ("get_privilege_set", _on("pv", "t"), "p_zoe", ["p_group"]),
            ("get_privilege_set", _on("pv"), "p_zoe", []),
            ("get_privilege_set", _on("pv", "t"), None, []),
            ("get_privilege_set", None, "p_zoe", []),
            ("get_privilege_set", _on("pv", "none"), "p_zoe", []),
            ("grant_privileges", _bag(_privilege(_on("pv", "t"), "SELECT", "p_staff"))),
            ("grant_privileges", _bag(_privilege(_on("pv", "t"), "SELECT", "p_staff"))),
            ("grant_privileges", _bag(_privilege(_on("pv", "t"), "INSERT", "public"))),
            ("grant_privileges", _bag(_privilege(_on("pv", "none"), "SELECT", "p_staff"))),
            ("grant_privileges", _bag(_privilege(_on("pv", "t"), "SELECT", "p_none"))),
            ("grant_privileges", _bag()),
            ("grant_privileges", None),
            ("list_privileges", "p_staff", _ROLE, _on("pv", "t")),
            ("list_privileges", "p_staff", _ROLE, _on("pv")),
            ("list_privileges", "p_none", _ROLE, _on("pv", "t")),
            ("list_privileges", None, None, _on("pv", "t")),
            ("get_privilege_set", _on("pv", "t"), "p_zoe", []),
            (
                "grant_revoke_privileges",
                {
                    "requestType": _GRANT,
                    "privileges": _bag(_privilege(_on("pv"), "CREATE", "p_staff")),
                },
            ),
            ("list_privileges", "p_staff", _ROLE, _on("pv")),
            ("list_privileges", "p_staff", _ROLE, None),
            (
                "grant_revoke_privileges",
                {
                    "requestType": _REVOKE,
                    "privileges": _bag(_privilege(_on("pv"), "CREATE", "p_staff")),
                },
            ),
            ("list_privileges", "p_staff", _ROLE, _on("pv")),
            ("revoke_privileges", _bag(_privilege(_on("pv", "t"), "SELECT", "p_staff"))),
            ("revoke_privileges", _bag(_privilege(_on("pv", "t"), "SELECT", "p_staff"))),
            ("list_privileges", "p_staff", _ROLE, _on("pv", "t")),
            ("revoke_privileges", _bag(_privilege(_on("pv", "t"), "INSERT", "public"))),
            ("get_privilege_set", _on("pv", "t"), "p_zoe", []),
            ("drop_role", "p_staff"),
            ("drop_role", "root"),
        ),
    ),
)
