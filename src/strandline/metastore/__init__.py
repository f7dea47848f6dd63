"""The object store of what DML changes, its cache, and the services in front of it."""
