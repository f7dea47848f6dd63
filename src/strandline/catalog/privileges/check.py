"""The check of whether a user may make a change of the catalog.

The problem: there are dozens of commands and there will be more, and a command that forgot to check
would be a security hole. So commands do not check. Privileges are checked against what a batch
*changed*, after it is planned and before it is appended. The needed privileges follow from the
change alone (kind, old, new). Before, `require_reach` only compares the schema that a command
names, so that no error of the planning tells what is in it.

===========================  =======================================================================
change                       needs
===========================  =======================================================================
created in a schema          CREATE and USAGE on the schema; an owner that the user may name; for
                             a table in another than the default zone, USAGE on the zone
altered, granted on          ownership
dropped                      ownership of it, or of the schema (the cluster) that contains it
moved                        ownership, and CREATE and USAGE on the target schema
index                        as for its table
database, zone, cluster      CREATE_DATABASE, CREATE_ZONE, CREATE_CLUSTER; then ownership
schema, cluster replica      CREATE on the database, on the cluster; then ownership
role                         CREATE_ROLE; then ownership. A membership: ownership of the role that
                             is joined. Only a superuser may create or change a superuser, or
                             decide who joins its role; may use a name that already owns objects;
                             or restore a dropped role: the last two bring privileges with them
default privileges           membership in the role whose objects they are for
configuration                CONFIGURE; `enforce_privileges` itself: a superuser
comment                      ownership of the commented object
anything else                a superuser
===========================  =======================================================================

An entry is checked against the catalog as it was before that entry. So a table may be created in a
schema of the same batch, and a batch can do nothing that its commands could not do one by one.

What must stay true: the check and the append see the same catalog; after a lost append the commands
are planned and checked again. A change of a kind without a rule needs a superuser. While privileges
are enforced there is a superuser: removing the last one is refused for every user.

Rejected: a check in each command (see above); a check of the result alone (it does not show who
owned a dropped object).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.declared_kinds import declared_kind
from strandline.catalog.planning import Command
from strandline.catalog.privileges.access import Access, enforced
from strandline.catalog.privileges.rules import Case
from strandline.durable.contents import Contents
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Entry
from strandline.errors import IllegalChange
from strandline.model.privileges import Privilege


def permit(
    access: Access,
    transaction: CatalogTransaction,
    *,
    before_each: Callable[[], None] = lambda: None,
) -> None:
    """Refuse the entries of ``transaction`` unless its user may make them.

    ``access`` is that of the user in the catalog on which the transaction is based. ``before_each``
    is called before each entry is checked, and may raise. Raises `PermissionDenied`, and
    `IllegalChange` for a change that would leave privileges enforced without a superuser.
    """
    base, entries = access.catalog, transaction.entries
    _keep_a_superuser(base, entries, transaction.contents)
    if access.free:
        return
    before = base
    for entry in entries:
        before_each()
        contents = before.contents.toward(entry.changes, transaction.contents)
        after = Catalog(base.version, base.time, contents)
        for kind, key in dict.fromkeys((change.kind, change.key) for change in entry.changes):
            declared = declared_kind(kind)
            if declared.rule is None:
                access.require_superuser(f"change a {declared.spoken}")
                continue
            old, new = before.contents.get(kind, key), after.contents.get(kind, key)
            case = Case(access, before, after, old and old.value, new and new.value)
            declared.rule(case)
        before, access = after, access.by(after)


def require_reach(access: Access, command: Command) -> None:
    """Refuse a command in a schema that the user does not reach, before it is planned.

    What is wrong with the command would tell the user what the schema contains. Raises
    `PermissionDenied`.
    """
    name = None if access.free else getattr(command, "schema", None)
    schema = access.catalog.schema(name) if isinstance(name, str) else None
    if schema is not None:
        access.require(Privilege.USAGE, schema)


def _keep_a_superuser(base: Catalog, entries: Sequence[Entry], after: Contents) -> None:
    kinds = {change.kind for entry in entries for change in entry.changes}
    if not kinds & {"role", "system_configuration"}:
        return
    result = Catalog(base.version, base.time, after)
    if not enforced(result) or any(role.superuser for role in result.roles()):
        return
    if enforced(base):
        raise IllegalChange(
            "this would remove the last superuser while privileges are enforced, and no user could "
            "undo it: first make another role a superuser, or set "
            f"{ENFORCE_PRIVILEGES.name} to false"
        )
    raise IllegalChange(
        f"{ENFORCE_PRIVILEGES.name} needs a superuser, but no role is one: first create a "
        "superuser role with the name under which you connect"
    )
