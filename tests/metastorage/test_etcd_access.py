"""An etcd that takes only TLS with certificates of its clients, and only users that it knows."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from strandline.clock import HybridClock
from strandline.errors import DeadlineExceeded, InvalidInput, Stopping, Unavailable
from strandline.metastorage import Metastorage, open_metastorage
from strandline.metastorage.etcd.access import ClientTls, Login, parse_etcd_url
from strandline.metastorage.etcd.gateway import EtcdGateway
from tests.interrupts import is_interrupted
from tests.log_lines import log_lines
from tests.metastorage.conftest import put
from tests.servers.secured_etcd import OPTIONS, PASSWORD, Files, SecuredEtcd


def opened(cluster: SecuredEtcd, **access: str | None) -> Metastorage:
    return open_metastorage(cluster.url(**access), HybridClock(), timeout=60)  # type: ignore[arg-type]  # the parameters of url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    cluster = SecuredEtcd(tmp_path_factory.mktemp("etcd"))
    yield cluster
    cluster.server.remove()


def test_a_store_is_read_written_and_watched_with_a_certificate_and_a_password(
    cluster: SecuredEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCDCTL_PASSWORD", PASSWORD)
    with (
        closing(opened(cluster)) as store,
        closing(opened(cluster, password=None)) as other,
        ThreadPoolExecutor() as pool,
    ):
        put(store, "a", b"1")
        revision = other.revision()
        woken = pool.submit(other.wait_for_change, "a", revision, timeout=60)
        put(store, "a", b"2")
        assert woken.result()
        entry = other.get("a")
        assert entry is not None
        assert entry.value == b"2"


def test_a_write_and_a_waiter_with_an_old_token_log_in_again(cluster: SecuredEtcd) -> None:
    with closing(opened(cluster)) as store, ThreadPoolExecutor() as pool:
        put(store, "b")
        before = store.revision()
        cluster.make_tokens_old()
        assert put(store, "b").revision == before + 1
        cluster.make_tokens_old()
        woken = pool.submit(store.wait_for_change, "b", before + 1, timeout=60)
        put(store, "b")
        assert woken.result()
        assert store.revision() == before + 2


def test_users_may_be_switched_off_and_on_while_a_store_is_open(cluster: SecuredEtcd) -> None:
    with closing(opened(cluster)) as store:
        cluster.administer("disable")
        try:
            put(store, "c")
            with closing(opened(cluster, password="wrong")) as other:  # nobody asks for it
                put(other, "c")
        finally:
            cluster.administer("enable")
        put(store, "c")


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ({"password": "geheim"}, "refused the login of 'lisa@example'.*ETCDCTL_PASSWORD"),
        ({"password": ""}, "refused the login of 'lisa@example'"),
        ({"user": None, "password": None}, "user name is empty; name a user in the store's addr"),
        ({"prefix": "q"}, "grant a role of 'lisa@example' the prefix: .* readwrite q/`"),
        (
            {"cacert": "", "cert": "", "key": ""},
            "correct the endpoints and the options in the store's",
        ),
        ({"cert": "", "key": ""}, "certificate"),
        ({"cacert": "system"}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_client_without_access_gets_an_error_that_says_what_to_do(
    cluster: SecuredEtcd, access: dict[str, str | None], message: str
) -> None:
    with pytest.raises(Unavailable, match=message) as refused:
        opened(cluster, **access)
    assert "geheim" not in refused.value.message


def test_closing_ends_a_call_that_waits_for_an_answer_over_tls(
    cluster: SecuredEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, waits = EtcdGateway._trace, threading.Event()

    def observe(self: EtcdGateway, event: str, details: Mapping[str, Any]) -> None:
        trace(self, event, details)
        if event == "http11.receive_response_headers.started":
            waits.set()

    monkeypatch.setattr(EtcdGateway, "_trace", observe)
    gateway = EtcdGateway(parse_etcd_url(cluster.url()), timeout=3600)
    gateway.range(b"p/a")
    waits.clear()
    cluster.server.pause()
    try:
        with ThreadPoolExecutor() as pool:
            call = pool.submit(gateway.range, b"p/a")
            assert waits.wait(60)
            gateway.close()
            with pytest.raises(Stopping):
                call.result(60)
    finally:
        cluster.server.resume()


# Files


def serial_of(tls: ClientTls, authority: trustme.CA) -> str | None:
    """The serial number of the certificate that a server of ``authority`` gets."""
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    accepting.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(accepting)
    authority.issue_cert("node").configure_cert(accepting)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(to_client, to_server, server_hostname="node")
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = server.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_renewed_files_are_used_and_broken_ones_are_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = Files.issued(tmp_path, authority)
    tls = ClientTls(files.address())
    first = serial_of(tls, authority)
    certificate = Path(files.cert).read_text()
    tls.begin_handshake()
    Files.issued(tmp_path, authority)
    tls.begin_handshake()  # the context is in use
    assert serial_of(tls, authority) == first
    tls.end_handshake()
    tls.end_handshake()
    tls.begin_handshake()
    tls.end_handshake()
    second = serial_of(tls, authority)
    assert second != first
    Path(files.cert).write_text(certificate)  # without its key, which comes later
    with log_lines() as lines:
        for _ in range(2):
            tls.begin_handshake()
            tls.end_handshake()
    assert serial_of(tls, authority) == second
    [line] = lines.of("metastorage.etcd.access")
    assert "KEY_VALUES_MISMATCH" in line["message"]
    assert "the files read before stay in use" in line["message"]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, option: str) -> None:
    files = Files.issued(tmp_path, trustme.CA())
    Path(getattr(files, option)).write_text("no PEM")
    with pytest.raises(InvalidInput, match=f"cannot read the TLS files.*{option}.pem"):
        ClientTls(files.address())


# Tokens


def test_an_interrupt_does_not_keep_other_threads_from_logging_in() -> None:
    step = 0
    with ThreadPoolExecutor(1) as other_thread:
        while is_interrupted(partial((login := Login()).token, str, timeout=60), at_step=step):
            assert other_thread.submit(login.token, str, timeout=0).result() == ""
            step += 1
    assert step


def test_threads_without_a_token_log_in_once() -> None:
    login, logins = Login(), []
    entered, released = threading.Event(), threading.Event()

    def log_in() -> str:
        logins.append(1)
        entered.set()
        assert released.wait(60)
        return f"token {len(logins)}"

    with ThreadPoolExecutor(8) as pool:
        tokens = [pool.submit(login.token, log_in, timeout=60) for _ in range(8)]
        assert entered.wait(60)
        with pytest.raises(DeadlineExceeded):
            login.token(log_in, timeout=0)
        released.set()
        assert {token.result() for token in tokens} == {"token 1"}
    login.forget("token 0")  # of another thread, which was slow
    assert login.token(log_in, timeout=60) == "token 1"
    login.forget("token 1")
    assert login.token(log_in, timeout=60) == "token 2"
