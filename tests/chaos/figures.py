"""What is left over once everybody is gone, as the processes themselves tell it."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.parts import Day, Part

QUIET_S = 40.0
LOOK_S = 0.5
OPEN_STATES = ("01", "08")
"""Established, and closed by the other end only, in /proc/net/tcp."""
SLOTS = ("pdd_requests_in_flight", "pdd_waiting", "pdd_instance_legs", "pdd_aligning")


@dataclass(slots=True)
class Left:
    """What should all be 0 when nobody asks any more."""

    slots: int
    sockets: int
    tasks: int
    transfers: int

    @property
    def nothing(self) -> bool:
        """Whether nothing is left."""
        return not (self.slots or self.sockets or self.tasks or self.transfers)


Samples = dict[str, float]


async def read_metrics(client: httpx.AsyncClient, url: str) -> Samples:
    """Sums of a page's samples, by name."""
    text = (await client.get(f"{url}/metrics", timeout=10)).text
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def count_sockets(part: Part) -> int:
    """A server's connections that its clients did not see closed."""
    port = urlsplit(part.child.url).port
    inodes = set()
    for entry in os.scandir(f"/proc/{part.child.pid}/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [line for line in lines if line[9] in inodes]
    here = [line for line in own if int(line[1].rpartition(":")[2], 16) == port and line[3] in OPEN_STATES]
    half_closed = [line for line in own if line[3] == "08"]
    return len({line[9] for line in (*here, *half_closed)})


async def look(day: Day, tasks_at_rest: int) -> Left:
    """What is left now."""
    slots, tasks, transfers = 0, 0, 0
    async with httpx.AsyncClient() as client:
        for url in day.admin_urls:
            page = await read_metrics(client, url)
            slots += int(sum(page.get(name, 0.0) for name in SLOTS))
            tasks += max(0, int(page["pdd_loop_tasks"]) - tasks_at_rest)
        for part in day.bridges:
            page = await read_metrics(client, part.child.url)
            transfers += int(page.get("pdd_bridge_open_transfers", 0.0))
    async with redis.asyncio.Redis.from_url(day.stores["state"].server.url) as state:
        slots += sum([await state.zcard(key) async for key in state.scan_iter("pdd:limits:*:slots")])
    sockets = sum([await asyncio.to_thread(count_sockets, part) for part in day.gateways])
    return Left(slots, sockets, tasks, transfers)


async def wait_for_nothing(day: Day, tasks_at_rest: int) -> Left:
    """What is left when it does not become less any more, or nothing."""
    left = await look(day, tasks_at_rest)
    for _ in range(int(QUIET_S / LOOK_S)):
        if left.nothing:
            break
        await asyncio.sleep(LOOK_S)
        left = await look(day, tasks_at_rest)
    return left


async def tasks_of(day: Day) -> int:
    """The most tasks that a gateway has that nobody asks anything."""
    async with httpx.AsyncClient() as client:
        return max([int((await read_metrics(client, url))["pdd_loop_tasks"]) for url in day.admin_urls])


async def worst_stall_s(day: Day) -> float:
    """The longest time that a gateway's loop was held by its own work, in its present life."""
    async with httpx.AsyncClient() as client:
        pages = [await read_metrics(client, url) for url in day.admin_urls]
    return max(page["pdd_loop_worst_stall_seconds"] for page in pages)
