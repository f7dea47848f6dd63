"""Versioned binary serialization of everything that reaches disk."""

# Importing these registers the formats of the model's objects.
from strandline.wire import descriptors
from strandline.wire.codecs import Codec, Reader
from strandline.wire.registry import (
    decode,
    encode,
    formats,
    nested,
    nested_list,
    register,
    register_codec,
)
from strandline.wire.stored import AnyStored, Stored

__all__ = [
    "AnyStored",
    "Codec",
    "Reader",
    "Stored",
    "decode",
    "descriptors",
    "encode",
    "formats",
    "nested",
    "nested_list",
    "register",
    "register_codec",
]
