"""All intended differences between the answers here and those of Hive 2.3.10, with reasons.

A difference covers parts of answers. It gives both values in each case, and where they occur: the
scenarios and calls, and the path of the part within the answer. Values are JSON, and exceptions are
``Name: message``. A part that no difference covers is a defect of the program or of this list, and
so is a case that covers nothing.
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
ARROW = " => "


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
    """A difference that ``client`` needs; ``why`` gives the reason.

    Each of ``cases`` is a regular expression for both values as a whole, ``hive => ours``.
    ``calls`` and ``path`` are searched in the call and in the path of the part.
    """

    why: str
    client: str
    cases: tuple[str, ...]
    calls: str = ""
    path: str = ""

    def covers(self, part: Part) -> bool:
        return any(self.covers_by(case, part) for case in self.cases)

    def covers_by(self, case: str, part: Part) -> bool:
        """Whether this one of the cases covers the part."""
        values = f"{part.hive}{ARROW}{part.ours}"
        return all(
            (
                re.fullmatch(case, values, re.DOTALL),
                re.search(self.calls, part.call, re.DOTALL),
                re.search(self.path, part.path),
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
        for number, (theirs, other) in enumerate(zip(hive, ours, strict=True)):
            yield from _unequal(theirs, other, f"{path}[{number}]")
    else:
        yield path, _json(hive), _json(ours)


_NULL = (
    r"(MetaException: java\.lang\.(NullPointer|StringIndexOutOfBounds)Exception"
    r"|TApplicationException 6: Internal error processing \w+"
    r"|MetaException: Partition name is invalid\. null"
    r'|MetaException: Cannot invoke "java\.util\.List\.isEmpty\(\)" because "partNames" is null'
    r"|UnknownDBException: DB name is null or empty"
    r"|InvalidOperationException: alter is not possible)"
)
"""What Hive answers if an argument or a field is missing."""
_INTERNAL = r"TApplicationException 6: Internal error processing \w+"
_INSERT = r'MetaException: Add request failed : INSERT INTO "(COLUMNS_V2|PARTITION_KEYS)" .*'
_NO_PATH = (
    r"MetaException: java\.lang\.(NullPointerException"
    r"|IllegalArgumentException: Can not create a Path from a null string)"
)
_INCOMPATIBLE = (
    r"InvalidOperationException: The following columns have types incompatible with the existing "
    r"columns in their respective positions :\n"
)
_NO_ROLE = r"MetaException: role \w+ does not exist; a user, too, needs a role of its name .*"

DIFFERENCES = (
    # -- bad input
    Difference(
        why="A missing argument is a typed error that names it. Hive answers with the text of a"
        " NullPointerException, or with an internal error that says nothing.",
        client="all: after an internal error, clients take the connection for broken",
        calls=r"\bnull\b|\"statsObj\": \[\]",
        cases=(
            rf"{_NULL} => (Meta|InvalidObject|NoSuchObject)Exception: "
            r"the argument \w+ is missing(: the statistics name no column)?",
            # This method declares only exceptions that clients do not expect.
            f"{_INTERNAL} => TApplicationException 6: the argument db_name is missing",
            # Hive does nothing, and says so.
            r"null => MetaException: the argument \w+ is missing",
            "true => MetaException: the argument role_name is missing",
        ),
    ),
    Difference(
        why="A field that is missing in a struct is a typed error about the struct.",
        client="all: after an internal error, clients take the connection for broken",
        cases=tuple(
            f"{_NULL} => {text}"
            for text in (
                "InvalidObjectException:  is not a valid (database|object) name",
                "InvalidOperationException: None is not a valid object name",
                "InvalidObjectException: ",
                "InvalidObjectException: Invalid column type: ",
                "MetaException: Invalid SerDeInfo object",
                "InvalidOperationException: the table t has no storage descriptor",
                r"Invalid\w+Exception: the storage descriptor of \w+ has no columns; .*",
                r"MetaException: Invalid partition key & values; keys \[p, q, \], values \[\]",
                "InvalidObjectException: Unable to add partition because table or database do not"
                " exist",
                "NoSuchObjectException: The function's database None does not exist",
                "MetaException: the request names no partition keys; name at least one",
            )
        ),
    ),
    Difference(
        why="An object that does not exist, or that exists already, is an error that the method"
        " declares. Hive answers with an internal error, the text of a NullPointerException or of"
        " an SQL statement, or with no result.",
        client="PyIceberg, Trino, Impala: they map declared errors to their own",
        cases=(
            r"MetaException: java\.lang\.NullPointerException => NoSuchObjectException: (dr_a)?",
            f"{_INTERNAL} => NoSuchObjectException: "
            r"(\w+\.\w+ table not found|column none of table \w does not exist"
            r"|constraint \w+ of table c1\.\w does not exist)",
            f"{_INTERNAL} => MetaException: Column (none|p) doesn't exist in table t .*",
            f"{_INTERNAL} => MetaException: role 'r_none' does not exist; existing roles: .*",
            f"{_INTERNAL} => MetaException: role (r_staff already exists|admin exists already: .*)",
            f"{_INTERNAL} => {_NO_ROLE}",
            r"MetaException: Error retrieving partition values: javax\.jdo\.JDOException: .*"
            " => MetaException: Key none is not a partition key of the table",
            "TApplicationException 5: .* => NoSuchObjectException: .*",
        ),
    ),
    Difference(
        why="A change of a database that does not exist is refused.",
        client="PyIceberg, Spark: a change that is lost must not look done",
        calls=r": alter_database\(\"no_such\"",
        cases=("null => NoSuchObjectException: no_such",),
    ),
    Difference(
        why="A table has each column once, partition keys included, and the name of a column has 1"
        " to 767 characters. Hive says it with the text of an SQL statement, and not at all if a"
        " partition key repeats a column or a name is empty.",
        client="Spark: it cannot read a table with a column twice; versions find columns by name",
        calls=r"create_table\(|alter_table\(",
        cases=(
            rf"({_INSERT}|null) => InvalidObjectException: duplicate column '[ap]' in [xy]\d+",
            f"{_INSERT} => InvalidObjectException: the name of a column may have at most 767 .*",
            "null => InvalidObjectException: the name of a column must not be empty or blank, .*",
            f"{_INSERT} => {_INCOMPATIBLE}y",
        ),
    ),
    Difference(
        why="A type that cannot be read is refused, also inside another one.",
        client="Spark: a table with such a column cannot be read",
        calls=r": create_table\(",
        cases=(
            r"null => InvalidObjectException: Invalid column type: array<nosuch> \(.*\)",
            r"null => InvalidObjectException: Invalid column type: decimal\(50,2\) \(.*\)",
        ),
    ),
    Difference(
        why="A location is an absolute path or a URI. That no file system here serves its scheme"
        " does not matter: clients read and write the files.",
        client="Spark, Trino: tables in object storage that the node has no library for",
        calls=r": create_table\(",
        cases=(
            r"MetaException: java\.lang\.\w+: java\.net\.URISyntaxException: .*"
            " => InvalidObjectException: 'relative/path' is not an absolute path or a URI; .*",
            r"MetaException: Got exception: \S+UnsupportedFileSystemException .*\"nosuch\" => null",
        ),
    ),
    Difference(
        why="Names of partitions are read strictly, and the message says what is wrong.",
        client="none: a text that is no name is a mistake of its sender",
        cases=(
            r"(\w+): (incomplete partition name - missing [kp]|partition values=\[a\])"
            r" => \1: '.*' is not the name of a partition: .*",
            r"\[\] => MetaException: '(nonsense|a=)' is not the name of a partition: .*",
            "MetaException: Partition name is invalid. "
            " => InvalidObjectException: 'nonsense' is not the name of a partition: .*",
        ),
    ),
    # -- fields of later releases
    Difference(
        why="An answer names the catalog, as in Hive 3 and later.",
        client="pymetastore, which refuses a partition that names none",
        path=r"\.(catName|catalogName)$",
        cases=('absent => "hive"',),
    ),
    # -- structs that leave parts out
    Difference(
        why="A struct without a storage descriptor, columns, a place or a time of creation leaves"
        " them as they are; a partition has those of its table. Hive throws a NullPointerException,"
        " or stores 0 as the time.",
        client="Python clients, which send the fields that they change",
        calls="^(alters|storage descriptors) that leave parts out: ",
        cases=(
            f"{_NO_PATH} => null",
            rf'{_NO_PATH} => {{"values": \["2"\], "dbName": "ao", "tableName": "p", .*}}',
            '0 => "a time"',
            r'absent => (\[{"name": "a", .*}\]|"0")',
        ),
    ),
    Difference(
        why="An alter without an owner keeps the owner: an owner has rights here. Hive forgets it."
        " An empty owner is none.",
        client="Python clients, which send the fields that they change",
        calls=r"get_(database|table)\(",
        path=r"^\.owner(Name)?$",
        cases=('absent => "(eve|bob)"', '"" => absent'),
    ),
    # -- names
    Difference(
        why="A pattern of database names is a regular expression like one of table names, and one"
        " that is wrong is an error. To Hive it matches nothing.",
        client="beeline, DBeaver: SHOW DATABASES LIKE; users look for what is there",
        calls=r": get_(databases|tables)\(",
        cases=(
            r'\[\] => \["pat_one"(, "pat_three", "pat_two")?\]',
            r"\[\] => MetaException: the regular expression '.*' is invalid or not supported: .*",
        ),
    ),
    Difference(
        why="Keys in the names of partitions are compared without case, as everywhere.",
        client="none",
        calls=r": get_partition_by_name\(.*K=plain",
        cases=(
            r"NoSuchObjectException: incomplete partition name - missing k"
            r' => {"values": \["plain"\], .*}',
        ),
    ),
    # -- locations
    Difference(
        why="A node makes folders in its warehouse and below the roots of its settings, not"
        " wherever a client says, and none in the place of an external table.",
        client="all: a metastore that writes anywhere is a hole",
        calls=r": place\(\"(elsewhere/|p[ar]\.db/ext/)",
        cases=('"folder" => null',),
    ),
    Difference(
        why="Dropped data is kept for older versions; the folder of a dropped schema stays for it.",
        client="strandline undrop, and reads as of a version",
        calls=r": place\(\"dr_a.db\"\)",
        cases=('null => "folder"',),
    ),
    Difference(
        why="A managed table in a place that its client chose is an external one: its files are not"
        " removed with it. So an external table does not become a managed one.",
        client="Spark: CREATE TABLE … LOCATION and SET LOCATION mean the same",
        calls=r"get_table\(|alter_table\(\"al\", \"to_ext\"",
        path=r"^(\.tableType|\.parameters\.EXTERNAL|)$",
        cases=(
            '"MANAGED_TABLE" => "EXTERNAL_TABLE"',
            'absent => "TRUE"',
            r"null => InvalidOperationException: the external table to_ext cannot become a .*",
        ),
    ),
    Difference(
        why="A view has no place, also where its client leaves out the type of table.",
        client="none",
        calls=r"get_table\(\"tk\", \"v2\"\)",
        path=r"^\.sd\.location$",
        cases=('"file:{warehouse}/tk.db/v2" => absent',),
    ),
    # -- what is not supported
    Difference(
        why="Skewed tables, indexes, materialized views, types of tables that Hive does not know,"
        " and Hive's own transactional tables are refused: only Hive maintains their content.",
        client="Spark: it reads none of them, or outdated rows",
        calls=r": create_table\(",
        cases=(
            "null => MetaException: skewed tables are not supported; .*",
            "null => MetaException: a table of type (INDEX_TABLE|NO_SUCH_TABLE|MATERIALIZED_VIEW)"
            " cannot be created; .*",
            "MetaException: The table must be bucketed .*"
            " => MetaException: table x14 cannot be created or altered with transactional=true: .*",
        ),
    ),
    Difference(
        why="A table does not become a view, nor a view a table: they have different ids.",
        client="Trino, Spark: readers of one version see one of both",
        calls=r"places and types.*: alter_table\(",
        cases=(
            "null => InvalidOperationException: al.become is a table and cannot become a view",
            rf"{_NO_PATH} => InvalidOperationException: al\.v is a view and cannot become a table",
        ),
    ),
    Difference(
        why="A node has no Kerberos.",
        client="none",
        calls=r": \w+_delegation_token\(",
        cases=(
            r"MetaException: java\.lang\.NullPointerException"
            " => MetaException: this metastore has no delegation tokens, .*",
        ),
    ),
    # -- columns
    Difference(
        why="A type becomes one that Spark reads from the files that are there. Hive allows more,"
        " but adds no fields to structs and widens nothing inside another type.",
        client="Spark: rows that are there would become unreadable",
        calls=r"changes of types: alter_table\(\"at\", \"t(9|10|15|17|18|21|22|26|28|30|31)\"",
        cases=(f"null => {_INCOMPATIBLE}c", f"{_INCOMPATIBLE}c => null"),
    ),
    Difference(
        why="Columns are found by name, so that an alter may give them another order. Hive compares"
        " those at one position.",
        client="Spark: ALTER COLUMN … FIRST",
        calls=r"columns and parameters of a table: alter_table\(",
        cases=(f"{_INCOMPATIBLE}x => null",),
    ),
    Difference(
        why="A partition with the columns of its table has them after an alter too, also without"
        " CASCADE. So, as in a table, a column whose type was changed has no statistics. In Hive,"
        " the partition keeps the old columns, and readers take an added one for NULL in it.",
        client="Spark, Trino: rows that were written to the partition after the alter",
        calls=r": (get_partition\(\"ap\", \"t\", \[\"1\", \"x\"\]\)|get_.*\"s7\", .*\"parted\")",
        path=r"^\.(sd\.cols|partStats\.p=1|colStats|partsFound)$",
        cases=(
            r'\[(.*)\] => \[\1, {"name": "c", "type": "date"}\]',
            r'\[{"colName": "a", .*}, ({"colName": "b", .*})\] => \[\1\]',
            "1 => 0",
        ),
    ),
    # -- counts and statistics
    Difference(
        why="Counts are those of the files. Hive does not count again if a client that has written"
        " files sends the old counts back, and in a renamed partition it counts before it moves the"
        " files there: 0. It counts Iceberg's files, but Iceberg's commits ask it not to, so its"
        " numbers are wrong from the next commit on.",
        client="Spark, after INSERT OVERWRITE; Trino, Hive: they plan with the size, 0 means empty",
        calls=r": get_(table|partition)\(\"(ai|pr|s6)\"",
        path=r"\.parameters\.(numFiles|totalSize|COLUMN_STATS_ACCURATE)$",
        cases=(
            '"0" => absent',
            r'"\d+" => "[1-9]\d*"',
            r'"{\\"BASIC_STATS\\":\\"true\\"}" => absent',
        ),
    ),
    Difference(
        why="As in Hive 4, statistics are only merged into accurate ones. Hive 2.3 takes those of"
        " the new rows for those of all rows, and calls them accurate. The statistics of a"
        " partition stay with its files if it or its table is renamed, as in Hive do those of a"
        " table. Hive 2.3 loses them until the partition is analyzed again.",
        client="Hive: it answers MIN, MAX and COUNT from accurate statistics; Trino: its plans",
        calls=r": get_partitions_statistics_req\(.*(\"s4\".*\"parted\"|\"s5\")",
        path=r"^\.partStats\.p=[13]$",
        cases=(r"\[.*\] => absent", r"absent => \[.*\]"),
    ),
    # -- filters
    Difference(
        why="A filter compares values of the key's type, whatever literal stands beside it and"
        " whatever was stored; what does not cast is NULL. Hive refuses these filters.",
        client="Spark: its own filter on an int key with a like, or with one odd value, fails",
        calls="^filters .*by_filter",
        cases=(
            "MetaException: Filtering is supported only on partition keys of type string"
            r" => \[.*\]",
            r"MetaException: Error parsing partition filter( |; ).* => \[.*\]",
        ),
    ),
    Difference(
        why="A filter is read to its end. Hive ignores what follows a whole filter.",
        client="all: the rest of a condition that is ignored is a wrong answer",
        calls=r"by_filter.*it''s",
        cases=(r"\[\] => MetaException: the partition filter .* does not parse: .*",),
    ),
    Difference(
        why="Without names, the request of Hive 4 asks for all tables.",
        client="Hive 4",
        calls=r": get_table_objects_by_name_req\({\"dbName\": \"tl\"}\)",
        cases=(r'InvalidOperationException: tl cannot find null tables => {"tables": \[.*\]}',),
    ),
    # -- roles
    Difference(
        why="A role is both a user and a role. So a user needs a role before something is granted"
        " to it, and the roles of a name are the same by both types.",
        client="Trino, Hive: who created a user's role would own what the user creates",
        calls=r"^roles: |^privileges: grant_privileges",
        cases=(
            f"true => {_NO_ROLE}",
            r'\[({.*})\] => \[{"roleName": "r_staff", "createTime": "a time", "ownerName": "root"}'
            r", \1\]",
            r'\[({.*}), {.*"principalName": "r_zoe".*}\] => \[\1\]',
        ),
    ),
    Difference(
        why="What is granted already, or revoked already, is no error. Nothing is granted on a"
        " table that does not exist. All grants of a role can be listed.",
        client="Trino, Hive: SHOW GRANT; a repeated call after a lost answer",
        calls=r"^(roles: grant_role|privileges: (grant|revoke|list)_privileges)\(",
        cases=(
            f"{_INTERNAL} => true",
            r"true => MetaException: pv\.none table not found",
            _INTERNAL + r' => \[{"hiveObject": .*"CREATE".*, {"hiveObject": .*"SELECT".*}\]',
        ),
    ),
    # -- locks and transactions
    Difference(
        why="A reader waits for a writer that waits before it. In Hive 2.3 it overtakes the writer,"
        " which is then granted its exclusive lock while the reader holds its own.",
        client="Hive, Trino: the reader would read while the writer replaces the files",
        calls="^a reader after a waiting writer: (check_)?lock",
        path=r"^\.state$",
        cases=("1 => 2",),
    ),
    Difference(
        why="As in Hive 4, no transactions cannot be opened. Aborted transactions without writes"
        " are not listed: Hive removes them too, but only when it cleans.",
        client="Hive 4, Trino: a list of aborted transactions is read with every query",
        calls=r"^transactions: (open_txns|get_open_txns_info)\(",
        cases=(
            r'{"txn_ids": \[\]} => TApplicationException 6: Invalid input for number of txns: 0',
            r"\[({.*?}), {.*\] => \[\1\]",
        ),
    ),
    # -- texts
    Difference(
        why="The same exception with a text of its own: it names the object as SQL does, what is"
        " wrong and where, in place of Java's and ANTLR's internals.",
        client="none: no client reads these texts, people do",
        cases=(
            r"MetaException: Error parsing partition filter( |; ).*"
            r" => MetaException: the partition filter '.*' does not parse: expected .*",
            r"MetaException: java\.lang\.IllegalArgumentException: No enum constant \S+\.(\w+)"
            r" => MetaException: \1 is not a table type; the types are .*",
            rf"{_INSERT} => MetaException: duplicate column 'a' in partition p=[12]/q=x",
            r"MetaException: Invalid key name in filter\..* => MetaException: Invalid filter: .*",
            r"MetaException: java\.io\.IOException: (Duplicate partitions .*) => MetaException: \1",
            "MetaException: The transaction for alter partition did not commit successfully."
            " => MetaException: Invalid SerDeInfo object",
            r"InvalidOperationException: Unable to change partition or table\. Database ar2 .*"
            r" => InvalidOperationException: Unable to change partition or table\. Database no_such"
            " does not exist",
            r"InvalidOperationException: Alter partition operation failed: .*"
            " => InvalidOperationException: alter is not possible",
            r"NoSuchObjectException: Specified database/table does not exist : (\w+\.\w+)"
            r" => NoSuchObjectException: \1 table not found",
            r"NoSuchObjectException: partition values=\[1\]"
            r" => NoSuchObjectException: \w+\.\w+ table not found",
            r"AlreadyExistsException: Function (\w+) already exists"
            r" => AlreadyExistsException: function fu\.\1 already exists",
            r"NoSuchObjectException: no_such"
            " => NoSuchObjectException: The function's database no_such does not exist",
            r"(\w+): [Ff]unction (\w+) (does not|doesn't) exist"
            r" => \1: Function \w+\.\2 does not exist",
            "MetaException:  Primary key already exists for: c1.p"
            " => MetaException: the primary key of table p already exists",
            "MetaException: One or more instances could not be made persistent"
            " => MetaException: constraint f_key of table f already exists",
            "InvalidObjectException: Parent column not found: none"
            " => InvalidObjectException: column none of table bad does not exist",
            r"NoSuchLockException: No such lock:? lockid:#"
            r" => NoSuchLockException: no such lock lockid:#: .*",
            r"NoSuchTxnException: No such transaction txnid:#"
            " => NoSuchTxnException: there is no transaction #; .*",
            r"NoSuchTxnException: Transaction txnid:# is already committed\."
            " => NoSuchTxnException: [Tt]ransaction .*committed( at .*)?",
            "TxnAbortedException: Transaction txnid:# already aborted"
            " => TxnAbortedException: transaction # cannot (lock|be committed): .*",
            r"TxnOpenException: Unlocking locks associated with transaction not permitted\..*"
            " => TxnOpenException: lock # belongs to transaction # and ends with it; .*",
            "MetaException: public role implictly exists.*"
            " => MetaException: a role cannot be named 'public': .*",
            r"MetaException: Cannot grant role r_staff to r_chiefs .*\(no cycles allowed\)"
            " => MetaException: role r_chiefs cannot be granted to r_staff: .*",
        ),
    ),
)
