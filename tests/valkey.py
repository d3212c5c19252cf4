"""Real Valkey servers for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from backends.transport.valkey import EmbeddedValkey
from gateway.config.document_store import DocumentStore
from gateway.redis.client import RedisClient, SharedRedis

REPLY_S = 5.0


@asynccontextmanager
async def run_valkey(
    *, max_memory_bytes: int | None = None, policy: str = "noeviction", port: int = 0
) -> AsyncGenerator[str, None]:
    """Run a private server and give its URL; it ends with the block."""
    async with EmbeddedValkey(max_memory_bytes=max_memory_bytes, policy=policy, port=port) as server:
        yield server.url


def make_away() -> SharedRedis:
    """Return a Redis that is not there: a process goes on without it."""
    return SharedRedis("redis://127.0.0.1:1")


@asynccontextmanager
async def open_empty(url: str) -> AsyncGenerator[SharedRedis, None]:
    """Reach a server that several tests use, one after the other, and empty it."""
    async with SharedRedis(url) as shared:
        await shared.client("test", REPLY_S).commands.flushall()
        yield shared


@asynccontextmanager
async def open_client(url: str) -> AsyncGenerator[RedisClient, None]:
    """Reach a server as one use of it does."""
    async with SharedRedis(url) as shared:
        yield shared.client("test", REPLY_S)


@asynccontextmanager
async def open_documents(url: str) -> AsyncGenerator[DocumentStore, None]:
    """Be an operator's hand on the documents of a server."""
    async with open_client(url) as client:
        yield DocumentStore(client)
