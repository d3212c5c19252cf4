"""``KV_JSON=FILE make kv-faults``: one side's KV is wrong, over real engines, stores and bridge.

How soon is that named, do answers stay exact, and how soon does KV cross again once it is mended?

Figures of each fault: ``named_in_s`` from the gateway's start to a line at ``/ready`` that has the cause;
``tokens_identical``: every answer, before that, after it and after the mending, is one engine's; ``healed_s`` from the
mending (an engine is restarted, a link changed) to the first request whose KV crosses and is used; ``plans``: what the
answers were after the naming; ``answer_s`` and ``without_pdd_s``: how long they took, and MD alone took for as much.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import KV_CHUNK_TOKENS, MODEL, Cluster, ClusterPlan, run_cluster
from gateway.demo.scenarios import run_alone
from tests.gateway.cli.fleet import pdd
from tests.integration.forks import ForkedKit, Forker, open_forker
from tests.integration.odd_engine import FLAG
from tests.integration.regions import RELAYED, Asked, Regions, eventually, open_front

WORDS, TOKENS = 300, 60
PATIENCE_S = 60.0
ASKED_EACH = 2
"""Answers before the naming, and after it."""
LINK = ("a", "b")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and what the line that names it must have in it.

    ``engine``: the odd one. ``options``: what it is started with instead. ``odd``: see ``odd_engine``. ``link``: what
    the gateway believes instead. ``is_salted``: requests have salts.
    """

    words: tuple[str, ...]
    engine: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    odd: str = ""
    link: Mapping[str, Any] = field(default_factory=dict)
    is_salted: bool = False


FAULTS = {
    "chunk_size": Fault(
        ("md1", "chunks of 128 tokens", f"says {KV_CHUNK_TOKENS}"), "md1", {"--kv-chunk": str(2 * KV_CHUNK_TOKENS)}
    ),
    "dialect": Fault(("p1", "dialect lmcache", "lmcache-mp"), link={"dialect": "lmcache-mp", "hash_seed": None}),
    "dtype": Fault(("md1", "dtype bfloat16", "float"), "md1", {"--dtype": "bfloat16"}),
    "salt": Fault(("p1", "salt out of its keys"), "p1", odd="drop_salts", is_salted=True),
    "model_name": Fault(("p1", "elsewhere/demo", "demo"), "p1", odd="rename"),
}


class FaultyKit(ForkedKit):
    """Engines of which one is odd until it is mended."""

    def __init__(self, forker: Forker, fault: Fault) -> None:
        super().__init__(forker)
        self.fault: Fault | None = fault

    def arguments(self, cluster: Cluster, name: str, listen: str) -> list[str]:
        """See ``ReferenceKit``."""
        arguments = super().arguments(cluster, name, listen)
        fault = self.fault
        if fault is None or name != fault.engine:
            return arguments
        for option, value in fault.options.items():
            arguments[arguments.index(option) + 1] = value
        return [FLAG, fault.odd, *arguments] if fault.odd else arguments


@dataclass(slots=True)
class Course:
    """One fault's course: the regions, and what was seen so far."""

    fault: Fault
    kit: FaultyKit
    regions: Regions
    are_exact: bool = True
    answers_s: list[float] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)

    async def is_named(self) -> bool:
        """Whether a line at ``/ready`` has the cause."""
        page = (await self.regions.client.get(f"{self.regions.base_url}/ready")).json()
        return any(all(word in line for word in self.fault.words) for line in page.get("degraded", ()))

    async def ask(self) -> Asked:
        """Ask, and compare with what one engine says."""
        async with self.regions.ask(WORDS, TOKENS) as asked:
            begun_s = time.monotonic()
            await asked.read()
            self.answers_s.append(time.monotonic() - begun_s)
        summary = self.regions.newest_timeline()
        self.plans.append(f"{summary['plan']}/{summary['reason']}")
        is_whole = asked.done and asked.error is None
        self.are_exact &= is_whole and any([asked.ids == await self._alone(name, asked) for name in ("p1", "md1")])
        return asked

    async def has_crossed(self) -> bool:
        """Ask once more; whether MD used KV that crossed for it."""
        taken = await self.regions.cluster.taken_from_store("md1")
        await self.ask()
        is_split = not self.plans[-1].startswith("passthrough")
        return is_split and await self.regions.cluster.taken_from_store("md1") > taken

    async def mend(self) -> None:
        """Restart what is wrong in the right way, or correct the link as operators do."""
        fault, regions = self.fault, self.regions
        self.kit.fault = None
        if fault.engine:
            regions.cluster.children[fault.engine].kill()
            await regions.restart(fault.engine)
        else:
            link = regions.cluster.settings("127.0.0.1:0")["links"]
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                yaml.safe_dump({"links": link}, file)
                file.flush()
                assert await pdd("pool", "add", Path(file.name), "--redis", regions.cluster.redis_url) == 0

    async def time_alone(self) -> float:
        """How long MD takes for as much without PDD."""
        begun_s = time.monotonic()
        prompt = self.regions.gateway.served[MODEL].encoder.encode_now(self.regions.fresh_prompt(WORDS))
        await run_alone(self.regions.cluster.children["md1"].url, MODEL, prompt, TOKENS)
        return time.monotonic() - begun_s

    async def _alone(self, name: str, asked: Asked) -> list[int]:
        return await run_alone(self.regions.cluster.children[name].url, MODEL, asked.prompt_ids, TOKENS)


async def measure(forker: Forker, fault: Fault) -> dict[str, Any]:
    """Let a fault take its course; its figures."""
    kit = FaultyKit(forker, fault)
    plan = ClusterPlan(MODEL_DIR, rate_mbit=100.0, delay_ms=15.0, kit=kit)
    async with run_cluster(plan, lambda _: None) as cluster:
        settings = cluster.settings("127.0.0.1:0")
        changes: dict[str, Any] = {"rules": RELAYED, "canary_interval_s": 600}
        changes["links"] = [settings["links"][0] | dict(fault.link)]
        changes["models"] = [settings["models"][0] | {"adapter": fault.is_salted}]
        begun_s = time.monotonic()
        try:
            async with open_front(cluster, changes) as regions:
                return await _follow(Course(fault, kit, regions), begun_s)
        finally:  # also those that were started again, which the cluster does not know
            await asyncio.gather(*(child.stop() for child in cluster.children.values()))


async def _follow(course: Course, begun_s: float) -> dict[str, Any]:
    naming = asyncio.create_task(_time(eventually(course.is_named, PATIENCE_S), begun_s))
    for _ in range(ASKED_EACH):
        await course.ask()
    named_in_s = await naming
    course.answers_s.clear()
    course.plans.clear()
    for _ in range(ASKED_EACH):
        await course.ask()
    answer_s, plans = statistics.median(course.answers_s), sorted(set(course.plans))
    without_pdd_s = statistics.median([await course.time_alone() for _ in range(ASKED_EACH)])
    mending_s = time.monotonic()
    await course.mend()
    healed_s = await _time(eventually(course.has_crossed, PATIENCE_S), mending_s)
    return {
        "named_in_s": named_in_s,
        "tokens_identical": course.are_exact,
        "healed_s": healed_s,
        "plans": plans,
        "answer_s": round(answer_s, 3),
        "without_pdd_s": round(without_pdd_s, 3),
    }


async def _time(waiting: Any, since_s: float) -> float | None:
    """Seconds until it was so; None: it never was."""
    came = await waiting
    return round(time.monotonic() - since_s, 2) if came else None


def main() -> int:
    """Run all faults, or those named; print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.kv_faults", description=__doc__)
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []], metavar="FAULT", help=", ".join(FAULTS))
    figures = {}
    with open_forker() as forker:
        for name in parser.parse_args().faults or FAULTS:
            figures[name] = asyncio.run(measure(forker, FAULTS[name]))
            print(name, figures[name], flush=True)
    target = os.environ.get("KV_JSON")
    if target:
        Path(target).write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return (
        0 if all(one["named_in_s"] and one["healed_s"] and one["tokens_identical"] for one in figures.values()) else 1
    )


if __name__ == "__main__":
    raise SystemExit(main())
