"""Partitions: odd values, additions, changes, drops, lists."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import SERDE, Scenario, partition, storage, table

_DEFAULT = "__HIVE_DEFAULT_PARTITION__"
_ODD = (
    "plain",
    "",
    _DEFAULT,
    " ",
    " lead",
    "trail ",
    "Grüße €",
    "日本",
    "a=b",
    "a/b",
    "100%",
    "%41",
    "a:b",
    "a#b",
    "a?b",
    "a*b",
    "[x]",
    "{y}",
    'q"q',
    "it's",
    "back\\slash",
    "tab\there",
    "new\nline",
    "null",
    "NULL",
    "Case",
    "case",
    "a+b",
    "a,b",
    "a^b",
    "a|b",
    "-1",
    "01",
    "1",
)
_EXTERNAL: dict[str, Any] = {"tableType": "EXTERNAL_TABLE", "parameters": {"EXTERNAL": "TRUE"}}
_EMPTY: dict[str, Any] = {"properties": {}}
_UNCOUNTED = {"properties": {"DO_NOT_UPDATE_STATS": "true"}}
_PURGE = {"properties": {"ifPurge": "true"}}
_VALUES: tuple[dict[str, Any], ...] = (
    {"partitionKeys": [{"name": "p", "type": "int"}]},
    {
        "partitionKeys": [{"name": "q", "type": "string"}],
        "applyDistinct": False,
    },
    {
        "partitionKeys": [{"name": "q"}, {"name": "p"}],
        "filter": 'q = "a"',
        "partitionOrder": [{"name": "p"}],
        "ascending": False,
    },
    {"partitionKeys": [{"name": "none"}]},
    {"partitionKeys": []},
    {"partitionKeys": [{"name": "p"}], "maxParts": 2},
)
"""Requests of ``get_partition_values``, without the names of the schema and the table."""


def _with_format(**parts: Any) -> dict[str, Any]:
    """Table ``pf.t`` in the format of ``parts``, as a client sends it in an alter."""
    sd = storage(location="file:{warehouse}/pf.db/t", **parts)
    return table("pf", "t", keys="p int", sd=sd)


_OTHER_FORMAT: dict[str, Any] = {
    "serdeInfo": {"serializationLib": SERDE, "parameters": {"field.delim": ";"}},
    "numBuckets": 4,
    "bucketCols": ["a"],
    "sortCols": [{"col": "b", "order": 1}],
}


def _sent(value: str, **parameters: str) -> dict[str, Any]:
    """A partition of ``pe.t`` as a client that has read it sends it back."""
    sd = storage(location=f"file:{{warehouse}}/pe.db/t/p={value}")
    return partition("pe", "t", value, sd=sd, createTime=1, parameters=parameters)


SCENARIOS = (
    Scenario(
        "odd values",
        (
            ("create_database", {"name": "po"}),
            ("create_table", table("po", "t", keys="k string")),
            *(("add_partition", partition("po", "t", value)) for value in _ODD),
            ("get_partition_names", "po", "t", -1),
            ("values", "get_partitions", "po", "t", -1),
            *(
                ("get_partition", "po", "t", [value])
                for value in ("", _DEFAULT, "a/b", "Grüße €", "%41", "A")
            ),
            *(
                ("get_partition_by_name", "po", "t", name)
                for name in (
                    "k=a%2Fb",
                    "k=a/b",
                    "K=plain",
                    "k=a%2fb",
                    f"k={_DEFAULT}",
                    "k=",
                    "plain",
                    "",
                )
            ),
            ("get_partition_names_ps", "po", "t", ["a/b"], -1),
            ("get_partition_names_ps", "po", "t", [_DEFAULT], -1),
            ("get_partition_names_ps", "po", "t", ["plai"], -1),
            ("get_partition_names_ps", "po", "t", ["a*b"], -1),
            ("get_partition_names_ps", "po", "t", ["%"], -1),
            ("get_partition_names_ps", "po", "t", ["100%"], -1),
            ("get_partition_names_ps", "po", "t", ["CASE"], -1),
            ("get_partitions_by_names", "po", "t", ["k=plain", "k=a%2Fb", "k=none", "k=plain"]),
            ("drop_partition", "po", "t", ["a=b"], True),
            ("drop_partition_by_name", "po", "t", "k=100%25", True),
            ("drop_partition", "po", "t", [""], True),
            ("drop_partition", "po", "t", ["no such"], True),
            ("get_partition_names", "po", "t", -1),
        ),
    ),
    Scenario(
        "values of other types",
        (
            ("create_database", {"name": "pt"}),
            ("create_table", table("pt", "t", keys="i int, d date, m decimal(5,2), f boolean")),
            ("add_partition", partition("pt", "t", "1", "2020-01-01", "1.50", "true")),
            ("add_partition", partition("pt", "t", "01", "2020-1-1", "1.5", "TRUE")),
            ("add_partition", partition("pt", "t", "x", "no date", "one", "maybe")),
            ("add_partition", partition("pt", "t", _DEFAULT, _DEFAULT, _DEFAULT, _DEFAULT)),
            ("get_partition_names", "pt", "t", -1),
            ("get_partition", "pt", "t", ["1", "2020-01-01", "1.50", "true"]),
            ("get_partition", "pt", "t", ["1", "2020-01-01", "1.5", "true"]),
            ("get_partition_by_name", "pt", "t", "i=1/d=2020-01-01/m=1.50/f=true"),
            ("get_partition_by_name", "pt", "t", "d=2020-01-01/i=1/f=true/m=1.50"),
            ("get_partition_by_name", "pt", "t", "i=1/d=2020-01-01/m=1.50"),
            ("get_partition_names_ps", "pt", "t", ["1"], -1),
            ("get_partition_names_ps", "pt", "t", ["", "2020-01-01"], -1),
        ),
    ),
    Scenario(
        "additions of partitions",
        (
            ("create_database", {"name": "pa"}),
            ("create_table", table("pa", "t", "A int, b string", keys="p int, Q string")),
            ("create_table", table("pa", "none")),
            ("add_partition", partition("pa", "t", "1", "x", parameters={"k": "v"})),
            ("get_partition", "pa", "t", ["1", "x"]),
            ("place", "pa.db/t/p=1/q=x"),
            ("add_partition", partition("pa", "t", "1", "x")),
            ("add_partition", partition("pa", "t", "1")),
            ("add_partition", partition("pa", "t", "1", "x", "z")),
            ("add_partition", partition("pa", "t")),
            ("add_partition", partition("pa", "t", "1", "y", values=None)),
            ("add_partition", partition("pa", "none", "1")),
            ("add_partition", partition("pa", "no_such", "1")),
            ("add_partition", partition("no_such", "t", "1")),
            ("add_partition", None),
            ("add_partition", partition("pa", "t", "3", "x", dbName=None)),
            ("add_partition", partition("pa", "t", "3", "x", tableName=None)),
            (
                "add_partition",
                partition(
                    "PA",
                    "T",
                    "4",
                    "x",
                    sd=storage("a int", location="file:{warehouse}/elsewhere//4/"),
                ),
            ),
            ("get_partition", "pa", "t", ["4", "x"]),
            ("place", "elsewhere/4"),
            (
                "add_partition",
                partition(
                    "pa", "t", "5", "x", sd=storage("other string", inputFormat="in5", numBuckets=5)
                ),
            ),
            ("get_partition", "pa", "t", ["5", "x"]),
            (
                "add_partition",
                partition("pa", "t", "6", "x", createTime=7, lastAccessTime=8, parameters=None),
            ),
            ("get_partition", "pa", "t", ["6", "x"]),
            ("add_partitions", [partition("pa", "t", "7", "x"), partition("pa", "t", "7", "y")]),
            ("add_partitions", [partition("pa", "t", "8", "x"), partition("pa", "t", "7", "y")]),
            ("add_partitions", [partition("pa", "t", "8", "x"), partition("pa", "t", "8", "x")]),
            ("add_partitions", [partition("pa", "t", "8", "x"), partition("pa", "none", "8")]),
            ("add_partitions", [partition("pa", "t", "8", "x"), partition("pa", "t", "8")]),
            ("add_partitions", []),
            ("add_partitions", None),
            ("get_partition_names", "pa", "t", -1),
            *(
                ("add_partitions_req", {"dbName": "pa", "tblName": "t", **request})
                for request in (
                    {"parts": [partition("pa", "t", "9", "x")], "ifNotExists": False},
                    {"parts": [partition("pa", "t", "9", "x")], "ifNotExists": False},
                    {
                        "parts": [partition("pa", "t", "9", "x"), partition("pa", "t", "9", "y")],
                        "ifNotExists": True,
                    },
                    {
                        "parts": [partition("pa", "t", "9", "z")],
                        "ifNotExists": True,
                        "needResult": False,
                    },
                    {"parts": [], "ifNotExists": True},
                    {"parts": [partition("pa", "t", "9")], "ifNotExists": True},
                    {"parts": [partition("pa", "none", "9")], "ifNotExists": True},
                    {
                        "parts": [partition("pa", "t", "w", "w"), partition("pa", "t", "w", "w")],
                        "ifNotExists": True,
                    },
                )
            ),
            (
                "add_partitions_req",
                {"dbName": "pa", "tblName": "no_such", "parts": [], "ifNotExists": True},
            ),
            (
                "add_partitions_req",
                {
                    "dbName": "no_such",
                    "tblName": "t",
                    "parts": [partition("no_such", "t", "9", "x")],
                    "ifNotExists": True,
                },
            ),
            ("append_partition", "pa", "t", ["10", "x"]),
            ("append_partition", "pa", "t", ["10", "x"]),
            ("append_partition", "pa", "t", ["10"]),
            ("append_partition", "pa", "t", []),
            ("append_partition", "pa", "t", None),
            ("append_partition", "pa", "no_such", ["1", "x"]),
            ("append_partition", "no_such", "t", ["1", "x"]),
            ("append_partition_by_name", "pa", "t", "p=11/q=x%2Fy"),
            ("append_partition_by_name", "pa", "t", "q=x/p=12"),
            ("append_partition_by_name", "pa", "t", "p=12"),
            ("append_partition_by_name", "pa", "t", "nonsense"),
            ("append_partition_by_name", "pa", "t", ""),
            ("append_partition_by_name", "pa", "t", "p=12/r=x"),
            ("get_partition_names", "pa", "t", -1),
            ("file", "pa.db/t/p=20/q=x/rows", 12),
            ("append_partition", "pa", "t", ["20", "x"]),
            ("create_table", table("pa", "ext", keys="p int", **_EXTERNAL)),
            ("add_partition", partition("pa", "ext", "1")),
            ("place", "pa.db/ext/p=1"),
            ("get_partition", "pa", "ext", ["1"]),
        ),
    ),
    Scenario(
        "lists of partitions",
        (
            ("create_database", {"name": "pl"}),
            ("create_table", table("pl", "t", keys="p int, q string")),
            ("create_table", table("pl", "none")),
            (
                "add_partitions",
                [partition("pl", "t", p, q) for p in ("2", "10", "1") for q in ("b", "a", "B")],
            ),
            ("get_partition_names", "pl", "t", -1),
            ("get_partition_names", "PL", "T", -1),
            ("get_partition_names", "pl", "t", 0),
            ("get_partition_names", "pl", "t", 2),
            ("get_partition_names", "pl", "t", 100),
            ("get_partition_names", "pl", "t", -5),
            ("get_partition_names", "pl", "none", -1),
            ("get_partition_names", "pl", "no_such", -1),
            ("get_partition_names", "no_such", "t", -1),
            ("get_partition_names", None, "t", -1),
            ("get_partition_names", "pl", "t"),
            ("get_partitions", "pl", "t", 1),
            ("get_partitions", "pl", "t", 0),
            ("get_partitions", "pl", "none", -1),
            ("get_partitions", "pl", "no_such", -1),
            ("get_partitions", "no_such", "t", -1),
            ("get_partitions", None, "t", -1),
            ("get_partitions_with_auth", "pl", "t", 1, "ann", []),
            ("get_partition", "pl", "t", ["2", "b"]),
            ("get_partition", "pl", "t", ["2", "none"]),
            ("get_partition", "pl", "t", ["2"]),
            ("get_partition", "pl", "t", []),
            ("get_partition", "pl", "t", None),
            ("get_partition", "pl", "none", ["1"]),
            ("get_partition", "pl", "no_such", ["1"]),
            ("get_partition", "no_such", "t", ["1"]),
            ("get_partition_with_auth", "pl", "t", ["2", "b"], "ann", []),
            ("get_partition_with_auth", "pl", "t", ["2", "none"], "ann", []),
            ("get_partition_by_name", "pl", "t", "p=2/q=b"),
            ("get_partition_by_name", "pl", "t", "p=2/q=none"),
            ("get_partition_by_name", "pl", "t", "p=2"),
            ("get_partition_by_name", "pl", "no_such", "p=2/q=b"),
            ("get_partition_by_name", "pl", "t", None),
            *(
                ("get_partition_names_ps", "pl", "t", values, limit)
                for values, limit in (
                    (["1", ""], -1),
                    (["", "b"], -1),
                    (["1"], -1),
                    ([""], -1),
                    ([], -1),
                    (["1", "a"], -1),
                    (["1", "a", "c"], -1),
                    (["1", "a"], 1),
                    (["1", ""], 0),
                    (["7", ""], -1),
                    (None, -1),
                )
            ),
            ("get_partition_names_ps", "pl", "none", ["1"], -1),
            ("get_partition_names_ps", "pl", "no_such", ["1"], -1),
            ("get_partitions_ps", "pl", "t", ["10", "a"], -1),
            ("get_partitions_ps", "pl", "t", ["7"], -1),
            ("get_partitions_ps", "pl", "t", ["1", "a", "x"], -1),
            ("get_partitions_ps", "pl", "no_such", ["1"], -1),
            ("get_partitions_ps_with_auth", "pl", "t", ["10", "a"], -1, "ann", []),
            ("get_partitions_ps_with_auth", "pl", "t", ["10"], 0, "ann", []),
            ("get_partitions_ps_with_auth", "pl", "no_such", ["10"], -1, "ann", []),
            ("get_partitions_by_names", "pl", "t", ["p=1/q=a", "p=7/q=a", "P=2/q=b"]),
            ("get_partitions_by_names", "pl", "t", []),
            ("get_partitions_by_names", "pl", "t", None),
            ("get_partitions_by_names", "pl", "t", ["nonsense"]),
            ("get_partitions_by_names", "pl", "no_such", ["p=1/q=a"]),
            *(
                ("get_partition_values", {"dbName": "pl", "tblName": "t", **request})
                for request in _VALUES
            ),
        ),
    ),
    Scenario(
        "changes of partitions",
        (
            ("create_database", {"name": "pc"}),
            ("create_table", table("pc", "t", keys="p int, q string")),
            (
                "add_partitions",
                [partition("pc", "t", p, q) for p in ("1", "2") for q in ("x", "y")],
            ),
            ("file", "pc.db/t/p=1/q=x/rows", 11),
            (
                "alter_partition",
                "pc",
                "t",
                partition(
                    "pc",
                    "t",
                    "1",
                    "x",
                    createTime=1,
                    parameters={"n": "1"},
                    sd=storage(location="file:{warehouse}/pc.db/t/p=1/q=x"),
                ),
            ),
            ("get_partition", "pc", "t", ["1", "x"]),
            (
                "alter_partition",
                "PC",
                "T",
                partition(
                    "pc",
                    "t",
                    "1",
                    "y",
                    sd=storage(location="file:{warehouse}/elsewhere/1y", numBuckets=2),
                    createTime=1,
                    lastAccessTime=77,
                ),
            ),
            ("get_partition", "pc", "t", ["1", "y"]),
            ("alter_partition", "pc", "t", partition("pc", "t", "7", "x")),
            ("alter_partition", "pc", "t", partition("pc", "t", "7")),
            ("alter_partition", "pc", "t", partition("pc", "t", "1", "x", values=None)),
            ("alter_partition", "pc", "no_such", partition("pc", "no_such", "1", "x")),
            ("alter_partition", "no_such", "t", partition("no_such", "t", "1", "x")),
            ("alter_partition", "pc", "t", None),
            (
                "alter_partitions",
                "pc",
                "t",
                [
                    partition(
                        "pc",
                        "t",
                        "2",
                        q,
                        createTime=1,
                        parameters={"n": q},
                        sd=storage(location=f"file:{{warehouse}}/pc.db/t/p=2/q={q}"),
                    )
                    for q in ("x", "y")
                ],
            ),
            ("get_partitions_ps", "pc", "t", ["2"], -1),
            (
                "alter_partitions",
                "pc",
                "t",
                [
                    partition(
                        "pc",
                        "t",
                        p,
                        q,
                        createTime=1,
                        parameters={"n": "9"},
                        sd=storage(location=f"file:{{warehouse}}/pc.db/t/p={p}/q={q}"),
                    )
                    for p, q in (("2", "x"), ("9", "y"))
                ],
            ),
            ("alter_partitions", "pc", "t", []),
            ("alter_partitions", "pc", "t", None),
            ("alter_partitions", "pc", "no_such", [partition("pc", "no_such", "2", "x")]),
            ("get_partition", "pc", "t", ["2", "x"]),
            (
                "alter_partition_with_environment_context",
                "pc",
                "t",
                partition(
                    "pc",
                    "t",
                    "2",
                    "x",
                    createTime=1,
                    sd=storage(location="file:{warehouse}/pc.db/t/p=2/q=x"),
                    parameters={"numRows": "5"},
                ),
                {"properties": {"DO_NOT_UPDATE_STATS": "true"}},
            ),
            ("get_partition", "pc", "t", ["2", "x"]),
        ),
    ),
    Scenario(
        "formats of partitions",
        (
            ("create_database", {"name": "pf"}),
            ("create_table", table("pf", "t", keys="p int")),
            ("add_partition", partition("pf", "t", "1")),
            ("alter_table", "pf", "t", _with_format(**_OTHER_FORMAT)),
            ("append_partition", "pf", "t", ["2"]),
            ("add_partition", partition("pf", "t", "3", sd=storage(**_OTHER_FORMAT))),
            ("add_partition", partition("pf", "t", "4")),
            ("get_partitions", "pf", "t", -1),
            (
                "alter_table_with_environment_context",
                "pf",
                "t",
                _with_format(inputFormat="third"),
                {"properties": {"CASCADE": "true"}},
            ),
            ("append_partition", "pf", "t", ["5"]),
            ("get_partitions", "pf", "t", -1),
            ("alter_table", "pf", "t", _with_format()),
            ("get_partitions", "pf", "t", -1),
            ("get_partitions_by_names", "pf", "t", ["p=1", "p=5"]),
        ),
    ),
    Scenario(
        "renames of partitions",
        (
            ("create_database", {"name": "pr"}),
            ("create_table", table("pr", "t", keys="p int, q string")),
            (
                "add_partitions",
                [partition("pr", "t", p, q) for p in ("1", "2") for q in ("x", "y")],
            ),
            ("file", "pr.db/t/p=1/q=x/rows", 11),
            (
                "rename_partition",
                "pr",
                "t",
                ["1", "x"],
                partition(
                    "pr",
                    "t",
                    "5",
                    "a/b",
                    createTime=1,
                    sd=storage(location="file:{warehouse}/pr.db/t/p=1/q=x"),
                ),
            ),
            ("get_partition", "pr", "t", ["5", "a/b"]),
            ("place", "pr.db/t/p=5/q=a%2Fb/rows"),
            ("place", "pr.db/t/p=1/q=x"),
            ("get_partition_names", "pr", "t", -1),
            ("rename_partition", "pr", "t", ["2", "x"], partition("pr", "t", "2", "y")),
            ("rename_partition", "pr", "t", ["2", "x"], partition("pr", "t", "2", "x")),
            ("rename_partition", "pr", "t", ["7", "x"], partition("pr", "t", "8", "x")),
            ("rename_partition", "pr", "t", ["2"], partition("pr", "t", "8", "x")),
            ("rename_partition", "pr", "t", ["2", "x"], partition("pr", "t", "8")),
            ("rename_partition", "pr", "t", None, partition("pr", "t", "8", "x")),
            ("rename_partition", "pr", "t", ["2", "x"], None),
            ("rename_partition", "pr", "no_such", ["2", "x"], partition("pr", "t", "8", "x")),
            ("create_table", table("pr", "ext", keys="p int", **_EXTERNAL)),
            ("add_partition", partition("pr", "ext", "1")),
            (
                "rename_partition",
                "pr",
                "ext",
                ["1"],
                partition(
                    "pr",
                    "ext",
                    "2",
                    createTime=1,
                    sd=storage(location="file:{warehouse}/pr.db/ext/p=1"),
                ),
            ),
            ("get_partition", "pr", "ext", ["2"]),
            ("place", "pr.db/ext/p=1"),
            ("get_partition_names", "pr", "t", -1),
        ),
    ),
    Scenario(
        "drops of partitions",
        (
            ("create_database", {"name": "pd"}),
            ("create_table", table("pd", "t", keys="p int")),
            ("add_partitions", [partition("pd", "t", str(p)) for p in range(9)]),
            ("file", "pd.db/t/p=0/rows", 5),
            ("file", "pd.db/t/p=1/rows", 5),
            ("drop_partition", "pd", "t", ["0"], True),
            ("place", "pd.db/t/p=0"),
            ("drop_partition", "pd", "t", ["1"], False),
            ("place", "pd.db/t/p=1/rows"),
            ("drop_partition", "pd", "t", ["1"], False),
            ("drop_partition", "pd", "t", [], True),
            ("drop_partition", "pd", "t", None, True),
            ("drop_partition", "pd", "t", ["1", "2"], True),
            ("drop_partition", "pd", "no_such", ["1"], True),
            ("drop_partition", "no_such", "t", ["1"], True),
            ("drop_partition_by_name", "pd", "t", "p=2", True),
            ("drop_partition_by_name", "pd", "t", "p=2", True),
            ("drop_partition_by_name", "pd", "t", "nonsense", True),
            ("drop_partition_by_name", "pd", "t", "q=2", True),
            ("drop_partition_by_name", "pd", "t", None, True),
            *(
                ("drop_partitions_req", {"dbName": "pd", "tblName": "t", **request})
                for request in (
                    {"parts": {"names": ["p=3", "p=4"]}, "deleteData": True},
                    {"parts": {"names": ["p=3", "p=5"]}, "deleteData": True},
                    {"parts": {"names": ["p=3", "p=5"]}, "deleteData": True, "ifExists": True},
                    {"parts": {"names": ["p=6"]}, "deleteData": True, "needResult": False},
                    {"parts": {"names": []}, "deleteData": True},
                    {"parts": {"names": ["nonsense"]}, "deleteData": True},
                    {"parts": {"names": ["p=7", "p=7"]}, "deleteData": True},
                )
            ),
            (
                "drop_partitions_req",
                {"dbName": "pd", "tblName": "no_such", "parts": {"names": ["p=1"]}},
            ),
            ("get_partition_names", "pd", "t", -1),
            ("drop_table", "pd", "t", True),
            ("get_partition_names", "pd", "t", -1),
            ("create_table", table("pd", "t", keys="p int")),
            ("get_partition_names", "pd", "t", -1),
        ),
    ),
    Scenario(
        "folders above partitions",
        (
            ("create_database", {"name": "pg"}),
            ("create_table", table("pg", "t", keys="p int, q string, r string")),
            (
                "add_partitions",
                [partition("pg", "t", "1", q, r) for q in ("x", "y") for r in ("a", "b")],
            ),
            ("drop_partition", "pg", "t", ["1", "x", "a"], True),
            ("place", "pg.db/t/p=1/q=x"),
            (
                "drop_partition_with_environment_context",
                *("pg", "t", ["1", "x", "b"], True),
                _PURGE,
            ),
            ("place", "pg.db/t/p=1/q=x"),
            ("place", "pg.db/t/p=1"),
            ("drop_partition", "pg", "t", ["1", "y", "a"], False),
            (
                "drop_partitions_req",
                {
                    "dbName": "pg",
                    "tblName": "t",
                    "deleteData": True,
                    "parts": {"names": ["p=1/q=y/r=b"]},
                },
            ),
            ("place", "pg.db/t/p=1/q=y/r=a"),
            ("file", "pg.db/t/p=2/of_a_user", 1),
            ("append_partition", "pg", "t", ["2", "x", "a"]),
            ("drop_partition_by_name", "pg", "t", "p=2/q=x/r=a", True),
            ("place", "pg.db/t/p=2/q=x"),
            ("place", "pg.db/t/p=2/of_a_user"),
            ("append_partition", "pg", "t", ["3", "x", "a"]),
            ("drop_partition", "pg", "t", ["3", "x", "a"], True),
            ("place", "pg.db/t/p=3"),
            ("place", "pg.db/t"),
        ),
    ),
    Scenario(
        "values and columns that no partition may have",
        (
            ("create_database", {"name": "pw"}),
            ("create_table", table("pw", "t", keys="p int, q string")),
            ("add_partition", partition("pw", "t", "1", "x")),
            *(
                (
                    "rename_partition",
                    *("pw", "t", ["1", "x"]),
                    partition(
                        *("pw", "t", *values),
                        sd=storage(location="file:{warehouse}/pw.db/t/p=1/q=x"),
                    ),
                )
                for values in (("2", ""), ("", "x"))
            ),
            ("add_partition", partition("pw", "t", "2", "x", columns="a int, A string")),
            (
                "alter_partition",
                *("pw", "t"),
                partition(
                    *("pw", "t", "1", "x"),
                    sd=storage("a int, a string", location="file:{warehouse}/pw.db/t/p=1/q=x"),
                ),
            ),
            ("get_partition_names", "pw", "t", -1),
            ("values", "get_partitions", "pw", "t", -1),
        ),
    ),
    Scenario(
        "partitions with an environment context",
        (
            ("create_database", {"name": "pe"}),
            ("create_table", table("pe", "t", keys="p int")),
            ("file", "pe.db/t/p=1/a", 10),
            ("add_partition_with_environment_context", partition("pe", "t", "1"), _UNCOUNTED),
            ("get_partition", "pe", "t", ["1"]),
            ("add_partition_with_environment_context", partition("pe", "t", "2"), None),
            ("add_partition_with_environment_context", partition("pe", "t", "2"), _EMPTY),
            ("append_partition_with_environment_context", "pe", "t", ["3"], _EMPTY),
            ("append_partition_by_name_with_environment_context", "pe", "t", "p=4", _EMPTY),
            *(
                step
                for context in (_UNCOUNTED, None, _EMPTY)
                for step in (
                    (
                        "alter_partitions_with_environment_context",
                        "pe",
                        "t",
                        [_sent("1", k="v"), _sent("2")],
                        context,
                    ),
                    ("get_partitions", "pe", "t", -1),
                )
            ),
            (
                "alter_partitions_with_environment_context",
                "pe",
                "t",
                [_sent("1"), _sent("9")],
                _EMPTY,
            ),
            ("get_partition", "pe", "t", ["1"]),
            ("drop_partition_with_environment_context", "pe", "t", ["1"], True, _PURGE),
            ("place", "pe.db/t/p=1"),
            ("drop_partition_with_environment_context", "pe", "t", ["1"], True, _PURGE),
            ("drop_partition_by_name_with_environment_context", "pe", "t", "p=2", False, _EMPTY),
            ("place", "pe.db/t/p=2"),
            ("drop_partition_by_name_with_environment_context", "pe", "t", "p=3", True, None),
            ("get_partition_names", "pe", "t", -1),
            ("get_fields_with_environment_context", "pe", "t", _EMPTY),
            ("get_schema_with_environment_context", "pe", "t", None),
            ("get_schema_with_environment_context", "pe", "none", None),
        ),
    ),
)
