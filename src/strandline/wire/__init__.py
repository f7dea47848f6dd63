"""Versioned binary serialization of everything that is stored on disk."""

# The import registers the formats of the model's objects.
from strandline.wire import descriptors
from strandline.wire.codecs import Reader
from strandline.wire.registry import decode, encode, formats, nested, nested_list, register
from strandline.wire.stored import Stored

__all__ = [
    "Reader",
    "Stored",
    "decode",
    "descriptors",
    "encode",
    "formats",
    "nested",
    "nested_list",
    "register",
]
