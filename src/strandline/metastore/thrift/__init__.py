"""The Hive Metastore protocol: Thrift's strict binary form, on an unframed socket.

`HIVE_CODEC` converts structs and messages to dicts and back, driven by Strandline's field table.
`ThriftServer` serves a `Dispatcher` on an event loop.
"""

from strandline.metastore.thrift.codec import HIVE_CODEC, Codec
from strandline.metastore.thrift.dispatch import Answer, ConnectionInfo, Dispatcher
from strandline.metastore.thrift.field_table import HIVE_METASTORE, FieldTable, load_field_table
from strandline.metastore.thrift.messages import ApplicationException, ThriftException, request_key
from strandline.metastore.thrift.server import ServerStatistics, ThriftServer
from strandline.metastore.thrift.serving import ServerSettings

__all__ = [
    "HIVE_CODEC",
    "HIVE_METASTORE",
    "Answer",
    "ApplicationException",
    "Codec",
    "ConnectionInfo",
    "Dispatcher",
    "FieldTable",
    "ServerSettings",
    "ServerStatistics",
    "ThriftException",
    "ThriftServer",
    "load_field_table",
    "request_key",
]
