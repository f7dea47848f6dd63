"""One process: the wiring of the layers, and serving them."""

from strandline.node.node import DATABASE_FILE, Node, NodeStatistics

__all__ = ["DATABASE_FILE", "Node", "NodeStatistics"]
