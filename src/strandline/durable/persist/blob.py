"""Blobs: large values with names, each written whole or not at all.

Once `Blob.set` has returned, its value is durable, and every later `Blob.get` of any process
returns that value or a later one. All calls are idempotent. So an error (`Unavailable`) only means
that the call may not have happened, and the caller tries again or gives up.

`FileBlob` keeps each blob in a file. What must stay true there: a file gets its name only once its
bytes are on disk, and `set` returns only once the name is on disk too. So the order is write, sync
the file, rename, sync the folder. An unfinished file is in a separate folder, under a lock of its
writer. When a writer is killed its lock is released, and `FileBlob.remove_unfinished` removes the
file. The folder is made with the first blob, but never again: if it is gone, its file system is not
mounted, and a blob below the mount point would be lost with the next mount.

`ObjectBlob` keeps them in an S3 bucket, through the library ``obstore`` (extra ``s3``). S3 writes
an object whole or not at all, and every reader sees it once it is written. The credentials and the
region come from the environment (``AWS_…``), as for every program that uses S3.
"""

from __future__ import annotations

import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from strandline.errors import InvalidInput, Unavailable
from strandline.files import give_folder_to_owner, give_to_owner, sync_folder, try_lock

MAX_NAME = 200
"""The maximum length of a file name in bytes; file systems allow 255."""
UNFINISHED = ".unfinished"
TIMEOUT_SECONDS = 30
"""How long one call to S3, and all retries of it, may take."""
RETRIES = 3
_NO_BUCKET = "NoSuchBucket"
"""The code in an answer of S3. Its status is that of a missing object, too."""


class Blob(ABC):
    """See the module. Safe for threads and processes."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The value of ``key``, or None if it does not exist."""

    @abstractmethod
    def set(self, key: str, data: bytes) -> None:
        """Write ``data``, whole or not at all, replacing any earlier value."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove ``key`` if it exists. After a crash of the machine, it may be there again."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[str]:
        """The keys that begin with ``prefix``, in no order."""

    def remove_unfinished(self) -> int:
        """Remove the unnamed files of killed writers. Returns their number."""
        return 0


def check_blob_key(key: str) -> str:
    """Return ``key``. Raises `InvalidInput` if it is not a valid name of a blob."""
    if not key or not key[0].isalnum() or not key.isprintable() or len(_file_name(key)) > MAX_NAME:
        raise InvalidInput(
            f"a blob's key must begin with a letter or digit and have at most {MAX_NAME} bytes "
            f"when it is quoted as in a URL, found {key[:100]!r}"
        )
    return key


def _file_name(key: str) -> str:
    return quote(key, safe="")


class FileBlob(Blob):
    """Blobs in one folder, created with the first blob, with ``folder_mode``."""

    def __init__(self, folder: Path, *, folder_mode: int = 0o777) -> None:
        self._folder = folder
        self._unfinished = folder / UNFINISHED
        self._folder_mode = folder_mode
        self._was_there = False
        with self._errors("read"):
            self._is_there()

    def get(self, key: str) -> bytes | None:
        with self._errors("read"):
            try:
                return self._path(key).read_bytes()
            except FileNotFoundError:
                self._is_there()
                return None

    def set(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._errors("written"):
            if not self._is_there():
                self._make_folders()
            descriptor, unfinished = self._new_file()
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
                os.rename(unfinished, path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(unfinished)
                raise
            finally:
                os.close(descriptor)
            sync_folder(self._folder)

    def _is_there(self) -> bool:
        """Whether the folder exists. Raises `Unavailable` if it is gone."""
        is_there = self._unfinished.is_dir()
        if self._was_there and not is_there:
            raise Unavailable(
                f"the folder {self._folder} of the catalog's blobs is gone; mount it, or restore "
                "it from a backup"
            )
        self._was_there = is_there
        return is_there

    def _make_folders(self) -> None:
        # Once `.unfinished` exists, blobs are written without checking these folders again. So all
        # its parents are synced before, also those that another process has just created.
        if not self._folder.is_dir():
            self._folder.mkdir(mode=self._folder_mode, parents=True, exist_ok=True)
            give_folder_to_owner(self._folder)
        for folder in self._folder.absolute().parents:
            sync_folder(folder)
        self._unfinished.mkdir(mode=self._folder_mode, exist_ok=True)
        give_folder_to_owner(self._unfinished)

    def _new_file(self) -> tuple[int, str]:
        """A new file, locked by this process, and its path."""
        while True:
            path = str(self._unfinished / secrets.token_hex(8))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(path, flags, self._folder_mode & 0o666)
            try:
                give_to_owner(descriptor, of=self._folder)
                if try_lock(descriptor) and os.fstat(descriptor).st_nlink:
                    return descriptor, path
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was removed before it was locked

    def delete(self, key: str) -> None:
        with self._errors("removed"), suppress(FileNotFoundError):
            self._path(key).unlink()

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._errors("listed"), suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                key = unquote(entry.name)
                if entry.name != UNFINISHED and key.startswith(prefix):
                    yield key

    def remove_unfinished(self) -> int:
        removed = 0
        with self._errors("listed"), suppress(FileNotFoundError):  # no blob was written yet
            for entry in os.scandir(self._unfinished):
                with suppress(FileNotFoundError):
                    descriptor = os.open(entry.path, os.O_WRONLY)
                    try:
                        if try_lock(descriptor):
                            os.unlink(entry.path)
                            removed += 1
                    finally:
                        os.close(descriptor)
        return removed

    def _path(self, key: str) -> Path:
        return self._folder / _file_name(check_blob_key(key))

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise Unavailable(
                f"{error.filename} cannot be {what} by this user; give the folder {self._folder} "
                "and its files to the user that the nodes run as"
            ) from error
        except OSError as error:
            raise Unavailable(
                f"a file below {self._folder} cannot be {what}: {error.strerror or error}; try "
                "again when the disk works and has free space"
            ) from error


def blobs_in(folder: Path) -> FileBlob:
    """Blobs in ``folder``, with the permissions of its parent folder."""
    return FileBlob(folder, folder_mode=stat.S_IMODE(folder.parent.stat().st_mode))


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
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise  # the blob may still exist
                return None

    def set(self, key: str, data: bytes) -> None:
        with self._errors(f"write of {key}"):
            # In one request: a killed writer would leave parts behind, which are billed.
            self._calls.put(self._store, check_blob_key(key), data, use_multipart=False)

    def delete(self, key: str) -> None:
        with self._errors(f"removal of {key}"), suppress(FileNotFoundError):
            self._calls.delete(self._store, check_blob_key(key))

    def list(self, prefix: str = "") -> Iterator[str]:
        # The prefix of the library consists of whole folders.
        folder = prefix.rpartition("/")[0] or None
        with self._errors("list"):
            for page in self._calls.list(self._store, prefix=folder):
                for entry in page:
                    if entry["path"].startswith(prefix):
                        yield entry["path"]

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            if _NO_BUCKET in str(error):
                raise Unavailable(
                    f"the bucket of {self._name} does not exist ({what}); make it available again"
                ) from error
            first_line = str(error).strip().splitlines()[0]
            raise Unavailable(
                f"{self._name} did not answer a {what}: {first_line}; try again when it works"
            ) from error
