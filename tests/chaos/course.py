"""The course of a bad day: good tenants alone, then with a hostile one, then with everything failing as well."""

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.tasks import end_task
from tests.chaos.clients import Tally, keep_asking
from tests.chaos.figures import tasks_of, wait_for_nothing, worst_stall_s
from tests.chaos.hostile import all_attacks
from tests.chaos.parts import GOOD, HOSTILE, Day, open_day
from tests.chaos.schedule import Faults

LOOK_S = 0.5
CHUNK_IDS = 2


@dataclass(frozen=True, slots=True)
class Course:
    """``calm_s``, ``hostile_s`` and ``faults_s``: how long each part of the day is."""

    streams: int = 500
    calm_s: float = 40.0
    hostile_s: float = 40.0
    faults_s: float = 90.0
    prompt_tokens: int = 300
    answer_tokens: int = 60
    chunk_s: float = 0.5
    seed: int = 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Of prompts and answers, at most."""
        return self.prompt_tokens, self.answer_tokens


@asynccontextmanager
async def asking(day: Day, course: Course, tally: Tally, seed: int) -> AsyncIterator[None]:
    """Let the good tenants ask during the block; it ends when they have their last answers."""
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(course.streams):
            key = day.keys[GOOD[number % len(GOOD)]]
            work = keep_asking(day.gateway_urls, key, seed + number, course.sizes, tally, is_over)
            group.create_task(work)
        yield
        is_over.set()


@asynccontextmanager
async def attacked(day: Day, seed: int, statuses: Counter[int]) -> AsyncIterator[None]:
    """Let the hostile tenant do all it can during the block."""
    attacks = [
        asyncio.create_task(attack) for attack in all_attacks(day.gateway_urls, day.keys[HOSTILE], seed, statuses)
    ]
    try:
        yield
    finally:
        for attack in attacks:
            await end_task(attack)


@dataclass(slots=True)
class Watcher:
    """Remembers the worst of what dies with a process."""

    day: Day
    stall_s: float = 0.0

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once; a gateway that is down has nothing to say."""
        for part in self.day.gateways:
            part.note_memory()
        with contextlib.suppress(Exception):
            self.stall_s = max(self.stall_s, await worst_stall_s(self.day))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies."""
    return sorted(values)[math.ceil(len(values) * share) - 1] if values else 0.0


async def spend_day(course: Course, folder: Path) -> dict[str, Any]:
    """Spend a day; what it came to."""
    calm, hostile, faulty, statuses = Tally(), Tally(), Tally(), Counter[int]()
    async with open_day(folder, course.chunk_s, CHUNK_IDS) as day:
        tasks_at_rest = await tasks_of(day)
        watcher = Watcher(day)
        watching = asyncio.create_task(watcher.run())
        async with asking(day, course, calm, course.seed * 1_000_000):
            await asyncio.sleep(course.calm_s)
        async with asking(day, course, hostile, course.seed * 2_000_000), attacked(day, course.seed, statuses):
            await asyncio.sleep(course.hostile_s)
        calm_stall_s = watcher.stall_s
        faults, is_over = Faults(day, random.Random(course.seed)), asyncio.Event()
        async with asking(day, course, faulty, course.seed * 3_000_000), attacked(day, course.seed + 9, statuses):
            failing = asyncio.create_task(faults.run(is_over))
            await asyncio.sleep(course.faults_s)
            is_over.set()
            await failing
        left = await wait_for_nothing(day, tasks_at_rest)
        await watcher.look()
        await end_task(watching)
        tallies = (calm, hostile, faulty)
        calm_p99_s = percentile(calm.took_s, 0.99)
        return {
            "requests": sum(tally.requests for tally in tallies),
            "completed_exactly": sum(tally.completed_exactly for tally in tallies),
            "failed_visibly": sum(tally.failed_visibly for tally in tallies),
            "failed_while_nothing_was_killed": calm.failed_visibly + hostile.failed_visibly,
            "lost_tokens": sum(tally.lost_tokens for tally in tallies),
            "doubled_tokens": sum(tally.doubled_tokens for tally in tallies),
            "leaked_slots": left.slots,
            "leaked_sockets": left.sockets,
            "leaked_tasks": left.tasks,
            "leaked_transfers": left.transfers,
            "peak_rss_mb": round(max(part.worst_rss_kb for part in day.gateways) / 1024, 1),
            "worst_stall_s": round(watcher.stall_s, 3),
            "worst_stall_before_faults_s": round(calm_stall_s, 3),
            "good_tenant_p99_ratio": round(percentile(hostile.took_s, 0.99) / max(calm_p99_s, 1e-9), 3),
            "good_tenant_p99_ratio_with_faults": round(percentile(faulty.took_s, 0.99) / max(calm_p99_s, 1e-9), 3),
            "good_tenant_first_token_p99_s": [round(percentile(tally.first_s, 0.99), 3) for tally in tallies],
            "parts_killed": day.kills,
            "streams": course.streams,
            "seed": course.seed,
            "faults": faults.done,
            "failures": dict(faulty.failures + hostile.failures + calm.failures),
            "oddities": [odd for tally in tallies for odd in tally.oddities][:5],
            "hostile_statuses": {str(status): count for status, count in sorted(statuses.items())},
        }
