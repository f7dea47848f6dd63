"""What commands on functions do, refuse and leave alone."""

from __future__ import annotations

from collections.abc import Callable

from strandline.catalog.commands import (
    AlterFunction,
    CommentOn,
    CreateFunction,
    CreateSchema,
    DropFunction,
    RenameFunction,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
)
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import SCHEMA, Made, Nothing, Refused, Result, Scenario, create_table

FUNCTION = CreateFunction(
    schema="s", name="f", class_name="a.B", resources=(("JAR", "file:/a.jar"),)
)


def function(name: str, *attributes: str) -> Callable[[Result], object]:
    def read(result: Result) -> object:
        declared = result.after.function("s", name)
        return declared and tuple(getattr(declared, attribute) for attribute in attributes)

    return read


def function_names(schema: str) -> Callable[[Result], list[str]]:
    return lambda result: [declared.name for declared in result.after.functions(schema)]


SCENARIOS = [
    Scenario(
        "a function keeps its class and its files",
        setup=[SCHEMA],
        run=FUNCTION,
        expect=Made(["create_function"]),
        checks=[
            (
                function("F", "class_name", "resources", "owner"),
                ("a.B", (("JAR", "file:/a.jar"),), "ann"),
            )
        ],
    ),
    Scenario(
        "a function has the name of a table",
        setup=[SCHEMA, create_table("s.f")],
        run=FUNCTION,
        expect=Made(),
    ),
    Scenario(
        "a function is created once",
        setup=[SCHEMA, FUNCTION],
        run=CreateFunction(schema="s", name="F", class_name="x"),
        expect=Refused(AlreadyExists, "function s.f already exists"),
    ),
    Scenario(
        "IF NOT EXISTS leaves a function alone",
        setup=[SCHEMA, FUNCTION],
        run=CreateFunction(schema="s", name="F", class_name="x", if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "OR REPLACE redefines a function",
        setup=[SCHEMA, FUNCTION],
        run=CreateFunction(schema="s", name="F", class_name="x", or_replace=True),
        expect=Made(["alter_function"]),
        checks=[(function("f", "name", "class_name", "resources"), ("f", "x", ()))],
    ),
    Scenario(
        "OR REPLACE makes a function that is missing",
        setup=[SCHEMA],
        run=CreateFunction(schema="s", name="f", class_name="x", owner="eve", or_replace=True),
        expect=Made(["create_function"]),
        checks=[(function("f", "class_name", "owner"), ("x", "eve"))],
    ),
    Scenario(
        "an altered function needs a class too",
        setup=[SCHEMA, FUNCTION],
        run=AlterFunction(schema="s", function="f", class_name=" "),
        expect=Refused(InvalidInput, "needs a class name"),
    ),
    Scenario(
        "more files than a function may have",
        setup=[SCHEMA],
        run=CreateFunction(
            schema="s", name="f", class_name="x", resources=(("JAR", "file:/a.jar"),) * 1001
        ),
        expect=Refused(InvalidInput, "may have at most 1000 resources, found 1001"),
    ),
    Scenario(
        "a function in a missing schema is refused",
        run=FUNCTION,
        expect=Refused(ObjectNotFound, "schema 's'"),
    ),
    Scenario(
        "a function without a class is refused",
        setup=[SCHEMA],
        run=CreateFunction(schema="s", name="f", class_name=" "),
        expect=Refused(InvalidInput, "needs a class name"),
    ),
    Scenario(
        "a function without a name is refused",
        setup=[SCHEMA],
        run=CreateFunction(schema="s", name="", class_name="x"),
        expect=Refused(InvalidName, "function"),
    ),
    Scenario(
        "a resource of another kind is refused",
        setup=[SCHEMA],
        run=CreateFunction(schema="s", name="f", class_name="x", resources=(("ZIP", "a"),)),
        expect=Refused(InvalidInput, "has a type (JAR, FILE, ARCHIVE)"),
    ),
    Scenario(
        "what is not told of a function stays",
        setup=[SCHEMA, FUNCTION],
        run=AlterFunction(schema="s", function="f", class_name="c"),
        expect=Made(["alter_function"]),
        checks=[(function("f", "class_name", "resources"), ("c", (("JAR", "file:/a.jar"),)))],
    ),
    Scenario(
        "an alter of a function without a difference makes no version",
        setup=[SCHEMA, FUNCTION],
        run=AlterFunction(schema="s", function="f", class_name="a.B"),
        expect=Nothing(),
    ),
    Scenario(
        "a function moves to another schema",
        setup=[SCHEMA, FUNCTION, CreateSchema(name="r")],
        run=RenameFunction(schema="s", function="f", new_name="g", new_schema="r"),
        expect=Made(["rename_function"]),
        checks=[(function_names("s"), []), (function_names("r"), ["g"])],
    ),
    Scenario(
        "a function does not take another's name",
        setup=[SCHEMA, FUNCTION, CreateFunction(schema="s", name="g", class_name="x")],
        run=RenameFunction(schema="s", function="f", new_name="G"),
        expect=Refused(AlreadyExists, "function s.g already exists"),
    ),
    Scenario(
        "a function is dropped with the comment on it",
        setup=[
            SCHEMA,
            FUNCTION,
            CommentOn(kind=ObjectKind.FUNCTION, name="s.f", text="x"),
        ],
        run=DropFunction(schema="s", function="F"),
        expect=Made(["drop_function"]),
        checks=[(function_names("s"), []), (lambda r: r.after.contents.count("comment"), 0)],
    ),
    Scenario(
        "a missing function is not dropped",
        setup=[SCHEMA],
        run=DropFunction(schema="s", function="f"),
        expect=Refused(ObjectNotFound, "Function s.f does not exist"),
    ),
    Scenario(
        "IF EXISTS covers a missing function",
        run=[
            DropFunction(schema="s", function="f", if_exists=True),
            AlterFunction(schema="s", function="f", class_name="x", if_exists=True),
            RenameFunction(schema="s", function="f", new_name="g", if_exists=True),
        ],
        expect=Nothing(),
    ),
    Scenario(
        "the catalog's own schema is given no function",
        run=CreateFunction(schema="SYSTEM", name="f", class_name="a.B"),
        expect=Refused(IllegalChange, "system schema SYSTEM cannot be given functions"),
    ),
    Scenario(
        "a function does not move into the catalog's own schema",
        setup=[SCHEMA, FUNCTION],
        run=RenameFunction(schema="s", function="f", new_name="f", new_schema="system"),
        expect=Refused(IllegalChange, "system schema system cannot be given functions"),
    ),
    Scenario(
        "a function is created either OR REPLACE or IF NOT EXISTS",
        setup=[SCHEMA],
        run=CreateFunction(
            schema="s", name="f", class_name="a.B", or_replace=True, if_not_exists=True
        ),
        expect=Refused(InvalidInput, "both OR REPLACE and IF NOT EXISTS"),
    ),
    Scenario(
        "two files of one kind stay two, in their order",
        setup=[SCHEMA],
        run=CreateFunction(
            schema="s",
            name="f",
            class_name="a.B",
            resources=(("JAR", "file:/b.jar"), ("JAR", "file:/a.jar")),
        ),
        expect=Made(["create_function"]),
        checks=[(function("f", "resources"), ((("JAR", "file:/b.jar"), ("JAR", "file:/a.jar")),))],
    ),
]
