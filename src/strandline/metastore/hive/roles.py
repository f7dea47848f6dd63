"""Methods about roles, their members, and the privileges of both, in Hive's terms.

The problem: Hive and Strandline divide principals differently. Hive has users, who exist without
being created, and roles. Here a role is both: a user connects under the name of a role, and what is
granted to a user is granted to that role.

The model. A principal of type USER or ROLE is the role of that name, or ``public``. Answers call
each member and grantee a ROLE, unless the request names its type. Hive's role ``admin`` is the set
of superusers, unless the catalog has a role of that name.

| Hive's object | here | privileges |
| --- | --- | --- |
| DATABASE | the schema | CREATE, USAGE |
| TABLE | the table or view | SELECT, INSERT, UPDATE, DELETE; of a view: SELECT |

``ALL`` stands for all privileges of the object. As everywhere here, a user also needs USAGE on the
schema of a table. The changes are those of a session: they are checked against what the user of the
request may do, and one request makes one version.

What cannot be mapped is refused by a message that says what to do instead: grants on the whole
metastore, on partitions and columns; Hive's other privileges; groups, which a client claims without
proof; grant options, because only the owner of an object grants privileges on it; grants to a user
without a role, because the creator of that role would own what the user creates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline import work
from strandline.catalog import Catalog, Command
from strandline.catalog.catalog import is_shown
from strandline.catalog.commands import (
    CreateRole,
    DropRole,
    GrantPrivileges,
    GrantRole,
    RevokePrivileges,
    RevokeRole,
)
from strandline.catalog.kinds import kind_of
from strandline.catalog.privileges.access import effective_roles
from strandline.clock import milliseconds
from strandline.errors import InvalidInput, ObjectNotFound, StrandlineError, UnsupportedOperation
from strandline.metastore.hive.names import present_schema, principal_type
from strandline.metastore.hive.registry import Call, changes, meta_exception, reads
from strandline.metastore.hive.storage_descriptors import Struct, int32
from strandline.metastore.off_loop import off_loop, off_loop_for
from strandline.model.descriptors import PrincipalType, SchemaDescriptor
from strandline.model.identifiers import normalize
from strandline.model.privileges import (
    PUBLIC,
    PUBLIC_NAME,
    Grant,
    Membership,
    ObjectKind,
    Privilege,
    RoleDescriptor,
    privilege_names,
)
from strandline.wire.stored import NEVER_UPDATED

ADMIN = "admin"
_ALL = "ALL"
_SCHEMA, _TABLE = 2, 3
_OBJECT_TYPES = {1: "the metastore", 4: "a partition", 5: "a column", 6: "a data connector"}
_GRANT, _REVOKE = 1, 2
_REQUEST_TYPES = {
    "grant_role": _GRANT,
    "revoke_role": _REVOKE,
    "grant_privileges": _GRANT,
    "revoke_privileges": _REVOKE,
}
"""The types of methods whose requests do not name one."""

Subject = Any
"""The descriptor of a schema, table or view."""


# -- principals


def _principal(call: Call, name: str, number: int | None) -> str:
    """Return the role of a principal that is to be changed. Raises `UnsupportedOperation`."""
    kind = principal_type(number)
    if kind is PrincipalType.GROUP:
        raise UnsupportedOperation(
            f"a group such as {name} has no privileges here, because clients claim their groups "
            "without proof; create a role for the group and grant it to the group's members"
        )
    if normalize(name) != PUBLIC_NAME and call.reader.catalog.role(name) is None:
        raise ObjectNotFound(
            f"role {name} does not exist; a user, too, needs a role of its name before something "
            f"can be granted to it: CREATE ROLE {name}"
        )
    return name


def _refuse_option(option: object, what: str) -> None:
    if option:
        raise UnsupportedOperation(
            f"{what} with a grant option does not exist here: only the owner grants; "
            "grant without the option, or make the grantee the owner"
        )


# -- roles


@reads("get_role_names")
async def get_role_names(call: Call) -> list[str]:
    await off_loop_for(call.reader.catalog.contents.count("role"))
    names = {role.name for role in call.reader.catalog.roles()}
    return sorted(names | {ADMIN, PUBLIC_NAME})


@changes("create_role")
async def create_role(call: Call) -> bool:
    role = call.struct("role")
    name = role.get("roleName") or ""
    if normalize(name) == ADMIN:
        raise meta_exception(
            "role admin exists already: it contains the superusers, whom "
            "`strandline role alter` makes"
        )
    call.execute(CreateRole(name=name, owner=call.owner(role.get("ownerName"))))
    return True


@changes("drop_role")
async def drop_role(call: Call) -> bool:
    """Drop the role. As in Hive, it need not exist."""
    name = call.text("role_name")
    role = call.reader.catalog.role(name)
    if role is None and normalize(name) in (PUBLIC_NAME, ADMIN):
        raise meta_exception("public,admin roles can't be dropped.")
    call.execute(DropRole(name=name, if_exists=True))
    return True


@changes("grant_role", "revoke_role", "grant_revoke_role")
async def grant_or_revoke_role(call: Call) -> bool:
    call.execute(_membership(call, _request_type(call)))
    return True


def _request_type(call: Call) -> int:
    kind = _REQUEST_TYPES.get(call.method.name, call.args.get("requestType"))
    if kind not in (_GRANT, _REVOKE):
        raise InvalidInput(f"the request type is {kind}; send 1 to grant or 2 to revoke")
    return int(kind)


def _membership(call: Call, kind: int) -> Command:
    name = call.text("role_name")
    _refuse_option(call.args.get("grant_option"), "a membership")
    if normalize(name) in (PUBLIC_NAME, ADMIN) and call.reader.catalog.role(name) is None:
        raise UnsupportedOperation(
            f"the members of {name} cannot be changed: every user is in public, and the superusers "
            "are in admin; `strandline role alter` makes superusers"
        )
    member, number = call.text("principal_name"), call.args.get("principal_type")
    principal = _principal(call, member, number)
    if kind == _GRANT:
        return GrantRole(role=name, member=principal)
    return RevokeRole(role=name, member=principal)


_UNGRANTED = Membership(PUBLIC, grantor=0)
"""The membership in `public` and `admin`, which exists without a grant."""


def _roles_of(call: Call, name: str, number: int | None) -> list[tuple[str, Membership]]:
    """Return the names of the roles that a principal is directly in, with its memberships."""
    catalog, kind = call.reader.catalog, principal_type(number)
    role = None if kind is PrincipalType.GROUP else catalog.role(name)
    groups = () if role is None else role.member_of
    named_memberships = [(catalog.role_name(membership.group), membership) for membership in groups]
    listed = [(group, membership) for group, membership in named_memberships if group is not None]
    if role is not None and role.superuser and catalog.role(ADMIN) is None:
        listed.append((ADMIN, _UNGRANTED))
    return listed + ([(PUBLIC_NAME, _UNGRANTED)] if kind is PrincipalType.USER else [])


@reads("list_roles")
async def list_roles(call: Call) -> list[Struct]:
    await off_loop_for(call.reader.catalog.contents.count("role"))
    listed = _roles_of(call, call.text("principal_name"), call.args.get("principal_type"))
    return [_role_struct(call.reader.catalog, name) for name, _ in listed]


def _role_struct(catalog: Catalog, name: str) -> Struct:
    role = catalog.role(name)
    if role is None:
        return {"roleName": name, "createTime": 0, "ownerName": name}
    # Releases before 0.6.0 did not store when a role was created.
    created = role.created or milliseconds(catalog.updated(role) or NEVER_UPDATED) // 1000
    return {"roleName": role.name, "createTime": int32(created), "ownerName": role.owner}


@reads("get_role_grants_for_principal")
async def get_role_grants_for_principal(call: Call) -> Struct:
    await off_loop_for(call.reader.catalog.contents.count("role"))
    name, number = call.text("principal_name"), call.args.get("principal_type")
    kind = principal_type(number) or PrincipalType.ROLE
    grants = [
        _role_grant(call.reader.catalog, role, name, kind, membership)
        for role, membership in _roles_of(call, name, number)
    ]
    return {"principalGrants": grants}


@reads("get_principals_in_role")
async def get_principals_in_role(call: Call) -> Struct:
    catalog, name = call.reader.catalog, call.text("role_name")
    await off_loop_for(catalog.contents.count("role"))
    members = _members(catalog, catalog.role(name), name)
    grants = [
        _role_grant(catalog, name, member.name, PrincipalType.ROLE, membership)
        for member, membership in members
    ]
    return {"principalGrants": grants}


def _members(
    catalog: Catalog, role: RoleDescriptor | None, name: str
) -> Iterator[tuple[RoleDescriptor, Membership]]:
    """The direct members of a role, with their memberships. All are in ``public``."""
    for member in catalog.roles():
        if role is None and normalize(name) == ADMIN and member.superuser:
            yield member, _UNGRANTED
        for membership in member.member_of:
            if role is not None and membership.group == role.id:
                yield member, membership


def _role_grant(
    catalog: Catalog, role: str, principal: str, kind: PrincipalType, membership: Membership
) -> Struct:
    return {
        "roleName": role,
        "principalName": principal,
        "principalType": kind.value,
        "grantOption": False,
        "grantTime": int32(membership.granted),
        **_grantor(catalog, membership.grantor, "grantorName", "grantorPrincipalType"),
    }


def _grantor(catalog: Catalog, grantor: int, name: str, kind: str) -> Struct:
    """The fields that name who granted something; none if it was a user without a role."""
    role = catalog.role_by_id(grantor) if grantor else None
    return {} if role is None else {name: role.name, kind: PrincipalType.USER.value}


# -- privileges


@changes("grant_privileges", "revoke_privileges", "grant_revoke_privileges")
async def grant_or_revoke_privileges(call: Call) -> bool:
    kind, bag = _request_type(call), call.struct("privileges")
    _refuse_option(call.args.get("revokeGrantOption"), "a privilege")
    call.execute(*_privilege_commands(call, kind, bag))
    return True


def _privilege_commands(call: Call, kind: int, bag: Struct) -> Iterator[Command]:
    for sent in bag.get("privileges") or ():
        if not sent.get("hiveObject") or not sent.get("grantInfo"):
            raise InvalidInput("a privilege is incomplete; send its hiveObject and its grantInfo")
        info = sent["grantInfo"]
        _refuse_option(kind == _GRANT and info.get("grantOption"), "a privilege")
        object_kind, name, subject = _object(call, sent["hiveObject"])
        principal = _principal(call, sent.get("principalName") or "", sent.get("principalType"))
        privilege = _privilege(info.get("privilege") or "", subject)
        command = GrantPrivileges if kind == _GRANT else RevokePrivileges
        yield command(kind=object_kind, name=name, privileges=privilege, grantee=principal)


def _object(call: Call, reference: Struct) -> tuple[ObjectKind, str, Subject]:
    """Return kind, name and descriptor of the object of a privilege that is to be changed."""
    number = reference.get("objectType")
    if number not in (_SCHEMA, _TABLE):
        what = _OBJECT_TYPES.get(number or 0, f"an object of type {number}")
        raise UnsupportedOperation(
            f"privileges cannot be granted on {what} here; grant them on tables, views and "
            "databases"
        )
    schema_name = present_schema(reference.get("dbName") or "")
    schema = call.reader.schema(call.reader.present, schema_name)
    if schema is None:
        raise ObjectNotFound(f"database {schema_name} does not exist")
    if number == _SCHEMA:
        return ObjectKind.SCHEMA, schema.name, schema
    name = reference.get("objectName") or ""
    relation = call.reader.catalog.relation_in(schema.id, name)
    if relation is None:
        raise ObjectNotFound(f"{schema.name}.{name} table not found")
    kind = kind_of(relation).object_kind
    assert kind is not None  # tables and views have one
    return kind, f"{schema.name}.{relation.name}", relation


def _privilege(text: str, subject: Subject) -> Privilege:
    grantable = kind_of(subject).grantable
    if text.upper() == _ALL:
        return grantable
    if text.upper() not in privilege_names(grantable):
        known = ", ".join([*privilege_names(grantable), _ALL])
        raise UnsupportedOperation(
            f"the privilege {text[:40]} does not exist on a {kind_of(subject).spoken}; its "
            f"privileges are: {known}"
        )
    return Privilege[text.upper()]


@reads("get_privilege_set")
async def get_privilege_set(call: Call) -> Struct:
    """What a user has on an object itself, and by each of its roles; groups have nothing."""
    catalog, user = call.reader.catalog, call.args.get("user_name")
    await off_loop_for(catalog.contents.count("role"))
    reference, groups = call.struct("hiveObject"), call.args.get("group_names") or ()
    subject = _readable(call, reference)
    answer: Struct = {"groupPrivileges": {group: [] for group in groups}} if groups else {}
    if user is None:
        return answer
    own_role = catalog.role(user)
    role_ids = effective_roles(catalog, user) - ({own_role.id} if own_role is not None else set())
    names = {role_id: catalog.role_name(role_id) for role_id in sorted(role_ids)}
    return {
        "userPrivileges": {user: _held(catalog, subject, user, own_role.id if own_role else None)},
        **answer,
        "rolePrivileges": {
            name: _held(catalog, subject, name, role_id)
            for role_id, name in names.items()
            if name is not None
        },
    }


def _held(catalog: Catalog, subject: Subject, name: str, role_id: int | None) -> list[Struct]:
    """The privileges that a role has on an object as its owner, or else by grants."""
    if subject is None:
        return []
    if normalize(subject.owner) == normalize(name):
        owner = {"grantor": subject.owner, "grantorType": PrincipalType.USER.value}
        names = privilege_names(kind_of(subject).grantable)
        return [
            {"privilege": text, "createTime": 0, **owner, "grantOption": True} for text in names
        ]
    granted = (grant for grant in subject.privileges if grant.grantee == role_id)
    return [info for grant in granted for info in _infos(catalog, grant)]


def _infos(catalog: Catalog, grant: Grant) -> Iterator[Struct]:
    for text in privilege_names(grant.privileges):
        yield {
            "privilege": text,
            "createTime": int32(grant.granted),
            **_grantor(catalog, grant.grantor, "grantor", "grantorType"),
            "grantOption": False,
        }


def _readable(call: Call, reference: Struct) -> Subject | None:
    """Return the object if it exists, can have grants and the user may know of it, else None."""
    if reference.get("objectType") not in (_SCHEMA, _TABLE):
        return None
    try:
        return _object(call, reference)[2]
    except StrandlineError:  # a missing object and one out of reach have the same answer
        return None


@reads("list_privileges")
async def list_privileges(call: Call) -> list[Struct]:
    """The grants to a principal, or to all, on an object, or on all tables, views and schemas."""
    catalog, name = call.reader.catalog, call.args.get("principal_name")
    kind, reference = principal_type(call.args.get("principal_type")), call.args.get("hiveObject")
    if kind is PrincipalType.GROUP:
        return []
    grantee = PUBLIC
    if name is not None and normalize(name) != PUBLIC_NAME:
        role = catalog.role(name)
        if role is None:
            return []
        grantee = role.id
    if reference is None or reference.get("objectType") is None:
        await off_loop()
        subjects: Iterable[Subject] = _subjects(call, None if name is None else grantee)
    else:
        subject = _readable(call, reference)
        subjects = [] if subject is None else [subject]
    return [
        {
            "hiveObject": _reference(catalog, subject),
            "principalName": grantee_name,
            "principalType": (kind or PrincipalType.ROLE).value,
            "grantInfo": info,
        }
        for subject in subjects
        for grant in subject.privileges
        if name is None or grant.grantee == grantee
        if (grantee_name := catalog.role_name(grant.grantee)) is not None
        for info in _infos(catalog, grant)
    ]


def _subjects(call: Call, grantee: int | None) -> Iterator[Subject]:
    """All schemas that the user reaches, and their tables and views.

    With a ``grantee``, tables and views without a grant to it may be left out.
    """
    catalog = call.reader.catalog
    for schema in work.spending(catalog.schemas()):
        if not is_shown(schema) or not call.reader.access.reaches(schema):
            continue
        yield schema
        work.spend(len(catalog.relation_names(schema.name)))
        yield from catalog.relations_of(schema.id, granted_to=grantee)


def _reference(catalog: Catalog, subject: Subject) -> Struct:
    if isinstance(subject, SchemaDescriptor):
        return {"objectType": _SCHEMA, "dbName": subject.name.lower()}
    schema = catalog.schema_by_id(subject.schema_id)
    assert schema is not None  # of the same catalog
    names = {"dbName": schema.name.lower(), "objectName": subject.name.lower()}
    return {"objectType": _TABLE, **names}
