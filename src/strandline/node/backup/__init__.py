"""Back up a store into one file while nodes run on it, and restore it."""

from strandline.node.backup.manifest import Manifest
from strandline.node.backup.restoring import restore
from strandline.node.backup.taking import back_up

__all__ = ["Manifest", "back_up", "restore"]
