"""A time as text that names it alone.

The text of a time without a counter means its whole millisecond, in which a fast machine carries
out the next statement of a test as well.
"""

from __future__ import annotations

from strandline.clock import Timestamp, format_timestamp, logical, milliseconds, timestamp


def exact_text(at: Timestamp) -> str:
    """``at`` with its logical counter, also where that is 0."""
    beginning = format_timestamp(timestamp(milliseconds(at)))
    return f"{beginning}+{logical(at)}"


def exact(text: str) -> str:
    """A time that was printed, with the counter 0 where it has none."""
    return text if "+" in text else f"{text}+0"
