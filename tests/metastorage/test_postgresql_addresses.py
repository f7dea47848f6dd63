"""Addresses of a store in PostgreSQL: which are refused, and what messages say about them."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from strandline.clock import HybridClock
from strandline.errors import InvalidInput, Unavailable
from strandline.metastorage import open_metastorage
from strandline.sql import open_database
from strandline.sql.postgres_connection import address_of
from strandline.sql.postgres_database import open_url
from tests.servers import postgresql


def test_a_database_that_does_not_exist_is_named_with_what_to_do() -> None:
    with pytest.raises(Unavailable, match=r'"nowhere" does not exist\).*, or correct the address'):
        open_url(postgresql.running().url(database="nowhere"))


def test_messages_name_the_database_without_user_and_password() -> None:
    port = postgresql.running().port
    with pytest.raises(Unavailable) as refused:
        open_metastorage(f"postgresql://strandline:geheim@127.0.0.1:{port}/missing", HybridClock())
    assert f"postgresql://127.0.0.1:{port}/missing" in refused.value.message
    assert "geheim" not in refused.value.message


def test_a_wrong_password_is_an_error_that_gives_the_reason_and_not_the_password(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        role = f"CREATE ROLE {postgresql.ASKED} SUPERUSER LOGIN PASSWORD 'right'"
        connection.execute(role.encode())
    address = url.replace(f"//{postgresql.USER}@", f"//{postgresql.ASKED}:{{}}@")
    open_url(address.format("right")).close()
    with pytest.raises(Unavailable, match=r"password authentication failed.*address$") as refused:
        open_url(address.format("geheim"))
    assert "geheim" not in refused.value.message


def test_an_unknown_option_or_schema_in_an_address_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="no_such_option"):
        open_metastorage("postgresql://127.0.0.1/x?no_such_option=1", HybridClock())
    with pytest.raises(InvalidInput, match="schema"):
        open_metastorage(postgresql.running().url(schema="none"), HybridClock())


def test_a_role_that_may_not_create_tables_is_told_what_it_needs(url: str) -> None:
    schema = url.rpartition("%3D")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE r{schema} LOGIN".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO r{schema}".encode())
    with pytest.raises(Unavailable, match=rf"for schema {schema}\).* Let it own the tables"):
        open_url(url.replace(f"//{postgresql.USER}@", f"//r{schema}@"))


def test_a_missing_driver_gives_a_message_that_says_what_to_install() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
from strandline.clock import HybridClock
from strandline.errors import InvalidInput
from strandline.metastorage import open_metastorage
try:
    open_metastorage("postgresql://localhost/x", HybridClock())
except InvalidInput as error:
    print(error.message)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "strandline[postgres]" in run.stdout


@pytest.mark.parametrize(
    "address",
    [
        "postgresql:geheim",
        "postgresql://h:notaport/db",
        "postgresql://user:geheim@geheim@h/db",
        "postgresql://user:geheim/@h/db",
        "postgresql://user:geheim%zz@h/db",
        "postgresql://user:geheim%ff@h/db",
        "postgresql://[::1/db",
    ],
)
def test_an_invalid_address_is_refused_without_showing_its_password(address: str) -> None:
    for opening in (
        lambda: open_metastorage(address, HybridClock()),
        lambda: open_database(address),
    ):
        with pytest.raises(InvalidInput, match="not an address of PostgreSQL") as refused:
            opening()
        assert "@" not in address or "geheim" not in refused.value.message


def test_an_impossible_host_name_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"a\.\.b"):
        open_metastorage("postgresql://a..b/db", HybridClock())


def test_the_host_that_answers_is_used_if_several_are_given(url: str) -> None:
    port = postgresql.running().port
    address = url.replace(f"127.0.0.1:{port}", f"127.0.0.1:1,127.0.0.1:{port}")
    for opening in (open_url, lambda address: open_database(address)):
        database = opening(address)
        assert database.name == f"postgresql://127.0.0.1:1,127.0.0.1:{port}/postgres"
        database.close()


@pytest.mark.parametrize(
    ("hosts", "port", "shown"),
    [
        ("one,two", "", "one,two"),
        ("one,two", "?port=7", "one:7,two:7"),
        ("one:7,two", "", "one:7,two"),
        ("[::1]:7,two:8", "", "[::1]:7,two:8"),
    ],
)
def test_each_host_is_named_with_its_port(hosts: str, port: str, shown: str) -> None:
    _, name = address_of(f"postgresql://lisa:geheim@{hosts}/db{port}")
    assert name == f"postgresql://{shown}/db"
