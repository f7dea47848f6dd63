"""A second process on a store, which executes what the test sends: a word and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.catalog.commands import CreateSchema
from strandline.errors import StrandlineError
from strandline.node import Node


def serve(say: Callable[[object], None], hear: Callable[[], Any], folder: str, stale: bool) -> None:
    """Answer each command until the test closes the connection."""
    with Node.open(folder) as node:
        session = node.session(user="other")
        if stale:
            # The planted fault: answer for the present from memory, without a look at the log. The
            # applier would correct that sooner or later.
            node.catalogs.stop()
            node.catalogs.present = node.catalogs.latest_catalog  # type: ignore[method-assign]  # the fault
        words: dict[str, Callable[..., Any]] = {
            "schemas": lambda: [
                schema.name
                for schema in node.catalogs.present().schemas()
                if schema.name != "system"
            ],
            "create": lambda name: session.execute(CreateSchema(name=name)).version,
            "version": lambda: node.catalogs.present().version,
        }
        say("ready")
        while True:
            try:
                word, *arguments = hear()
            except EOFError:
                return
            try:
                answer = words[word](*arguments)
            except StrandlineError as error:
                answer = {"error": error.code, "message": error.message}
            say(answer)
