"""Commands executed on catalogs alone, as a node validates them: no store, log or thread."""

from __future__ import annotations

from functools import cache

from strandline.catalog import Catalog, Command, initial_catalog
from strandline.catalog.requests import Request, Validated, validate
from strandline.clock import Timestamp
from strandline.durable.transaction import CatalogTransaction
from tests.catalog.scenario import Scenario
from tests.catalog.test_scenarios import commands_of
from tests.positions import NOTHING

NOW = Timestamp(1 << 40)


@cache
def new_catalog() -> Catalog:
    """The catalog of a new store."""
    transaction = CatalogTransaction(NOTHING, author="ann")
    initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/w")(transaction)
    return Catalog(1, NOW, transaction.contents)


def validated(base: Catalog, commands: list[Command]) -> Validated:
    """The result of a batch on ``base``, or why it is refused."""
    transaction = CatalogTransaction(base, author="ann")
    return validate(base, transaction, Request(commands, "ann", 1e12, identity=None), NOW)


def after_setup(scenario: Scenario) -> Catalog:
    """The catalog after the setup of a scenario."""
    base = new_catalog()
    for step in scenario.setup:
        outcome = validated(base, commands_of(step, base))
        assert outcome.error is None
        base = outcome.catalog
    return base
