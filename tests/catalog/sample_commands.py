"""A sample of each command that a session can send."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

from strandline.catalog import commands
from strandline.catalog.commands import ColumnDefinition, TableDefinition, ViewDefinition
from strandline.model.descriptors import ConstraintKind, PrincipalType
from strandline.model.types import BIGINT, DecimalType

COMMANDS = [
    command
    for command in (getattr(commands, name) for name in commands.__all__)
    if isinstance(command, type) and hasattr(command, "plan")
]


def sample_fields(of: Any) -> dict[str, Any]:
    """Values of the fields of a command that have no default, and of some others."""
    values: dict[str, Any] = {
        "schema": "s",
        "table": "t",
        "index_id": 7,
        "definition": TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),)),
        "columns": (ColumnDefinition("k", DecimalType(5, 2), comment="é", metadata='{"a":1}'),),
        "names": ("a", "b"),
        "new_names": (("a", "b"), ("b", "a")),
        "owner_type": PrincipalType.ROLE,
        "properties": (("a", "1"), ("b", "2")),
        "set": (("a", "1"),),
        "constraints": (commands.ConstraintDefinition(kind=ConstraintKind.UNIQUE, columns=("k",)),),
        "type": BIGINT,
        "nullable": None,
    }
    if "View" in of.__name__:
        values["definition"] = ViewDefinition(
            name="v", columns=(), original_text="SELECT 1", expanded_text="SELECT 1"
        )
    if of is commands.CreateIndex:
        values["columns"] = ("a", "b")
    for name, hint in get_type_hints(of).items():
        if isinstance(hint, type) and issubclass(hint, Enum):
            values[name] = list(hint)[-1]
    return {
        field.name: values.get(field.name, "x")
        for field in fields(of)
        if field.name in values or field.default is field.default_factory
    }
