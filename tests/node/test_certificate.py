"""The certificate of a node, renewed and damaged while the node serves."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from strandline.errors import InvalidInput
from strandline.node import certificate
from strandline.node.certificate import serving_context
from tests.log_lines import log_lines


@pytest.fixture(autouse=True)
def look_at_each_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "LOOK_SECONDS", 0.0)


def served(context: ssl.SSLContext, authority: trustme.CA, *, name: str | None = "node") -> int:
    """The serial number of the certificate that a client gets; ``name`` is the name it asks for."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    authority.configure_trust(trusting)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return int(client.getpeercert()["serialNumber"], 16)  # type: ignore[index, arg-type]  # a text


def issue(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("node")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")
    issued.private_key_pem.write_to_path(folder / "node.key")


def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    authority = trustme.CA()
    issue(authority, tmp_path)
    context = serving_context(str(tmp_path / "node.pem"), str(tmp_path / "node.key"))
    first = served(context, authority)
    assert served(context, authority) == first
    issue(authority, tmp_path)
    renewed = served(context, authority)
    assert renewed != first
    assert served(context, authority, name=None) == renewed  # a client that names no host


def test_a_certificate_that_cannot_be_read_leaves_the_one_before_in_use(tmp_path: Path) -> None:
    authority = trustme.CA()
    issue(authority, tmp_path)
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"
    context = serving_context(str(certificate), str(key))
    first, whole = served(context, authority), certificate.read_text()
    with log_lines() as lines:
        certificate.write_text(whole[: len(whole) // 2])
        assert served(context, authority) == served(context, authority) == first
        certificate.unlink()
        assert served(context, authority) == first
        old_key = key.read_text()
        issue(authority, tmp_path)
        new_key = key.read_text()
        key.write_text(old_key)  # the new certificate, whose key comes later
        assert served(context, authority) == first
        key.write_text(new_key)
        assert served(context, authority) != first
    logged = [(line["level"], line["message"]) for line in lines.of("node.certificate")]
    assert [level for level, _ in logged] == ["error", "error", "error", "info"]
    assert all(message.endswith("stays in use") for _, message in logged[:3])


def test_an_encrypted_key_is_refused_without_asking_at_the_terminal(tmp_path: Path) -> None:
    issue(trustme.CA(), tmp_path)
    key = load_pem_private_key((tmp_path / "node.key").read_bytes(), password=None)
    encrypted = tmp_path / "encrypted.key"
    password = BestAvailableEncryption(b"secret")
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, password))
    with pytest.raises(InvalidInput, match="is encrypted with a password"):
        serving_context(str(tmp_path / "node.pem"), str(encrypted))


@pytest.mark.parametrize(
    ("days", "reason"),
    [
        ((-9, -1), "certificate has expired"),
        ((1, 9), "certificate is not yet valid"),
        ((-9, 20), "it expires on "),
        ((-9, 40), None),
    ],
)
def test_a_certificate_that_clients_refuse_now_or_soon_is_logged_as_a_warning(
    tmp_path: Path, days: tuple[int, int], reason: str | None
) -> None:
    file = tmp_path / "chain.pem"
    not_before, not_after = (datetime.now(UTC) + timedelta(days=count) for count in days)
    issued = trustme.CA().issue_cert("node", not_before=not_before, not_after=not_after)
    issued.private_key_and_cert_chain_pem.write_to_path(file)
    with log_lines() as lines:
        serving_context(str(file), "")
    logged = [line["message"] for line in lines.of("node.certificate")]
    assert [f"{file}: {reason}" in message for message in logged] == [True] * (reason is not None)


@pytest.mark.slow
def test_a_node_that_runs_for_long_is_warned_again_each_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, authority = tmp_path / "chain.pem", trustme.CA()
    issued = authority.issue_cert("node", not_after=datetime.now(UTC) + timedelta(days=20))
    issued.private_key_and_cert_chain_pem.write_to_path(file)
    started = monotonic()
    with log_lines() as lines:
        context = serving_context(str(file), "")
        for hours in (1, 2, 25, 26, 50):
            monkeypatch.setattr(certificate, "monotonic", lambda: started + 3600 * hours)  # noqa: B023 - used at once
            served(context, authority)
    logged = [line["message"] for line in lines.of("node.certificate")]
    assert len(logged) == 3
    assert all("it expires on " in message for message in logged)


def test_the_expiry_is_also_known_where_the_system_allows_only_tls_1_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ssl.create_default_context

    def create_older(purpose: ssl.Purpose) -> ssl.SSLContext:
        context = create(purpose)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context

    file = tmp_path / "chain.pem"
    issued = trustme.CA().issue_cert("node", not_after=datetime.now(UTC) + timedelta(days=20))
    issued.private_key_and_cert_chain_pem.write_to_path(file)
    monkeypatch.setattr(ssl, "create_default_context", create_older)
    with log_lines() as lines:
        serving_context(str(file), "")
    (line,) = lines.of("node.certificate")
    assert "it expires on " in line["message"]
