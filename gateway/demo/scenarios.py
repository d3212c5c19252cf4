"""What the demo measures: streamed chats through the gateway under several rules, seen from the client's side."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from backends.engines.reference.demo_model.prompts import follow_up, long_prompt
from gateway.app import Gateway
from gateway.demo.cluster import MODEL, Cluster
from policies.rules import ASKED_PLANS, parse_rules

ChatTurn = dict[str, str]

NAIVE: dict[str, Any] = dict(ASKED_PLANS["naive"])
ONE_SHOT: dict[str, Any] = {"handoff": {"mode": "one_shot"}}
# Below the built-in threshold: the table shows how small the joint can be.
CATCH_UP: dict[str, Any] = {"handoff": {"mode": "catch_up", "threshold_tokens": 4}}
FUSED: dict[str, Any] = CATCH_UP | {"relay": {"fused": "always"}}


@dataclass(slots=True)
class ScenarioRun:
    """One answer as the client got it. ``moments`` has (time in s, role, ids) for each chunk that brought ids."""

    plan: str = ""
    reason: str = ""
    request_id: str = ""
    sent_s: float = 0.0
    moments: list[tuple[float, str, list[int]]] = field(default_factory=list)
    pieces: list[tuple[str, str]] = field(default_factory=list)
    parts: list[tuple[list[int], str]] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    wan_bytes: int = 0
    """All that crossed the link meanwhile: KV, legs, and the gateway's looking after MD."""
    kv_bytes: int = 0
    """The part of it that came from the sending region's store."""
    md_cached_tokens: int = 0
    """Prompt tokens whose KV MD took from its region's store, over all its legs."""
    identical: bool = False

    @property
    def ids(self) -> list[int]:
        return [id_ for _, _, ids in self.moments for id_ in ids]

    def text_until(self, ends: frozenset[int]) -> str:
        """The answer up to where the model would have ended it; it is made to go on for the sake of measuring."""
        text = ""
        for ids, content in self.parts:
            if not ends.isdisjoint(ids):
                break
            text += content
        return text

    @property
    def ttft_s(self) -> float:
        """Request sent to first token."""
        return self.moments[0][0] - self.sent_s

    @property
    def second_token_s(self) -> float:
        """First token to the one after it, whoever made it: RLD has to get the KV first."""
        (first_s, _, ids), *later = self.moments
        return later[0][0] - first_s if later and len(ids) == 1 else 0.0

    @property
    def joint_gap_s(self) -> float:
        """Longest silence between two chunks of different roles; 0 where one role made everything."""
        gaps = [
            later[0] - earlier[0]
            for earlier, later in zip(self.moments, self.moments[1:], strict=False)
            if (earlier[1], later[1]) != ("P", "RLD") and earlier[1] != later[1]
        ]
        return max(gaps, default=0.0)

    @property
    def median_itl_s(self) -> float:
        """Median time between chunks, per token of the later one."""
        return statistics.median(self._itls_s() or [0.0])

    @property
    def quick_itl_s(self) -> float:
        """What a quarter of them were below: the pace of a machine that does nothing else just then."""
        itls_s = self._itls_s()
        return statistics.quantiles(itls_s, n=4)[0] if len(itls_s) > 1 else self.median_itl_s

    def _itls_s(self) -> list[float]:
        pairs = zip(self.moments, self.moments[1:], strict=False)
        return [(later[0] - earlier[0]) / len(later[2]) for earlier, later in pairs]

    @property
    def tokens(self) -> dict[str, int]:
        return {role: sum(len(ids) for _, by, ids in self.moments if by == role) for role in ("P", "RLD", "MD")}

    def figures(self) -> dict[str, Any]:
        """The run as the demo's JSON has it."""
        return {
            "ttft_s": round(self.ttft_s, 4),
            "second_token_s": round(self.second_token_s, 4),
            "joint_gap_s": round(self.joint_gap_s, 4),
            "median_itl_s": round(self.median_itl_s, 5),
            "tokens": self.tokens,
            "wan_bytes": self.wan_bytes,
            "kv_bytes": self.kv_bytes,
            "md_cached_tokens": self.md_cached_tokens,
            "prompt_tokens": self.prompt_tokens,
            "plan": self.plan,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ScenarioStage:
    """Where scenarios are played. ``watch`` is entered with the name of each, and what its answer brings."""

    cluster: Cluster
    gateway: Gateway
    base_url: str
    watch: Callable[[str, ScenarioRun], AbstractAsyncContextManager[None]]


async def run_scenarios(stage: ScenarioStage, words: int, tokens: int) -> dict[str, ScenarioRun]:
    """Ask fresh prompts, each under other rules, and then a second turn of the last conversation."""
    runs: dict[str, ScenarioRun] = {}

    async def measure(name: str, rules: dict[str, Any], messages: list[ChatTurn]) -> ScenarioRun:
        run = runs[name] = ScenarioRun()
        async with stage.watch(name, run):
            stage.gateway.rulebook.replace(parse_rules(rules))
            before, kv_before = await stage.cluster.wan_bytes(), await stage.cluster.store_bytes()
            cached_before = await stage.cluster.taken_from_store("md1")
            await stream_chat(stage.base_url, MODEL, messages, tokens, run)
            await stage.gateway.aligner.drained()
            run.wan_bytes = await stage.cluster.wan_bytes() - before
            run.kv_bytes = await stage.cluster.store_bytes() - kv_before
            run.md_cached_tokens = await stage.cluster.taken_from_store("md1") - cached_before
            alone = await run_alone(stage.cluster.children["p1"].url, MODEL, run.prompt_ids, tokens)
            run.identical = alone == run.ids
        return run

    for seed, name, rules in ((1, "naive", NAIVE), (2, "one_shot", ONE_SHOT), (4, "fused", FUSED)):
        await measure(name, rules, [user(long_prompt(seed, words))])
    first = user(long_prompt(3, words))
    answer = await measure("catch_up", CATCH_UP, [first])
    said = answer.text_until(stage.gateway.served[MODEL].eos_token_ids)
    turns = [first, {"role": "assistant", "content": said}, user(follow_up(3))]
    await measure("second_turn", {}, turns)
    return runs


async def warm_up(base_url: str) -> ScenarioRun:
    """The first steps of an engine are slow; nobody shall measure them."""
    run = ScenarioRun()
    await stream_chat(base_url, MODEL, [user(long_prompt(999, 150))], 64, run)
    return run


def user(content: str) -> ChatTurn:
    return {"role": "user", "content": content}


async def stream_chat(
    base_url: str, model: str, messages: Sequence[ChatTurn], max_tokens: int, run: ScenarioRun
) -> None:
    """Ask the gateway as any client would, with the trace on; ``run`` takes what comes. Raises httpx.HTTPError."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    run.sent_s = time.perf_counter()
    async with (
        httpx.AsyncClient(timeout=httpx.Timeout(300.0)) as client,
        client.stream("POST", f"{base_url}/v1/chat/completions", json=body, headers={"x-pdd-trace": "1"}) as response,
    ):
        if response.status_code != 200:
            await response.aread()
        response.raise_for_status()
        run.plan, run.reason = response.headers["x-pdd-plan"], response.headers["x-pdd-reason"]
        run.request_id = response.headers["x-request-id"]
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _note(run, orjson.loads(line[6:]), time.perf_counter())


def _note(run: ScenarioRun, chunk: dict[str, Any], now_s: float) -> None:
    if "error" in chunk:
        raise httpx.HTTPError(chunk["error"]["message"])
    if chunk.get("prompt_token_ids"):
        run.prompt_ids = chunk["prompt_token_ids"]
    if chunk.get("usage"):
        run.prompt_tokens = chunk["usage"]["prompt_tokens"]
    for choice in chunk["choices"]:
        ids, made_by = choice.get("token_ids") or [], chunk.get("pdd", {}).get("role", "")
        if ids:
            run.moments.append((now_s, made_by, ids))
        content = choice["delta"].get("content")
        run.parts.append((ids, content or ""))
        if content:
            run.pieces.append((made_by, content))


async def run_alone(engine_url: str, model: str, prompt_ids: Sequence[int], tokens: int, **fields: str) -> list[int]:
    """What one engine makes of the same prompt, greedily."""
    body = {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with httpx.AsyncClient(timeout=300.0) as client:
        response = (await client.post(f"{engine_url}/v1/completions", json=body | fields)).raise_for_status()
    return list(response.json()["choices"][0]["token_ids"])


async def measure_rtt(url: str, tries: int = 7) -> float:
    """Shortest time in seconds to open a connection through the link and hear the other end."""
    times = []
    async with httpx.AsyncClient(timeout=30.0) as client:
        await client.get(f"{url}/health")
        for _ in range(tries):
            started_s = time.perf_counter()
            await client.get(f"{url}/health")
            times.append(time.perf_counter() - started_s)
    return min(times)
