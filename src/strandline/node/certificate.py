"""The certificate of a node's ports, which is read again once its files have changed.

Each handshake asks for the context with the present certificate, so a renewed certificate needs no
restart. Connections that are open keep theirs. If the files cannot be read, or the key is not that
of the certificate (tools replace one file after the other), the node keeps the certificate that it
had and logs an error. A certificate that clients refuse, or soon will, is used with a warning.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from time import monotonic, time

from strandline.errors import InvalidInput
from strandline.renewed_files import refuse_encrypted, states_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The minimum time between two looks at the files."""
WARNING_DAYS = 30
"""A certificate that expires within this many days is reported when read, and once a day."""
_DAY_SECONDS = 86_400.0


def serving_context(certificate: str, key: str) -> ssl.SSLContext:
    """A TLS context for listening; ``key`` is "" if the key is in the file of the certificate.

    Raises `InvalidInput` if the files cannot be read.
    """
    files = [certificate, key] if key else [certificate]
    seen, looked = states_of(files), monotonic()
    checked = looked
    first = current = _read(certificate, key)

    def use_current(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        nonlocal seen, current, looked, checked
        if monotonic() - looked >= LOOK_SECONDS:
            looked = monotonic()
            if (states := states_of(files)) != seen:
                seen = states  # broken files are reported once
                try:
                    current = _read(certificate, key)
                    logger.info("read the certificate %s again", certificate)
                except InvalidInput as error:
                    logger.error("%s; the certificate read before stays in use", error)
            elif looked - checked >= _DAY_SECONDS:
                checked = looked
                _warn_of_expiry(certificate, current)
        connection.context = current

    first.sni_callback = use_current
    return first


def _read(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key or None, password=refuse_encrypted)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the certificate {certificate} cannot be read with its key"
            f"{f' {key}' if key else ''}: {error}; name PEM files with tls_certificate and tls_key"
        ) from error
    _warn_of_expiry(certificate, context)
    return context


def _warn_of_expiry(certificate: str, context: ssl.SSLContext) -> None:
    """Log a warning if clients refuse the certificate, or will do so within `WARNING_DAYS`.

    A handshake shows it. The standard library has no function that reads a server's certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the issuer is not checked
    to_client, to_node = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(certificate)
        asking = client.wrap_bio(to_client, to_node)
        answering = context.wrap_bio(to_node, to_client, server_side=True)
        for side in (asking, answering) * 3:  # TLS 1.2 takes a turn more than 1.3
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        expiry = (asking.getpeercert() or {})["notAfter"]
        days = (ssl.cert_time_to_seconds(str(expiry)) - time()) / 86400
        reason = f"it expires on {expiry}" if days < WARNING_DAYS else None
    except OSError as error:  # of TLS, or of a file that was removed meanwhile
        reason = getattr(error, "verify_message", str(error))
    if reason is not None:
        logger.warning("renew the certificate %s: %s", certificate, reason)
