"""An exact time as text.

The text of a time without a counter means its whole millisecond, in which a fast machine may also
execute the next statement of a test.
"""

from __future__ import annotations

from strandline.clock import Timestamp, format_timestamp, logical, milliseconds, timestamp


def exact_text(at: Timestamp) -> str:
    """``at`` with its logical counter, even if that is 0."""
    beginning = format_timestamp(timestamp(milliseconds(at)))
    return f"{beginning}+{logical(at)}"


def exact(text: str) -> str:
    """A printed time, with the counter 0 if it has none."""
    return text if "+" in text else f"{text}+0"
