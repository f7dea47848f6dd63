"""The settings of a node, with their defaults and bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from strandline.errors import InvalidInput

DEFAULT_HOST = "127.0.0.1"
DEFAULT_THRIFT_PORT = 9083
"""The port that Hive clients expect a metastore on."""
DEFAULT_HTTP_PORT = 9084

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for one node. Times are in milliseconds, sizes in bytes.

    ``history_retention_ms``: how long history is kept that nothing holds.
    ``transaction_timeout_ms``: after how long without a heartbeat a transaction is aborted.
    ``metadata_staleness_ms``: how old an answer about a plain table's rows may be; 0 looks at the
    store each time.
    ``cache_bytes``: how much of the object store a node remembers.
    """

    host: str = DEFAULT_HOST
    thrift_port: int = DEFAULT_THRIFT_PORT
    http_port: int = DEFAULT_HTTP_PORT
    history_retention_ms: int = 7 * _DAY_MS
    transaction_timeout_ms: int = 300_000
    metadata_staleness_ms: int = 0
    cache_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_port") and not 0 <= value <= 65_535:
                raise InvalidInput(f"{field.name} is {value}; a port is a number from 0 to 65535")
            if field.name.endswith(("_ms", "_bytes")) and value < 0:
                raise InvalidInput(f"{field.name} is {value}; it cannot be negative")
