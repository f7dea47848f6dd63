"""The views in which the catalog shows itself; `synchronization` brings `rows` into a catalog."""
