"""One process: it wires the layers together and serves them."""

from importlib import import_module
from typing import TYPE_CHECKING

from strandline.node.place import DATABASE_FILE, HEAD_FILE

if TYPE_CHECKING:
    from strandline.node.node import Node
    from strandline.node.relocation import Relocated, relocate
else:
    _MODULES = {
        "Node": "strandline.node.node",
        "Relocated": "strandline.node.relocation",
        "relocate": "strandline.node.relocation",
    }

    def __getattr__(name: str) -> object:
        """Import ``name`` on first use: a command that only reads a store needs no node."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


__all__ = ["DATABASE_FILE", "HEAD_FILE", "Node", "Relocated", "relocate"]
