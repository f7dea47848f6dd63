"""Methods on databases, which are schemas here."""

from __future__ import annotations

from dataclasses import dataclass

from strandline import work
from strandline.catalog import DEFAULT_DATABASE
from strandline.catalog.catalog import is_shown
from strandline.catalog.commands import (
    DEFAULT_SCHEMA,
    AlterSchema,
    CreateSchema,
    DropSchema,
    DropTable,
)
from strandline.catalog.planning import Planning
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.metastore.hive.names import (
    hadoop_location,
    is_hive_name,
    present_schema,
    principal_type,
    require_catalog,
    shown_schema,
    without_catalog,
)
from strandline.metastore.hive.past_tables import NO_PLACE
from strandline.metastore.hive.registry import (
    Call,
    Request,
    answers,
    changes,
    meta_exception,
    reads,
)
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.transactional_tables import refuse_cascade
from strandline.metastore.off_loop import charge, off_loop_for
from strandline.model.descriptors import PrincipalType, SchemaDescriptor, properties
from strandline.model.places import SCHEMA_SUFFIX
from strandline.model.privileges import Privilege

SPARK_WAREHOUSE = "spark-warehouse"
"""The default of ``spark.sql.warehouse.dir``: a folder where the driver was started."""

_REMOTE = 2
"""The type of a database of Hive 4 that shows the tables of another system."""

_NOT_GRANTED = "create-is-not-granted-in:/"
"""The location of a schema for a user who may not create tables in it, as for one of the past.

Spark would write the rows of CREATE TABLE … AS SELECT before it asks, and shows the scheme instead.
"""


def database_struct(schema: SchemaDescriptor, *, name: str, location: str) -> Struct:
    return {
        "name": name,
        "description": schema.comment,
        "locationUri": hadoop_location(location),
        "parameters": dict(schema.properties),
        "ownerName": schema.owner or None,
        "ownerType": schema.owner_type.value,
        "catalogName": DEFAULT_DATABASE,
    }


@reads("get_database", "get_database_req")
async def get_database(call: Call) -> Struct:
    scope = await call.reader.scope(call.text("name"))
    await charge(work.units_of_bytes(scope.catalog.bytes_of(scope.schema)))
    location = call.metastore.location_of_schema(scope.schema)
    if scope.is_past:
        location = f"{NO_PLACE}{scope.schema.name}"
    elif not call.reader.access.allows(Privilege.CREATE, scope.schema):
        location = f"{_NOT_GRANTED}{scope.schema.name}"
    return database_struct(scope.schema, name=scope.name, location=location)


@answers("get_catalogs")
def get_catalogs(request: Request) -> Struct:
    """Return the only catalog: what Hive 4 calls a catalog is a database here."""
    return {"names": [DEFAULT_DATABASE]}


@answers("get_catalog")
def get_catalog(request: Request) -> Struct:
    require_catalog(request.of("catName").text("name"))
    place = hadoop_location(request.metastore.warehouse)
    return {"catalog": {"name": DEFAULT_DATABASE, "locationUri": place}}


@reads("get_databases", "get_all_databases")
async def get_databases(call: Call) -> list[str]:
    """Return the names of the schemas that the user reaches, sorted: those that match, or all."""
    catalog, access = call.reader.catalog, call.reader.access
    await off_loop_for(catalog.contents.count("schema"))
    shown = (schema for schema in catalog.schemas() if is_shown(schema) and access.reaches(schema))
    names = sorted(schema.name.lower() for schema in shown)
    pattern = call.args.get("pattern")
    own_pattern = None if pattern is None else without_catalog(pattern)
    return await call.reader.matching_names(names, own_pattern)


@changes("create_database")
async def create_database(call: Call) -> None:
    _create(call, call.struct("database"))


@changes("create_database_req")
async def create_database_req(call: Call) -> None:
    _create(call, {**call.args, "name": call.text("databaseName")})


def _create(call: Call, database: Struct) -> None:
    if database.get("type") == _REMOTE:
        raise UnsupportedOperation(
            f"{database.get('name')} cannot be created: a schema whose tables are in another"
            " database is not supported; leave out REMOTE"
        )
    name = shown_schema(database.get("name", ""))
    if not is_hive_name(name):
        raise InvalidInput(f"{name} is not a valid database name")
    location = database.get("locationUri")
    if location and _is_chosen_by_spark(location, name):
        location = None
    command = CreateSchema(
        name=name,
        owner=call.owner(database.get("ownerName")),
        owner_type=principal_type(database.get("ownerType")) or PrincipalType.USER,
        comment=database.get("description"),
        location=hadoop_location(location) if location else "",
        properties=properties(database.get("parameters") or {}),
    )
    try:
        call.execute(command)
    except AlreadyExists:
        raise AlreadyExists(f"Database {database['name']} already exists") from None


def _is_chosen_by_spark(location: str, schema: str) -> bool:
    """Whether a Spark without ``spark.sql.warehouse.dir`` chose this location, and not a user.

    Spark always sends a location for a new schema: by default a folder where its driver was
    started.
    """
    return location.rstrip("/").endswith(f"/{SPARK_WAREHOUSE}/{schema}{SCHEMA_SUFFIX}")


@changes("alter_database", "alter_database_req")
async def alter_database(call: Call) -> None:
    """Change parameters, owner and description (as Hive 3 does); the rest is ignored."""
    sent, database = call.text("db_name"), call.struct("db")
    name = present_schema(sent)
    if call.reader.catalog.schema(name) is None:
        raise ObjectNotFound(sent)
    owner = database.get("ownerName")
    call.execute(
        AlterSchema(
            name=name,
            owner=call.owner(owner) if owner else None,
            owner_type=principal_type(database.get("ownerType")),
            comment=database.get("description"),
            properties=properties(database.get("parameters") or {}),
        )
    )


@changes("drop_database")
async def drop_database(call: Call) -> None:
    name, cascade = present_schema(call.text("name")), call.args.get("cascade", False)
    if name == DEFAULT_SCHEMA:
        raise meta_exception("Can not drop default database")
    if call.reader.schema(call.reader.present, name) is None:
        raise ObjectNotFound(call.text("name"))
    if not cascade and call.reader.catalog.relation_names(name):
        raise IllegalChange(f"Database {name} is not empty. One or more tables exist.")
    if not cascade and call.reader.catalog.functions(name):
        raise IllegalChange(f"Database {name} is not empty. One or more functions exist.")
    keep_data = not call.args.get("deleteData")
    call.execute(_DropDatabase(name=name, cascade=cascade, keep_data=keep_data))


@changes("drop_database_req")
async def drop_database_req(call: Call) -> None:
    try:
        await drop_database(call)
    except ObjectNotFound:
        if not call.args.get("ignoreUnknownDb"):
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _DropDatabase(DropSchema):
    """A DROP SCHEMA that drops no transactional tables.

    With ``keep_data``, the files of the tables stay where they are.
    """

    keep_data: bool

    def plan(self, planning: Planning) -> None:
        if self.cascade:
            refuse_cascade(planning.catalog, self.name)
        if self.cascade and self.keep_data:
            for name in planning.catalog.relation_names(self.name):
                DropTable(schema=self.name, table=name, keep_data=True).plan(planning)
        DropSchema.plan(self, planning)
