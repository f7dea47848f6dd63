"""Partitions of plain tables: values of keys, names, and structs.

The name of a partition, ``year=2013/carrier=A%2FB``, is also its path below the table, so a
character that has a meaning in a path is written as ``%`` and two hexadecimal digits. Hive and
Spark define which characters are escaped. Both read each other's folders, so the set is exact:
``}`` is not in it although ``{`` is. NUL, which Hive forgets, is escaped here too, because no file
system could store it. NULL and the empty text have the same name, `DEFAULT_PARTITION`, so a name
does not always determine the values it was made from. The values are therefore stored beside the
name, as they were sent.

A value is stored as the text that a client sent, whatever the type of its key: ``01`` for an int is
``01``. For a comparison, the value and the literal are cast to the key's type. A text that does not
cast becomes None, which means NULL here. Casts do not guess: ``1.0`` is an int, ``1.5`` is not.

A client repeats the columns, the format and the location of the table in each partition. A row
stores only the differences: its location relative to the table's location, so that it moves with
the table, and its format and columns if they differ from the table's. When the format of the table
changes, the partitions keep the one that they have (`TableDescriptor.partition_storage`): their
files were written in it. Their columns follow the table's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from strandline.catalog import DEFAULT_DATABASE
from strandline.clock import system_wall_clock
from strandline.errors import InvalidInput
from strandline.metastore.hive.names import hadoop_location
from strandline.metastore.hive.registry import meta_exception
from strandline.metastore.hive.session_tables import completed
from strandline.metastore.hive.storage_descriptors import (
    HiveColumn,
    Struct,
    int32,
    plain_columns_of,
    read_fields,
    read_storage,
    require_serde,
    shown_columns,
    storage_struct,
)
from strandline.metastore.hive.table_structs import partition_columns_of
from strandline.metastore.partition_places import PartitionPlaces
from strandline.metastore.store.rows import PartitionRow
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import resolve_location
from strandline.metastore.table_parameters import LAST_DDL_TIME
from strandline.model.descriptors import StorageFormat, TableDescriptor, properties
from strandline.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    CharType,
    DataType,
    DecimalType,
)

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The text of NULL in partition names and among partition values."""

_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """Return ``text`` as one component of a path: ``a/b`` becomes ``a%2Fb``."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def unescape(component: str) -> str:
    """Return the text that `escape` made ``component`` of. Other ``%`` stay unchanged."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), component)


def is_default(value: str) -> bool:
    """Whether a partition value means NULL."""
    return not value or value == DEFAULT_PARTITION


def partition_name(keys: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the name of the partition with these values. As in Hive, keys are in lower case.

    Raises `InvalidInput` if there are no keys, or not as many values as keys.
    """
    if not keys or len(keys) != len(values):
        raise InvalidInput(
            f"a partition needs one value for each partition key: found the values "
            f"{list(values)} for the keys {list(keys)}"
        )
    return "/".join(
        f"{escape(key.lower())}={escape(value) if value else DEFAULT_PARTITION}"
        for key, value in zip(keys, values, strict=True)
    )


def parse_partition_name(name: str) -> tuple[tuple[str, str], ...]:
    """Return the unescaped (key, value) pairs of a partition name. `DEFAULT_PARTITION` is kept.

    Raises `InvalidInput` if a part is not ``key=value``.
    """
    pairs = []
    for part in name.split("/"):
        key, equals, value = part.rpartition("=")
        if not key or not equals or not value:
            raise InvalidInput(
                f"{name!r} is not the name of a partition: expected key=value, found {part!r}"
            )
        pairs.append((unescape(key), unescape(value)))
    return tuple(pairs)


def partition_values(name: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the values in a partition name, in the order of ``keys``; the name may have another.

    Raises `InvalidInput` unless the name has exactly these keys, each once.
    """
    if not name:
        raise meta_exception(f"Partition name is invalid. {name}")
    pairs = parse_partition_name(name)
    by_key = {key.lower(): value for key, value in pairs}
    key_names = [key.lower() for key in keys]
    missing = [key for key in key_names if key not in by_key]
    if missing:
        raise InvalidInput(f"incomplete partition name - missing {missing[0]}")
    if len(pairs) != len(by_key) or sorted(by_key) != sorted(key_names):
        raise InvalidInput(
            f"{name!r} is not the name of a partition with the keys {', '.join(keys)}"
        )
    return tuple(by_key[key] for key in key_names)


Cast = Callable[[str], Any]
"""Converts a text to a value that compares with others of the same cast, or None if it fails."""
Day = tuple[int, int, int]
"""Year, month and day: what a text is cast to as a date."""

_INTEGER = re.compile(r"([+-]?[0-9]{1,38})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?)?"
)
_INTEGER_BITS: dict[DataType, int] = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})


def cast_to(data_type: DataType) -> Cast:
    """Return the cast to ``data_type``. Types without an order of their own stay text."""
    if data_type in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[data_type] - 1)
        return lambda text: _integer(text, limit)
    if isinstance(data_type, DecimalType):
        return number
    if isinstance(data_type, CharType):
        return lambda text: text.rstrip(" ")
    return _CASTS.get(data_type, str)


def number(text: str) -> Decimal | None:
    """Return the exact number in ``text``, of any size, or None if it is not a number."""
    text = text.strip()
    return Decimal(text) if len(text) <= 400 and _NUMBER.fullmatch(text) else None


def _integer(text: str, limit: int) -> int | None:
    match = _INTEGER.fullmatch(text.strip())
    if match is None:
        return None
    value = int(match[1])
    return value if -limit <= value < limit else None


def _float(text: str) -> tuple[bool, float] | None:
    """A float. As in Spark, NaN is the largest value and equals itself."""
    try:
        value = float(text.replace("_", "?"))
    except ValueError:
        return None
    return (True, 0.0) if value != value else (False, value)


def _boolean(text: str) -> bool | None:
    text = text.strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _date(text: str) -> Day | None:
    """Return year, month and day of every text that Spark reads as a date.

    Python has dates of the years 1 to 9999 only; the calendar repeats itself after 400 years.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day = (int(part or 1) for part in match.groups())
    try:
        date(year % 400 + 400, month, day)
    except ValueError:
        return None
    return year, month, day


def _timestamp(text: str) -> tuple[datetime, int] | None:
    """Return whole seconds and nanoseconds. A time with a zone does not cast: the key has none."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return moment, int((match[7] or "").ljust(9, "0"))


_CASTS: dict[DataType, Cast] = {
    BOOLEAN: _boolean,
    FLOAT: _float,
    DOUBLE: _float,
    DATE: _date,
    TIMESTAMP: _timestamp,
    TIMESTAMP_NTZ: _timestamp,
}


def _refuse_duplicates(columns: Sequence[HiveColumn], partition: str) -> None:
    names = [name for name, _, _ in columns]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise meta_exception(f"duplicate column {duplicate!r} in partition {partition}")


class Partitioned:
    """The common parts of the partitions of one table. ``schema`` is the schema name in answers.

    If the user may not read the table, it is not ``readable``: answers show no columns, places and
    parameters.
    """

    def __init__(
        self,
        table: TableDescriptor,
        *,
        schema: str,
        location: str,
        folders: StoreFolders,
        readable: bool = True,
    ) -> None:
        self._folders = folders
        self.readable = readable
        self.table = table
        self.schema = schema
        self.location = location
        columns = () if table.transactional else partition_columns_of(table)
        self.keys: tuple[tuple[str, DataType], ...] = tuple(
            (column.name.lower(), column.type) for column in columns
        )
        storage = completed(table).storage
        self._columns: tuple[HiveColumn, ...] = shown_columns(storage, plain_columns_of(table))
        self._new_storage = replace(storage, hive_columns=None)
        self._storage = table.partition_storage or self._new_storage

    @property
    def places(self) -> PartitionPlaces:
        return PartitionPlaces(self.table, location=self.location, folders=self._folders)

    @property
    def key_names(self) -> list[str]:
        return [name for name, _ in self.keys]

    def name_of(self, values: Sequence[str] | None) -> str:
        """Return the name for these values. ``MetaException`` if their number is wrong."""
        try:
            return partition_name(self.key_names, values or ())
        except InvalidInput:
            keys = "".join(f"{name}, " for name in self.key_names)
            shown = "".join(f"{value}, " for value in values or ())
            raise meta_exception(
                f"Invalid partition key & values; keys [{keys}], values [{shown}]"
            ) from None

    def read(self, partition: Mapping[str, Any]) -> tuple[str, PartitionRow]:
        """Return the name and row of a client's ``Partition``, by default in the table's format."""
        now = system_wall_clock() // 1000
        name = self.name_of(partition.get("values"))
        sd = partition.get("sd")
        location = (sd or {}).get("location")
        parameters = {LAST_DDL_TIME: str(now)} | dict(partition.get("parameters") or {})
        row = PartitionRow(
            values=tuple(partition["values"]),
            location=self.places.stored_location(
                hadoop_location(location) if location else f"{self.location}/{name}"
            ),
            parameters=properties(parameters),
            created=now,
            last_access=partition.get("lastAccessTime", 0),
        )
        storage, columns = self._new_storage, self._columns
        if sd is not None:
            require_serde(sd)
            storage = read_storage(sd, locations=[self.location])
            if sd.get("cols") is not None:
                columns = read_fields(sd["cols"])
                _refuse_duplicates(columns, name)
        return name, replace(
            row,
            storage=None if storage == self._storage else storage,
            columns=None if columns == self._columns else columns,
        )

    def place(self, row: PartitionRow) -> str:
        place = resolve_location(self.location, row.location)
        now = self._folders.shown(place)
        return place if now == place else hadoop_location(now)

    def struct(
        self, row: PartitionRow, *, place: str | None = None, sd: Struct | bytes | str | None = None
    ) -> Struct:
        """Return the ``Partition`` that a client sees. ``place`` overrides the row's location.

        ``sd`` is its storage descriptor, if the caller has already encoded it.
        """
        named = {
            "values": list(row.values),
            "dbName": self.schema,
            "tableName": self.table.name.lower(),
            "catName": DEFAULT_DATABASE,
        }
        if not self.readable:
            return named
        if sd is None:
            place = self.place(row) if place is None else place
            sd = self.storage_struct(place, row.storage, row.columns)
        return named | {
            "createTime": int32(row.created),
            "lastAccessTime": row.last_access,
            "sd": sd,
            "parameters": dict(row.parameters),
        }

    def storage_struct(
        self,
        place: str,
        storage: StorageFormat | None = None,
        columns: Sequence[HiveColumn] | None = None,
    ) -> Struct:
        """The storage descriptor of a partition there, by default of one that stores no format."""
        return storage_struct(
            self._storage if storage is None else storage,
            columns=self._columns if columns is None else columns,
            location=place,
            table_location=self.location,
        )

    def described(self, values: Sequence[str]) -> str:
        return (
            f"Partition(values:[{', '.join(values)}], dbName:{self.schema}, "
            f"tableName:{self.table.name.lower()})"
        )
