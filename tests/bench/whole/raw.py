"""What a gateway costs at least in Python: a copy from transport to transport.

``python -m tests.bench.whole.raw PORT``: the engine's port.
"""

import asyncio
import os
import sys
from typing import cast

import uvloop

from backends.transport.lifetime import die_with_parent


class Side(asyncio.Protocol):
    """One end of a copied connection; what comes in goes out at ``other``."""

    def __init__(self, other: asyncio.Transport | None = None) -> None:
        self.other = other
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
        else:
            self.early.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class Front(Side):
    """A client's connection, with one of its own to the engine."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        make_back = lambda: Side(self.transport)  # noqa: E731
        self.other, _ = await asyncio.get_running_loop().create_connection(make_back, "127.0.0.1", self._port)
        self.other.writelines(self.early)


async def serve(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: Front(port), "127.0.0.1", 0, backlog=4096)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    die_with_parent(parent_pid=os.getppid())
    uvloop.run(serve(int(sys.argv[1])))
