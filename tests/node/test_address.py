"""Which addresses name a store, and how they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.config import Settings
from strandline.errors import InvalidInput
from strandline.metastore.session.callers import Caller
from strandline.node.address import shown_address, store_address

SHOWN = [
    ("/data/lake", "/data/lake"),
    ("postgresql://h/db", "postgresql://h/db"),
    ("POSTGRESQL://ann@h:5432,k/db", "postgresql://h:5432,k/db"),
    ("postgresql://ann:secret@[::1]:5432/db", "postgresql://[::1]:5432/db"),
    ("postgresql://ann:a@secret@h/db", "postgresql://h/db"),
    ("postgresql://ann:a#secret@h/db", "postgresql://h/db"),
    ("postgresql://ann:a?secret@h/db", "postgresql://h/db"),
    ("postgresql://ann:a/secret@h/db", "postgresql://h/db"),
    ("postgresql://h/db?password=secret&application_name=a@b", "postgresql://h/db"),
    ("postgresql://h?password=a/secret", "postgresql://h"),
    ("postgresql:///db?password=secret", "postgresql:///db"),
    ("etcd://h:2379/prefix", "etcd://h:2379/prefix"),
    ("etcd://root:secret@h:2379/a@b", "etcd://h:2379/a@b"),
]


@pytest.mark.parametrize(("address", "shown"), SHOWN)
def test_an_address_is_shown_without_user_password_and_options(address: str, shown: str) -> None:
    assert shown_address(address) == shown


def test_no_representation_of_a_value_has_a_password_or_the_hash_of_a_token() -> None:
    objects = "postgresql://ann:secret@h/db"
    settings = Settings(objects=objects, users="ann:sha256:secret")
    address = store_address("etcd://ann:secret@h:2379", settings)
    assert "secret" not in repr([settings, address, Caller("ann", "secret")])


@pytest.mark.parametrize("unset", [None, ""])
def test_an_unset_variable_does_not_name_a_store(unset: Any) -> None:
    with pytest.raises(InvalidInput, match=f"not by {unset!r}"):
        store_address(unset, Settings())


@pytest.mark.parametrize("start", ["postgresql:", "PostgreSQL:/", "etcd:"])
def test_an_address_with_too_few_slashes_does_not_name_a_folder(start: str) -> None:
    with pytest.raises(InvalidInput, match=rf"begins with '{start.rstrip('/')}'; write") as caught:
        store_address(f"{start}ann:secret@h/db", Settings())
    assert "secret" not in caught.value.message
    assert store_address(f"./{start}h", Settings()).folder is not None


def test_another_database_beside_etcd_is_refused_by_its_name_without_its_password() -> None:
    settings = Settings(objects="mysql://ann:secret@h/db")
    with pytest.raises(InvalidInput, match=r"/DATABASE, not mysql://h/db$"):
        store_address("etcd://h:2379/lake", settings)
