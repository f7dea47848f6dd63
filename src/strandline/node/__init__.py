"""One process: it wires the layers together and serves them."""

from typing import TYPE_CHECKING

from strandline.node.address import DATABASE_FILE

if TYPE_CHECKING:
    from strandline.node.node import Node
else:

    def __getattr__(name: str) -> object:
        """Import `Node` on first use: a command that only reads a store needs no node."""
        if name != "Node":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from strandline.node.node import Node

        return Node


__all__ = ["DATABASE_FILE", "Node"]
