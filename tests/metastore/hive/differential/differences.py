"""All intended differences between the answers here and those of Hive 2.3.10, with reasons.

A difference covers parts of answers. It gives the scenarios and calls, the path of the part within
the answer, and both values, each as a regular expression; values are JSON, and exceptions are
``Name: message``. A part that no difference covers is a defect of the program or of this list, and
so is a difference that covers nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.metastore.hive.differential.scenario import Answer

MAX_DIFFERENCES = 40
ABSENT = "absent"


@dataclass(frozen=True)
class Part:
    """One part of an answer in which the two metastores differ."""

    call: str
    """``scenario: method(arguments)``"""
    path: str
    hive: str
    ours: str

    def __str__(self) -> str:
        shown = (
            f"{name:6}{text[:400]}" for name, text in (("hive", self.hive), ("ours", self.ours))
        )
        return "\n  ".join((f"{self.call[:240]} {self.path}", *shown))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference that ``client`` needs; ``why`` gives the reason."""

    why: str
    client: str
    calls: str = ""
    path: str = ""
    hive: str = ""
    ours: str = ""

    def covers(self, part: Part) -> bool:
        return all(
            re.search(pattern, text, re.DOTALL)
            for pattern, text in (
                (self.calls, part.call),
                (self.path, part.path),
                (self.hive, part.hive),
                (self.ours, part.ours),
            )
        )


def parts(call: str, hive: Answer, ours: Answer) -> Iterator[Part]:
    """The parts in which two answers to a call differ."""
    if "throws" in hive or "throws" in ours:
        if hive != ours:
            yield Part(call, "", _shown(hive), _shown(ours))
        return
    for path, *values in _unequal(hive["returns"], ours["returns"], ""):
        yield Part(call, path, *values)


def _shown(answer: Answer) -> str:
    if "throws" in answer:
        return f"{answer['throws']}: {answer['message']}"
    return _json(answer["returns"])


def _json(value: Any) -> str:
    return ABSENT if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _unequal(hive: Any, ours: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if hive == ours:
        return
    if isinstance(hive, dict) and isinstance(ours, dict):
        for name in sorted(hive.keys() | ours.keys()):
            yield from _unequal(hive.get(name, ABSENT), ours.get(name, ABSENT), f"{path}.{name}")
    elif isinstance(hive, list) and isinstance(ours, list) and len(hive) == len(ours):
        for number, (one, other) in enumerate(zip(hive, ours, strict=True)):
            yield from _unequal(one, other, f"{path}[{number}]")
    else:
        yield path, _json(hive), _json(ours)


_TYPED = r"^(Meta|InvalidObject|InvalidOperation|NoSuchObject)Exception: "

DIFFERENCES = (
    # -- bad input
    Difference(
        why="A missing argument or field is a typed error that names it. Hive answers with the text"
        " of a NullPointerException, or with an internal error that says nothing.",
        client="all: after an internal error, clients take the connection for broken",
        hive=r"NullPointerException|OutOfBounds|because .* is null|^TApplicationException 6: "
        r"|name is invalid. null$|^UnknownDBException: DB name|^\w+: alter is not possible$",
        ours=_TYPED + r".*(is missing|not a valid|no partition keys|no storage descriptor"
        r"|Invalid SerDeInfo|Invalid column type: $|Invalid partition key & values"
        r"|table or database do not exist|database None does not exist|Exception: $"
        r"|Column \w+ doesn't exist|(table|column|constraint) \S+ .*does not exist$"
        r"|table not found$)"
        r"|^TApplicationException 6: the argument db_name is missing",
    ),
    Difference(
        why="A change of a database that does not exist, or without arguments, is refused.",
        client="PyIceberg, Spark: a change that is lost must not look done",
        calls=r": alter_database\(",
        hive="^null$",
        ours=_TYPED,
    ),
    Difference(
        why="A database that does not exist is told so. Hive throws a NullPointerException.",
        client="PyIceberg: it maps NoSuchObjectException to its own error",
        calls=r": drop_database\(",
        hive="NullPointerException",
        ours="^NoSuchObjectException: ",
    ),
    Difference(
        why="The partition names of a table that does not exist are an error that is declared by"
        " Hive 4.",
        client="Trino, Impala: an internal error ends their connection",
        calls=r": get_partition_names\(",
        hive="^TApplicationException 6: ",
        ours="^NoSuchObjectException: ",
    ),
    Difference(
        why="A table has each column once, partition keys included. Hive says it with the text of"
        " an SQL statement, and not at all where a partition key repeats a column.",
        client="Spark: it cannot read a table with a column twice",
        hive="Add request failed : INSERT|^null$",
        ours=r"^InvalidObjectException: duplicate column|^InvalidOperationException: The following",
        calls=r"(tables that cannot be|columns and parameters).*(int\"}|\"string\"}).*",
    ),
    Difference(
        why="A type that cannot be read is refused, also inside another one.",
        client="Spark: a table with such a column cannot be read",
        calls=r": create_table\(.*(nosuch|decimal\(50)",
        hive="^null$",
        ours="^InvalidObjectException: Invalid column type: ",
    ),
    Difference(
        why="A location is an absolute path or a URI. That no file system here serves its scheme"
        " does not matter: clients read and write the files.",
        client="Spark, Trino: tables in object storage that the node has no library for",
        calls=r": create_table\(.*(relative/path|nosuch://)",
        hive="URISyntaxException|UnsupportedFileSystemException",
    ),
    Difference(
        why="Names of partitions are read strictly, and the message says what is wrong.",
        client="none: a text that is no name is a mistake of its sender",
        calls=r"partition_name_to_(vals|spec)|by_name\(|partition_column_statistics\(",
        hive=r"^\[\]$|incomplete partition name|partition values=\[a\]|Partition name is invalid",
        ours="is not the name of a partition",
    ),
    # -- structs that leave parts out
    Difference(
        why="A struct without a storage descriptor or a place leaves them as they are; a partition"
        " has those of its table. Hive throws a NullPointerException.",
        client="Python clients, which send the fields that they change",
        calls="^alters that leave parts out: ",
        hive="Can not create a Path from a null string|NullPointerException",
        ours=r"^(null|\{)",
    ),
    Difference(
        why="An alter without an owner keeps the owner: an owner has rights here. Hive forgets it."
        " An empty owner is none.",
        client="Python clients, which send the fields that they change",
        path=r"\.owner(Name)?$",
        hive='^absent$|^""$',
    ),
    # -- names
    Difference(
        why="A pattern of database names is a regular expression like one of table names, and one"
        " that is wrong is an error. To Hive it matches nothing.",
        client="beeline, DBeaver: SHOW DATABASES LIKE; users look for what is there",
        calls=r": get_(databases|tables)\(",
        hive=r"^\[\]$",
        ours=r"^\[|^MetaException: the regular expression",
    ),
    Difference(
        why="Keys in the names of partitions are compared without case, as everywhere.",
        client="none",
        calls=r": get_partition_by_name\(.*K=plain",
        hive="incomplete partition name",
        ours=r"^\{",
    ),
    # -- locations
    Difference(
        why="A node makes folders in its warehouse and below the roots of its settings, not"
        " wherever a client says, and none in the place of an external table.",
        client="all: a metastore that writes anywhere is a hole",
        calls=r": place\(",
        hive='^"folder"$',
        ours="^null$",
    ),
    Difference(
        why="Dropped data is kept for older versions; the folder of a dropped schema stays for it.",
        client="strandline undrop, and reads as of a version",
        calls=r": place\(\"dr_a.db\"\)",
        hive="^null$",
        ours='^"folder"$',
    ),
    Difference(
        why="A managed table in a place that its client chose is an external one: its files are not"
        " removed with it.",
        client="Spark: CREATE TABLE … LOCATION and SET LOCATION mean the same",
        path=r"\.(tableType|parameters\.EXTERNAL)$",
        hive="^absent$|MANAGED",
        ours="TRUE|EXTERNAL",
    ),
    Difference(
        why="An external table does not become a managed one, because its files are a user's.",
        client="Spark: a drop would remove them",
        calls=r"places and types.*: alter_table\(\"al\", \"to_ext\"",
        hive="^null$",
        ours="^InvalidOperationException: ",
    ),
    Difference(
        why="A view has no place, also where its client leaves out the type of table.",
        client="none",
        calls=r"get_table\(\"tk\", \"v2\"\)",
        path=r"\.location$",
        ours="^absent$",
    ),
    # -- what is not supported
    Difference(
        why="Skewed tables, indexes, types of tables that Hive does not know, and Hive's own"
        " transactional tables are refused: Strandline would not use them.",
        client="Spark: it reads none of them",
        calls=r"tables that cannot be created: create_table\(",
        hive="^null$|must be bucketed",
        ours="^MetaException: (skewed tables|a table of type|table x14)",
    ),
    Difference(
        why="A table does not become a view, nor a view a table: they have different ids.",
        client="Trino, Spark: readers of one version see one of both",
        calls=r"places and types.*: alter_table\(",
        ours="cannot become a (view|table)$",
    ),
    Difference(
        why="A node has none of Hive's settings.",
        client="none",
        calls=r": getMetaConf\(",
        hive='^"true"$',
        ours="^MetaException: Invalid configuration key",
    ),
    Difference(
        why="Statistics are those of rows that somebody has looked at, as in Hive 4: they are only"
        " merged into accurate ones. Those of partitions follow a rename, which loses them in Hive"
        " 2.3.",
        client="Trino, Impala, Hive: their planners believe the numbers",
        calls=r"^statistics (set|after).*(\"p=3\"|\"renamed\")",
        path=r"\.(colStats|partStats)",
    ),
    # -- columns
    Difference(
        why="A type becomes one that Spark reads from the files that are there. Hive allows more,"
        " but adds no fields to structs and widens nothing inside another type.",
        client="Spark: rows that are there would become unreadable",
        calls=r"changes of types: alter_table\(",
    ),
    Difference(
        why="Columns are found by name, so that an alter may give them another order. Hive compares"
        " those at one position.",
        client="Spark: ALTER COLUMN … FIRST",
        calls=r"columns and parameters of a table: alter_table\(",
        hive="The following columns have types incompatible",
        ours="^null$",
    ),
    Difference(
        why="A partition with the columns of its table has them after an alter too, also without"
        " CASCADE.",
        client="Spark: it reads partitions with the columns of their table",
        calls=r"alters of a partitioned table: get_partition\(",
        path=r"\.sd\.cols$",
    ),
    # -- counts
    Difference(
        why="Files of Iceberg tables are not counted: Iceberg alone knows which belong to them.",
        client="PyIceberg, Trino: a count of all files would be wrong",
        calls=r"get_table\(\"ai\"",
        path=r"\.(numFiles|totalSize)$",
        ours="^absent$",
    ),
    Difference(
        why="A folder without files has no counts: they would cost each new table a commit of its"
        " own, with an event, at its first alter.",
        client="Spark: it takes 0 for unknown",
        calls=r"^(?!renames of part|alters that compare).*: get_(table|partition|partitions_ps)\(",
        path=r"\.(numFiles|totalSize)$",
        hive='^"0"$',
        ours="^absent$",
    ),
    Difference(
        why="A partition that is renamed has the counts that its client sends. Hive counts the new"
        " folder before the files are in it, and says 0.",
        client="Spark: its planner believes the number",
        calls=r"renames of partitions: get_partition\(",
        path=r"\.(numFiles|totalSize)$",
        hive='^"0"$',
    ),
    # -- partitions
    Difference(
        why="The answer to an addition is the partition as it is read afterwards. Hive repeats what"
        " the client sent.",
        client="none",
        calls=r": add_partition",
        path=r"\.(skewedInfo|storedAsSubDirectories|dbName|tableName)$",
    ),
    Difference(
        why="The values of a partition are those that it was added with. Hive repeats those of the"
        " question, which may be its other spelling of NULL.",
        client="Spark: one partition has one value",
        calls=r"odd values: get_partition",
        path=r"\.values\[0\]$",
        hive=r"__HIVE_DEFAULT_PARTITION__",
        ours='^""$',
    ),
    Difference(
        why="A value at the end of a short list is a whole value, and no values stand for all. To"
        " Hive p=1 also is the start of p=10.",
        client="Trino, Spark: SHOW PARTITIONS (p=1)",
        calls=r": get_partition_names_ps\(\"pl\", \"t\", \[(\"1\")?\], -1",
    ),
    Difference(
        why="The values of keys are in the order in which the request names the keys, with a filter"
        " too, and an unknown key is named.",
        client="Python clients, which take the first value for the first key",
        calls=r": get_partition_values\(",
    ),
    # -- filters
    Difference(
        why="A filter compares values of the key's type, whatever literal stands beside it and"
        " whatever was stored; what does not cast is NULL. Hive refuses these filters.",
        client="Spark: its own filter on an int key with a like, or with one odd value, fails",
        calls="^filters .*by_filter",
        hive="^MetaException: (Filtering is supported only|Error parsing partition filter)",
        ours=r"^\[",
    ),
    Difference(
        why="A filter is read to its end. Hive ignores what follows a whole filter.",
        client="all: the rest of a condition that is ignored is a wrong answer",
        calls=r"by_filter.*it''s",
        hive=r"^\[\]$",
        ours="does not parse",
    ),
    Difference(
        why="A filter on parameters of tables with `or` finds the tables that lack a parameter by"
        " its other part. Hive joins them away.",
        client="none: Trino asks for one parameter",
        calls=r": get_table_names_by_filter\(.* or ",
    ),
    Difference(
        why="Without names, the request of Hive 4 asks for all tables.",
        client="Hive 4",
        calls=r": get_table_objects_by_name_req\(",
        hive="cannot find null tables",
        ours=r"^\{",
    ),
    # -- functions and statistics
    Difference(
        why="An alter of a function replaces its files. Hive keeps the old ones.",
        client="Spark: CREATE OR REPLACE FUNCTION … USING JAR",
        calls=r": get_function\(",
        path=r"\.resourceUris$",
    ),
    Difference(
        why="Statistics that are not there are an error that is declared. Hive answers with no"
        " result at all.",
        client="all: generated clients raise MISSING_RESULT for it",
        calls=r": get_(table|partition)_column_statistics\(",
        hive="^TApplicationException 5",
        ours="^NoSuchObjectException: ",
    ),
    # -- locks and transactions
    Difference(
        why="Locks are those of Hive 4, in which writers share. The number of the component that a"
        " request waits for is not kept.",
        client="Hive 4, Iceberg: none of them reads the number",
        calls="^locks",
        path=r"blockedByIntId$|^\.state$|\.locks",
    ),
    Difference(
        why="As in Hive 4, no transactions cannot be opened, a commit may be repeated when its"
        " answer was lost, and aborted transactions that wrote nothing are not listed.",
        client="Hive 4, Trino: they repeat calls",
        calls=r"transaction.*: (open_txns|commit_txn|get_open_txns_info)\(",
        ours=r"number of txns: 0$|^null$|^\[\{",
    ),
    # -- texts
    Difference(
        why="The same exception with a text of its own: it names the object as SQL does, what is"
        " wrong and where, in place of Java's and ANTLR's internals.",
        client="none: no client reads these texts, people do",
        hive=r"Error parsing partition filter|^MetaException: java|Specified database/table"
        r"|[Ff]unction \w+ (does not|doesn't|already) exist|^NoSuchObjectException: no_such$"
        r"|Check metastore logs|Invalid key name in filter|Alter partition operation failed"
        r"|Duplicate partitions in the list|^NoSuchObjectException: partition values=\[1\]$"
        r"|Primary key already exists|could not be made persistent|Parent column not found"
        r"|^NoSuchLockException: |^NoSuchTxnException: |^TxnAbortedException: |^TxnOpenException",
        ours=_TYPED + "|^AlreadyExistsException: function |^NoSuch(Lock|Txn)|^Txn(Aborted|Open)",
    ),
)
