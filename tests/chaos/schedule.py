"""What goes wrong, and when: every kind of part, in an order that a seed gives."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import httpx
import redis.asyncio

from tests.chaos.parts import LINK_MBIT, Day, Part, Store

DOWN_S, FROZEN_S, LINE_S = 1.5, 1.5, 2.0
PAUSE_S = (0.2, 0.8)

Fault = Callable[[], Awaitable[None]]


class Faults:
    """Everything that can be done to a day; each fault is over when its call returns."""

    def __init__(self, day: Day, rng: random.Random) -> None:
        self._day = day
        self._rng = rng
        self.done: list[str] = []

    async def run(self, is_over: asyncio.Event) -> None:
        """Let one thing after the other go wrong: first each kind once, then any."""
        faults = self._all()
        self._rng.shuffle(faults)
        # A short day has it, too: it is the last of the list that comes first.
        faults.sort(key=lambda fault: fault[0].startswith("kill gateway"))
        while not is_over.is_set():
            name, fault = faults.pop() if faults else self._rng.choice(self._all())
            self.done.append(name)
            await fault()
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    def _all(self) -> list[tuple[str, Fault]]:
        day, pick = self._day, self._rng.choice
        found: list[tuple[str, Fault]] = []
        for kind in ("P", "RLD", "MD", "bridge", "gateway"):
            part = pick([part for part in day.parts if part.kind == kind])
            found.append((f"kill {part.name}", partial(self._kill, part)))
            if kind != "gateway":
                found.append((f"freeze {part.name}", partial(self._freeze, part)))
        found += [(f"kill store {name}", partial(self._kill_store, store)) for name, store in day.stores.items()]
        found.append(("empty a store", partial(self._empty, pick(["east", "west", "north"]))))
        found.append(("slow the line", partial(self._disturb, "/set", {"rate_mbit": LINK_MBIT / 20})))
        found.append(("stall the line", partial(self._disturb, "/stall", {"on": True})))
        found.append(("cut the line", partial(self._disturb, "/cut", {})))
        return found

    async def _kill(self, part: Part) -> None:
        await part.kill()
        await asyncio.sleep(DOWN_S)
        await part.restart()

    async def _freeze(self, part: Part) -> None:
        part.freeze()
        try:
            await asyncio.sleep(FROZEN_S)
        finally:
            part.thaw()

    async def _kill_store(self, store: Store) -> None:
        store.kills += 1
        os.kill(store.server.pid, signal.SIGKILL)
        await store.server.stop()
        await asyncio.sleep(DOWN_S)
        await store.server.start()

    async def _empty(self, name: str) -> None:
        async with redis.asyncio.Redis.from_url(self._day.stores[name].server.url) as client:
            await client.flushall()

    async def _disturb(self, path: str, body: Mapping[str, object]) -> None:
        async with httpx.AsyncClient(base_url=self._day.wan_url) as client:
            (await client.post(path, json=body)).raise_for_status()
            try:
                await asyncio.sleep(LINE_S)
            finally:
                whole: dict[str, Any] = {"/heal": {}, "/stall": {"on": False}, "/set": {"rate_mbit": LINK_MBIT}}
                for again, values in whole.items():
                    (await client.post(again, json=values)).raise_for_status()
