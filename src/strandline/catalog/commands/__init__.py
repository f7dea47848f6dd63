"""The commands: one class for each statement of DDL."""

from strandline.catalog.commands.columns import (
    AddColumns,
    AlterColumn,
    DropColumns,
    RenameColumn,
)
from strandline.catalog.commands.definition import ColumnDefinition, TableDefinition
from strandline.catalog.commands.schemas import (
    DEFAULT_SCHEMA,
    AlterSchema,
    CreateSchema,
    DropSchema,
)
from strandline.catalog.commands.tables import (
    DEFAULT_ZONE,
    AlterTable,
    CreateTable,
    DropTable,
    RenameTable,
    SetTableProperties,
)
from strandline.catalog.commands.views import AlterView, CreateView, ViewDefinition

__all__ = [
    "DEFAULT_SCHEMA",
    "DEFAULT_ZONE",
    "AddColumns",
    "AlterColumn",
    "AlterSchema",
    "AlterTable",
    "AlterView",
    "ColumnDefinition",
    "CreateSchema",
    "CreateTable",
    "CreateView",
    "DropColumns",
    "DropSchema",
    "DropTable",
    "RenameColumn",
    "RenameTable",
    "SetTableProperties",
    "TableDefinition",
    "ViewDefinition",
]
