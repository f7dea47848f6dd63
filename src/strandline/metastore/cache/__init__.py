"""A node's cache of the object store: rows by write id, kept level with the log."""
