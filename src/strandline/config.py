"""The settings of a node, with their defaults and bounds.

A setting is declared once, as a field of `Settings` with its default and its paragraph in the
docstring. `strandline.node.settings` derives the rest from that: the option, the environment
variable and the entry in ``strandline.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from strandline.errors import InvalidInput

DEFAULT_CALL_THREADS = 32
DEFAULT_MAX_CALLS = 512

_MINUTE_MS = 60 * 1000
MAX_GENERATION = 2**31 - 1
"""A generation is never lowered again, so one that was mistyped must leave room above it."""
_LEAST_CALL_THREADS = 4
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_MAX_TIMEOUT_MS = 100 * 366 * _DAY_MS
"""The time at which a transaction times out must be a time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for one node. Times are in milliseconds, sizes in bytes.

    ``host``: the address to listen on. Leave it at loopback unless there is a ``users_file``:
    without one, the identity of a client is not verified.
    ``thrift_host``: the address for the Hive Metastore protocol, if it differs from ``host``. The
    identity of its clients is never verified.
    ``users_file``: the path of a file of users and their tokens, as ``strandline token`` makes it.
    With it, every call over HTTP needs a token, except health, statistics, metrics and
    openapi.json.
    ``users``: lines as in a users file, instead of the file or beside it; for secrets that a
    process gets in its environment.
    ``tls_certificate``: the path of a certificate with its chain, in PEM. With it, both ports speak
    TLS.
    ``tls_key``: the path of the private key in PEM, if it is not in the file of the certificate.
    ``warehouse``: the folder of the tables of a store on servers: an absolute path at which every
    node reaches it. Only the first node has to name it.
    ``objects``: for a store at an etcd:// address: the postgresql:// address of the database that
    keeps everything except the catalog.
    ``catalog_log``: which log keeps the catalog of a new store: metastorage, stash, persist, shadow
    or shadow:FIRST+SECOND. A store remembers it. Not set, it is metastorage for a new store.
    ``catalog_blobs``: where the log persist of a new catalog keeps its blobs: an absolute path that
    every node reaches, or s3://bucket/prefix. A store remembers it. Not set, it is a folder in the
    store, or in the warehouse of a store on servers.
    ``delay_ms``: for a new catalog, how long after its commit a version becomes active on every
    node. Not set, it is 0 in a folder and 200 ms on servers.
    ``clock_skew_ms``: for a new catalog, how much the clocks of its nodes may differ. Not set, it
    is 0 in a folder and 100 ms on servers.
    ``deploy_generation``: the number of the deployment to which the node belongs. A node of a
    higher generation takes the store over, and nodes of lower generations end with status 0. Not
    set, the node joins the nodes that hold the store.
    ``thrift_port``: the port of the Hive Metastore protocol; 0 takes a free one.
    ``http_port``: the port of the HTTP interface; 0 takes a free one.
    ``history_retention_ms``: how long history is kept without a hold.
    ``transaction_timeout_ms``: a transaction or a lock without a heartbeat for this long is aborted
    or released. At most 100 years.
    ``clean_interval_ms``: how often the node removes rows that no reader can see any more, with
    their files; 0 leaves this to the command ``strandline clean``.
    ``storage_usage_interval_ms``: how often the node measures how many bytes the tables take; 0:
    never.
    ``storage_usage_retention_ms``: how long measured sizes are kept; 0: for ever.
    ``notification_retention_ms``: how long events stay in the notification log.
    ``snapshot_hold_ms``: how long a client without a hold of its own, such as a client of the Hive
    protocol, can read the files of a snapshot; 0: the files of a past snapshot may be cleaned at
    once. At most 100 years.
    ``metadata_staleness_ms``: how old an answer about a plain table's rows may be; 0 checks the
    store each time. Not set, it is 0 in a folder and 1 s on servers.
    ``clock_ahead_limit_ms``: how far the store's time may be ahead of this machine's clock; a write
    that would be further ahead is refused. At least a minute.
    ``cache_bytes``: the size of a node's cache of the object store.
    ``cache_folder``: the folder of the file in which a node that serves saves its cache for its
    next start, as an absolute path. Not set, it is the folder of the store; a store on servers then
    has none.
    ``cache_interval_ms``: how often the node writes that file, besides once when it stops; 0 writes
    and reads none.
    ``log_level``: the least severe lines that the log shows.
    ``log_format``: text for people, or json: one object per line.
    ``slow_call_ms``: a call that takes longer is logged; 0 logs every call that is not answered
    from memory.
    ``allowed_hosts``: names of this node, besides those of loopback and ``host``, that HTTP clients
    may use; a request for another name is refused, since a foreign web page may have sent it.
    ``call_threads``: how many calls run at once in threads, at least 4: those that wait for the
    store or for other writers. Calls that are answered from memory need no thread.
    ``max_calls``: how many calls run in threads or wait for one; further calls are refused at once
    as overloaded.
    ``location_roots``: absolute paths below which the node creates folders at places that users
    name. Elsewhere, users or their Spark create them.
    ``file_access``: who may use the files and folders that a node creates: only the owner of its
    process (modes 0600 and 0700), the group too (0660 and 0770; a program that embeds a node sets
    the umask 007 itself), or what the umask of the process allows.
    """

    host: str = "127.0.0.1"
    thrift_host: str = ""
    users_file: str = ""
    users: str = field(default="", repr=False)
    tls_certificate: str = ""
    tls_key: str = ""
    warehouse: str = ""
    objects: str = field(default="", repr=False)  # it may have a password
    catalog_log: str = ""
    catalog_blobs: str = ""
    delay_ms: int | None = None
    clock_skew_ms: int | None = None
    deploy_generation: int | None = None
    thrift_port: int = 9083  # where Hive clients expect a metastore
    http_port: int = 9084
    history_retention_ms: int = 7 * _DAY_MS
    transaction_timeout_ms: int = 300_000
    clean_interval_ms: int = _HOUR_MS
    storage_usage_interval_ms: int = _DAY_MS
    storage_usage_retention_ms: int = 30 * _DAY_MS
    notification_retention_ms: int = 7 * _DAY_MS
    snapshot_hold_ms: int = _HOUR_MS
    metadata_staleness_ms: int | None = None
    clock_ahead_limit_ms: int = _DAY_MS
    cache_bytes: int = 256 << 20
    cache_folder: str = ""
    cache_interval_ms: int = 10 * _MINUTE_MS
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    slow_call_ms: int = 1_000
    call_threads: int = DEFAULT_CALL_THREADS
    max_calls: int = DEFAULT_MAX_CALLS
    location_roots: tuple[str, ...] = ()
    file_access: Literal["owner", "group", "umask"] = "owner"
    allowed_hosts: tuple[str, ...] = ()

    @property
    def folder_mode(self) -> int:
        """The permission bits of a new folder; those of a new file are the same without x."""
        return {"owner": 0o700, "group": 0o770, "umask": 0o777}[self.file_access]

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value is None:
                continue
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if setting.type in ("int", "int | None") and not is_number:
                raise InvalidInput(f"{setting.name} must be a whole number, not {value!r}")
            if setting.name.endswith("_port") and not 0 <= value <= 65_535:
                raise InvalidInput(f"{setting.name} is {value}; a port is a number from 0 to 65535")
            if setting.name.endswith(("_ms", "_bytes")) and value < 0:
                raise InvalidInput(f"{setting.name} is {value}; it cannot be negative")
            if value not in (choices := _choices().get(setting.name, (value,))):
                raise InvalidInput(
                    f"{setting.name} is {value!r}; it must be one of {', '.join(choices)}"
                )
        if not 0 <= (self.deploy_generation or 0) <= MAX_GENERATION:
            raise InvalidInput(
                f"deploy_generation is {self.deploy_generation}; it must be a number from 0 to "
                f"{MAX_GENERATION}"
            )
        for name in ("transaction_timeout_ms", "snapshot_hold_ms"):
            if getattr(self, name) > _MAX_TIMEOUT_MS:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must be at most {_MAX_TIMEOUT_MS}, which"
                    " is 100 years"
                )
        if self.clock_ahead_limit_ms < _MINUTE_MS:
            raise InvalidInput(
                f"clock_ahead_limit_ms is {self.clock_ahead_limit_ms}; it must be at least "
                f"{_MINUTE_MS}, because the clocks of two machines always differ"
            )
        if not _LEAST_CALL_THREADS <= self.call_threads <= self.max_calls:
            raise InvalidInput(
                f"call_threads is {self.call_threads} and max_calls {self.max_calls}; "
                f"call_threads must be at least {_LEAST_CALL_THREADS} and at most max_calls"
            )
        if not self.host.strip():
            raise InvalidInput("host is empty; name an address of this machine, such as 127.0.0.1")
        if self.thrift_port == self.http_port != 0:
            raise InvalidInput(
                f"thrift_port and http_port are both {self.http_port}; give each its own port"
            )
        if not all(name.strip() for name in self.allowed_hosts):
            raise InvalidInput("allowed_hosts contains an empty name; list host names or addresses")
        for root in self.location_roots:
            if not root.startswith("/"):
                raise InvalidInput(
                    f"location_roots contains {root!r}, which is not an absolute path; write "
                    "it from the root, such as /data"
                )


@cache  # resolving the annotations takes a millisecond
def _choices() -> dict[str, tuple[str, ...]]:
    """The values of each setting that has few."""
    kinds = get_type_hints(Settings).items()
    return {name: get_args(kind) for name, kind in kinds if get_origin(kind) is Literal}


ShownValue = str | int | float | bool | list[str] | None
"""The value of a setting; None if it is not set."""


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting of a node as users see it, without secrets.

    ``origin`` is where its value comes from: an option, a variable, a file, "program" or "default".
    """

    setting: str
    value: ShownValue
    origin: str
    default: ShownValue
    option: str
    variable: str
    allowed: str
    meaning: str
