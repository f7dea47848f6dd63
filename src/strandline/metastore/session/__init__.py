"""The two implementations of `Session`: in process, and over HTTP to a node."""

from typing import TYPE_CHECKING

from strandline.metastore.session.local_session import LocalSession

if TYPE_CHECKING:
    from strandline.metastore.session.http_session import HttpSession
else:

    def __getattr__(name: str) -> object:
        """Import `HttpSession` at its first use: a node needs no HTTP client."""
        if name != "HttpSession":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from strandline.metastore.session.http_session import HttpSession

        return HttpSession


__all__ = ["HttpSession", "LocalSession"]
