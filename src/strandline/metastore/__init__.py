"""The store of what DML changes, its caches, and the services in front of it."""
