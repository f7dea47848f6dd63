"""Exceptions of the Hive Metastore protocol, for handlers that must name one.

Handlers raise errors from `strandline.errors`, and the table there says which exception of the
protocol each becomes. Where Hive uses another exception for a method and clients look at it, the
handler names that exception, with these functions.
"""

from __future__ import annotations

from strandline.metastore.thrift.messages import ThriftException


def meta_exception(message: str) -> ThriftException:
    """``MetaException``: what Hive throws where the method declares nothing more exact."""
    return ThriftException("MetaException", {"message": message})


def invalid_object(message: str) -> ThriftException:
    """``InvalidObjectException``: the object is invalid, or its parent does not exist."""
    return ThriftException("InvalidObjectException", {"message": message})


def invalid_operation(message: str) -> ThriftException:
    """``InvalidOperationException``: also for a missing object, in the methods that alter."""
    return ThriftException("InvalidOperationException", {"message": message})


def unknown_table(message: str) -> ThriftException:
    """``UnknownTableException``, of the methods that give the columns of a table."""
    return ThriftException("UnknownTableException", {"message": message})


def config_forbidden(name: str) -> ThriftException:
    """``ConfigValSecurityException``: clients may not ask for this setting."""
    message = f"For security reasons, the config key {name} cannot be accessed"
    return ThriftException("ConfigValSecurityException", {"message": message})
