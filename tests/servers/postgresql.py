"""A real PostgreSQL server for tests: one for each process of the test run, a schema for each test.

Or a separate database, made from a template that has the tables of a store.

`running` starts it on first use and stops it with the process. It listens on the loopback interface
and requires no password, except of the role `ASKED`. PostgreSQL refuses to run as root, so for root
the user ``postgres``, or another one, runs it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

import psutil
import psycopg

from strandline.node.store_database import PARTS
from strandline.sql import open_database
from strandline.sql.schema_versions import CLOCK, LOOKS_ROW, SCHEMA, WRITES_ROW
from tests.servers.loopback import ReservedPort

USER = "strandline"
ASKED = "asked"
"""The role whose clients must give a password; a test creates it."""
_schemas = itertools.count()
_START_PATIENCE = 300.0
_TEMPLATE = "store"
_UNSYNCED = ("fsync=off", "full_page_writes=off")
_BRIEF = ("shared_buffers=16MB", "autovacuum=off", "jit=off")
"""Its databases live for seconds: there is nothing to vacuum, and compiling a plan never pays."""


class PostgresServer:
    """A server with its own data in a temporary folder.

    Unless it is ``durable``, it syncs nothing: no test cuts the power, and the operating system
    still has what a killed server wrote.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._options = () if durable else (*_BRIEF, *_UNSYNCED)
        self._folder = Path(tempfile.mkdtemp(prefix="strandline-postgresql-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._making = threading.Lock()
        self._has_template = False
        self._emptied: str | None = None
        self._connections: dict[str, psycopg.Connection] = {}
        """Connections of this process, by address: opening one costs more than its statements."""
        self._port = ReservedPort()
        self.port = self._port.number
        account = _account()
        if account is not None:
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {ASKED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.start()

    def url(self, *, database: str = "postgres", schema: str | None = None) -> str:
        """The address of a database, whose tables are in ``schema``."""
        address = f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        return (
            address if schema is None else f"{address}?options={quote(f'-csearch_path={schema}')}"
        )

    def new_schema(self) -> str:
        """The address of an empty schema of the database that no other test has."""
        schema = f"s{next(_schemas)}"
        self._connection(self.url()).execute(f"CREATE SCHEMA {schema}".encode())
        return self.url(schema=schema)

    def new_database(self) -> str:
        """The address of a new database with the empty tables of a store."""
        with self._making:
            if not self._has_template:
                self._make_template()
                self._has_template = True
        name = f"d{next(_schemas)}"
        create = f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}"
        self._connection(self.url()).execute(create.encode())
        return self.url(database=name)

    def copy_of_database(self, address: str) -> str:
        """The address of a copy of the database at ``address``, which must have no connections."""
        name = f"d{next(_schemas)}"
        original = address.rpartition("/")[2]
        self._connection(self.url()).execute(f"CREATE DATABASE {name} TEMPLATE {original}".encode())
        return self.url(database=name)

    def new_empty_database(self, *, encoding: str = "UTF8", collation: str = "") -> str:
        """The name of a database without tables, for another program.

        Its texts are in the order of their bytes, or of a ``collation`` of ICU.
        """
        name = f"d{next(_schemas)}"
        provider = f" LOCALE_PROVIDER icu ICU_LOCALE '{collation}'" if collation else ""
        self._connection(self.url()).execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'"
            f" LC_COLLATE 'C' LC_CTYPE 'C'{provider}".encode()
        )
        return name

    def emptied_database(self) -> str:
        """The address of the one database shared by tests that leave nothing open in it.

        Its tables are those of a store, and empty.
        """
        if self._emptied is None:
            self._emptied = self.new_database()
            return self._emptied
        connection = self._connection(self._emptied)
        known = {table.name for part in PARTS.values() for table in part.metadata.sorted_tables}
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (name,) in rows.fetchall():
            if name not in known:
                connection.execute(f"DROP TABLE {name}".encode())
        # TRUNCATE makes new files for tables and indexes, and takes sixty times as long.
        emptied = "".join(f'DELETE FROM "{name}";' for name in sorted(known - {SCHEMA.name}))
        connection.execute(
            f"{emptied} INSERT INTO {CLOCK.name} (id, time)"
            f" VALUES ({WRITES_ROW}, 0), ({LOOKS_ROW}, 0);"
            " SELECT setval(c.oid, s.seqstart, false)"
            " FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid".encode()
        )
        return self._emptied

    def _connection(self, url: str) -> psycopg.Connection:
        """The permanent connection; a new one if the server was restarted since."""
        if connection := self._connections.get(url):
            try:
                connection.execute("SELECT")
            except psycopg.OperationalError:
                connection.close()
            else:
                return connection
        self._connections[url] = psycopg.connect(url, autocommit=True)
        return self._connections[url]

    def _make_template(self) -> None:
        self._connection(self.url()).execute(f"CREATE DATABASE {_TEMPLATE}".encode())
        database = open_database(self.url(database=_TEMPLATE))
        for part in PARTS.values():
            database.ensure_schema(part)
        database.close()

    def start(self) -> None:
        """Start it on its data, at its port."""
        if not self._started():
            raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Stop it and every connection, at once and cleanly ("fast shutdown")."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def restart(self) -> None:
        """Stop and start it."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Send SIGQUIT: it ends without writing anything more, and recovers at its next start."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)
        self._process = None

    def pause(self) -> None:
        """Send SIGSTOP to the server and every process of it, and return when all have stopped."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was listed
                process.suspend()
                while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    time.sleep(0)

    def resume(self) -> None:
        """Send SIGCONT to all of them."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def remove(self) -> None:
        """Stop it and remove its data."""
        if self._process is not None:
            self.resume()
        for connection in self._connections.values():
            connection.close()
        self.stop()
        self._port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _family(self) -> Iterator[psutil.Process]:
        """The server's process, and then its children: one that has stopped makes no new ones."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        yield parent
        yield from parent.children()

    def _started(self) -> bool:
        with self._log.open("ab") as log:
            command = self._command(
                "postgres",
                *("-D", self._data, "-k", self._folder, "-p", self.port),
                *("-c", "listen_addresses=127.0.0.1"),
                *(f"--{option}" for option in self._options),
            )
            self._process = subprocess.Popen(
                # When this process is killed, the server gets the signal to stop too.
                ["setpriv", "--pdeathsig", "INT", *command],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **_rights(),
            )
        end = time.monotonic() + _START_PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            try:
                psycopg.connect(self.url()).close()
            except psycopg.OperationalError:
                time.sleep(0.01)  # only a connection shows whether a server is ready
            else:
                return True
        self.stop()
        return False

    def _run(self, program: str, *arguments: object) -> None:
        completed = subprocess.run(
            self._command(program, *arguments),
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
            **_rights(),
        )
        if completed.returncode:
            raise RuntimeError(f"{program} failed: {completed.stderr}")

    def _command(self, program: str, *arguments: object) -> list[str]:
        return [str(_programs() / program), *map(str, arguments)]


@cache
def running() -> PostgresServer:
    """The server of this process."""
    server = PostgresServer()
    atexit.register(server.remove)
    return server


def _account() -> pwd.struct_passwd | None:
    """The account that the server runs as; None for that of this process."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody")


class _Rights(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _rights() -> _Rights:
    """The arguments that make a child process run as that account."""
    account = _account()
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _programs() -> Path:
    """The folder of the newest server; Debian does not put it into the PATH."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if folders:
        return max(folders, key=lambda path: int(path.parent.name))
    postgres = shutil.which("postgres")
    if postgres is None:
        raise RuntimeError("there is no PostgreSQL server here; run scripts/setup postgresql")
    return Path(postgres).resolve().parent
