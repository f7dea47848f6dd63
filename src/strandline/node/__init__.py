"""One process: the wiring of the layers, and serving them."""

from strandline.node.node import Node, NodeStatistics
from strandline.node.place import DATABASE_FILE, HEAD_FILE
from strandline.node.relocation import Relocated, relocate

__all__ = ["DATABASE_FILE", "HEAD_FILE", "Node", "NodeStatistics", "Relocated", "relocate"]
