"""A second process on a store, told line by line what to do; run as a script by the tests.

Each line of input is a JSON list: a word and its arguments. Each answer is one JSON line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from strandline.catalog.commands import CreateSchema
from strandline.errors import StrandlineError
from strandline.node import Node


def main(folder: str, stale: str = "") -> None:
    with Node.open(folder) as node:
        session = node.session(user="other")
        if stale:
            # The planted fault: answer for the present from memory, without looking at the log.
            # The applier would mend that sooner or later.
            node.catalogs.stop()
            node.catalogs.present = node.catalogs.latest_catalog  # type: ignore[method-assign]
        words: dict[str, Callable[..., Any]] = {
            "schemas": lambda: [
                one for one in node.catalogs.present().schema_names() if one != "system"
            ],
            "create": lambda name: session.execute(CreateSchema(name=name)).version,
            "version": lambda: node.catalogs.present().version,
        }
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            word, *arguments = json.loads(line)
            try:
                answer = words[word](*arguments)
            except StrandlineError as error:
                answer = {"error": error.code, "message": error.message}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
