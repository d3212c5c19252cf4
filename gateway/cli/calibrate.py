"""``pdd simulate --calibrate``: a small real load through a real gateway, and the same load simulated.

Two regions run on this machine as in ``pdd demo``. Its engines are profiled while they are idle. Then conversations
come at random; what was asked when is simulated with the profile, and both are put side by side.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from backends.base import Engine
from backends.engines.adapters import EngineSpec, build_engine
from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.prompts import follow_up, long_prompt
from backends.transport.serving import ServedApp, bind, serve_sites
from backends.types import LegChunk, LegRequest, Sampling
from gateway.app import Gateway, open_gateway
from gateway.cli.profile import Profiler, plan_points
from gateway.config.settings import parse_settings
from gateway.demo.cluster import KV_CHUNK_TOKENS, MODEL, STORE_BYTES, Cluster, ClusterPlan, run_cluster
from gateway.demo.scenarios import ChatTurn, ScenarioRun, measure_rtt, stream_chat, user, warm_up
from gateway.fleet.curves import write_curve
from gateway.http.edge import EdgeProtocol
from gateway.planning.calibration import Profile, compare_reports, name_blocks
from policies.rules import Rules, parse_rules
from policies.simulator.arrivals import wait_s
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.simulator.flow import Outcome
from policies.simulator.replay import Replay
from policies.simulator.report import make_report
from policies.simulator.trace import Row
from policies.types import Role
from policies.valley import PrefillCurve

REQUESTS, RATE_PER_S = 60, 0.25
LINE_MBIT, DELAY_MS = 30.0, 15.0
WORDS, TOKENS = (500, 1500), (60, 200)
"""Of new prompts and of answers: least and most."""
NEW_SHARE = 0.6
"""Requests that open a conversation; the others go on with one that was answered."""
LENGTHS, REPEATS, PROFILE_S = (64, 512, 2048), 3, 60.0
CONTEXTS, DECODED = (256, 2048), 48
BUDGET_TOKENS, KV_CACHE_BYTES, MAX_RUNNING = 512, 512 << 20, 16
"""As the reference engine's defaults and the demo's settings have them."""
RULES: dict[str, Any] = {"handoff": {"reserve_s": 0.0}}
"""Nothing is held back: gaps are to be seen."""


@dataclass(slots=True)
class Asked:
    """One request and what came of it."""

    session: str
    turns: list[ChatTurn]
    run: ScenarioRun


@dataclass(slots=True)
class Conversations:
    """They come at random. ``note`` is told of each answer."""

    base_url: str
    rng: random.Random
    note: Callable[[], None]
    answered: list[Asked] = field(default_factory=list)
    idle: list[Asked] = field(default_factory=list)
    """Those whose conversation waits for its next turn."""

    async def send(self, count: int, rate_per_s: float) -> None:
        """Send so many requests. Raises httpx.HTTPError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(count):
                    await asyncio.sleep(wait_s(self.rng, 1 / rate_per_s))
                    tasks.create_task(self._ask(number))
        except* httpx.HTTPError as group:
            raise group.exceptions[0] from None

    async def _ask(self, number: int) -> None:
        if self.idle and self.rng.random() > NEW_SHARE:
            last = self.idle.pop(self.rng.randrange(len(self.idle)))
            said = {"role": "assistant", "content": "".join(text for _, text in last.run.pieces)}
            session, turns = last.session, [*last.turns, said, user(follow_up(number))]
        else:
            session, turns = f"s{number}", [user(long_prompt(1000 + number, self.rng.randint(*WORDS)))]
        asked = Asked(session, turns, ScenarioRun())
        await stream_chat(self.base_url, MODEL, turns, self.rng.randint(*TOKENS), asked.run)
        self.answered.append(asked)
        self.idle.append(asked)
        self.note()


async def calibrate(requests: int, rate_per_s: float, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run both; the table. Raises DemoFailed, BackendError, CannotProfile and httpx.HTTPError."""
    plan = ClusterPlan(MODEL_DIR, LINE_MBIT, DELAY_MS)
    async with run_cluster(plan, say) as cluster:
        say("profiling engines")
        document = cluster.settings("127.0.0.1:0")
        kv_bytes = 0
        async with open_gateway(parse_settings(document)) as gateway:
            kv_bytes = gateway.service.models[MODEL].kv_bytes_per_token
        profile = await _profile(cluster, kv_bytes, document)
        rtt_s = await measure_rtt(cluster.through_link["md1"]) - await measure_rtt(cluster.children["md1"].url)
        async with open_gateway(parse_settings(document)) as gateway:
            rules = parse_rules(RULES)
            answered, wan_bytes = await _measure(cluster, gateway, rules, (requests, rate_per_s, seed), say)
    rows = _make_rows(answered)
    measured = make_report(
        [_outcome(row, asked.run) for row, asked in zip(rows, answered, strict=True)], 0, wan_bytes, 3.0, rules.slo
    )
    simulated = Replay(_fleet(profile, rtt_s, kv_bytes), rules, random.Random(seed)).run(rows)
    return {
        "requests": len(rows),
        "rate_per_s": rate_per_s,
        "profile": profile,
        "calibration": compare_reports(measured, simulated),
        "measured": measured,
        "simulated": simulated,
    }


async def _measure(
    cluster: Cluster, gateway: Gateway, rules: Rules, load: tuple[int, float, int], say: Callable[[str], None]
) -> tuple[list[Asked], int]:
    requests, rate_per_s, seed = load
    listener = bind("127.0.0.1", 0)
    serving = asyncio.create_task(serve_sites(ServedApp(gateway.app, listener, EdgeProtocol), on_stop=lambda: None))
    try:
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await warm_up(base_url)
        gateway.rulebook.replace(rules)
        before = await cluster.store_bytes()
        talk = Conversations(base_url, random.Random(seed), lambda: say(f"answered {len(talk.answered)} of {requests}"))
        await talk.send(requests, rate_per_s)
        await gateway.aligner.drained()
        return sorted(talk.answered, key=lambda asked: asked.run.sent_s), await cluster.store_bytes() - before
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


# The profile


async def _profile(cluster: Cluster, kv_bytes: int, document: dict[str, Any]) -> Profile:
    """Measure P's prefill, RLD's decode, and how fast RLD takes KV from the store; P's curve goes into the settings."""
    engines = {
        name: build_engine("vllm", EngineSpec(name, cluster.children[name].url, None, {})) for name in ("p1", "rld1")
    }
    try:
        profiler = Profiler(engines["p1"], MODEL, KV_CHUNK_TOKENS, 1000, random.Random(1), time.perf_counter)
        await profiler.measure(plan_points(LENGTHS, (0.0,), 8192), REPEATS, PROFILE_S)
        curve = profiler.curve_file(cluster.children["p1"].url)
        decode = {}
        for context in CONTEXTS:
            prompt = profiler.rng.choices(range(10, 1000), k=context)
            decode[context] = (await _time(engines["rld1"], prompt, DECODED))[1]
        prompt = profiler.rng.choices(range(10, 1000), k=CONTEXTS[-1])
        await _time(engines["p1"], prompt, 1)
        loaded_s, _ = await _time(engines["rld1"], prompt, 1)
    finally:
        for engine in engines.values():
            await engine.aclose()
    path = cluster.folder / "curve.json"
    write_curve(path, curve)
    for engine_settings in document["engines"]:
        if engine_settings["role"] == "P":
            engine_settings["prefill_curve"] = str(path)
    shortest_s = curve.seconds[0]
    return Profile(
        PrefillCurve(curve.tokens, curve.seconds),
        decode,
        BUDGET_TOKENS,
        KV_CACHE_BYTES // kv_bytes,
        STORE_BYTES // kv_bytes // 2,
        CONTEXTS[-1] * kv_bytes / max(0.001, loaded_s - shortest_s),
        MAX_RUNNING,
    )


async def _time(engine: Engine, prompt: list[int], tokens: int) -> tuple[float, float]:
    """Seconds to the first token, and between two of the others."""
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    leg = LegRequest(f"calibrate-{uuid.uuid4().hex}", MODEL, prompt, tokens, sampling=sampling)
    start_s = time.perf_counter()
    moments: list[float] = []

    def take(chunk: LegChunk) -> None:
        moments.extend([time.perf_counter()] * len(chunk.token_ids))

    await engine.generate(leg, take)
    return moments[0] - start_s, (moments[-1] - moments[0]) / max(1, len(moments) - 1)


# The same as a simulation


def _make_rows(answered: list[Asked]) -> list[Row]:
    start_s = answered[0].run.sent_s
    blocks = name_blocks([asked.run.prompt_ids for asked in answered], KV_CHUNK_TOKENS)
    return [
        Row(asked.run.sent_s - start_s, len(asked.run.prompt_ids), len(asked.run.ids), named, asked.session)
        for asked, named in zip(answered, blocks, strict=True)
    ]


def _outcome(row: Row, run: ScenarioRun) -> Outcome:
    """What a client saw of an answer, as the simulator would tell it."""
    tokens, offset_s = run.tokens, run.sent_s - row.at_s
    return Outcome(
        row,
        run.plan,
        run.reason,
        0,
        first_s=run.moments[0][0] - offset_s,
        end_s=run.moments[-1][0] - offset_s,
        gap_s=run.joint_gap_s,
        prefill_tokens=tokens["P"],
        relay_tokens=tokens["RLD"],
        main_tokens=tokens["MD"],
    )


def _fleet(profile: Profile, rtt_s: float, kv_bytes: int) -> Fleet:
    engine = profile.engine()
    members = (
        Member("p1", Role.P, "a", engine),
        Member("rld1", Role.RLD, "a", engine),
        Member("md1", Role.MD, "b", engine),
    )
    line = WanLine("a", "b", LINE_MBIT * 125_000, rtt_s)
    stores = dict.fromkeys("ab", profile.store_tokens)
    return Fleet(members, (line,), kv_bytes, block_tokens=KV_CHUNK_TOKENS, stores=stores)
