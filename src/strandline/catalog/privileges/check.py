"""The check of whether a user may make a change of the catalog.

The problem: there are dozens of commands and there will be more, and a command that forgot to check
would be a security hole. So commands do not check. Privileges are checked against what a batch
*changed*, after each command is planned and before the batch is appended. The needed privileges
follow from the change alone (kind, old, new).

What is wrong with a command, or that it changes nothing, may tell what the user may not see. So
before a command is planned, the user must reach the schemas that it names and be allowed to refer
to what it refers to. For the objects that it would change, one rule applies: a user who may neither
read nor drop them gets no other answer than that. Only schemas and what they contain can be read by
a privilege. Outside of schemas, the refusal comes before the planning, which may be long.

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
schema, cluster replica      CREATE on the database, on the cluster; then ownership. For a replica
                             of a managed cluster, ownership of the cluster is enough
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
What a renamed role owns keeps its owner under another name, which needs nothing more.

What must stay true: the check and the append see the same catalog; after a lost append the commands
are planned and checked again. A change of a kind without a rule needs a superuser. While privileges
are enforced there is a superuser: removing the last one is refused for every user.

Rejected: a check in each command (see above); a check of the result alone (it does not show who
owned a dropped object).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from strandline.catalog import commands
from strandline.catalog.catalog import DEFAULT_DATABASE, Catalog
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.declared_kinds import declared_kind
from strandline.catalog.kinds import find, find_in, kind_of, kind_of_object
from strandline.catalog.planning import Command
from strandline.catalog.privileges.access import Access, enforced
from strandline.catalog.privileges.rules import Case
from strandline.catalog.undo.command import Undo
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Entry
from strandline.errors import IllegalChange
from strandline.model.descriptors import IndexDescriptor, SchemaDescriptor, SystemConfiguration
from strandline.model.identifiers import QualifiedName
from strandline.model.privileges import DefaultPrivilege, Privilege, SystemPrivilege

_READING = Privilege.USAGE | Privilege.SELECT | Privilege.EXECUTE
"""What a user needs to read the definition of an object, of those that its kind has."""


class PrivilegeCheck:
    """The check of one batch, entry by entry.

    ``access`` is that of the user in the catalog on which ``transaction`` is based. ``before_each``
    is called before each entry is checked, and may raise.
    """

    def __init__(
        self,
        access: Access,
        transaction: CatalogTransaction,
        *,
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        self._base = access.catalog
        self._is_free = access.free
        self._access = access  # in the catalog after the checked entries
        self._transaction = transaction
        self._before_each = before_each
        self._checked = 0

    def require_reach(self, command: Command) -> None:
        """Refuse a command before it is planned if its refusal would tell of other objects.

        What is wrong with it would tell what a schema contains, or what uses the object that it
        would change. The entries so far are checked first, because they may give access to both.
        Raises what `finish` raises.
        """
        if self._is_free:
            return
        self._check_entries()
        for privilege, place in _places(self._access.catalog, command):
            if place is not None:
                self._access.require(privilege, place)
        if isinstance(command, commands.DropSchema):  # with many tables, it is planned for long
            schema = self._access.catalog.schema(command.name, database=command.database)
            self._require_drop(schema)
        if getattr(command, "schema", None) is None and not isinstance(command, Undo):
            self.require_sight(command)

    def require_sight(self, command: Command) -> None:
        """Refuse to say that a command failed or changes nothing if that tells a definition.

        Raises `PermissionDenied` if the user may neither read nor drop one of its objects.
        """
        for subject in () if self._is_free else _subjects(self._access.catalog, command):
            if subject is not None and not self._reads(subject):
                self._require_drop(subject)

    def _require_drop(self, subject: Any) -> None:  # Any: a descriptor of some kind, or None
        rule = None if subject is None else declared_kind(kind_of(subject).name).rule
        if rule is not None:
            catalog = self._access.catalog
            rule(Case(self._access, catalog, catalog, catalog, subject, None))

    def _reads(self, subject: Any) -> bool:  # Any: a descriptor of some kind
        if isinstance(subject, IndexDescriptor):
            subject = self._access.catalog.table_by_id(subject.table_id) or subject
        kind = kind_of(subject)
        is_readable = kind.in_schema or isinstance(subject, SchemaDescriptor)
        return is_readable and self._access.allows(kind.grantable & _READING, subject)

    def finish(self) -> None:
        """Refuse the entries of the transaction unless the user may make them.

        Raises `PermissionDenied`, and `IllegalChange` for a change that would leave privileges
        enforced without a superuser.
        """
        _keep_a_superuser(self._base, self._transaction)
        if not self._is_free:
            self._check_entries()

    def _check_entries(self) -> None:
        for entry in self._transaction.entries[self._checked :]:
            self._before_each()
            self._check(entry)
            self._checked += 1

    def _check(self, entry: Entry) -> None:
        access, before = self._access, self._access.catalog
        contents = before.contents.toward(entry.changes, self._transaction.contents)
        after = Catalog(before.version, before.time, contents)
        result = Catalog(before.version, before.time, self._transaction.contents)
        for kind, key in dict.fromkeys((change.kind, change.key) for change in entry.changes):
            declared = declared_kind(kind)
            if declared.rule is None:
                access.require_superuser(f"change a {declared.spoken}")
                continue
            old, new = before.contents.get(kind, key), after.contents.get(kind, key)
            case = Case(access, before, after, result, old and old.value, new and new.value)
            if case.owner_is_renamed and replace(case.new, owner=case.old.owner) == case.old:
                continue
            declared.rule(case)
        self._access = access.by(after)


def _places(catalog: Catalog, command: Command) -> Iterator[tuple[Privilege, Any]]:
    """What a command needs on the objects that it refers to, which may not exist (None)."""
    for field in ("schema", "new_schema"):
        if isinstance(name := getattr(command, field, None), str):
            yield Privilege.USAGE, catalog.schema(name)
    match command:
        case object(index_id=int(index_id)):
            if (index := catalog.index(index_id)) is not None:
                yield Privilege.USAGE, catalog.schema_by_id(index.schema_id)
        case commands.GrantPrivileges() | commands.RevokePrivileges() | commands.CommentOn():
            kind = kind_of_object(command.kind)
            if command.name and kind is not None and kind.in_schema:
                yield Privilege.USAGE, catalog.schema(QualifiedName.parse(command.name).schema)
        case commands.AddConstraints():
            for parent in (QualifiedName.parse(k.parent) for k in command.constraints if k.parent):
                yield Privilege.USAGE, catalog.schema(parent.schema)
                yield Privilege.SELECT, catalog.relation(parent.schema, parent.name)
        case commands.CreateTable() if command.definition.zone is not None:
            yield Privilege.CREATE, catalog.schema(command.schema)
            zone = catalog.zone_named(command.definition.zone)
            yield Privilege.USAGE, None if zone == catalog.default_zone() else zone
        case commands.CreateClusterReplica():
            yield Privilege.CREATE, catalog.cluster(command.cluster)


def _subjects(catalog: Catalog, command: Command) -> Iterator[Any]:  # descriptors, or None
    """The objects that a command would change, as far as it names them."""
    match command:
        case commands.AlterDatabase() | commands.RenameDatabase() | commands.DropDatabase():
            yield catalog.database(command.name)
        case commands.AlterSchema() | commands.RenameSchema():
            yield catalog.schema(command.name, database=command.database)
        case commands.AlterZone() | commands.RenameZone() | commands.DropZone():
            yield catalog.zone_named(command.name)
        case commands.DropRole():  # users see the rest of a role
            yield catalog.role(command.name)
        case commands.AlterCluster() | commands.RenameCluster() | commands.DropCluster():
            yield catalog.cluster(command.name)
        case commands.CreateFunction(or_replace=True):
            yield catalog.function(command.schema, command.name)
        case commands.CreateView(or_replace=True):
            yield catalog.view(command.schema, command.definition.name)
        case commands.CommentOn() | commands.GrantPrivileges() | commands.RevokePrivileges():
            kind = kind_of_object(command.kind)
            if kind is None:
                yield SystemPrivilege("", 0, 0, Privilege(0))
            elif isinstance(command, commands.CommentOn) or not kind.in_schema:
                yield find(catalog, kind, command.name)  # the grants in a schema are shown
        case commands.SetOwner():
            kind = kind_of_object(command.kind)
            yield kind and find_in(catalog, kind, command.schema or DEFAULT_DATABASE, command.name)
        case commands.SetConfiguration():
            yield SystemConfiguration(command.name, "")
        case commands.AlterDefaultPrivileges():
            role = catalog.role(command.role or "")
            of_role = 0 if role is None else role.id
            yield DefaultPrivilege("", of_role, 0, 0, command.kind, 0, command.privileges)
        case Undo():
            for target in command.net or command.touched:
                net = command.net.get(target)
                if target.kind != "role" or (net is not None and net.old is None):
                    yield catalog.contents.value(*target)  # others are who joined another role
        case (
            object(schema=str(schema), table=str(name)) | object(schema=str(schema), view=str(name))
        ):
            yield catalog.relation(schema, name)
        case object(schema=str(schema), function=str(name)):
            yield catalog.function(schema, name)
        case object(schema=str(schema), index=str(name)):
            yield catalog.alive_index(schema, name)
        case object(index_id=int(index_id)):
            yield catalog.index(index_id)
        case object(cluster=str(name), replica=str(replica)):
            cluster = catalog.cluster(name)
            yield cluster and catalog.replica(cluster.id, replica)


def _keep_a_superuser(base: Catalog, transaction: CatalogTransaction) -> None:
    kinds = {change.kind for change in transaction.changes()}
    if not kinds & {"role", "system_configuration"}:
        return
    result = Catalog(base.version, base.time, transaction.contents)
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
