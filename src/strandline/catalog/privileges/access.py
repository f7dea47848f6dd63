"""Who may do what: the privileges that a user has by one catalog.

The problem: a privilege can come from ownership, from a grant to the user, to a role that the user
is a member of through others, or to everybody. The question "may bob read sales.orders?" must have
the same answer at every protocol and for every command, and a reason where the answer is no.

The model. A user is a name. The role of that name, if there is one, is the user's; with it the user
has every role that it is a member of, directly or through others, except beyond a role that does
not *inherit*. `PUBLIC` is in everybody's set. An object is **owned** by the user whose name stands
in it, and by the members of the role of that name. An owner and a superuser need no grant. Being a
superuser is a role's own: it does not come with a membership.

To reach a table, view or function one needs USAGE on its schema beside the privilege on the thing
itself, regardless of its owner; so taking USAGE away closes a schema at once.

Every user has all privileges that can be granted on what `public` owns (the schema ``default`` of a
new catalog); only a superuser may alter it. Every user may use, read and execute what the program
owns, and create nothing in it.

Access to an object in an older version is decided by the present: by the owner, grants and schema
that the object has now or, if it was dropped, had last. Roles are always those of the present. So
a privilege that was revoked is gone for older versions too, also after the object is dropped.

What must stay true: an `Access` reads one immutable catalog, so the decision and the change that it
allows see the same state. Nothing here depends on protocols.

Rejected: keeping each user's privileges ready (they change with every grant and every object, and
adding them up touches a handful of values); groups as clients claim them (without a proof).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.kinds import Kind, all_kinds, kind_of
from strandline.durable.collections import Collection
from strandline.durable.contents import Contents
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import PermissionDenied
from strandline.model.descriptors import SchemaDescriptor
from strandline.model.identifiers import normalize
from strandline.model.privileges import (
    PUBLIC,
    PUBLIC_NAME,
    RESERVED_NAMES,
    SYSTEM_NAME,
    DefaultPrivilege,
    Grant,
    Privilege,
    RoleDescriptor,
    SystemPrivilege,
    grants,
    privilege_names,
)
from strandline.wire.codecs import TEXT
from strandline.wire.registry import open_record
from strandline.wire.stored import AnyStored

Subject = Any
"""A descriptor of a kind that has an owner."""

_NONE = Privilege(0)
_ALL = ~_NONE
_STANDING = {
    PUBLIC_NAME: _ALL,
    SYSTEM_NAME: Privilege.USAGE | Privilege.SELECT | Privilege.EXECUTE,
}
"""What everybody may do with the things of these owners."""


_DECIDE_ROLES = ("role", "system_configuration")


def enforced(catalog: Catalog) -> bool:
    """Whether identities are judged at all by this catalog."""
    return ENFORCE_PRIVILEGES.required(catalog)


def effective_roles(catalog: Catalog, user: str) -> frozenset[int]:
    """The ids of the roles whose privileges ``user`` has: `PUBLIC`, its own, and inherited ones."""
    own = None if normalize(user) in RESERVED_NAMES else catalog.role(user)
    role_ids = {PUBLIC}
    to_follow = [] if own is None else [own]
    while to_follow:
        role = to_follow.pop()
        role_ids.add(role.id)
        if role.inherit:
            groups = (catalog.role_by_id(group) for group, _ in role.member_of)
            to_follow += [group for group in groups if group and group.id not in role_ids]
    return frozenset(role_ids)


def roles_above(catalog: Catalog, role: RoleDescriptor) -> frozenset[int]:
    """The ids of all that ``role`` is a member of, directly or through others, inherited or not."""
    role_ids: set[int] = set()
    to_follow = [role]
    while to_follow:
        for group, _ in to_follow.pop().member_of:
            above = catalog.role_by_id(group)
            if above is not None and group not in role_ids:
                role_ids.add(group)
                to_follow.append(above)
    return frozenset(role_ids)


class Access:
    """What ``user`` may do by ``catalog``. A value; asking it costs a few look-ups.

    ``user`` None is the program itself, or one that embeds it: it may do everything. ``then`` is
    where a thing of the past, which is no longer in ``catalog``, has its schema; ``history`` gives
    the versions between, in which it is looked for as it was last. Without it, it is as it was
    then.
    """

    def __init__(
        self,
        catalog: Catalog,
        user: str | None,
        *,
        then: Catalog | None = None,
        history: Callable[[int], Catalog] | None = None,
    ) -> None:
        self.catalog = catalog
        self.user = user
        self._then = then
        self._history = history
        self._dropped: dict[tuple[str, int], Any] = {}  # Any: a descriptor, as it was last

    def at(self, then: Catalog) -> Access:
        """The same, for things of ``then``."""
        if then is self.catalog:
            return self
        return Access(self.catalog, self.user, then=then, history=self._history)

    def by(self, newer: Catalog) -> Access:
        """The same user by a newer catalog; what roles alone decide is not worked out again."""
        access = Access(newer, self.user)
        if newer.contents.shares(_DECIDE_ROLES, self.catalog.contents):
            access.__dict__.update(free=self.free, roles=self.roles, names=self.names)
        return access

    @cached_property
    def free(self) -> bool:
        """Whether everything is allowed: no identity, nothing enforced, or a superuser."""
        return self.user is None or not enforced(self.catalog) or self._is_superuser(self.user)

    def _is_superuser(self, user: str) -> bool:
        own = None if normalize(user) in RESERVED_NAMES else self.catalog.role(user)
        return own is not None and own.superuser

    @cached_property
    def roles(self) -> frozenset[int]:
        return effective_roles(self.catalog, self.user or "")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names, normalized, by which the user owns objects: its own and those of its roles."""
        roles = (self.catalog.role_by_id(role) for role in self.roles)
        names = {normalize(self.user or ""), *(normalize(role.name) for role in roles if role)}
        return frozenset(names - RESERVED_NAMES - {""})

    # -- questions -----------------------------------------------------------------------------

    def owns(self, subject: Subject) -> bool:
        """Whether the user, or one of its roles, owns ``subject``. Superusers own everything."""
        return self.free or normalize(self._present(subject).owner) in self.names

    def privileges(self, subject: Subject | None) -> Privilege:
        """All that the user may do with ``subject``, its schema aside; None is the system."""
        if self.free:
            return _ALL
        if subject is None:
            return self._on_system
        present = self._present(subject)
        owner = normalize(present.owner)
        if owner in self.names:
            return _ALL
        allowed = _STANDING.get(owner, _NONE) & kind_of(present).grantable
        for grant in getattr(present, "privileges", ()):
            if grant.grantee in self.roles:
                allowed |= grant.privileges
        return allowed

    @cached_property
    def _on_system(self) -> Privilege:
        allowed = _NONE
        for stored in self.catalog.contents.objects("system_privilege"):
            grant: SystemPrivilege = stored.value
            if grant.grantee in self.roles:
                allowed |= grant.privileges
        return allowed

    def reaches(self, schema: SchemaDescriptor) -> bool:
        """Whether the user may know what is in ``schema``."""
        return Privilege.USAGE in self.privileges(schema)

    def allows(self, privilege: Privilege, subject: Subject | None) -> bool:
        """Whether the user has all of ``privilege`` on ``subject``, and reaches it."""
        try:
            self.require(privilege, subject)
        except PermissionDenied:
            return False
        return True

    # -- demands -------------------------------------------------------------------------------

    def require(self, privilege: Privilege, subject: Subject | None) -> None:
        """Raise `PermissionDenied` unless the user has all of ``privilege`` on ``subject``."""
        if self.free:
            return
        self._require_reach(subject)
        missing = privilege & ~self.privileges(subject)
        if missing:
            raise self._lacks(" and ".join(privilege_names(missing)), subject)

    def require_any(self, privileges: Privilege, subject: Subject) -> None:
        """Raise `PermissionDenied` unless the user has one of ``privileges`` on ``subject``.

        Where none of them can be granted on such a thing, its owner alone has them.
        """
        if self.free:
            return
        privileges &= kind_of(subject).grantable
        if not privileges:
            self.require_ownership(subject)
            return
        self._require_reach(subject)
        if not privileges & self.privileges(subject):
            raise self._lacks(" or ".join(privilege_names(privileges)), subject)

    def require_ownership(self, subject: Subject) -> None:
        """Raise `PermissionDenied` unless the user owns ``subject``, and reaches it."""
        if self.free:
            return
        self._require_reach(subject)
        if not self.owns(subject):
            raise PermissionDenied(
                f"user {self.user} does not own {self.describe(subject)}, and only its owner may "
                f"do this; ask {self._keeper(subject)}"
            )

    def require_superuser(self, what: str) -> None:
        """Raise `PermissionDenied` unless the user is a superuser; ``what`` is what it wants."""
        if not self.free:
            raise PermissionDenied(
                f"user {self.user} is no superuser, and only superusers may {what}"
            )

    def require_owner(self, owner: str, what: str) -> None:
        """Raise `PermissionDenied` if the user cannot make ``owner`` the owner of ``what``."""
        if not self.free and owner and normalize(owner) not in self.names:
            raise PermissionDenied(
                f"user {self.user} cannot make {owner} the owner of {what}: the owner must be "
                f"{self.user} or a role that {self.user} is a member of; ask a superuser"
            )

    # -- within --------------------------------------------------------------------------------

    def _present(self, subject: Subject) -> Any:  # Any: of the same class as the subject
        kind = kind_of(subject).name
        return self.catalog.get(kind, subject.id) or self._last(kind, subject)

    def _last(self, kind: str, subject: Subject) -> Any:  # Any: of the same class as the subject
        """A dropped thing as it was last. Looks at each version since: it may have come back."""
        if self._then is None or self._history is None:
            return subject
        key = kind, subject.id
        if key not in self._dropped:
            versions = range(self.catalog.version - 1, self._then.version, -1)
            states = (self._history(version).get(kind, subject.id) for version in versions)
            self._dropped[key] = next((state for state in states if state is not None), subject)
        return self._dropped[key]

    def schema_of(self, subject: Subject) -> SchemaDescriptor | None:
        """The schema in which the thing stands."""
        schema_id = self._present(subject).schema_id
        schema = self.catalog.schema_by_id(schema_id)
        if schema is None and self._then is not None:
            schema = self._then.schema_by_id(schema_id)
        return schema

    def _require_reach(self, subject: Subject | None) -> None:
        if subject is None or not kind_of(subject).in_schema:
            return
        schema = self.schema_of(subject)
        if schema is None:
            self.require_superuser(f"reach {self.describe(subject)}, whose schema is gone")
        elif not self.reaches(schema):
            raise self._lacks("USAGE", schema, purpose=f" to reach {self.describe(subject)}")

    def describe(self, subject: Subject | None) -> str:
        """``table sales.orders``, as messages name it."""
        if subject is None:
            return "the system"
        kind = kind_of(subject)
        if kind.in_schema:
            schema = self.schema_of(subject)
            return f"{kind.spoken} {schema.name if schema else '?'}.{subject.name}"
        return f"{kind.spoken} {subject.name}"

    def _keeper(self, subject: Subject | None) -> str:
        """Who can help, as the subject of a sentence."""
        owner = "" if subject is None else self._present(subject).owner
        if not owner or normalize(owner) in RESERVED_NAMES:
            return "a superuser"
        return f"{owner} or a superuser"

    def _lacks(
        self, privileges: str, subject: Subject | None, *, purpose: str = ""
    ) -> PermissionDenied:
        return PermissionDenied(
            f"user {self.user} lacks {privileges} on {self.describe(subject)}{purpose}; "
            f"{self._keeper(subject)} can grant it"
        )


# -- what a user owns ------------------------------------------------------------------------------


def owned_kinds() -> Iterator[Kind]:
    """The kinds of objects that have an owner."""
    for kind in all_kinds():
        if "owner" in kind.collection.of.__dataclass_fields__ and kind.collection.has_id:
            yield kind


def owned_by(contents: Contents, name: str) -> Iterator[tuple[str, AnyStored]]:
    """The kind and the object of everything that the user or role ``name`` owns.

    Objects name their owners, so a user needs no role to own objects. There is no index by owner:
    only dropping, renaming and creating a role need it, which is rare. They read the owner of every
    object, and decode none: it stands in the record right behind id, parent and name.
    """
    wanted = normalize(name)
    for kind in owned_kinds():
        for stored in contents.objects(kind.name):
            if normalize(owner_of(kind.collection, stored)) == wanted:
                yield kind.name, stored


def owner_of(kind: Collection, stored: AnyStored) -> str:
    """The owner in the record of an object."""
    _, reader = open_record(stored.data)
    reader.uint()
    reader.uint()
    TEXT.read(reader)
    if kind.group is not None:
        reader.uint()
    return TEXT.read(reader)


# -- what a new object begins with -----------------------------------------------------------------


def with_default_privileges(catalog: Catalog, value: Any) -> Any:  # Any: a descriptor of some kind
    """``value``, about to be made in ``catalog``, with the grants that apply to it.

    A default privilege says that a grantee may do something on all objects of a kind that a role
    (or any role) makes from then on, in one schema, in one database or anywhere. The owner of an
    object makes it. Several apply together; what was made before is not touched.
    """
    kind = kind_of(value)
    if not kind.grantable or not catalog.contents.count("default_privilege"):
        return value
    schema_id, database_id = _place(catalog, value)
    owner = catalog.role(value.owner) if value.owner else None
    grantor = 0 if owner is None else owner.id
    applying = []
    for stored in catalog.contents.objects("default_privilege"):
        default: DefaultPrivilege = stored.value
        if (
            default.object_kind is kind.object_kind
            and default.role in (0, grantor)
            and default.schema in (0, schema_id)
            and default.database in (0, database_id)
        ):
            applying.append(Grant(default.grantee, grantor, default.privileges))
    return replace(value, privileges=grants([*value.privileges, *applying])) if applying else value


def _place(catalog: Catalog, value: Any) -> tuple[int, int]:  # Any: a descriptor of some kind
    """The ids of the schema and of the database that ``value`` stands in; 0 where there is none."""
    schema_id = getattr(value, "schema_id", 0)
    schema = catalog.schema_by_id(schema_id) if schema_id else None
    database_id = schema.database_id if schema else getattr(value, "database_id", 0)
    return schema_id, database_id


def drop_default_privileges(
    transaction: CatalogTransaction, *, role: int = 0, schema: int = 0, database: int = 0
) -> None:
    """Remove all that name what is being dropped, by its id; inside an entry."""
    for stored in list(transaction.contents.objects("default_privilege")):
        default: DefaultPrivilege = stored.value
        if (
            (role and role in (default.role, default.grantee))
            or (schema and schema == default.schema)
            or (database and database == default.database)
        ):
            transaction.delete("default_privilege", default.name)
