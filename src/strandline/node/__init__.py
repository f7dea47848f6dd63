"""One process: the wiring of the layers, and serving them."""

from strandline.node.node import Node, NodeStatistics
from strandline.node.place import DATABASE_FILE, Relocated, relocate
from strandline.node.store_database import HEAD_FILE

__all__ = ["DATABASE_FILE", "HEAD_FILE", "Node", "NodeStatistics", "Relocated", "relocate"]
