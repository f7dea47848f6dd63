"""Texts of definitions from forms: they equal the texts written for each definition alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strandline.errors import CorruptData
from strandline.metastore.hive import event_texts
from strandline.metastore.hive.event_texts import (
    DefinitionTexts,
    Quoted,
    definition,
    message_text,
    relation_struct,
)
from strandline.metastore.hive.parameters import DERIVED, PATH
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.table_parameters import PROVIDER
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
)
from strandline.model.types import INT
from strandline.wire import encode

COLUMNS = (ColumnDescriptor(1, "a", INT), ColumnDescriptor(2, 'b"\\é', INT, True, "ü\n"))
PLAIN = TableDescriptor(
    7, 1, "t", "ann", TableKind.MANAGED, False, "parquet", (SchemaVersion(1, COLUMNS),), 3, 1
)
TRANSACTIONAL = replace(PLAIN, transactional=True, provider="strandline")
# Tables of Spark repeat the location in a parameter of the serde.
SPARK = replace(
    PLAIN, storage=StorageFormat(serde_properties=((PATH, DERIVED),)), comment="\\ud800name"
)
EXTERNAL = replace(PLAIN, kind=TableKind.EXTERNAL, location="s3a://b/é")
VIEW = ViewDescriptor(8, 1, "v", "ann", COLUMNS, "SELECT 1", "SELECT 1")
NAMES = ["t", 'quote"d', "back\\slash", "Größe", "name\n", "file:/place", "ud800name"]


def place_of(table_id: int) -> str:
    return f'file:/lake/"{table_id}"\\é'


@pytest.mark.parametrize("kind", [PLAIN, TRANSACTIONAL, SPARK, EXTERNAL, VIEW])
def test_a_text_equals_the_one_written_for_the_definition_alone(
    kind: TableDescriptor | ViewDescriptor,
) -> None:
    texts = DefinitionTexts(place_of, str)
    for number, name in enumerate(NAMES):
        relation = replace(kind, id=100 + number, name=name)
        noun = "view" if isinstance(relation, ViewDescriptor) else "table"
        place = getattr(relation, "location", None) or place_of(relation.id)
        struct = relation_struct(relation, schema="s", place=place)
        text = texts.text("s", definition(noun, encode(relation)))
        assert json.loads(text.text) == HIVE_CODEC.to_json_text("Table", struct)
        assert text.table_type == struct["tableType"]


def test_a_definition_is_written_once_for_tables_that_differ_in_name_and_location(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    def noted(relation: TableDescriptor, *, schema: str, place: str) -> Struct:
        written.append(schema)
        return relation_struct(relation, schema=schema, place=place)

    monkeypatch.setattr(event_texts, "relation_struct", noted)
    texts = DefinitionTexts(place_of, str)
    for number in range(5):
        texts.text(
            "s", definition("table", encode(replace(PLAIN, id=number + 1, name=f"t{number}")))
        )
    assert written == ["s"]
    texts.text("other", definition("table", encode(PLAIN)))
    texts.text("s", definition("table", encode(replace(PLAIN, comment="another"))))
    assert written == ["s", "other", "s"]


def test_the_number_of_kept_forms_is_bounded() -> None:
    texts = DefinitionTexts(place_of, str)
    for number in range(3 * event_texts.FORMS):
        texts.text("s", definition("table", encode(replace(PLAIN, created=number))))
    assert len(texts._forms) == event_texts.FORMS


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(CorruptData, match="expected a table, found a ViewDescriptor record"):
        definition("table", encode(VIEW))


def test_a_parameter_that_looks_like_a_mark_is_written_unchanged() -> None:
    texts = DefinitionTexts(place_of, str)
    table = replace(PLAIN, properties=((PROVIDER, "name"), ("x", "file:/place")))
    text = texts.text("s", definition("table", encode(table)))
    struct = relation_struct(table, schema="s", place=place_of(table.id))
    assert json.loads(text.text) == HIVE_CODEC.to_json_text("Table", struct)


def test_a_message_made_of_quoted_texts_equals_the_message_of_the_plain_texts() -> None:
    texts = {"a": 'x"\\\né', "b": "plain", "c": '"'}
    plain = {"n": 1, **texts, "last": ["ü", None]}
    quoted = {name: Quoted(json.dumps(text, ensure_ascii=False)) for name, text in texts.items()}
    whole = {"server": "", "servicePrincipal": "", **plain, "timestamp": 7}
    expected = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
    assert message_text(plain | quoted, 7) == expected
    assert message_text(plain, 7) == expected
    assert json.loads(message_text({}, 7)) == {"server": "", "servicePrincipal": "", "timestamp": 7}
