"""Blobs in an S3 bucket, through the library ``obstore`` (extra ``s3``).

S3 writes an object whole or not at all, and every reader sees it once it is written. A blob needs
no more than that. The credentials and the region come from the environment (``AWS_…``), as for
every program that uses S3. The URL may name another endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from strandline.durable.persist.blob import Blob, check_blob_key
from strandline.errors import InvalidInput, Unavailable

TIMEOUT_SECONDS = 30
RETRIES = 3


def open_bucket(url: str) -> ObjectBlob:
    """The blobs at ``s3://bucket/prefix``; ``?endpoint=http://host:port`` names another server.

    Does not contact the server. Raises `InvalidInput`, also if the library is not installed.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "s3" or not parts.netloc or options.keys() - {"endpoint", "region"}:
        raise InvalidInput(
            f"{url!r} is not the address of a bucket; write it like s3://bucket/prefix or "
            "s3://bucket/prefix?endpoint=http://host:port&region=us-east-1"
        )
    try:
        stores: Any = import_module("obstore.store")  # Any: an optional dependency
    except ImportError as error:
        raise InvalidInput(
            "S3 needs the library obstore; install strandline with the extra [s3]"
        ) from error
    endpoint = options.get("endpoint", "")
    config = {"endpoint": endpoint} if endpoint else {}
    if "region" in options:
        config["region"] = options["region"]
    limit = timedelta(seconds=TIMEOUT_SECONDS)
    store = stores.S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        config=config,
        client_options={"allow_http": endpoint.startswith("http:"), "timeout": limit},
        retry_config={"max_retries": RETRIES, "retry_timeout": limit},
    )
    return ObjectBlob(store, name=url)


class ObjectBlob(Blob):
    """The blobs in a store of ``obstore``; ``name`` is its name in messages."""

    def __init__(self, store: Any, *, name: str) -> None:  # Any: one of obstore's store classes
        self._store = store
        self._name = name
        self._calls: Any = import_module("obstore")  # Any: as above
        self._error: type[Exception] = import_module("obstore.exceptions").BaseError

    def get(self, key: str) -> bytes | None:
        with self._errors(f"read of {key}"):
            try:
                return bytes(self._calls.get(self._store, check_blob_key(key)).bytes())
            except FileNotFoundError:
                return None

    def set(self, key: str, data: bytes) -> None:
        with self._errors(f"write of {key}"):
            # In one request: a killed writer would leave parts behind, which are billed.
            self._calls.put(self._store, check_blob_key(key), data, use_multipart=False)

    def delete(self, key: str) -> int | None:
        with self._errors(f"removal of {key}"):
            try:
                size = int(self._calls.head(self._store, check_blob_key(key))["size"])
            except FileNotFoundError:
                return None
            self._calls.delete(self._store, key)
            return size

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        # The prefix of the library consists of whole folders.
        folder = prefix.rpartition("/")[0] or None
        with self._errors("list"):
            for page in self._calls.list(self._store, prefix=folder):
                for entry in page:
                    if entry["path"].startswith(prefix):
                        yield entry["path"], int(entry["size"])

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise Unavailable(
                f"{self._name} did not answer a {what}: {first_line}; try again when it works"
            ) from error
