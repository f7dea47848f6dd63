"""The system views of the catalog; `synchronization` brings `rows` into a catalog."""
