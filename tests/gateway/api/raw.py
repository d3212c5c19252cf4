"""A raw HTTP/1.x client: requests as bytes, answers as they come."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fakes.server import AppServer

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass(slots=True)
class Connection:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, path: str, body: bytes | dict[str, Any], *, version: str = "1.1", headers: str = "") -> None:
        """Send a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lines = [line.partition(": ") for line in head[1:] if line]
        return int(head[0].split()[1]), {name.lower(): value for name, _, value in lines}

    async def read_chunk(self) -> bytes:
        """Return one chunk of a chunked body; b"" is the last."""
        async with asyncio.timeout(10):
            size = int(await self.reader.readline(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def read_chunks(self) -> list[bytes]:
        """Return all chunks."""
        chunks = []
        while chunk := await self.read_chunk():
            chunks.append(chunk)
        return chunks

    async def read_json(self) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and a JSON body."""
        status, headers = await self.read_head()
        async with asyncio.timeout(10):
            return status, headers, json.loads(await self.reader.readexactly(int(headers["content-length"])))


@asynccontextmanager
async def connect(server: AppServer) -> AsyncIterator[Connection]:
    """Open a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
