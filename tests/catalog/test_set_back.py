"""A node whose log was set back: a standby without the last commits has taken over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from strandline.durable import SetBack
from tests.catalog.test_manager_freshness import Node, created, set_back


def test_a_node_that_reads_a_shorter_log_does_not_go_on_once_others_have_appended(
    tmp_path: Path,
) -> None:
    with (
        closing(Node(tmp_path, delay=0, skew=0)) as node,
        closing(Node(tmp_path, delay=0, skew=0)) as other,
    ):
        with set_back(tmp_path):
            created(node.manager, "lost")
        with pytest.raises(SetBack, match="ends at version"):
            node.manager.sync()
        created(other.manager, "other")
        with pytest.raises(SetBack):
            created(node.manager, "later")
        assert [other.has(name) for name in ("lost", "other", "later")] == [False, True, False]
