"""What the tests of sessions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.node import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the empty schema ``s``, for all tests of a module."""
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        opened.session(user="ann").execute(CreateSchema(name="s"))
        yield opened
