"""The catalog as JSON. The contents of a dump are tested with `strandline debug`."""

from __future__ import annotations

import json

from strandline.model.descriptors import Setting
from strandline.node.catalog_dump import dump_pieces
from tests.conftest import Member

OBJECTS = 200


def test_a_dump_is_made_object_by_object_and_keeps_no_decoded_object(member: Member) -> None:
    state = member.open()
    transaction = state.transaction(state.recovered[-1], author="ann")
    with transaction.entry("configure", {}):
        for number in range(OBJECTS):
            transaction.put(Setting(f"setting {number:03d}", "x" * 20))
    state.commit_transaction(transaction)
    reader = member.openable().open_read_only()
    contents = reader.recovered[-1].contents
    pieces = list(dump_pieces(reader))
    settings = json.loads("".join(pieces))["collections"]["setting"]
    made = [o["key"] for o in settings["objects"] if o["key"].startswith("setting ")]
    assert made == [f"setting {n:03d}" for n in range(OBJECTS)]
    assert len(pieces) > OBJECTS
    stored = [of for of in contents.objects("setting") if of.name.startswith("setting ")]
    assert all(of._value is None for of in stored)
