"""Finds where messages end in a stream of bytes, without reading any byte twice.

The problem: strict binary messages have no frames. The only way to find the end of a message is to
walk over it, value by value, and a message of 50 MB arrives in about eight hundred pieces. Starting
again with each piece would take minutes.

The model: the scanner is a small state machine. Its whole state is a position and a stack of what
is open there: a struct, or a container with the number of its remaining values. It stops when the
next step needs bytes that have not arrived, and later continues from there. It skips a string as a
whole: the position may be beyond the bytes that have arrived, and then the scanner waits for them.

What must stay true:

* Every byte of a message is read once or skipped; the work is linear in the size of the message.
* The position never moves back. Sizes are unsigned, so a negative one is a huge one. A value that
  cannot fit into the largest allowed message is refused when its size is read, not when the memory
  is full.
* The values are counted: fields of structs and elements of containers. A byte on the wire can
  become an empty dict of 64 bytes, so a limit on bytes alone would not bound the memory that
  decoding takes.
* If the caller asks for it, one call walks over a bounded number of values, and is then `paused`.

Rejected: trying to decode at each piece and starting again when bytes are missing (quadratic);
reading from a blocking stream in a thread for each connection (the connections are many, and idle).
"""

from __future__ import annotations

import struct
from contextlib import suppress

from strandline.errors import ProtocolError
from strandline.metastore.thrift.compiler import FIXED_SIZES, MAX_DEPTH
from strandline.metastore.thrift.field_table import LIST, MAP, SET, STRING, STRUCT
from strandline.metastore.thrift.messages import MAX_MESSAGE_BYTES, MAX_NAME_BYTES

MAX_VALUES = 2_000_000
"""The maximum number of values of one message: fields of structs and elements of containers."""
MAX_TEXT_BYTES = 16 * 1024 * 1024
"""The maximum number of bytes of one text or binary value."""

_WHOLE = 1 << 62

_size_at = struct.Struct(">I").unpack_from

_FIXED = tuple(FIXED_SIZES.get(wire, 0) for wire in range(256))
# The fewest bytes that a value of a type takes; 0 if there is no such type.
_LEAST = tuple(
    FIXED_SIZES.get(wire, {STRING: 4, STRUCT: 1, LIST: 5, SET: 5, MAP: 6}.get(wire, 0))
    for wire in range(256)
)

# An open container: the number of values still to come, then the types that take turns (key and
# value of a map). An open struct is None.
_Open = list[int]


class Scanner:
    """Takes bytes as they arrive, and returns whole messages.

    After a `ProtocolError` the message boundary is lost: call only `broken`, and close the
    connection.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_values: int = MAX_VALUES,
    ) -> None:
        self._max_message = max_message_bytes
        self._max_values = max_values
        self._max_text = min(MAX_TEXT_BYTES, max_message_bytes)
        self._steps = _WHOLE
        self.paused = False
        self.message_values = 0
        self._buffer: bytes | bytearray = b""
        self._start = 0
        self._begin()

    def _begin(self) -> None:
        self._at = self._start
        self._in_body = False
        self._open: list[_Open | None] = []
        self._values = 0

    @property
    def waiting(self) -> int:
        """The number of bytes that have arrived and were not returned as messages."""
        return len(self._buffer) - self._start

    @property
    def values(self) -> int:
        """The number of values of the incomplete message, as far as it was walked."""
        return self._values

    def feed(self, data: bytes) -> None:
        if self._start == len(self._buffer):
            self._at -= self._start
            self._start = 0
            self._buffer = data
            return
        if not isinstance(self._buffer, bytearray) or self._start > len(self._buffer) // 2:
            self._buffer = bytearray(self._buffer[self._start :])
            self._at -= self._start
            self._start = 0
        self._buffer += data

    def beginning(self, size: int) -> bytes:
        """Return up to ``size`` bytes from the start of the next message."""
        return bytes(self._buffer[self._start : self._start + size])

    def next_message(self, *, steps: int = _WHOLE) -> bytes | None:
        """Return the next whole message, or None if it is incomplete or the walk is `paused`.

        After about ``steps`` values the walk stops and is `paused`: call again to continue.
        `message_values` is the number of values of the last message that was returned.
        """
        self._steps, self.paused = steps, False
        if not self._in_body and not self._walk_head():
            return None
        walked = self._walk_body()
        if self._at - self._start > self._max_message:
            raise self._too_large(self._at - self._start)
        if not walked:
            return None
        self.message_values = self._values
        fills_buffer = self._start == 0 and self._at == len(self._buffer)
        if fills_buffer and isinstance(self._buffer, bytes):
            message = self._buffer
        else:
            message = bytes(memoryview(self._buffer)[self._start : self._at])
        self._start = self._at
        if self._start == len(self._buffer):
            self._buffer, self._start = b"", 0
        self._begin()
        return message

    def broken(self) -> tuple[str, bytes] | None:
        """Return the name and sequence id of the message that begins here, or None if not known."""
        with suppress(ProtocolError):  # of a head that is no head
            self._in_body = self._in_body or self._walk_head()
        if not self._in_body:
            return None
        size = int(_size_at(self._buffer, self._start + 4)[0])
        at = self._start + 8 + size
        name = bytes(self._buffer[self._start + 8 : at]).decode("utf-8", "replace")
        return name, bytes(self._buffer[at : at + 4])

    def _walk_head(self) -> bool:
        if self.waiting < 8:
            return False
        if self._buffer[self._start : self._start + 2] != b"\x80\x01":
            raise ProtocolError("a message does not begin with 80 01, the head of strict binary")
        size = int(_size_at(self._buffer, self._start + 4)[0])
        if size > MAX_NAME_BYTES:
            raise ProtocolError(
                f"a message names a method of {size} bytes; at most {MAX_NAME_BYTES} are allowed"
            )
        if self.waiting < 12 + size:
            return False
        self._at = self._start + 12 + size
        self._open.append(None)
        self._in_body = True
        return True

    def _walk_body(self) -> bool:
        """Walk as far as the bytes reach. Return True at the end of the message."""
        stack = self._open
        while stack:
            if self._steps <= 0:
                self.paused = True
                return False
            self._steps -= 1
            top = stack[-1]
            if not (self._walk_fields() if top is None else self._walk_values(top)):
                return False
        return self._at <= len(self._buffer)

    def _walk_fields(self) -> bool:
        """Walk the fields of the innermost struct until it ends or something is opened in it."""
        data, end, at = self._buffer, len(self._buffer), self._at
        steps = first = self._steps
        while at < end and steps > 0:
            steps -= 1
            wire = data[at]
            fixed = _FIXED[wire]
            if fixed:
                at += 3 + fixed
            elif wire == 0:
                self._at = at + 1
                self._open.pop()
                self._walked(first - steps - 1, steps)  # the end of a struct is not a field
                return True
            elif wire == STRING:
                if at + 7 > end:
                    break
                size = _size_at(data, at + 3)[0]
                if size > self._max_text:
                    raise self._text_too_large(size)
                at += 7 + size
            else:
                self._at = at
                self._walked(first - steps, steps)
                return self._enter(wire, at + 3)
        self._at = at
        self._walked(first - steps, steps)
        self.paused = steps <= 0 and at < end
        return False

    def _walk_values(self, values: _Open) -> bool:
        """Walk the values of the innermost container, as `_walk_fields` does with fields."""
        data, end, at = self._buffer, len(self._buffer), self._at
        types, values_left = values[1:], values[0]
        turns = len(types)
        steps = self._steps
        while values_left and steps > 0:
            steps -= 1
            wire = types[-values_left % turns]
            if wire == STRING:
                if at + 4 > end:
                    break
                size = _size_at(data, at)[0]
                if size > self._max_text:
                    raise self._text_too_large(size)
                at += 4 + size
            elif _FIXED[wire]:
                at += _FIXED[wire]
            else:
                values[0] = values_left - 1
                self._at = at
                self._steps = steps
                if self._enter(wire, at):
                    return True
                values[0] = values_left
                return False
            values_left -= 1
        values[0] = values_left
        self._at = at
        self._steps = steps
        if values_left:
            self.paused = steps <= 0 and at < end
            return False
        self._open.pop()
        return True

    def _enter(self, wire: int, at: int) -> bool:
        """Open the struct or container at ``at``. Return False if its head has not arrived."""
        if len(self._open) > MAX_DEPTH:
            raise ProtocolError(f"a message nests structs and containers deeper than {MAX_DEPTH}")
        if wire == STRUCT:
            self._at = at
            self._open.append(None)
            return True
        turns = 2 if wire == MAP else 1
        if wire not in (LIST, SET, MAP):
            raise ProtocolError(f"a message holds a value of the unknown type {wire}")
        if at + turns + 4 > len(self._buffer):
            return False
        types = list(self._buffer[at : at + turns])
        size = int(_size_at(self._buffer, at + turns)[0])
        least = sum(_LEAST[kind] for kind in types)
        if size and not all(_LEAST[kind] for kind in types):
            raise ProtocolError(f"a message holds a container of the unknown types {types}")
        if at - self._start + size * least > self._max_message:
            raise self._too_large(at - self._start + size * least)
        self._walked(size, self._steps)
        self._at = at + turns + 4
        if all(_FIXED[kind] for kind in types):
            self._at += size * least
        elif size:
            self._open.append([size * turns, *types])
        return True

    def _walked(self, values: int, steps: int) -> None:
        """Count values of the message. ``steps`` is what is left of this call."""
        self._steps = steps
        self._values += values
        if self._values > self._max_values:
            raise ProtocolError(
                f"a message holds more than {self._max_values} values: fields of structs and "
                "elements of containers; send it in several requests"
            )

    def _text_too_large(self, size: int) -> ProtocolError:
        return ProtocolError(
            f"a message contains a string of {size} bytes; at most {self._max_text} are allowed"
        )

    def _too_large(self, size: int) -> ProtocolError:
        return ProtocolError(
            f"a message has {size} bytes or more; at most {self._max_message} are allowed"
        )
