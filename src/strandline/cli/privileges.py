"""The commands ``role``, ``grant``, ``revoke`` and ``token``: who may do what.

A token authenticates a user to a node over HTTP.
"""

from __future__ import annotations

from pathlib import Path

import click

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterRole,
    CreateRole,
    DropRole,
    GrantPrivileges,
    GrantRole,
    RevokePrivileges,
    RevokeRole,
)
from strandline.catalog.commands.grants import grantable
from strandline.cli.changes import executes
from strandline.cli.options import OUTPUT, STORE, YES, Store, cells, print_json, print_table
from strandline.cli.stores import latest_of
from strandline.errors import InvalidInput
from strandline.metastore.interface import roles_of
from strandline.model.privileges import ObjectKind, Privilege, privilege_names


@click.group()
def role() -> None:
    """Create, change, drop and list the roles of STORE."""


@role.command()
@STORE
@click.argument("name")
@click.option("--superuser", is_flag=True, help="The role may do everything.")
@click.option("--no-inherit", is_flag=True, help="The role has only its own privileges.")
@executes("the role already exists")
def create(*, name: str, superuser: bool, no_inherit: bool) -> Command:
    """Create the role NAME. A user who connects under that name has it."""
    return CreateRole(name=name, superuser=superuser, inherit=not no_inherit)


@role.command()
@STORE
@click.argument("name")
@click.option(
    "--superuser/--no-superuser", default=None, help="Whether the role may do everything."
)
@click.option(
    "--inherit/--no-inherit", default=None, help="Whether the role has its roles' privileges."
)
@executes("nothing to change")
def alter(*, name: str, superuser: bool | None, inherit: bool | None) -> Command:
    """Change the role NAME."""
    return AlterRole(name=name, superuser=superuser, inherit=inherit)


@role.command()
@STORE
@click.argument("name")
@click.option("--reassign-to", metavar="ROLE", help="The new owner of the role's objects.")
@executes("the role does not exist")
def drop(*, name: str, reassign_to: str | None) -> Command:
    """Drop the role NAME."""
    return DropRole(name=name, reassign_to=reassign_to)


@role.command("grant")
@STORE
@click.argument("role")
@click.argument("member")
@executes("it is already a member")
def add_member(*, role: str, member: str) -> Command:
    """Make MEMBER a member of ROLE: it has the privileges of ROLE too."""
    return GrantRole(role=role, member=member)


@role.command("revoke")
@STORE
@click.argument("role")
@click.argument("member")
@executes("it is not a member")
def remove_member(*, role: str, member: str) -> Command:
    """End the membership of MEMBER in ROLE."""
    return RevokeRole(role=role, member=member)


@role.command("list")
@STORE
@OUTPUT
def list_roles(store: Store, *, output: str) -> None:
    """List the roles, and what each is a member of."""
    rows = []
    for role in roles_of(latest_of(store)):
        if output == "json":
            flags = {"superuser": role.superuser, "inherit": role.inherit}
            print_json({"role": role.name, **flags, "member_of": role.member_of})
        superuser, inherits = YES[role.superuser], YES[role.inherit]
        rows.append(cells(role.name, superuser, inherits, ", ".join(role.member_of)))
    if output == "text":
        print_table(("role", "superuser", "inherits", "member of"), rows)


KINDS = {kind.name.lower().replace("_", "-"): kind for kind in grantable()}
ALL = "all"


def privileges_of(text: str, kind: ObjectKind) -> Privilege:
    """Return the privileges that ``text`` names: a list such as ``select,insert``, or ``all``.

    Raises `InvalidInput` if a name is not a privilege.
    """
    applicable = grantable()[kind]
    if text.strip().lower() == ALL:
        return applicable
    privileges = Privilege(0)
    for part in text.split(","):
        name = part.strip().upper().replace("-", "_")
        if name not in Privilege.__members__:
            raise InvalidInput(
                f"{part.strip()[:80]!r} is not a privilege; on a {kind.name.lower()} there are "
                f"{', '.join(privilege_names(applicable))}, and {ALL}"
            )
        privileges |= Privilege[name]
    return privileges


def _name_of(kind: ObjectKind, name: str | None) -> str:
    if kind is ObjectKind.SYSTEM and name:
        raise InvalidInput(f"the system has no name; leave {name!r} out")
    if kind is not ObjectKind.SYSTEM and not name:
        raise InvalidInput(f"name the {kind.name.lower().replace('_', ' ')}")
    return name or ""


_PRIVILEGES = click.argument("privileges")
_KIND = click.argument("kind", type=click.Choice(list(KINDS), case_sensitive=False), metavar="KIND")
_NAME = click.argument("name", required=False)


@click.command()
@STORE
@_PRIVILEGES
@_KIND
@_NAME
@click.option(
    "--to",
    "grantee",
    required=True,
    metavar="ROLE",
    help="The role that gets them (public: every user).",
)
@executes("it is already granted")
def grant(*, privileges: str, kind: str, name: str | None, grantee: str) -> Command:
    """Grant PRIVILEGES on an object of STORE to a role.

    PRIVILEGES is a list such as select,insert, or all. KIND and NAME say on what: "table
    shop.orders", "schema shop", "database hive", or "system" without a name.
    """
    object_kind = KINDS[kind]
    return GrantPrivileges(
        kind=object_kind,
        privileges=privileges_of(privileges, object_kind),
        grantee=grantee,
        name=_name_of(object_kind, name),
    )


@click.command()
@STORE
@_PRIVILEGES
@_KIND
@_NAME
@click.option("--from", "grantee", required=True, metavar="ROLE", help="The role that loses them.")
@executes("it was not granted")
def revoke(*, privileges: str, kind: str, name: str | None, grantee: str) -> Command:
    """Revoke PRIVILEGES on an object of STORE from a role.

    The words are those of "strandline grant".
    """
    object_kind = KINDS[kind]
    return RevokePrivileges(
        kind=object_kind,
        privileges=privileges_of(privileges, object_kind),
        grantee=grantee,
        name=_name_of(object_kind, name),
    )


@click.command()
@click.argument("users_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user")
def token(users_file: Path, user: str) -> None:
    """Add a new token for USER to the USERS_FILE, and print it.

    The file has only the hash of the token, which is not shown again. If the file does not exist,
    it is created with mode 0600. Nodes that run with --users-file accept the token at once; to
    revoke it, delete the user's line.
    """
    from strandline.node.users import new_token

    click.echo(new_token(users_file, user))
