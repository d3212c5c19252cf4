"""Real Valkey servers for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from backends.transport.valkey import EmbeddedValkey


@asynccontextmanager
async def run_valkey(
    *, max_memory_bytes: int | None = None, policy: str = "noeviction", port: int = 0
) -> AsyncGenerator[str, None]:
    """Run a private server and give its URL; it ends with the block."""
    async with EmbeddedValkey(max_memory_bytes=max_memory_bytes, policy=policy, port=port) as server:
        yield server.url
