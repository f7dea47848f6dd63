"""The two ways to speak `Session`: in process, and over HTTP to a node."""

from strandline.metastore.session.http_session import HttpSession
from strandline.metastore.session.local_session import LocalSession

__all__ = ["HttpSession", "LocalSession"]
