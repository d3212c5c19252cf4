"""Real Valkey Clusters for tests: masters on loopback, without replicas."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from backends.transport.valkey import EmbeddedValkey
from gateway.demo.cluster import find_free_ports
from tests.integration.regions import eventually

SLOTS = 16384


@dataclass(frozen=True, slots=True)
class StoreCluster:
    """The masters' ports; slots are dealt out in equal runs, in this order."""

    ports: tuple[int, ...]

    @property
    def url(self) -> str:
        """Address of two of them, as LMCache spells it."""
        return "redis-cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports[:2])

    def client(self) -> redis.asyncio.RedisCluster:
        """A client of redis-py's for all of it."""
        return redis.asyncio.RedisCluster(host="127.0.0.1", port=self.ports[0])

    def node(self, number: int) -> redis.asyncio.Redis:
        """A client of one master."""
        return redis.asyncio.Redis(host="127.0.0.1", port=self.ports[number])

    async def sizes(self) -> list[int]:
        """How many keys each has."""
        found = []
        for number in range(len(self.ports)):
            async with self.node(number) as client:
                found.append(int(await client.dbsize()))
        return found

    async def until_whole(self) -> None:
        """Wait until each master knows the others, and that all slots are dealt out."""

        async def is_so() -> bool:
            for number in range(len(self.ports)):
                async with self.node(number) as client:
                    info = await command(client, "INFO")
                if not {b"cluster_state:ok", b"cluster_known_nodes:%d" % len(self.ports)} <= set(info.split()):
                    return False
            return True

        assert await eventually(is_so, 20)


@asynccontextmanager
async def run_store_cluster(masters: int = 3) -> AsyncGenerator[StoreCluster, None]:
    """Run a cluster until the block ends."""
    async with AsyncExitStack() as stack:
        ports = find_free_ports(2 * masters)
        cluster = StoreCluster(tuple(ports[:masters]))
        for port, bus in zip(ports[:masters], ports[masters:], strict=True):
            settings = {"cluster-enabled": "yes", "cluster-port": str(bus), "cluster-node-timeout": "2000"}
            await stack.enter_async_context(EmbeddedValkey(port=port, settings=settings))
        await _join(cluster, dict(zip(ports, ports[masters:], strict=False)))
        yield cluster


async def _join(cluster: StoreCluster, buses: dict[int, int]) -> None:
    masters = len(cluster.ports)
    for number in range(masters):
        async with cluster.node(number) as client:
            first, last = number * SLOTS // masters, (number + 1) * SLOTS // masters - 1
            await command(client, "ADDSLOTSRANGE", first, last)
            await command(client, "SET-CONFIG-EPOCH", number + 1)
    async with cluster.node(0) as client:
        for other in cluster.ports[1:]:
            await command(client, "MEET", "127.0.0.1", other, buses[other])
    await cluster.until_whole()


async def command(client: redis.asyncio.Redis, *parts: str | int) -> Any:
    """Ask a master something of its cluster."""
    ask: Any = client.execute_command
    return await ask("CLUSTER", *parts)
