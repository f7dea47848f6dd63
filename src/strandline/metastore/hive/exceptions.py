"""Exceptions of the Hive Metastore protocol that no error of ours stands for.

Handlers raise errors from `strandline.errors`, and the table there says which exception of the
protocol each becomes. Where Hive's own choice for a method is another one, and clients look at it,
the handler names the exception itself, with these functions.
"""

from __future__ import annotations

from strandline.metastore.thrift.messages import ThriftException


def meta_exception(message: str) -> ThriftException:
    """``MetaException``: what Hive throws where nothing more exact is declared."""
    return ThriftException("MetaException", {"message": message})


def invalid_object(message: str) -> ThriftException:
    """``InvalidObjectException``: the described object cannot be, also for want of its parent."""
    return ThriftException("InvalidObjectException", {"message": message})


def invalid_operation(message: str) -> ThriftException:
    """``InvalidOperationException``: also for what is missing, in the methods that alter."""
    return ThriftException("InvalidOperationException", {"message": message})


def unknown_table(message: str) -> ThriftException:
    """``UnknownTableException``, of the methods that give the columns of a table."""
    return ThriftException("UnknownTableException", {"message": message})


def config_forbidden(name: str) -> ThriftException:
    """``ConfigValSecurityException``: the setting is none that clients may ask for."""
    message = f"For security reasons, the config key {name} cannot be accessed"
    return ThriftException("ConfigValSecurityException", {"message": message})
