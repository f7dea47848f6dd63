"""A client of a node that records each of its calls and the answer."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.catalog import Command
from strandline.catalog.commands import ColumnDefinition, CreateTable, DropTable, TableDefinition
from strandline.clock import Timestamp
from strandline.errors import ProtocolError, StrandlineError, Unavailable
from strandline.metastore.interface import PRESENT, AsOf, Snapshot
from strandline.metastore.store.file_scans import DATA_FOLDER, DELETES_FOLDER, data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile, DeleteFile, DeleteForm
from strandline.metastore.thrift.messages import ApplicationException, ThriftException
from strandline.model.types import BIGINT
from strandline.transactions import Transaction, ValidWriteIdList
from tests.consistency.history import DELETE_FILE, History, Operation, is_delete_file
from tests.servers.served_node import LONG, ServedNode
from tests.servers.thrift_client import ThriftClient

T = TypeVar("T")

_HIDDEN = re.compile(r"`([^`]+@data_([0-9a-f]+)_[^`]+)`")
_AWAY = re.compile("cannot be (used now|reached)|did not answer|no etcd endpoint|is stopping")
SCHEMA = "default"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a client knows: its id, and the folder of its files."""

    name: str
    table_id: int
    folder: Path

    @property
    def full_name(self) -> str:
        return f"{SCHEMA}.{self.name}"


Answer = tuple[T, Mapping[str, object]]
"""The result of a call, and the fields of its operation that record it."""


class Client:
    """Calls ``node``. Errors are raised after they were recorded.

    A call without an answer raises `Unavailable` or `ProtocolError`.
    """

    def __init__(
        self,
        history: History,
        node: ServedNode,
        *,
        name: str = "",
        generation: int = 0,
        timeout: float = LONG,
    ) -> None:
        self._history = history
        self._node = node
        self._who = {"client": name, "node": node.url, "generation": generation}
        self._session = node.session(timeout=timeout)
        self._timeout = timeout

    def close(self) -> None:
        self._session.close()

    def _call(self, call: str, do: Callable[[], Answer[T]], **asked: object) -> T:
        began = self._history.place()

        def note(**answered: object) -> None:
            fields: dict[str, Any] = {**self._who, **asked, **answered}  # Any: each of its own type
            self._history.add(Operation(call=call, began=began, **fields))

        try:
            value, answered = do()
        except (Unavailable, ProtocolError):
            note()
            raise
        except StrandlineError as error:
            note(ended=self._history.place(), error=error.code)
            raise
        note(ended=self._history.place(), **answered)
        return value

    @contextmanager
    def _thrift(self) -> Iterator[ThriftClient]:
        """A client of the Hive protocol. It has no code for an unavailable store, only a text."""
        with self._node.thrift(timeout=self._timeout) as client:
            try:
                yield client
            except (ApplicationException, ThriftException) as error:
                if not _AWAY.search(str(error)):
                    raise
                raise Unavailable(str(error)) from error

    # -- tables

    def create(self, name: str) -> Table:
        columns = (ColumnDefinition("k", BIGINT),)
        definition = TableDefinition(name=name, columns=columns, transactional=True)

        def do() -> Answer[Table]:
            self._session.execute(CreateTable(schema=SCHEMA, definition=definition))
            resolved = self._session.table(f"{SCHEMA}.{name}")
            folder = Path(resolved.location.removeprefix("file://"))
            table = Table(name, resolved.descriptor.id, folder)
            return table, {"table_id": table.table_id}

        return self._call("create", do, table=name)

    def drop(self, table: Table) -> None:
        command = DropTable(schema=SCHEMA, table=table.name)
        self._call("drop", lambda: (self._session.execute(command), {}), table=table.name)

    def change(self, author: str, command: Command) -> None:
        """Change the catalog as the user ``author``, who makes no other call."""

        def do() -> Answer[None]:
            with closing(self._node.session(user=author, timeout=self._timeout)) as session:
                try:
                    executed = session.execute(command, timeout=self._timeout)
                except Unavailable as error:  # an answer: nothing was done, or the outcome is open
                    return None, {"error": error.code}
            return None, {"version": executed.version}

        self._call("change", do, author=author)

    def log(self) -> None:
        """Read the authors of all versions of the catalog."""

        def do() -> Answer[None]:
            versions = [(info.version, info.author) for info in self._session.history()]
            return None, {"versions": tuple(versions)}

        self._call("log", do)

    def trim(self) -> None:
        """Trim the catalog's history as far as is allowed."""
        version = self._session.history()[-1].version
        self._call("trim", lambda: (self._session.compact(version), {}))

    # -- transactions

    def begin(self) -> int:
        def do() -> Answer[int]:
            begun = self._session.begin()
            return begun.txn_id, {"txn_id": begun.txn_id, "time": begun.begin_time}

        return self._call("begin", do)

    def stage(
        self,
        txn_id: int,
        table: Table,
        *,
        add: Sequence[int] = (),
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> int:
        """Stage files, and create those that are added; returns the write id.

        ``add`` are numbers of data files, ``remove`` names of files. For each of the data files in
        ``touch``, a delete file deletes one row.
        """
        added: list[DataFile | DeleteFile] = [_data_file(txn_id, number) for number in add]
        added += [_delete_file(txn_id, name) for name in touch]
        for file in added:
            path = table.folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_contents())
        removed = [path_of(name) for name in remove]

        def do() -> Answer[int]:
            write_id = self._session.stage(txn_id, table.table_id, add=added, remove=removed)
            return write_id, {"write_id": write_id}

        return self._call(
            "stage",
            do,
            txn_id=txn_id,
            table_id=table.table_id,
            files=tuple(_name(file.path) for file in added),
            removed=tuple(remove),
            touched=tuple(touch),
        )

    def commit(self, txn_id: int) -> None:
        def do() -> Answer[None]:
            return None, {"time": self._session.commit(txn_id).commit_time}

        self._call("commit", do, txn_id=txn_id)

    def abort(self, txn_id: int) -> None:
        self._call("abort", lambda: (self._session.abort(txn_id), {}), txn_id=txn_id)

    def state(self, txn_id: int) -> str:
        """The state of a transaction."""

        def do() -> Answer[str]:
            stands: Transaction = self._session.transaction(txn_id)
            status = stands.state.name.lower()
            return status, {"status": status, "time": stands.commit_time or 0}

        return self._call("state", do, txn_id=txn_id)

    def write(self, table: Table, number: int) -> int:
        """A complete transaction that adds one file; returns its id."""
        txn_id = self.begin()
        self.stage(txn_id, table, add=[number])
        self.commit(txn_id)
        return txn_id

    # -- reading

    def snapshot(self, *tables: Table, at: int = 0, txn_id: int = 0) -> Snapshot:
        point = AsOf(time=Timestamp(at)) if at else PRESENT

        def do() -> Answer[Snapshot]:
            names = [table.full_name for table in tables]
            taken = self._session.open(names, at=point, txn_id=txn_id or None)
            lists = {table_id: str(write_ids) for table_id, write_ids in taken.write_ids.items()}
            return taken, {"time": taken.time, "lists": lists}

        return self._call("snapshot", do, at=at, txn_id=txn_id)

    def files(
        self, table: Table, write_ids: ValidWriteIdList, *, at: int = 0, txn_id: int = 0
    ) -> list[str]:
        """The names of the files that the list shows, whichever node gave the list."""

        def do() -> Answer[list[str]]:
            files = self._session.files(table.table_id, write_ids)
            shown: list[DataFile | DeleteFile] = [*files.data_files, *files.delete_files]
            names = [_name(file.path) for file in shown]
            return names, {"files": tuple(names)}

        return self._call(
            "files", do, table_id=table.table_id, write_ids=str(write_ids), at=at, txn_id=txn_id
        )

    def read(self, *tables: Table, at: int = 0, txn_id: int = 0) -> dict[str, list[str]]:
        """The files of tables at one snapshot, by the names of the tables."""
        taken = self.snapshot(*tables, at=at, txn_id=txn_id)
        return {
            table.name: self.files(
                table, taken.write_ids[table.table_id], at=taken.time, txn_id=txn_id
            )
            for table in tables
        }

    def view(self, table: Table) -> list[str]:
        """The current files of a table, as a client of the Hive protocol gets them."""

        def do() -> Answer[list[str]]:
            with self._thrift() as client:
                view = client.call("get_table", dbname=SCHEMA, tbl_name=table.name)
                hidden = _HIDDEN.findall(view["viewExpandedText"])
                names: list[str] = []
                for name, _ in hidden:
                    part = client.call("get_table", dbname=SCHEMA, tbl_name=name)
                    glob = part["sd"]["serdeInfo"]["parameters"]["pathGlobFilter"]
                    names += filter(None, glob.strip("{}").split(","))
            return names, {"files": tuple(names), "time": int(hidden[0][1], 16)}

        return self._call("view", do, table_id=table.table_id)

    def events(self, *, after: int = 0) -> int:
        """Read the notification log after an event; returns the number of the last one."""

        def do() -> Answer[int]:
            with self._thrift() as client:
                answer = client.call("get_next_notification", rqst={"lastEvent": after})
            events = [
                (event["eventId"], event["eventType"], json.loads(event["message"]).get("txnid", 0))
                for event in answer["events"]
            ]
            return events[-1][0] if events else after, {"events": tuple(events)}

        return self._call("events", do, after=after)

    # -- holds

    def hold(self, at: int) -> int:
        def do() -> Answer[int]:
            hold = self._session.hold("reader", at=Timestamp(at), ttl_ms=3_600_000)
            return hold.hold_id, {"hold_id": hold.hold_id}

        return self._call("hold", do, at=at)

    def release(self, hold_id: int) -> None:
        def do() -> Answer[None]:
            self._session.release_hold(hold_id)
            return None, {}

        self._call("release", do, hold_id=hold_id)


ROWS = 1000
"""Rows of a data file, as its client reports them."""


def _data_file(txn_id: int, number: int) -> DataFile:
    file_id = txn_id << FILE_NUMBER_BITS | number
    return DataFile(
        file_id=file_id, path=data_path(file_id, "x"), rows=ROWS, bytes=len(_contents())
    )


def _delete_file(txn_id: int, name: str) -> DeleteFile:
    """A file that deletes a row of the data file of that name."""
    file_id = int(name.partition("-")[0])
    path = f"{DELETES_FOLDER}/{txn_id}-of-{file_id}{DELETE_FILE}"
    return DeleteFile(path=path, file_ids=(file_id,), counts=(1,), form=DeleteForm.BITMAPS)


def path_of(name: str) -> str:
    """The path of a file in the folder of its table."""
    return f"{DELETES_FOLDER if is_delete_file(name) else DATA_FOLDER}/{name}"


@cache
def _contents() -> bytes:
    """A Parquet file of one row, because reading a view opens the files."""
    field = pa.field("k", pa.int64(), metadata={"PARQUET:field_id": "1"})
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array([1])], schema=pa.schema([field])), out)
    return out.getvalue()


def _name(path: str) -> str:
    return path.rpartition("/")[2]
