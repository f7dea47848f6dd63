"""The commands ``role``, ``grant``, ``revoke`` and ``token``: who may do what.

A token authenticates a user to a node over HTTP.
"""

from __future__ import annotations

from pathlib import Path

import click

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
from strandline.cli.changes import execute
from strandline.cli.options import (
    OUTPUT,
    STORE,
    USER,
    Store,
    cells,
    new_console,
    new_table,
    print_json,
)
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
@USER
@OUTPUT
def create(
    store: Store, *, name: str, superuser: bool, no_inherit: bool, user: str, output: str
) -> None:
    """Create the role NAME. A user who connects under that name has it."""
    command = CreateRole(name=name, superuser=superuser, inherit=not no_inherit)
    execute(store, command, user=user, output=output, nothing="the role already exists")


@role.command()
@STORE
@click.argument("name")
@click.option(
    "--superuser/--no-superuser", default=None, help="Whether the role may do everything."
)
@click.option(
    "--inherit/--no-inherit", default=None, help="Whether the role has its roles' privileges."
)
@USER
@OUTPUT
def alter(
    store: Store,
    *,
    name: str,
    superuser: bool | None,
    inherit: bool | None,
    user: str,
    output: str,
) -> None:
    """Change the role NAME."""
    changed = AlterRole(name=name, superuser=superuser, inherit=inherit)
    execute(store, changed, user=user, output=output, nothing="nothing to change")


@role.command()
@STORE
@click.argument("name")
@click.option("--reassign-to", metavar="ROLE", help="The new owner of the role's objects.")
@USER
@OUTPUT
def drop(store: Store, *, name: str, reassign_to: str | None, user: str, output: str) -> None:
    """Drop the role NAME."""
    dropped = DropRole(name=name, reassign_to=reassign_to)
    execute(store, dropped, user=user, output=output, nothing="the role does not exist")


@role.command("grant")
@STORE
@click.argument("role")
@click.argument("member")
@USER
@OUTPUT
def add_member(store: Store, *, role: str, member: str, user: str, output: str) -> None:
    """Make MEMBER a member of ROLE: it has the privileges of ROLE too."""
    granted = GrantRole(role=role, member=member)
    execute(store, granted, user=user, output=output, nothing="it is already a member")


@role.command("revoke")
@STORE
@click.argument("role")
@click.argument("member")
@USER
@OUTPUT
def remove_member(store: Store, *, role: str, member: str, user: str, output: str) -> None:
    """End the membership of MEMBER in ROLE."""
    revoked = RevokeRole(role=role, member=member)
    execute(store, revoked, user=user, output=output, nothing="it is not a member")


@role.command("list")
@STORE
@OUTPUT
def list_roles(store: Store, *, output: str) -> None:
    """List the roles, and what each is a member of."""
    table = new_table("role", "superuser", "inherits", "member of")
    yes = ("no", "yes")
    for role in roles_of(latest_of(store)):
        if output == "json":
            flags = {"superuser": role.superuser, "inherit": role.inherit}
            print_json({"role": role.name, **flags, "member_of": role.member_of})
        superuser, inherits = yes[role.superuser], yes[role.inherit]
        table.add_row(*cells(role.name, superuser, inherits, ", ".join(role.member_of)))
    if output == "text":
        new_console().print(table)


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
_KIND = click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
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
@USER
@OUTPUT
def grant(
    store: Store,
    *,
    privileges: str,
    kind: str,
    name: str | None,
    grantee: str,
    user: str,
    output: str,
) -> None:
    """Grant PRIVILEGES on an object of STORE to a role.

    PRIVILEGES is a list such as select,insert, or all. KIND and NAME say on what: "table
    shop.orders", "schema shop", "database hive", or "system" without a name.
    """
    object_kind = KINDS[kind]
    command = GrantPrivileges(
        kind=object_kind,
        privileges=privileges_of(privileges, object_kind),
        grantee=grantee,
        name=_name_of(object_kind, name),
    )
    execute(store, command, user=user, output=output, nothing="it is already granted")


@click.command()
@STORE
@_PRIVILEGES
@_KIND
@_NAME
@click.option("--from", "grantee", required=True, metavar="ROLE", help="The role that loses them.")
@USER
@OUTPUT
def revoke(
    store: Store,
    *,
    privileges: str,
    kind: str,
    name: str | None,
    grantee: str,
    user: str,
    output: str,
) -> None:
    """Revoke PRIVILEGES on an object of STORE from a role.

    The words are those of "strandline grant".
    """
    object_kind = KINDS[kind]
    command = RevokePrivileges(
        kind=object_kind,
        privileges=privileges_of(privileges, object_kind),
        grantee=grantee,
        name=_name_of(object_kind, name),
    )
    execute(store, command, user=user, output=output, nothing="it was not granted")


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
