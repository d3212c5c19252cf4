"""``make soak``: mixed load for ten minutes (SOAK_S), after which nothing may have grown. SOAK_JSON=FILE writes it."""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis.asyncio
import uvloop

from tests.chaos.clients import Tally
from tests.chaos.course import Course, asking, attacked
from tests.chaos.figures import read_metrics
from tests.chaos.parts import Day, open_day

LOOKS = 20
WARM_SHARE = 0.3
"""Of the looks: caches fill meanwhile."""
MOST_GROWTH = {"rss_mb": 1.15, "descriptors": 1.15, "tasks": 1.15, "redis_keys": 1.15}
"""The last third's mean against the middle third's."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the gateways and the shared Redis held at one time."""

    rss_mb: float
    descriptors: int
    tasks: int
    redis_keys: int


async def look(day: Day) -> Look:
    """Look once."""
    rss_kb, descriptors, tasks = 0, 0, 0
    for part in day.gateways:
        status = await asyncio.to_thread(Path(f"/proc/{part.child.pid}/status").read_text)
        rss_kb += int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))
        descriptors += len(await asyncio.to_thread(os.listdir, f"/proc/{part.child.pid}/fd"))
    async with httpx.AsyncClient() as client:
        for url in day.admin_urls:
            tasks += int((await read_metrics(client, url))["pdd_loop_tasks"])
    async with redis.asyncio.Redis.from_url(day.stores["state"].server.url) as state:
        keys = await state.dbsize()
    return Look(round(rss_kb / 1024, 1), descriptors, tasks, keys)


def growth(values: list[float]) -> float:
    """The last third against the one before it, the warm-up left out."""
    steady = values[int(len(values) * WARM_SHARE) :]
    half = len(steady) // 2
    before, after = steady[:half], steady[half:]
    return (sum(after) / len(after)) / max(sum(before) / len(before), 1e-9)


async def soak(course: Course, whole_s: float, folder: Path) -> dict[str, object]:
    """Run the load; what was seen, and how much each thing grew."""
    tally, statuses, looks = Tally(), Counter[int](), list[Look]()
    async with (
        open_day(folder, course.chunk_s, 2) as day,
        asking(day, course, tally, course.seed),
        attacked(day, course.seed, statuses),
    ):
        for _ in range(LOOKS):
            await asyncio.sleep(whole_s / LOOKS)
            looks.append(await look(day))
    grown = {name: round(growth([float(getattr(one, name)) for one in looks]), 3) for name in MOST_GROWTH}
    return {
        "requests": tally.requests,
        "completed_exactly": tally.completed_exactly,
        "failed_visibly": tally.failed_visibly,
        "lost_tokens": tally.lost_tokens,
        "doubled_tokens": tally.doubled_tokens,
        "growth": grown,
        "first": repr(looks[0]),
        "last": repr(looks[-1]),
        "seconds": whole_s,
    }


def main() -> int:
    """Soak; 1 if something grew or a token was wrong."""
    whole_s = float(os.environ.get("SOAK_S", "600"))
    course = Course(streams=int(os.environ.get("SOAK_STREAMS", "100")), answer_tokens=40)
    folder = Path(tempfile.mkdtemp(prefix="pdd-soak-"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(soak(course, whole_s, folder))
    for name, value in figures.items():
        print(f"{name:20} {value}")
    if path := os.environ.get("SOAK_JSON"):
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
    grown = figures["growth"]
    assert isinstance(grown, dict)
    too_much = any(grown[name] > most for name, most in MOST_GROWTH.items())
    return int(too_much or bool(figures["lost_tokens"]) or bool(figures["doubled_tokens"]))


if __name__ == "__main__":
    sys.exit(main())
