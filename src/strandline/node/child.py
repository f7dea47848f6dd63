"""A child process of a served node: it answers the same calls on the same store.

A child opens the store as a node does, but without the background work of a node. It does not cache
rows, because it gets few calls, each about many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from strandline.config import Settings
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.service import SERVICE as HIVE
from strandline.metastore.session.http_app import SERVICE as HTTP
from strandline.metastore.session.http_app import answer_task
from strandline.node.node import Node
from strandline.work.children import Announce, Fields, Service
from strandline.work.contents import Content


@contextmanager
def open_child(store: str | Path, settings: Settings, announce: Announce) -> Iterator[Service]:
    """Open the ``store``; yield the service that answers tasks. Raises as `Node.open` does."""
    own_settings = replace(settings, cache_bytes=0)
    with Node.open(store, settings=own_settings, background=False, announce=announce) as node:
        hive = HiveMetastoreService(node.metastore, notifications=node.notifications)

        def answer(fields: Fields, data: bytes) -> tuple[Fields, bytes | Content]:
            match fields["service"]:
                case str(service) if service == HIVE:
                    return hive.answer_task(fields, data)
                case str(service) if service == HTTP:
                    return answer_task(node.metastore, fields, data)
                case unknown:
                    raise ValueError(f"a child has no service {unknown!r}")

        yield Service(answer, node.stop_waiting)
