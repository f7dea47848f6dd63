"""The OpenAPI description of the HTTP interface matches real requests and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, ValidationError

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.session.calls import CALLS
from strandline.model.types import BIGINT
from strandline.node import Node
from tests.metastore.session.served import monitored, serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    definition = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))
    with Node.open(tmp_path_factory.mktemp("store")) as node, serving(monitored(node)) as served:
        node.session(user="ann").execute(CreateTable(schema="default", definition=definition))
        yield served


@pytest.fixture(scope="module")
def description(url: str) -> Any:
    answer = httpx.get(f"{url}/v1/openapi.json", trust_env=False)
    assert answer.status_code == 200
    return answer.json()


def schema_of(description: Any, content: Any) -> Draft202012Validator:
    """Return the schema of JSON content, with the components that it refers to."""
    schema = content["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": description["components"]})


def test_every_call_is_described(description: Any) -> None:
    assert description["openapi"] == "3.1.0"
    assert set(description["paths"]) == {call.path for call in CALLS.values()}
    for path in description["paths"].values():
        assert path["post"]["summary"].endswith(".")
    for schema in description["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert "CreateTable" in description["components"]["schemas"]


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (
            "execute",
            {
                "commands": [
                    {"create_schema": {"name": "s"}},
                    {
                        "create_table": {
                            "schema": "s",
                            "definition": {
                                "name": "t",
                                "columns": [{"name": "k", "type": "long", "nullable": False}],
                                "properties": {"a": "b"},
                            },
                        }
                    },
                ],
                "timeout": 60,
            },
        ),
        ("table", {"name": "default.t", "at": {}}),
        ("tables", {"schema": "default"}),
        ("history", {"start": 1, "end": None}),
        ("differences", {"old": {"version": 1}}),
        ("open", {"names": ["default.t"]}),
        ("begin", {"read_only": True}),
        ("status", {}),
        ("config", {}),
        ("clean", {}),
        ("dump", {"ignore": ["audit_event"], "stats_only": True}),
        ("verify", {"pages": False}),
    ],
)
def test_requests_and_answers_match_the_description(
    url: str, description: Any, call: str, body: dict[str, object]
) -> None:
    operation = description["paths"][f"/v1/{call}"]["post"]
    schema_of(description, operation["requestBody"]["content"]).validate(body)
    answer = httpx.post(f"{url}/v1/{call}", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text
    schema_of(description, operation["responses"]["200"]["content"]).validate(answer.json())


def test_an_unknown_member_is_refused_by_the_description_and_by_the_node(
    url: str, description: Any
) -> None:
    body = {"read_only": True, "colour": "red"}
    content = description["paths"]["/v1/begin"]["post"]["requestBody"]["content"]
    with pytest.raises(ValidationError):
        schema_of(description, content).validate(body)
    answer = httpx.post(f"{url}/v1/begin", json=body, trust_env=False)
    assert answer.status_code == 400
    problem = Draft202012Validator(description["components"]["schemas"]["Problem"])
    problem.validate(json.loads(answer.text))


@pytest.mark.parametrize("header", ["X-Strandline-User", "X-Strandline-Protocol"])
def test_an_empty_header_is_refused_by_the_description_and_by_the_node(
    url: str, description: Any, header: str
) -> None:
    parameters = description["paths"]["/v1/begin"]["post"]["parameters"]
    schema = next(entry["schema"] for entry in parameters if entry["name"] == header)
    assert not Draft202012Validator(schema).is_valid("")
    answer = httpx.post(f"{url}/v1/begin", json={}, headers={header: ""}, trust_env=False)
    assert answer.status_code == 400
