"""Strandline: a versioned, transactional metastore for Spark."""

__version__ = "0.18.0"
