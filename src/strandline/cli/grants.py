"""``strandline grant`` and ``strandline revoke``: who may do what."""

from __future__ import annotations

import click

from strandline.catalog.commands import GrantPrivileges, RevokePrivileges
from strandline.catalog.commands.grants import grantable
from strandline.cli.joining import joining
from strandline.cli.options import OUTPUT, STORE, USER, Store
from strandline.cli.undo import report
from strandline.errors import InvalidInput
from strandline.model.privileges import ObjectKind, Privilege, privilege_names

KINDS = {kind.name.lower().replace("_", "-"): kind for kind in grantable()}
ALL = "all"


def privileges_of(text: str, kind: ObjectKind) -> Privilege:
    """The privileges that a list such as ``select,insert`` names, or ``all``. `InvalidInput`."""
    applicable = grantable()[kind]
    if text.strip().lower() == ALL:
        return applicable
    named = Privilege(0)
    for part in text.split(","):
        name = part.strip().upper().replace("-", "_")
        if name not in Privilege.__members__:
            raise InvalidInput(
                f"{part.strip()[:80]!r} is no privilege; on a {kind.name.lower()} there are "
                f"{', '.join(privilege_names(applicable))}, and {ALL}"
            )
        named |= Privilege[name]
    return named


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
@click.option("--to", "grantee", required=True, metavar="ROLE", help="Who may (public: all).")
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
    of = KINDS[kind]
    command = GrantPrivileges(
        kind=of, privileges=privileges_of(privileges, of), grantee=grantee, name=_name_of(of, name)
    )
    with joining(store) as node:
        session = node.session(user=user)
        report(session, session.execute(command), output=output, nothing="it was granted before")


@click.command()
@STORE
@_PRIVILEGES
@_KIND
@_NAME
@click.option("--from", "grantee", required=True, metavar="ROLE", help="Who may no longer.")
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
    of = KINDS[kind]
    command = RevokePrivileges(
        kind=of, privileges=privileges_of(privileges, of), grantee=grantee, name=_name_of(of, name)
    )
    with joining(store) as node:
        session = node.session(user=user)
        report(session, session.execute(command), output=output, nothing="it was not granted")
