"""``strandline role``: roles, and who is a member of which."""

from __future__ import annotations

import json

import click
from rich.table import Table
from rich.text import Text

from strandline.catalog import Command
from strandline.catalog.commands import AlterRole, CreateRole, DropRole, GrantRole, RevokeRole
from strandline.cli.console import new_console
from strandline.cli.joining import joining
from strandline.cli.options import OUTPUT, STORE, USER, Store
from strandline.cli.stores import catalogs_of
from strandline.cli.undo import report
from strandline.logs import in_one_line


def _execute(store: Store, command: Command, *, user: str, output: str, nothing: str) -> None:
    with joining(store) as node:
        session = node.session(user=user)
        report(session, session.execute(command), output=output, nothing=nothing)


@click.group()
def command() -> None:
    """Make, change, drop and list the roles of STORE."""


@command.command()
@STORE
@click.argument("name")
@click.option("--superuser", is_flag=True, help="It may do everything.")
@click.option("--no-inherit", is_flag=True, help="It has only its own privileges.")
@USER
@OUTPUT
def create(
    store: Store, *, name: str, superuser: bool, no_inherit: bool, user: str, output: str
) -> None:
    """Make the role NAME. A user who connects under that name has it."""
    made = CreateRole(name=name, superuser=superuser, inherit=not no_inherit)
    _execute(store, made, user=user, output=output, nothing="the role is there")


@command.command()
@STORE
@click.argument("name")
@click.option("--superuser/--no-superuser", default=None, help="Whether it may do everything.")
@click.option("--inherit/--no-inherit", default=None, help="Whether it has its roles' privileges.")
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
    _execute(store, changed, user=user, output=output, nothing="nothing to change")


@command.command()
@STORE
@click.argument("name")
@click.option("--reassign-to", metavar="ROLE", help="Who owns from now on what it owned.")
@USER
@OUTPUT
def drop(store: Store, *, name: str, reassign_to: str | None, user: str, output: str) -> None:
    """Drop the role NAME."""
    dropped = DropRole(name=name, reassign_to=reassign_to)
    _execute(store, dropped, user=user, output=output, nothing="there is no such role")


@command.command()
@STORE
@click.argument("role")
@click.argument("member")
@USER
@OUTPUT
def grant(store: Store, *, role: str, member: str, user: str, output: str) -> None:
    """Make MEMBER a member of ROLE: it has the privileges of ROLE too."""
    granted = GrantRole(role=role, member=member)
    _execute(store, granted, user=user, output=output, nothing="it is a member already")


@command.command()
@STORE
@click.argument("role")
@click.argument("member")
@USER
@OUTPUT
def revoke(store: Store, *, role: str, member: str, user: str, output: str) -> None:
    """End the membership of MEMBER in ROLE."""
    revoked = RevokeRole(role=role, member=member)
    _execute(store, revoked, user=user, output=output, nothing="it is no member")


@command.command("list")
@STORE
@OUTPUT
def list_roles(store: Store, *, output: str) -> None:
    """List the roles, and what each is a member of."""
    catalog = catalogs_of(store).latest
    names = {role.id: role.name for role in catalog.roles()}
    rows = [
        {
            "role": role.name,
            "superuser": role.superuser,
            "inherit": role.inherit,
            "member_of": sorted(names.get(of, "?") for of, _ in role.member_of),
        }
        for role in sorted(catalog.roles(), key=lambda role: role.name)
    ]
    if output == "json":
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    table = Table("role", "superuser", "inherits", "member of", box=None, pad_edge=False)
    for role in rows:
        member_of = role["member_of"]
        assert isinstance(member_of, list)
        yes = ("no", "yes")
        cells = (
            str(role["role"]),
            yes[bool(role["superuser"])],
            yes[bool(role["inherit"])],
            ", ".join(member_of),
        )
        table.add_row(*(Text(in_one_line(cell)) for cell in cells))
    new_console().print(table)
