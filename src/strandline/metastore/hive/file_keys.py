"""Keys of files: how a scan of many files knows from which file a row is, and what follows from it.

The problem: the view of a transactional table (`snapshot_views`) leaves out deleted rows, which
are recorded by file. And if a query filters on a column that partitions the table, Spark should
open only the files of the matching partitions. But Spark knows only the names of the files, which
are all in one folder, and no part of a path contains a value.

The model. Each file has a number as its key, and SQL computes the key of a row's file. Parsing the
id in a file's name takes 15 % of the time of a scan of 16 columns; a checksum of the name takes
5 %. So the key is the checksum. It is the file id if the part has one file, or if a folder
``_file=<file id>`` gives it.

If a column partitions the table by its values (the identity transform), all rows of a file have one
value, which the catalog records. The view does not read the column from the files, but looks it up
by the key. So a condition on the column is a condition on the names of files. Spark evaluates it
for each file when it plans the scan, and drops the files that do not match. If all files of a part
have the same value, it is a constant, and Spark drops the whole part.

The limit: Spark evaluates joins and filters with subqueries only after it has chosen the files, and
it lists all files of the folder. A folder for each value would do better there.

What must stay true:

* No two files of a scan have the same key (`distinguishable_groups`). Otherwise the view would
  leave out rows of one file that are deleted in the other, or show the values of the other.
* A lookup gives exactly the value that the file has. Dates are numbers and strings are hexadecimal
  UTF-8, so no character and no setting of a session changes their meaning. NULL is a key without
  entry.
* Spark computes each map once, before it plans: only functions that Spark folds, hence no lambda.
* A lookup takes the same time for any number of files. Spark searches a map of less than 1,000
  keys one by one, so such a map gets keys that no file has.

Rejected: hidden tables with partitions in the metastore (each partition needs a folder, and the
files of earlier releases and other clients have none; Spark starts a job to list more than 32
folders); one hidden table for each value (each lists the folder, and repeats all columns in the
text); a condition on names beside the column (Spark does not derive it from a filter).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from zlib import crc32

from strandline.metastore.store.file_scans import FILE_COLUMN, IdIn, IdPlace
from strandline.metastore.store.rows import DataFile
from strandline.model.partitioning import Physical
from strandline.model.type_text import ddl_text
from strandline.model.types import BOOLEAN, DATE, INT, INTEGRAL_TYPES, STRING, DataType

MAX_LENGTH = 1 << 20
"""The maximum number of characters of the values of one column in one SELECT of a view."""

_FEW = 20
"""The maximum number of keys that are searched one by one."""
_HASHED = 1_000
"""Spark hashes the keys of a constant map from this number on."""
_SEPARATOR = "\x1f"
"""Between strings. If a string contains it, the column is read from the files."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""File names that every release of Spark shows without escapes."""


def distinguishable_groups(
    files: Sequence[DataFile], place: IdPlace, deleted: Container[int], *, by_value: bool
) -> Iterator[tuple[DataFile, ...]]:
    """Group the files of one place so that `file_keys` has keys for the files of a group.

    If some files are among the ``deleted``, all groups have keys. Otherwise, if the keys are needed
    only for values (``by_value``), files with unusual names form one group without keys.
    """
    joined = any(file.file_id in deleted for file in files)
    if place.id_in is IdIn.FOLDER or not (joined or by_value):
        yield tuple(files)
        return
    groups: defaultdict[int, list[DataFile]] = defaultdict(list)
    files_with = Counter[int]()
    unusual: list[DataFile] = []
    for file in sorted(files, key=attrgetter("file_id")):
        name = _name(file)
        if _PLAIN_NAME.fullmatch(name):
            checksum = crc32(name.encode())
            groups[files_with[checksum]].append(file)
            files_with[checksum] += 1
        else:
            unusual.append(file)
    if joined:
        yield from ((file,) for file in unusual)
    elif unusual:
        yield tuple(unusual)
    yield from map(tuple, groups.values())


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys of the files of one scan.

    ``of_row`` is the SQL for the key of a row's file, and ``of_file`` has the keys by file id.
    """

    of_row: str
    of_file: Mapping[int, int]

    def of_delete(self, deleted: Container[int]) -> str:
        """The SQL for the key of a delete's ``file_id``; ``deleted`` are the ids of all deletes.

        For a file of another scan it matches no row: it is NULL, or that file's own id.
        """
        if all(file_id == key for file_id, key in self.of_file.items()):
            return "file_id"
        keys = {file_id: key for file_id, key in self.of_file.items() if file_id in deleted}
        return f"map_from_arrays({_bigints(keys)}, {_bigints(keys.values())})[file_id]"


def file_keys(files: Sequence[DataFile], place: IdPlace) -> FileKeys | None:
    """Return the keys of the files of a scan. None if the scan cannot tell the files apart."""
    ids = {file.file_id: file.file_id for file in files}
    if place.id_in is IdIn.FOLDER:
        return FileKeys(FILE_COLUMN, ids)
    if len(files) == 1:
        return FileKeys(f"CAST({files[0].file_id} AS BIGINT)", ids)
    names = {file.file_id: _name(file) for file in files}
    if not all(map(_PLAIN_NAME.fullmatch, names.values())):
        return None
    checksums = {file_id: crc32(name.encode()) for file_id, name in names.items()}
    return FileKeys("crc32(CAST(_metadata.file_name AS BINARY))", checksums)


def _name(file: DataFile) -> str:
    return file.path.rpartition("/")[2]


def value_by_key(
    values: Mapping[int, Physical | None], data_type: DataType, *, key: str
) -> str | None:
    """Return the SQL for the value in a row whose file has the key ``key`` (an SQL expression).

    ``values`` maps the key of each file, which is not negative, to its value. None if the column
    must be read from the files: its type is not a boolean, an integer, a date or a string, or the
    values do not fit into the text of a view.
    """
    element = INT if data_type == DATE else data_type
    if element not in (BOOLEAN, STRING, *INTEGRAL_TYPES):
        return None
    values_by_key = {file_key: value for file_key, value in values.items() if value is not None}
    if not values_by_key:
        return f"CAST(NULL AS {ddl_text(data_type)})"
    is_constant = len(values_by_key) == len(values) and len(set(values_by_key.values())) == 1
    array = _array(set(values_by_key.values()) if is_constant else values_by_key.values(), element)
    if array is None:
        return None
    value = f"{array}[0]" if is_constant else _lookup(values_by_key, array, element, key=key)
    return f"date_from_unix_date({value})" if data_type == DATE else value


def _lookup(keys: Collection[int], array: str, element: DataType, *, key: str) -> str:
    of_files = _bigints(keys)
    if _FEW < len(keys) < _HASHED:
        of_files = f"concat({of_files}, sequence(-{_HASHED}L, -1L))"
        array = f"concat({array}, array_repeat(CAST(NULL AS {ddl_text(element)}), {_HASHED}))"
    return f"map_from_arrays({of_files}, {array})[{key}]"


def _bigints(numbers: Iterable[int]) -> str:
    """Return the SQL for an array of numbers, in a text that Spark parses as a single token."""
    return f"CAST(split('{','.join(map(str, numbers))}', ',') AS ARRAY<BIGINT>)"


def _array(values: Iterable[Physical], element: DataType) -> str | None:
    """Return the SQL for an array of values; None if the values do not fit into the text."""
    texts = [value if isinstance(value, str) else str(value).lower() for value in values]
    if sum(map(len, texts)) > MAX_LENGTH:
        return None
    if element != STRING:
        return f"CAST(split('{','.join(texts)}', ',') AS ARRAY<{ddl_text(element)}>)"
    if any(_SEPARATOR in text for text in texts):
        return None
    joined, separator = (text.encode().hex() for text in (_SEPARATOR.join(texts), _SEPARATOR))
    return f"split(CAST(X'{joined}' AS STRING), CAST(X'{separator}' AS STRING))"
