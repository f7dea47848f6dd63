"""The privilege rules: what a user needs to change an object of each kind.

A rule gets one `Case` and raises `PermissionDenied` if the user may not make the change. The
declarations of the kinds name the rules. `strandline.catalog.privileges.check` calls them, and
has the table of what each change needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.catalog.catalog import DEFAULT_ZONE_CONFIG, Catalog
from strandline.catalog.configuration import ENFORCE_PRIVILEGES
from strandline.catalog.kinds import spoken
from strandline.catalog.privileges.access import Access, owned_by
from strandline.durable.transaction import OBJECT_IDS
from strandline.model.descriptors import TableDescriptor
from strandline.model.identifiers import normalize
from strandline.model.privileges import Membership, ObjectKind, Privilege, RoleDescriptor

CONTENT_PROPERTIES = ("metadata_location", "previous_metadata_location", "snapshot-count")
CONTENT_PREFIX = "current-snapshot-"
"""Properties that identify the present content of an Iceberg table; each write changes them."""

WRITING = Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE


@dataclass(frozen=True, slots=True)
class Case:
    """One object before and after an entry (None: it does not exist), with both catalogs.

    ``result`` is the catalog after the whole command: an undo may bring an object back in an entry
    before that of its schema.
    """

    access: Access
    before: Catalog
    after: Catalog
    result: Catalog
    old: Any  # a descriptor of the kind that the rule is for
    new: Any

    def find(self, kind: str, object_id: int) -> Any:  # Any: the descriptor of that kind
        """The object with that id, even if the entry itself created or removed it."""
        catalogs = (self.before, self.after, self.result)
        values = (catalog.get(kind, object_id) for catalog in catalogs)
        return next((value for value in values if value is not None), None)

    @property
    def owner_is_renamed(self) -> bool:
        """Whether the owner is another name of the same role, which the entry renames."""
        role = self.before.role(getattr(self.old, "owner", ""))
        renamed = self.after.role(getattr(self.new, "owner", ""))
        if role is None or renamed is None:
            return False
        return role.id == renamed.id and role.name != renamed.name


Rule = Callable[[Case], None]


def _check_changed(case: Case, *, within: Any = None) -> None:
    """Require what a change of an existing object needs.

    That is ownership of the object or, to drop it, of the object or ``within``.
    """
    access, old, new = case.access, case.old, case.new
    if new is None and within is not None and access.owns(within):
        return
    access.require_ownership(old)
    if new is not None and new.owner != old.owner and not case.owner_is_renamed:
        access.require_owner(new.owner, access.describe(old))


def _check_created(case: Case, privilege: Privilege, place: Any) -> None:
    """Require ``privilege`` on the ``place`` of a new object, and an owner the user may name."""
    case.access.require(privilege, place)
    case.access.require_owner(case.new.owner, case.access.describe(case.new))


def top_level(privilege: Privilege) -> Rule:
    return lambda case: _check(case, privilege, None)


def _check(case: Case, privilege: Privilege, place: Any, *, within: Any = None) -> None:
    """Require what the change of an object without further rules needs."""
    if case.old is None:
        _check_created(case, privilege, place)
    else:
        _check_changed(case, within=within)


def in_database(case: Case) -> None:
    database = case.find("database", (case.old or case.new).database_id)
    _check(case, Privilege.CREATE, database)


def in_schema(case: Case) -> None:
    """The rule of tables, views and functions."""
    old, new = case.old, case.new
    if old is None:
        place = case.find("schema", new.schema_id)
        _check_created(case, Privilege.USAGE | Privilege.CREATE, place)
    elif isinstance(new, TableDescriptor) and _only_content(old, new):
        case.access.require(WRITING, old)
        return
    else:
        _check_changed(case, within=case.find("schema", old.schema_id))
        if new is not None and new.schema_id != old.schema_id:
            place = case.find("schema", new.schema_id)
            case.access.require(Privilege.USAGE | Privilege.CREATE, place)
    if isinstance(new, TableDescriptor) and (old is None or old.zone_id != new.zone_id):
        zone = case.find("zone", new.zone_id)
        default = case.before.default_zone()
        if zone is not None and (default is None or zone.id != default.id):
            case.access.require(Privilege.USAGE, zone)


def _only_content(old: TableDescriptor, new: TableDescriptor) -> bool:
    """Whether the change only sets the properties that identify the table's content."""
    changed = {key for key, _ in set(old.properties) ^ set(new.properties)}
    names = all(key in CONTENT_PROPERTIES or key.startswith(CONTENT_PREFIX) for key in changed)
    rest = (getattr(old, name) == getattr(new, name) for name in _DEFINITION)
    return bool(changed) and names and all(rest)


_DEFINITION = tuple(
    name for name in TableDescriptor.__dataclass_fields__ if name not in ("properties", "created")
)


def of_its_table(case: Case) -> None:
    index = case.old or case.new
    table = case.before.table_by_id(index.table_id)
    if table is None:
        return  # created with its table, which is checked itself
    dropped = None if case.new is not None else case.find("schema", index.schema_id)
    if dropped is None or not case.access.owns(dropped):
        case.access.require_ownership(table)
    if case.new is not None and case.new.owner != (case.old or table).owner:
        case.access.require_owner(case.new.owner, f"index {index.name}")


def role(case: Case) -> None:
    access, old, new = case.access, case.old, case.new
    changed = old is None or new is None or _own_facts(old) != _own_facts(new)
    if changed and any(role is not None and role.superuser for role in (old, new)):
        access.require_superuser(f"create, change or drop the superuser {(old or new).name}")
    if old is None:
        _check_created(case, Privilege.CREATE_ROLE, None)
    elif changed:
        _check_changed(case)
    _refuse_taken_name(case)
    memberships = [each for role in (old, new) if role for each in role.member_of]
    groups = {membership.group for membership in memberships}
    for group in sorted(groups):
        joined = case.before.role_by_id(group)
        is_kept = old and new and _membership(old, group) == _membership(new, group)
        if not is_kept and joined is not None and new is not None:
            if joined.superuser:
                access.require_superuser(f"change the members of the superuser role {joined.name}")
            access.require_ownership(joined)


def _refuse_taken_name(case: Case) -> None:
    """Refuse a role that would get what others own, or were granted, by its name or id."""
    access, old, new = case.access, case.old, case.new
    if new is None or access.free:
        return
    if old is None and new.id < case.before.next_number(OBJECT_IDS):
        # Grants name a role by its id, so its old grants would be valid again.
        access.require_superuser(f"restore the dropped role {new.name}")
    if old is not None and normalize(old.name) == normalize(new.name):
        return
    if normalize(new.name) == normalize(access.user or ""):
        return
    if next(owned_by(case.before.contents, new.name), None) is not None:
        access.require_superuser(
            f"give a role the name {new.name}, because {new.name} already owns objects"
        )


def _own_facts(role: RoleDescriptor) -> tuple[object, ...]:
    return role.name, role.owner, role.superuser, role.inherit


def _membership(role: RoleDescriptor, group: int) -> list[Membership]:
    return [membership for membership in role.member_of if membership.group == group]


def _is_dropped_too(case: Case, *named: tuple[str, int]) -> bool:
    """Whether the entry removed an object with one of these ids, and with it this object."""
    return case.new is None and any(
        case.before.get(kind, object_id) and not case.after.get(kind, object_id)
        for kind, object_id in named
    )


def default_privilege(case: Case) -> None:
    default = case.old or case.new
    named = ("role", default.role), ("role", default.grantee)
    if _is_dropped_too(case, *named, ("schema", default.schema), ("database", default.database)):
        return
    if not default.role or default.role not in case.access.roles:
        case.access.require_superuser(
            "set default privileges for a role that they are not a member of"
        )


def system_privilege(case: Case) -> None:
    if not _is_dropped_too(case, ("role", (case.old or case.new).grantee)):
        case.access.require_superuser("grant or revoke privileges on the system")


def in_cluster(case: Case) -> None:
    cluster = case.find("cluster", (case.old or case.new).cluster_id)
    # An undo of the cluster may leave its replicas an owner that it no longer has.
    if cluster.size is None or not case.access.owns(cluster):
        _check(case, Privilege.CREATE, cluster, within=cluster)


def of_its_replica(case: Case) -> None:
    replica = case.find("cluster_replica", (case.old or case.new).replica_id)
    cluster = case.find("cluster", replica.cluster_id)
    if not case.access.owns(cluster):
        case.access.require_ownership(replica)


def comment(case: Case) -> None:
    note = case.old or case.new
    kind = note.object_kind.name.lower()
    subject = case.before.get(kind, note.object_id)
    if subject is None and case.after.get(kind, note.object_id) is not None:
        return  # created in the same entry
    if subject is not None and case.new is None and case.after.get(kind, note.object_id) is None:
        return  # dropped in the same entry
    if note.object_kind is ObjectKind.INDEX and subject is not None:
        subject = case.before.table_by_id(subject.table_id)
    if subject is None:
        case.access.require_superuser(f"comment on the {spoken(kind)}")
    else:
        case.access.require_ownership(subject)


def configuration(case: Case) -> None:
    if (case.old or case.new).name == ENFORCE_PRIVILEGES.name:
        case.access.require_superuser(f"set {ENFORCE_PRIVILEGES.name}")
    else:
        case.access.require(Privilege.CONFIGURE, None)


def config_entry(case: Case) -> None:
    name = (case.old or case.new).name
    if name == DEFAULT_ZONE_CONFIG:
        case.access.require(Privilege.CONFIGURE, None)
    else:
        case.access.require_superuser(f"change the internal entry {name} of the catalog")


def with_the_object(case: Case) -> None:
    """Allow it: ids are allocated for created objects, which are checked themselves."""
