"""The commands: one class for each statement of DDL."""

from strandline.catalog.catalog import SYSTEM_SCHEMA
from strandline.catalog.commands.clusters import (
    AlterCluster,
    CreateCluster,
    DropCluster,
    RenameCluster,
)
from strandline.catalog.commands.columns import (
    AddColumns,
    AlterColumn,
    DropColumns,
    RenameColumn,
)
from strandline.catalog.commands.configuration import (
    SetConfiguration,
)
from strandline.catalog.commands.databases import (
    AlterDatabase,
    CreateDatabase,
    DropDatabase,
    RenameDatabase,
)
from strandline.catalog.commands.definition import (
    ColumnDefinition,
    TableDefinition,
)
from strandline.catalog.commands.functions import (
    AlterFunction,
    CreateFunction,
    DropFunction,
    RenameFunction,
)
from strandline.catalog.commands.grants import (
    AlterDefaultPrivileges,
    GrantPrivileges,
    RevokePrivileges,
)
from strandline.catalog.commands.indexes import (
    CreateIndex,
    DropIndex,
    MakeIndexAvailable,
    RemoveIndex,
    RenameIndex,
    StartBuildingIndex,
)
from strandline.catalog.commands.objects import (
    CommentOn,
    SetOwner,
)
from strandline.catalog.commands.replicas import (
    AlterClusterReplica,
    CreateClusterReplica,
    DropClusterReplica,
    RenameClusterReplica,
)
from strandline.catalog.commands.roles import (
    AlterRole,
    CreateRole,
    DropRole,
    GrantRole,
    RenameRole,
    RevokeRole,
)
from strandline.catalog.commands.schemas import (
    DEFAULT_SCHEMA,
    AlterSchema,
    CreateSchema,
    DropSchema,
    RenameSchema,
)
from strandline.catalog.commands.tables import (
    DEFAULT_ZONE,
    AlterTable,
    CreateTable,
    DropTable,
    RenameTable,
    SetTableProperties,
)
from strandline.catalog.commands.views import (
    AlterView,
    CreateView,
    DropView,
    RenameView,
    ViewDefinition,
)
from strandline.catalog.commands.zones import (
    EVERY_NODE,
    NEVER,
    AlterZone,
    CreateZone,
    DropZone,
    RenameZone,
    SetDefaultZone,
)

__all__ = [
    "DEFAULT_SCHEMA",
    "DEFAULT_ZONE",
    "EVERY_NODE",
    "NEVER",
    "SYSTEM_SCHEMA",
    "AddColumns",
    "AlterCluster",
    "AlterClusterReplica",
    "AlterColumn",
    "AlterDatabase",
    "AlterDefaultPrivileges",
    "AlterFunction",
    "AlterRole",
    "AlterSchema",
    "AlterTable",
    "AlterView",
    "AlterZone",
    "ColumnDefinition",
    "CommentOn",
    "CreateCluster",
    "CreateClusterReplica",
    "CreateDatabase",
    "CreateFunction",
    "CreateIndex",
    "CreateRole",
    "CreateSchema",
    "CreateTable",
    "CreateView",
    "CreateZone",
    "DropCluster",
    "DropClusterReplica",
    "DropColumns",
    "DropDatabase",
    "DropFunction",
    "DropIndex",
    "DropRole",
    "DropSchema",
    "DropTable",
    "DropView",
    "DropZone",
    "GrantPrivileges",
    "GrantRole",
    "MakeIndexAvailable",
    "RemoveIndex",
    "RenameCluster",
    "RenameClusterReplica",
    "RenameColumn",
    "RenameDatabase",
    "RenameFunction",
    "RenameIndex",
    "RenameRole",
    "RenameSchema",
    "RenameTable",
    "RenameView",
    "RenameZone",
    "RevokePrivileges",
    "RevokeRole",
    "SetConfiguration",
    "SetDefaultZone",
    "SetOwner",
    "SetTableProperties",
    "StartBuildingIndex",
    "TableDefinition",
    "ViewDefinition",
]
