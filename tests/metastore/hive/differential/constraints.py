"""Constraints of 2.3: primary and foreign keys."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Call, Scenario, storage, table


def primary(
    name: str, *columns: str, table: str = "p", schema: str = "c1", **parts: Any
) -> list[dict[str, Any]]:
    """The ``SQLPrimaryKey`` structs of a key, one for each column."""
    given = {"enable_cstr": True, "validate_cstr": False, "rely_cstr": True, **parts}
    home = {"table_db": schema, "table_name": table}
    return [
        {**home, "column_name": column, "key_seq": number, "pk_name": name, **given}
        for number, column in enumerate(columns, start=1)
    ]


def foreign(name: str, *pairs: str, **parts: Any) -> list[dict[str, Any]]:
    """The ``SQLForeignKey`` structs of a key of c1.f to c1.p; each pair is ``own parent``."""
    home = {"pktable_db": "c1", "pktable_name": "p", "fktable_db": "c1", "fktable_name": "f"}
    rules = {"update_rule": 0, "delete_rule": 1, "enable_cstr": False, "validate_cstr": False}
    given = {**home, **rules, "rely_cstr": False, "pk_name": "p_key", **parts}
    listed = []
    for number, pair in enumerate(pairs, start=1):
        own, parent = pair.split()
        columns = {"fkcolumn_name": own, "pkcolumn_name": parent, "key_seq": number}
        listed.append({**given, **columns, "fk_name": name})
    return listed


def _primary_keys(schema: str, name: str) -> Call:
    return ("get_primary_keys", {"db_name": schema, "tbl_name": name})


def _foreign_keys(parent: str | None, own: str | None, schema: str = "c1") -> Call:
    asked = {"parent_tbl_name": parent, "foreign_tbl_name": own}
    request = {name: value for name, value in asked.items() if value is not None}
    for name in list(request):
        request[name.replace("tbl", "db")] = schema
    return ("get_foreign_keys", request)


def _drop(table: str, name: str) -> Call:
    request = {"dbname": "c1", "tablename": table, "constraintname": name}
    return ("drop_constraint", request)


SCENARIOS = (
    Scenario(
        "primary and foreign keys",
        (
            ("create_database", {"name": "c1"}),
            ("create_table", table("c1", "p", "a int, b string, c int")),
            ("create_table", table("c1", "f", "x int, y string, z int")),
            _primary_keys("c1", "p"),
            _primary_keys("c1", "none"),
            ("add_primary_key", {"primaryKeyCols": primary("p_key", "A", "b")}),
            _primary_keys("c1", "p"),
            ("add_primary_key", {"primaryKeyCols": primary("second", "c")}),
            ("add_primary_key", {"primaryKeyCols": primary("bad", "none", table="f")}),
            ("add_primary_key", {"primaryKeyCols": primary("bad", "a", table="none")}),
            ("add_foreign_key", {"foreignKeyCols": foreign("f_key", "x a", "y b")}),
            _foreign_keys("p", "f"),
            _foreign_keys("f", "p"),
            ("add_foreign_key", {"foreignKeyCols": foreign("f_key", "x a", "y b")}),
            ("add_foreign_key", {"foreignKeyCols": foreign("f3", "none a")}),
            ("add_foreign_key", {"foreignKeyCols": foreign("f4", "x none")}),
            ("add_foreign_key", {"foreignKeyCols": foreign("f5", "x a", pktable_name="none")}),
            ("add_foreign_key", {"foreignKeyCols": foreign("f6", "x a", fktable_name="none")}),
            _foreign_keys("p", "f"),
            _drop("p", "none"),
            _drop("none", "p_key"),
            _drop("f", "p_key"),
            _foreign_keys("p", "f"),
            _drop("f", "f_key"),
            ("add_foreign_key", {"foreignKeyCols": foreign("f7", "x a", "y b")}),
            _drop("p", "p_key"),
            _primary_keys("c1", "p"),
            _foreign_keys("p", "f"),
        ),
    ),
    Scenario(
        "tables with keys",
        (
            ("create_database", {"name": "c2"}),
            (
                "create_table_with_constraints",
                table("c2", "p", "a int, b string"),
                primary("p_key2", "a", schema="c2"),
                [],
            ),
            _primary_keys("c2", "p"),
            (
                "create_table_with_constraints",
                table("c2", "f", "x int"),
                primary("own", "x", table="f", schema="c2"),
                foreign("f_key2", "x a", fktable_db="c2", pktable_db="c2", pk_name="p_key2"),
            ),
            _primary_keys("c2", "f"),
            _foreign_keys("p", "f", "c2"),
            (
                "create_table_with_constraints",
                table("c2", "bad", "x int"),
                primary("b_key", "none", table="bad", schema="c2"),
                [],
            ),
            ("get_all_tables", "c2"),
            (
                "alter_table",
                "c2",
                "p",
                table(
                    "c2", "p2", sd=storage("a int, b string", location="file:{warehouse}/c2.db/p")
                ),
            ),
            _primary_keys("c2", "p2"),
            _foreign_keys("p2", "f", "c2"),
            ("drop_table", "c2", "p2", True),
            _foreign_keys("p2", "f", "c2"),
            _foreign_keys(None, "f", "c2"),
            _primary_keys("c2", "f"),
        ),
    ),
)
