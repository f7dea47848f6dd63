"""Access control: the privileges that a user has in one catalog.

The problem: a user can have a privilege by ownership, by a grant to the user, to a role of which
the user is a direct or indirect member, or to everybody. The question "may bob read sales.orders?"
must have the same answer in every protocol and for every command, and a reason if the answer is no.

The model. A user is a name. If a role of that name exists, it is the user's role. The user then
also has every role of which that role is a member, directly or through others, except those beyond
a role that does not *inherit*. Everybody has the role `PUBLIC`. An object is **owned** by the user
whose name is in its owner field, and by the members of the role of that name. An owner and a
superuser need no grant. The superuser attribute is not inherited through membership.

Access to a table, view or function requires USAGE on its schema in addition to the privilege on the
object itself, even for its owner. So revoking USAGE closes a schema at once.

Every user has all grantable privileges on what `public` owns (the schema ``default`` of a new
catalog); only a superuser may alter it. Every user may use, read and execute what the program owns,
and create nothing in it.

Access to an object in an older version is decided by the present: by the object's present owner,
grants and schema or, if it was dropped, by the last ones. Roles are always those of the present. So
a revoked privilege is gone for older versions too, also after the object is dropped.

What must stay true: an `Access` reads one immutable catalog, so the decision and the change that it
allows see the same state. Nothing here depends on protocols.

Rejected: storing the privileges of each user (they change with every grant and every object, and
computing them reads only a few values); groups that clients claim (there is no proof).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.kinds import Kind, all_kinds, kind_of
from strandline.durable.collections import Collection, id_key
from strandline.durable.contents import Contents, Objects
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
"""The privileges of every user on the objects of these owners."""


_VERSIONS_PER_UNIT, _STEPS_PER_UNIT = 5, 50
"""The versions that are searched for a dropped object for one unit of `strandline.work`: for the
first object of a request, and for the others."""
_DECIDE_ROLES = ("role", "system_configuration")


def enforced(catalog: Catalog) -> bool:
    """Whether this catalog enforces privileges."""
    return ENFORCE_PRIVILEGES.required(catalog)


def effective_roles(catalog: Catalog, user: str) -> frozenset[int]:
    """The ids of the roles whose privileges ``user`` has: `PUBLIC`, its own, and inherited ones."""
    own_role = None if normalize(user) in RESERVED_NAMES else catalog.role(user)
    role_ids = {PUBLIC}
    to_follow = [] if own_role is None else [own_role]
    while to_follow:
        role = to_follow.pop()
        role_ids.add(role.id)
        if role.inherit:
            groups = (catalog.role_by_id(joined.group) for joined in role.member_of)
            to_follow += [group for group in groups if group and group.id not in role_ids]
    return frozenset(role_ids)


def roles_above(catalog: Catalog, role: RoleDescriptor) -> frozenset[int]:
    """The ids of all roles of which ``role`` is a direct or indirect member, inherited or not."""
    role_ids: set[int] = set()
    to_follow = [role]
    while to_follow:
        for joined in to_follow.pop().member_of:
            above = catalog.role_by_id(joined.group)
            if above is not None and above.id not in role_ids:
                role_ids.add(above.id)
                to_follow.append(above)
    return frozenset(role_ids)


class Access:
    """The privileges of ``user`` in ``catalog``. Each question costs a few lookups.

    ``user`` None is the program itself, or a program that embeds it: it may do everything.
    ``older`` is the older catalog of an object that may no longer be in ``catalog``. ``history``
    returns the versions between, in which the last state of a dropped object is found; without it,
    access is decided by its state in ``older``.
    """

    def __init__(
        self,
        catalog: Catalog,
        user: str | None,
        *,
        older: Catalog | None = None,
        history: Callable[[int], Catalog] | None = None,
    ) -> None:
        self.catalog = catalog
        self.user = user
        self._older = older
        self._history = history
        self._dropped: dict[tuple[str, int], Any] = {}  # Any: a descriptor, as it was last
        self._walked: dict[str, list[tuple[Catalog, Objects]]] = {}  # by kind; see `_walk`
        self._in_the_past: Access | None = None

    def at(self, older: Catalog) -> Access:
        """The same access, for objects of the older catalog ``older``."""
        if older is self.catalog:
            return self
        past = self._in_the_past
        if past is None or past._older is not older:
            past = Access(self.catalog, self.user, older=older, history=self._history)
            self._in_the_past = past
        return past

    def by(self, newer: Catalog) -> Access:
        """The same user in a newer catalog. Reuses what roles alone decide if these are equal."""
        access = Access(newer, self.user)
        if newer.contents.shares(_DECIDE_ROLES, self.catalog.contents):
            access.__dict__.update(free=self.free, roles=self.roles, names=self.names)
        return access

    @cached_property
    def free(self) -> bool:
        """Whether everything is allowed: no identity, no enforcement, or a superuser."""
        return self.user is None or not enforced(self.catalog) or self._is_superuser(self.user)

    def _is_superuser(self, user: str) -> bool:
        own_role = None if normalize(user) in RESERVED_NAMES else self.catalog.role(user)
        return own_role is not None and own_role.superuser

    @cached_property
    def roles(self) -> frozenset[int]:
        return effective_roles(self.catalog, self.user or "")

    @cached_property
    def names(self) -> frozenset[str]:
        """The normalized names by which the user owns objects: its own and those of its roles."""
        roles = (self.catalog.role_by_id(role) for role in self.roles)
        names = {normalize(self.user or ""), *(normalize(role.name) for role in roles if role)}
        return frozenset(names - RESERVED_NAMES - {""})

    # -- questions -----------------------------------------------------------------------------

    def owns(self, subject: Subject) -> bool:
        """Whether the user, or one of its roles, owns ``subject``. Superusers own everything."""
        return self.free or normalize(self._present(subject).owner) in self.names

    def privileges(self, subject: Subject | None) -> Privilege:
        """All privileges on ``subject`` (None: the system), without regard to its schema."""
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

    # -- requirements --------------------------------------------------------------------------

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

        If none of them can be granted on such an object, only its owner has them.
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
        """Raise `PermissionDenied`, naming the action ``what``, unless the user is a superuser."""
        if not self.free:
            raise PermissionDenied(
                f"user {self.user} is not a superuser, and only superusers may {what}"
            )

    def require_owner(self, owner: str, what: str) -> None:
        """Raise `PermissionDenied` if the user cannot make ``owner`` the owner of ``what``."""
        if not self.free and owner and normalize(owner) not in self.names:
            raise PermissionDenied(
                f"user {self.user} cannot make {owner} the owner of {what}: the owner must be "
                f"{self.user} or a role that {self.user} is a member of; ask a superuser"
            )

    # -- internals -----------------------------------------------------------------------------

    def _present(self, subject: Subject) -> Any:  # Any: of the same class as the subject
        kind = kind_of(subject).name
        return self.catalog.get(kind, subject.id) or self._last(kind, subject)

    def _last(self, kind: str, subject: Subject) -> Any:  # Any: of the same class as the subject
        """The last state of a dropped object. Searches every version: it may have come back."""
        if self._older is None or self._history is None:
            return subject
        key = kind, subject.id
        if key not in self._dropped:
            record_key, last = id_key(subject.id), self._older
            for catalog, objects in self._walk(kind):
                if record_key in objects:
                    last = catalog
                    break
            self._dropped[key] = self._owned_now(last, last.get(kind, subject.id) or subject)
        return self._dropped[key]

    def _walk(self, kind: str) -> Iterator[tuple[Catalog, Objects]]:
        """The catalogs between, newest first, each with its objects of ``kind``.

        The objects of a request are searched one by one: each version is looked up once for all.
        """
        assert self._older is not None  # the caller has checked both
        assert self._history is not None
        walked = self._walked.setdefault(kind, [])
        for number, step in enumerate(walked):
            if not number % _STEPS_PER_UNIT:
                work.spend(1)
            yield step
        while (version := self.catalog.version - 1 - len(walked)) > self._older.version:
            if not version % _VERSIONS_PER_UNIT:
                work.spend(1)
            catalog = self._history(version)
            walked.append((catalog, catalog.contents.all_of(kind)))
            yield walked[-1]

    def _owned_now(self, last: Catalog, dropped: Any) -> Any:  # Any: a descriptor
        """The dropped object with the present name of the role or user that owned it in ``last``.

        Another role may have the former name by now. Its members do not own the object.
        """
        role, namesake = last.role(dropped.owner), self.catalog.role(dropped.owner)
        if role is None:  # the owner was a user without a role
            is_owner = normalize(self.user or "") == normalize(dropped.owner)
            return dropped if namesake is None or is_owner else replace(dropped, owner="")
        now = self.catalog.role_by_id(role.id)
        return replace(dropped, owner="" if now is None else now.name)

    def schema_of(self, subject: Subject) -> SchemaDescriptor | None:
        """The schema that contains the object, or None."""
        schema_id = self._present(subject).schema_id
        schema = self.catalog.schema_by_id(schema_id)
        if schema is None and self._older is not None:
            schema = self._older.schema_by_id(schema_id)
        return schema

    def _require_reach(self, subject: Subject | None) -> None:
        if subject is None or not kind_of(subject).in_schema:
            return
        schema = self.schema_of(subject)
        if schema is None:
            self.require_superuser(f"reach {self.describe(subject)}, whose schema no longer exists")
        elif not self.reaches(schema):
            raise self._lacks("USAGE", schema, purpose=f" to reach {self.describe(subject)}")

    def describe(self, subject: Subject | None) -> str:
        """The kind and name of the object for messages: ``table sales.orders``."""
        if subject is None:
            return "the system"
        kind = kind_of(subject)
        if kind.in_schema:
            schema = self.schema_of(subject)
            return f"{kind.spoken} {schema.name if schema else '?'}.{subject.name}"
        return f"{kind.spoken} {subject.name}"

    def _keeper(self, subject: Subject | None) -> str:
        """Who can grant access, as the subject of a sentence."""
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


# -- ownership -------------------------------------------------------------------------------------


def owned_kinds() -> Iterator[Kind]:
    """The kinds of objects that have an owner."""
    for kind in all_kinds():
        if "owner" in kind.collection.of.__dataclass_fields__:
            yield kind


def owned_by(contents: Contents, name: str) -> Iterator[tuple[str, AnyStored]]:
    """The kind and record of every object that the user or role ``name`` owns.

    Objects store the name of their owner, so a user needs no role to own objects. There is no index
    by owner, because only dropping, renaming and creating a role need it, which is rare. The search
    reads the owner of every object without decoding the object: in the record, the owner comes
    directly after id, parent, name and group.
    """
    normalized_name = normalize(name)
    for kind in owned_kinds():
        for stored in contents.objects(kind.name):
            if normalize(owner_of(kind.collection, stored)) == normalized_name:
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


# -- default privileges ----------------------------------------------------------------------------


# Any: a descriptor of some kind
def with_default_privileges(catalog: Catalog, value: Any, *, granted: int) -> Any:
    """Return ``value``, which is about to be created in ``catalog``, with its default privileges.

    ``granted`` is the time of their grants.
    A default privilege gives a grantee a privilege on all objects of a kind that a role (or any
    role) creates from then on, in one schema, in one database or anywhere. The creator of an object
    is its owner. Several default privileges can apply together. Existing objects are not changed.
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
            applying.append(Grant(default.grantee, grantor, default.privileges, granted))
    return replace(value, privileges=grants([*value.privileges, *applying])) if applying else value


def _place(catalog: Catalog, value: Any) -> tuple[int, int]:  # Any: a descriptor of some kind
    """The ids of the schema and the database that contain ``value``; 0 for none."""
    schema_id = getattr(value, "schema_id", 0)
    schema = catalog.schema_by_id(schema_id) if schema_id else None
    database_id = schema.database_id if schema else getattr(value, "database_id", 0)
    return schema_id, database_id


def drop_default_privileges(
    transaction: CatalogTransaction, *, role: int = 0, schema: int = 0, database: int = 0
) -> None:
    """Remove all default privileges that name an object being dropped; call it inside an entry."""
    for stored in list(transaction.contents.objects("default_privilege")):
        default: DefaultPrivilege = stored.value
        if (
            (role and role in (default.role, default.grantee))
            or (schema and schema == default.schema)
            or (database and database == default.database)
        ):
            transaction.delete("default_privilege", default.name)
