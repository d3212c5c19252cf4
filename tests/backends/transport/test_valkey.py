"""Tests of the private Valkey server."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap

import pytest
import redis.asyncio

from backends.transport.valkey import EmbeddedValkey, ValkeyUnavailable
from tests.valkey import run_valkey

pytestmark = [pytest.mark.slow]


async def test_serves_until_the_block_ends() -> None:
    """A server answers within the block with the bound and policy asked for, and is gone after it."""
    async with EmbeddedValkey(max_memory_bytes=8 << 20, policy="allkeys-lru") as server:
        pid = server.pid
        async with redis.asyncio.Redis.from_url(server.url) as client:
            assert await client.ping()
            bounds = await client.config_get("maxmemory")
            policy = await client.config_get("maxmemory-policy")
        assert (bounds, policy) == ({"maxmemory": str(8 << 20)}, {"maxmemory-policy": "allkeys-lru"})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_two_servers_share_nothing() -> None:
    """Two servers have ports and data of their own."""
    async with run_valkey() as one, run_valkey() as two:
        assert one != two
        async with redis.asyncio.Redis.from_url(one) as first, redis.asyncio.Redis.from_url(two) as second:
            await first.set("name", "one")
            assert await second.get("name") is None


async def test_a_taken_port_is_a_clear_error() -> None:
    """Asking for a port that another server holds raises and says so."""
    async with EmbeddedValkey() as first:
        with pytest.raises(ValkeyUnavailable, match="did not start"):
            await EmbeddedValkey(port=first.port).start()


async def test_dies_with_a_killed_owner() -> None:
    """A server whose owner is killed outright ends too."""
    script = textwrap.dedent(
        """
        import asyncio
        from backends.transport.valkey import EmbeddedValkey
        async def main():
            async with EmbeddedValkey() as server:
                print(server.port, flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
        """
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    port = int(await owner.stdout.readline())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):  # a killed server's connection ends this way or the other
            assert await reader.read() == b""
    writer.close()
