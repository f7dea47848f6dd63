"""The store of what DML changes: rows, files, folders, the notification log, the projection."""
