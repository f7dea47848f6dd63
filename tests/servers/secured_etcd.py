"""An etcd that takes only TLS with certificates of its clients, and only users that it knows."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import trustme

from strandline.metastorage.etcd.access import EtcdAddress
from strandline.metastorage.etcd.operations import to_text
from tests.servers.etcd import EtcdServer

USER, PASSWORD = "lisa@example", "a:b/c?d"
OPTIONS = ("cacert", "cert", "key")


@dataclass(frozen=True)
class Files:
    """The PEM files of a client, and of the authority that it trusts."""

    cacert: str
    cert: str
    key: str

    @classmethod
    def issued(cls, folder: Path, authority: trustme.CA) -> Files:
        folder.mkdir(exist_ok=True)
        files = cls(*(str(folder / f"{name}.pem") for name in OPTIONS))
        issued = authority.issue_cert("127.0.0.1", "node")
        authority.cert_pem.write_to_path(files.cacert)
        issued.cert_chain_pems[0].write_to_path(files.cert)
        issued.private_key_pem.write_to_path(files.key)
        return files

    def address(self) -> EtcdAddress:
        return EtcdAddress(("127.0.0.1:1",), "p", cacert=self.cacert, cert=self.cert, key=self.key)


class SecuredEtcd:
    """The server, and what an administrator does to it. `USER` may use the prefix ``p``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files, server = self._issued()
        self._tls = ssl.create_default_context(cafile=self.files.cacert)
        self._tls.load_cert_chain(self.files.cert, self.files.key)
        self.server = EtcdServer(
            *("--cert-file", server.cert, "--key-file", server.key),
            *("--client-cert-auth", "--trusted-ca-file", server.cacert, "--bcrypt-cost", "4"),
            tls=self._tls,
        )
        for name, password in (("root", "r"), (USER, PASSWORD)):
            self.administer("user/add", name=name, password=password)
            self.administer("role/add", name=name)
            self.administer("user/grant", user=name, role=name)
        self.permit()
        self.administer("enable")

    def _issued(self) -> tuple[Files, Files]:
        """Write the files of client and server, issued by a new authority."""
        authority = trustme.CA()
        return (
            Files.issued(self._folder / "client", authority),
            Files.issued(self._folder / "server", authority),
        )

    def renew(self) -> None:
        """Replace the authority and all files, and restart the server with them.

        A client that goes on with the files that it has read before is then refused.
        """
        self._issued()
        self._tls.load_verify_locations(self.files.cacert)
        self._tls.load_cert_chain(self.files.cert, self.files.key)
        self.server.restart()

    def administer(self, path: str, **arguments: Any) -> Any:
        base = f"https://127.0.0.1:{self.server.port}/v3/auth"
        with httpx.Client(verify=self._tls, trust_env=False) as client:
            login = client.post(f"{base}/authenticate", json={"name": "root", "password": "r"})
            headers = {"Authorization": login.json()["token"]} if login.is_success else {}
            answer = client.post(f"{base}/{path}", json=arguments, headers=headers)
            return answer.raise_for_status().json()

    def permit(self, prefix: str = "p") -> None:
        """Grant `USER` the prefix."""
        key, end = to_text(f"{prefix}/".encode()), to_text(f"{prefix}0".encode())
        permission = {"permType": "READWRITE", "key": key, "range_end": end}
        self.administer("role/grant", name=USER, perm=permission)

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        """In the block, `USER` may not use the prefix ``p``."""
        key, end = to_text(b"p/"), to_text(b"p0")
        self.administer("role/revoke", role=USER, key=key, range_end=end)
        try:
            yield
        finally:
            self.permit()

    def make_tokens_old(self) -> None:
        """Change the password, to what it was. The server then forgets the tokens of the user."""
        self.administer("user/changepw", name=USER, password=PASSWORD)

    def url(
        self,
        *,
        user: str | None = USER,
        password: str | None = PASSWORD,
        prefix: str = "p",
        **files: str,
    ) -> str:
        login = "" if user is None else quote(user, safe="")
        login += "" if password is None else f":{quote(password, safe='')}"
        options = {name: getattr(self.files, name) for name in OPTIONS} | files
        query = "&".join(f"{name}={quote(file)}" for name, file in options.items() if file)
        place = f"127.0.0.1:{self.server.port}/{prefix}"
        return f"etcd://{login}{'@' if login else ''}{place}{'?' if query else ''}{query}"
