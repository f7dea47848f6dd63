"""Constraints as clients of Hive 4 declare and read them; `differential.constraints` has those of
2.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.metastore.hive.differential.constraints import foreign, primary
from tests.metastore.hive.differential.scenario import table
from tests.metastore.hive.hive_node import HiveNode, refusal
from tests.servers.thrift_client import ThriftClient

HOME = {"table_db": "d1", "table_name": "t"}
FLAGS = {"enable_cstr": True, "validate_cstr": False, "rely_cstr": True}
UNIQUE = [
    {**HOME, "column_name": c, "key_seq": n, "uk_name": "u", **FLAGS}
    for n, c in enumerate("ab", start=1)
]
NOT_NULL = [{**HOME, "column_name": "a", "nn_name": "n", **FLAGS}]
DEFAULT = [{**HOME, "column_name": "b", "default_value": "'x'", "dc_name": "d", **FLAGS}]
CHECK = [{**HOME, "column_name": "a", "check_expression": "a > 0", "dc_name": "c", **FLAGS}]
KINDS = {
    "unique": ("uniqueConstraint", UNIQUE),
    "not_null": ("notNullConstraint", NOT_NULL),
    "default": ("defaultConstraint", DEFAULT),
    "check": ("checkConstraint", CHECK),
}


@pytest.fixture
def client(hive: HiveNode) -> Iterator[ThriftClient]:
    """A client of a node with the table d1.t."""
    with hive.client() as client:
        client.call("create_table", tbl=table("d1", "t", "a int, b string"))
        yield client


def listed(client: ThriftClient, *, schema: str = "d1", name: str = "t") -> dict[str, Any]:
    """All constraints of a table, by kind; kinds without constraints are left out."""
    request = {"dbName": schema, "tblName": name, "catName": "hive"}
    answer = client.call("get_all_table_constraints", request=request)
    return {
        kind: constraints
        for kind, constraints in answer["allTableConstraints"].items()
        if constraints
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_added_constraint_is_read_until_it_is_dropped(client: ThriftClient, kind: str) -> None:
    name, sent = KINDS[kind]
    client.call(f"add_{kind}_constraint", req={f"{name}Cols": sent})
    request = {"catName": "hive", "db_name": "D1", "tbl_name": "T"}
    read = client.call(f"get_{kind}_constraints", request=request)
    assert read == {f"{name}s": sent}
    assert listed(client) == {f"{name}s": sent}
    named = next(field for field in ("uk_name", "nn_name", "dc_name") if field in sent[0])
    request = {"dbname": "d1", "tablename": "t", "constraintname": str(sent[0][named])}
    client.call("drop_constraint", req=request)
    assert listed(client) == {}


def test_a_table_and_its_constraints_are_created_in_one_version(
    hive: HiveNode, client: ThriftClient
) -> None:
    before = hive.node.metastore.catalogs.present().version
    sent = {"uniqueConstraints": UNIQUE, "checkConstraints": CHECK, "defaultConstraints": DEFAULT}
    of_new = {
        kind: [{**c, "table_name": "new"} for c in constraints]
        for kind, constraints in sent.items()
    }
    client.call(
        "create_table_req", request={"table": table("d1", "new", "a int, b string"), **of_new}
    )
    assert hive.node.metastore.catalogs.present().version == before + 1
    assert listed(client, name="new") == of_new
    assert listed(client, schema=f"d1@{before}", name="new") == {}
    hive.node.session(user="ann").undo(before + 1)
    assert listed(client, name="new") == {}


def test_keys_without_names_are_constraints_of_their_own(client: ThriftClient) -> None:
    sent = [
        {**HOME, "column_name": column, "key_seq": number, **FLAGS}
        for number, column in ((1, "a"), (2, "b"), (1, "b"))
    ]
    client.call("add_unique_constraint", req={"uniqueConstraintCols": sent})
    columns: dict[str, list[str]] = {}
    for struct in listed(client)["uniqueConstraints"]:
        columns.setdefault(struct["uk_name"], []).append(struct["column_name"])
    assert list(columns.values()) == [["a", "b"], ["b"]]


def test_constraints_are_read_as_of_a_version(hive: HiveNode, client: ThriftClient) -> None:
    client.call("add_not_null_constraint", req={"notNullConstraintCols": NOT_NULL})
    version = hive.node.metastore.catalogs.present().version
    request = {"dbname": "d1", "tablename": "t", "constraintname": "n"}
    client.call("drop_constraint", req=request)
    past_schema = f"d1@{version}"
    assert listed(client) == {}
    assert listed(client, schema=past_schema)["notNullConstraints"] == [
        {**NOT_NULL[0], "table_db": past_schema}
    ]


def test_a_constraint_that_is_sent_without_flags_is_enabled(client: ThriftClient) -> None:
    sent = [{name: value for name, value in NOT_NULL[0].items() if name not in FLAGS}]
    client.call("add_not_null_constraint", req={"notNullConstraintCols": sent})
    flags = {"enable_cstr": True, "validate_cstr": False, "rely_cstr": False}
    assert listed(client)["notNullConstraints"] == [{**sent[0], **flags}]


def test_foreign_keys_to_a_table_are_found_in_all_schemas(client: ThriftClient) -> None:
    client.call("create_database", database={"name": "d2"})
    client.call("create_table", tbl=table("d2", "f", "x int"))
    keys = primary("k", "a", schema="d1", table="t")
    client.call("add_primary_key", req={"primaryKeyCols": keys})
    homes = {"pktable_db": "d1", "pktable_name": "t", "fktable_db": "d2", "pk_name": "k"}
    sent = foreign("fk", "x a", **homes)
    client.call("add_foreign_key", req={"foreignKeyCols": sent})
    to_table = {"parent_db_name": "d1", "parent_tbl_name": "t"}
    assert client.call("get_foreign_keys", request=to_table) == {"foreignKeys": sent}
    to_other = {"parent_db_name": "d2", "parent_tbl_name": "f"}
    assert client.call("get_foreign_keys", request=to_other) == {"foreignKeys": []}


def test_the_foreign_keys_to_a_table_of_the_past_are_found(
    hive: HiveNode, client: ThriftClient
) -> None:
    client.call("create_table", tbl=table("d1", "f", "x int"))
    keys = primary("k", "a", schema="d1", table="t")
    client.call("add_primary_key", req={"primaryKeyCols": keys})
    homes = {"pktable_db": "d1", "pktable_name": "t", "fktable_db": "d1", "pk_name": "k"}
    sent = foreign("fk", "x a", **homes)
    client.call("add_foreign_key", req={"foreignKeyCols": sent})
    past = f"d1@{hive.node.metastore.catalogs.present().version}"
    client.call("drop_table", dbname="d1", name="f", deleteData=True)
    to_table = {"parent_db_name": past, "parent_tbl_name": "T"}
    assert client.call("get_foreign_keys", request=to_table) == {"foreignKeys": sent}
    between = {**to_table, "foreign_db_name": past, "foreign_tbl_name": "f"}
    of_two = client.call("get_foreign_keys", request=between)["foreignKeys"]
    assert of_two == [{**sent[0], "fktable_db": past}]
    to_other = {"parent_db_name": "d2", "parent_tbl_name": "t"}
    of_f = {"foreign_db_name": past, "foreign_tbl_name": "f"}
    assert client.call("get_foreign_keys", request={**of_f, **to_other}) == {"foreignKeys": []}


def test_the_primary_key_of_a_transactional_table_is_shown(
    hive: HiveNode, client: ThriftClient
) -> None:
    hive.create_transactional("d1", "own", primary_key=("a",), a="int")
    (key,) = listed(client, name="own")["primaryKeys"]
    assert (key["column_name"], key["pk_name"], key["enable_cstr"]) == ("a", "own_pk", False)


def test_an_invalid_constraint_is_refused_and_its_table_is_not_created(
    client: ThriftClient,
) -> None:
    checks = [{**CHECK[0], "column_name": "none"}]
    new = {"table": table("d1", "new", "a int"), "checkConstraints": checks}
    kind, message = refusal(lambda: client.call("create_table_req", request=new))
    assert (kind, message) == (
        "InvalidObjectException",
        "column none of table new does not exist",
    )
    assert client.call("get_all_tables", db_name="d1") == ["t"]
    for sent in ([], [*UNIQUE, {**UNIQUE[0], "table_name": "other"}]):
        kind, message = refusal(
            lambda: client.call("add_unique_constraint", req={"uniqueConstraintCols": sent})  # noqa: B023 - called at once
        )
        assert (kind, "send the constraints of one table" in message) == ("MetaException", True)
