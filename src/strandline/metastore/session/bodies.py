"""Bodies of the node's HTTP side: requests as they arrive, answers as clients read them.

The problem: a client decides how large its request is, how slowly it sends it, and how slowly it
reads the answer. None of these may fill the memory, take a slot forever, or block the loop.

The model: a body arrives in chunks. Once a body is too long for the process of the node, it is kept
outside of its memory (`Content`), and goes to a child process undecoded. A long answer is sent in
pieces, as the client reads them.

What must stay true: no body is kept beyond the size limit. The memory of all bodies together is
bounded until they are answered, and that of all answers until they are sent. A body that does not
arrive in time is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline import work
from strandline.errors import DeadlineExceeded, InvalidInput, Overloaded
from strandline.metastore.request_memory import AnswerMemory, RequestMemory
from strandline.metastore.session.http_messages import Answer, Request, Send
from strandline.work.contents import PIECE, Body, Content, pieces_of, release

MAX_BODY_BYTES = 64 * 1024 * 1024
BODY_SECONDS = 60.0
"""The maximum number of seconds in which a body must arrive."""
BODY_MEMORY_BYTES = 512 * 1024 * 1024
"""The maximum memory of all bodies together, including the values that are read from them."""
_BYTES_OF_A_BODY = 4
"""The memory for each byte of a body: for its text, and for the values that are read from it."""
_DRAINED = 4
"""A body of up to this many times the limit is read and dropped, so that its sender reads the
answer. The connection of a larger one is just closed."""


class BodyTooLate(DeadlineExceeded):
    """The body did not arrive in time; nothing more is read from the connection."""


class _Body:
    """A body as it arrives. A body that is too long for this process is kept outside of it."""

    def __init__(self, *, outside: bool) -> None:
        self._outside = outside
        self._size = 0
        self._chunks: list[bytes] = []
        self._content: Content | None = None

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._content is not None:
            self._content.write(chunk)
            return
        self._chunks.append(chunk)
        if self._outside and work.units_of_json(self._size) > work.IN_THREAD:
            self._content = Content.of(b"".join(self._chunks))
            self._chunks.clear()

    def drop(self) -> None:
        self._chunks.clear()
        if self._content is not None:
            self._content.close()
            self._content = None

    def whole(self) -> Body:
        return b"".join(self._chunks) if self._content is None else self._content


@dataclass(eq=False)
class LongAnswer(Answer):
    """An answer that is sent in pieces, as the client reads them."""

    on_sent: Callable[[object], None] = field(kw_only=True)

    async def send(self, send: Send) -> None:
        try:
            await self.send_head(send)
            pieces = pieces_of(self.body)
            piece = next(pieces, b"")
            for following in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # else a fast client would keep the loop for all pieces
                piece = following
            # The last piece ends the answer. With it, the client may send its next request, which
            # is refused while an answer is in progress.
            await send({"type": "http.response.body", "body": piece})
        finally:
            self.on_sent(self)
            release(self.body)


class Bodies:
    """The bodies of one application. Its methods are for the event loop.

    With ``outside``, long bodies are kept outside of this process. ``memory`` counts the memory of
    requests, until their owner releases it; ``answers`` that of answers that are not sent yet.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        seconds: float,
        memory_bytes: int,
        answer_bytes: int,
        outside: bool,
    ) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._outside = outside
        self.memory = RequestMemory(memory_bytes)
        self.answers = AnswerMemory(answer_bytes)

    async def read(self, request: Request, owner: object, content_type: str, *, user: str) -> Body:
        """The body of a request, which must have ``content_type``. A `Content` must be closed.

        Raises `InvalidInput`, `Overloaded`, `BodyTooLate`, `ClientGone`.
        """
        if request.is_whole:
            return await self._read(request, owner, content_type, user)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(request, owner, content_type, user)
        except TimeoutError:
            raise BodyTooLate(
                f"the whole body did not arrive within {self._seconds:g} seconds; nothing was "
                "done, send it again"
            ) from None

    async def _read(self, request: Request, owner: object, content_type: str, user: str) -> Body:
        sent_as = request.headers.get("content-type", "")
        if sent_as.partition(";")[0].strip().lower() != content_type:
            raise InvalidInput(f"the body is sent as {sent_as[:80]!r}; send it as {content_type}")
        size = request.announced_bytes or 0
        body = _Body(outside=self._outside)
        try:
            if size <= self._max_bytes * _DRAINED:
                size, has_more = 0, True
                while has_more:
                    chunk, has_more = await request.next_part()
                    size += len(chunk)
                    if size > self._max_bytes * _DRAINED:
                        break
                    if size > self._max_bytes:
                        body.drop()
                        self.memory.release(owner)
                        continue
                    self.memory.reserve(owner, _BYTES_OF_A_BODY * size, user=user)
                    body.add(chunk)
            if size > self._max_bytes:
                raise InvalidInput(
                    f"the body has {size} bytes or more; at most {self._max_bytes} are accepted: "
                    "send it in several calls"
                )
        except BaseException:
            body.drop()
            raise
        return body.whole()

    def answer(self, body: Body, content_type: str, *, user: str, only_reads: bool) -> Answer:
        """The answer with that body. Raises `Overloaded` as `AnswerMemory` does."""
        if isinstance(body, bytes) and len(body) <= PIECE:
            return Answer(body, content_type)
        answer = LongAnswer(body, content_type, on_sent=self.answers.release)
        try:
            self.answers.reserve_answer(answer, body, user=user, only_reads=only_reads)
        except Overloaded:
            release(body)
            raise
        return answer
