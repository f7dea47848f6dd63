"""The check of whether a user may make a change of the catalog.

The problem: there are dozens of commands and there will be more, and a command that forgot to check
would be a security hole. So commands do not check. Privileges are checked against what a batch
*changed*, after each command is planned and before the batch is appended. The needed privileges
follow from the change alone (kind, old, new).

What is wrong with a command may tell what the user may not see. So before a command is planned, the
user must reach the schemas that it names, be allowed to read the tables to which its foreign keys
refer, and be allowed to drop an object whose errors tell what else uses it. A user who may neither
read nor drop a schema, table, view or function is not told why a command on it failed, or that it
changes nothing: that would tell its definition.

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
What a renamed role owns keeps its owner under another name, which needs nothing more.

What must stay true: the check and the append see the same catalog; after a lost append the commands
are planned and checked again. A change of a kind without a rule needs a superuser. While privileges
are enforced there is a superuser: removing the last one is refused for every user.

Rejected: a check in each command (see above); a check of the result alone (it does not show who
owned a dropped object).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.constraints import AddConstraints
from strandline.catalog.commands.grants import GrantPrivileges, RevokePrivileges
from strandline.catalog.commands.indexes import MakeIndexAvailable, RemoveIndex, StartBuildingIndex
from strandline.catalog.commands.objects import CommentOn
from strandline.catalog.commands.roles import DropRole
from strandline.catalog.commands.schemas import AlterSchema, DropDatabase
from strandline.catalog.commands.views import CreateFunction, CreateView
from strandline.catalog.commands.zones import AlterZone, DropZone
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.declared_kinds import declared_kind
from strandline.catalog.kinds import find, kind_of, kind_of_object
from strandline.catalog.planning import Command
from strandline.catalog.privileges.access import Access, enforced
from strandline.catalog.privileges.rules import Case
from strandline.catalog.undo.command import Undo
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Entry
from strandline.errors import IllegalChange
from strandline.model.descriptors import SchemaDescriptor
from strandline.model.identifiers import QualifiedName
from strandline.model.privileges import Privilege

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
        """Refuse a command in a schema that the user does not reach, before it is planned.

        What is wrong with the command would tell the user what the schema contains, or what uses
        the object of the command. The entries so far are checked first, because they may give
        access to both. Raises what `finish` raises.
        """
        if self._is_free:
            return
        self._check_entries()
        catalog, parents = self._access.catalog, _parents_of(command)
        for schema in _schemas_of(catalog, command, parents):
            if schema is not None:
                self._access.require(Privilege.USAGE, schema)
        for parent in parents:
            table = catalog.relation(parent.schema, parent.name)
            if table is not None:
                self._access.require(Privilege.SELECT, table)
        for used in _used_objects(catalog, command):
            if used is not None:
                self._require_drop(used)

    def require_sight(self, command: Command) -> None:
        """Refuse to say that a command failed or changes nothing if that tells a definition.

        Raises `PermissionDenied` if the user may neither read nor drop one of its objects.
        """
        if self._is_free:
            return
        for subject in filter(None, _subjects_of(self._access.catalog, command)):
            if not self._access.allows(kind_of(subject).grantable & _READING, subject):
                self._require_drop(subject)

    def _require_drop(self, value: Any) -> None:  # Any: a descriptor of some kind
        rule = declared_kind(kind_of(value).name).rule
        if rule is not None:
            catalog = self._access.catalog
            rule(Case(self._access, catalog, catalog, catalog, value, None))

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


def _schemas_of(
    catalog: Catalog, command: Command, parents: Sequence[QualifiedName]
) -> Iterator[SchemaDescriptor | None]:
    """The schemas of a command, also those of the ``parents`` of its foreign keys."""
    schemas = [getattr(command, name, None) for name in ("schema", "new_schema")]
    yield from (catalog.schema(name) for name in schemas if isinstance(name, str))
    yield from (catalog.schema(parent.schema) for parent in parents)
    match command:
        case StartBuildingIndex() | MakeIndexAvailable() | RemoveIndex():
            if (index := catalog.index(command.index_id)) is not None:
                yield catalog.schema_by_id(index.schema_id)
        case GrantPrivileges() | RevokePrivileges() | CommentOn() if command.name:
            kind = kind_of_object(command.kind)
            if kind is not None and kind.in_schema:
                yield catalog.schema(QualifiedName.parse(command.name).schema)


def _parents_of(command: Command) -> list[QualifiedName]:
    """The tables to which foreign keys of the command refer."""
    constraints = command.constraints if isinstance(command, AddConstraints) else ()
    return [QualifiedName.parse(key.parent) for key in constraints if key.parent]


def _subjects_of(catalog: Catalog, command: Command) -> Iterator[Any]:  # descriptors, or None
    """The objects whose definition the refusal of a command may tell, as far as they are named."""
    schema = getattr(command, "schema", None)
    finders = {"table": catalog.relation, "view": catalog.relation, "function": catalog.function}
    for field, find_in in finders.items():
        name = getattr(command, field, None)
        if isinstance(schema, str) and isinstance(name, str):
            yield find_in(schema, name)
    match command:
        case CreateFunction(or_replace=True):
            yield catalog.function(command.schema, command.name)
        case CreateView(or_replace=True):
            yield catalog.view(command.schema, command.definition.name)
        case AlterSchema():
            yield catalog.schema(command.name, database=command.database)
        case CommentOn():
            kind = kind_of_object(command.kind)
            yield kind and find(catalog, kind, command.name)
        case Undo():
            kinds = ("table", "view", "function")
            changed = (target for target in command.net if target.kind in kinds)
            yield from (catalog.contents.value(*target) for target in changed)


def _used_objects(catalog: Catalog, command: Command) -> Iterator[Any]:  # descriptors, or None
    """The objects of a command whose errors tell what uses them, such as the tables of a zone."""
    match command:
        case DropRole(name=name):
            yield catalog.role(name)
        case AlterZone(name=name) | DropZone(name=name):
            yield catalog.zone_named(name)
        case DropDatabase(name=name):
            yield catalog.database(name)
        case Undo():
            for target, net in command.net.items():
                is_new_role = target.kind == "role" and net.old is None
                if is_new_role or target.kind in ("zone", "database"):
                    yield catalog.contents.value(*target)


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
