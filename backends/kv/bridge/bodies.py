"""Reads request bodies within bounds: each one's size and time, and all of them together."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive

MOST_HELD_BYTES = 64 << 20
"""Of all bodies that are being read or made sense of."""
LONGEST_S = 30.0


class BodyRefused(Exception):
    """A body that is not taken, with the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyReader:
    """The bodies that a server holds."""

    def __init__(self, most_held_bytes: int = MOST_HELD_BYTES, longest_s: float = LONGEST_S) -> None:
        self._most_held_bytes = most_held_bytes
        self._longest_s = longest_s
        self._held_bytes = 0

    @asynccontextmanager
    async def read(self, receive: Receive, most_bytes: int) -> AsyncGenerator[bytes, None]:
        """Give a whole body, which counts as held within the block; an empty one of a client that left.

        Raises BodyRefused.
        """
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self._longest_s):
                    await self._fill(body, receive, most_bytes)
            except TimeoutError:
                raise BodyRefused(408, f"the body did not come within {self._longest_s:g} s") from None
            yield bytes(body)
        finally:
            self._held_bytes -= len(body)

    async def _fill(self, body: bytearray, receive: Receive, most_bytes: int) -> None:
        more = True
        while more:
            message = await receive()
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) + len(piece) > most_bytes:
                raise BodyRefused(413, f"the body has more than {most_bytes} bytes")
            if self._held_bytes + len(piece) > self._most_held_bytes:
                raise BodyRefused(503, "too many large requests at once")
            body += piece
            self._held_bytes += len(piece)
