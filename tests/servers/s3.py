"""A server of the S3 protocol in this process, as far as the blobs of a shard use it.

It keeps objects in memory, answers GET, HEAD, PUT, DeleteObjects and ListObjectsV2 in pages, and
ignores signatures. A test can make it fail: `S3Server.fail` is called before each request, and
returns the status to answer instead, or None.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from email.utils import formatdate
from functools import cache
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE = 3
"""Keys in one page of a listing: few, so that tests see several pages."""
BUCKET = "bucket"
NO_BUCKET = 404
"""As the status of a failure, it says that the bucket does not exist."""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


class S3Server:
    """See the module."""

    def __init__(self) -> None:
        self.port = 0
        self.objects: dict[str, bytes] = {}
        self.fail: Callable[[str, str], int | None] = lambda method, key: None
        self.requests: list[tuple[str, str]] = []

    def url(self, prefix: str) -> str:
        """The address of the blobs below ``prefix``."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"


def _handler(server: S3Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is sent in one piece, or its end waits for the client's system

        def answer(self, status: int, body: bytes = b"", *, size: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
            self.send_header("ETag", f'"{md5(body).hexdigest()}"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:  # its client was killed; S3 stores no part of an object
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
            server.requests.append((self.command, key))
            status = server.fail(self.command, key)
            if status is not None:
                code = "NoSuchBucket" if status == NO_BUCKET else "Planted"
                self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())
            elif self.command == "PUT":
                server.objects[key] = body
                self.answer(200)
            elif self.command == "POST" and parts.query == "delete":
                gone = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", body.decode())]
                for name in gone:
                    server.objects.pop(name, None)
                deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in gone)
                self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
            elif not key:
                self.answer(200, self.listing(parse_qs(parts.query)))
            elif key in server.objects:
                data = server.objects[key]
                self.answer(200, data, size=len(data))
            else:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        do_GET = do_HEAD = do_PUT = do_POST = handle_any  # noqa: N815  # http.server's names

        def listing(self, query: dict[str, list[str]]) -> bytes:
            prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
            keys = sorted(k for k in list(server.objects) if k.startswith(prefix) and k > after)
            page = keys[:PAGE]
            more = len(keys) > PAGE
            contents = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(server.objects[key])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in page
            )
            last = escape(page[-1]) if more else ""
            return (
                f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(page)}</KeyCount>"
                f"<IsTruncated>{str(more).lower()}</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
                f"{contents}</ListBucketResult>"
            ).encode()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name
            """Nothing is logged."""

    return Handler


@cache
def running() -> S3Server:
    """The server that the tests of one process share; its credentials are in the environment."""
    os.environ.update(ENVIRONMENT)
    server = S3Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    server.port = http.server_port
    threading.Thread(target=http.serve_forever, daemon=True).start()
    return server
