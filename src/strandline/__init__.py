"""Strandline: a versioned, transactional metastore for Spark."""

__version__ = "0.21.0"
