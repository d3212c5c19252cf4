"""Two real regions with a gateway in front, for tests that kill, cut and leave."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from backends.engines.dialect import read_samples
from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.prompts import long_prompt
from backends.transport.serving import bind, serve
from gateway.app import Gateway, open_gateway
from gateway.config.settings import parse_settings
from gateway.demo.cluster import MODEL, Cluster, ClusterPlan, EngineKit, ReferenceKit, bridge_child, run_cluster
from gateway.demo.scenarios import run_alone
from policies.rules import parse_rules
from tests.integration.holds import HeldEngine, Hold, Holds

PROMPT_WORDS, ANSWER_TOKENS = 300, 500
NARROW = 10.0
QUICK = {"transfer_retry_backoff_s": 0.1, "transfer_retry_backoff_max_s": 0.5, "keepalive_s": 5.0}
RELAYED: dict[str, Any] = {
    "direct_wan_bound_s": 0,
    "pipelines": ["relay"],
    "handoff": {"mode": "catch_up", "threshold_tokens": 2, "max_rounds": 20},
    "relay": QUICK,
}
"""Always a relay: an engine that has just started has unknown hits, and a request to it would go direct."""


async def eventually(is_so: Callable[[], Awaitable[bool]], within_s: float) -> bool:
    """Look again and again whether other processes have come to a state, for a bounded time."""
    end_s = time.monotonic() + within_s
    while not await is_so():
        if time.monotonic() > end_s:
            return False
        await asyncio.sleep(0.02)
    return True


@dataclass(slots=True)
class Asked:
    """A running request, as its client sees it."""

    response: httpx.Response
    ids: list[int]
    roles: list[str]
    prompt_ids: list[int]
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    _lines: AsyncIterator[str] = field(init=False)

    @property
    def request_id(self) -> str:
        """Name of the request in the timelines."""
        return self.response.headers["x-request-id"]

    async def read(self, until: Callable[["Asked"], bool] = lambda _: False) -> "Asked":
        """Read on until ``until`` holds or the stream ends."""
        async for line in self._lines:
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                self._note(orjson.loads(line[6:]))
            if until(self):
                break
        return self

    def __post_init__(self) -> None:
        self._lines = self.response.aiter_lines()

    def _note(self, chunk: dict[str, Any]) -> None:
        self.error = chunk.get("error") or self.error
        for choice in chunk.get("choices", ()):
            if chunk.get("prompt_token_ids"):
                self.prompt_ids += chunk["prompt_token_ids"]
            ids = choice.get("token_ids") or []
            self.ids += ids
            self.roles += [chunk.get("pdd", {}).get("role", "")] * len(ids)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


@dataclass(slots=True)
class Regions:
    """The cluster, its gateway, and what tests do to them."""

    cluster: Cluster
    gateway: Gateway
    base_url: str
    client: httpx.AsyncClient
    holds: Holds
    _seed: list[int]

    def use(self, rules: dict[str, Any]) -> None:
        """Put rules in force."""
        self.gateway.rulebook.replace(parse_rules(rules))

    def fresh_prompt(self, words: int) -> str:
        """A prompt that no cache has."""
        self._seed[0] += 1
        return long_prompt(10_000 + self._seed[0], words)

    @contextmanager
    def relay_kept_to(self, tokens: int, of: int) -> Iterator[None]:
        """In the block RLD, or the P in its place, gives but ``tokens`` ``of`` an answer's until MD writes.

        So MD has something to do.
        """
        left = of - tokens
        relay = Hold("relay", left=left, until_main=True)
        fused = Hold("prefill", after=2, left=left, until_main=True)  # any other P gives one token
        with self.holds.hold(relay), self.holds.hold(fused):
            yield

    @asynccontextmanager
    async def narrow_link(self) -> AsyncIterator[None]:
        """In the block the link has so little of its rate that no prompt's KV crosses."""
        rate_mbit = self.cluster.plan.rate_mbit
        await self.control_wan("set", rate_mbit=rate_mbit / NARROW)
        try:
            yield
        finally:
            await self.control_wan("set", rate_mbit=rate_mbit)

    @asynccontextmanager
    async def ask(self, words: int = PROMPT_WORDS, tokens: int = ANSWER_TOKENS, **fields: Any) -> AsyncIterator[Asked]:
        """Send a streamed chat and give its reader once the headers are there; leaving the block leaves the stream."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.fresh_prompt(words)}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        url = f"{self.base_url}/v1/chat/completions"
        async with self.client.stream("POST", url, json=body | fields, headers={"x-pdd-trace": "1"}) as response:
            yield Asked(response, [], [], [])

    async def alone(self, asked: Asked, tokens: int = ANSWER_TOKENS, model: str = MODEL, **fields: str) -> list[int]:
        """What one engine gives for the same prompt."""
        return await run_alone(self.cluster.children["p1"].url, model, asked.prompt_ids, tokens, **fields)

    async def control_wan(self, verb: str, **body: Any) -> None:
        """Stall, cut, heal or set the link."""
        url = self.cluster.children["wan"].url
        (await self.client.post(f"{url}/{verb}", json=body)).raise_for_status()

    def newest_timeline(self) -> dict[str, Any]:
        """The course of the newest request."""
        newest = self.gateway.timelines.newest()
        return newest.as_dict() if newest else {"events": []}

    async def restart(self, name: str) -> None:
        """Start a killed child again, under its old address."""
        old = self.cluster.children[name]
        await old.stop()
        listen = urlsplit(old.url).netloc
        if name == "bridge":
            store_port = urlsplit(self.cluster.through_link["store"]).port
            assert store_port is not None
            child = bridge_child(self.cluster, store_port, int(listen.rpartition(":")[2]))
        elif name in self.cluster.kv_events:
            child = self.cluster.plan.kit.engine(self.cluster, name, listen)
        else:
            child = old
        self.cluster.children[name] = child
        await child.start()

    async def healed(self) -> None:
        """Everything that a test broke is whole again, and the gateway knows."""
        await self.control_wan("heal")
        await self.control_wan("stall", on=False)
        for name, child in list(self.cluster.children.items()):
            if not child.is_running:
                await self.restart(name)

        async def is_so() -> bool:
            now_s = time.monotonic()
            links = self.gateway.links.views(MODEL).values()
            return all(i.usable(now_s) for i in self.gateway.pools.instances) and all(link.up for link in links)

        if not await eventually(is_so, 20):
            for instance in self.gateway.pools.instances:
                if not instance.usable(time.monotonic()):
                    await self.restart(instance.spec.id)
            assert await eventually(is_so, 20)
        assert await self.engines_idle(30)

    async def running(self) -> int:
        """Requests that run on any engine that lives."""
        count = 0.0
        for name, child in self.cluster.children.items():
            if name in self.cluster.kv_events and child.is_running:
                page = (await self.client.get(f"{child.url}/metrics")).text
                count += sum(read_samples(page, "vllm:num_requests_running"))
                count += sum(read_samples(page, "vllm:num_requests_waiting"))
        return int(count)

    async def link_quiet(self, within_s: float, bytes_: int) -> bool:
        """Whether KV stops crossing, soon: fewer than so many bytes come in a fifth of a second."""

        async def is_so() -> bool:
            crossed = await self.cluster.store_bytes()
            await asyncio.sleep(0.2)
            return await self.cluster.store_bytes() - crossed < bytes_

        return await eventually(is_so, within_s)

    async def engines_idle(self, within_s: float) -> bool:
        """Whether no engine has a request, soon."""

        async def is_so() -> bool:
            return await self.running() == 0

        return await eventually(is_so, within_s)


@asynccontextmanager
async def open_regions(
    counts: tuple[int, int, int], rules: dict[str, Any], rate_mbit: float = 10.0, kit: EngineKit | None = None
) -> AsyncIterator[Regions]:
    """Run everything for the length of the block; reference engines if no other kit is given."""
    plan = ClusterPlan(MODEL_DIR, rate_mbit=rate_mbit, delay_ms=15.0, counts=counts, kit=kit or ReferenceKit())
    async with run_cluster(plan, lambda _: None) as cluster:
        try:
            async with open_front(cluster, {"rules": rules}) as regions:
                yield regions
        finally:  # also those that were started again, which the cluster does not know
            await asyncio.gather(*(child.stop() for child in cluster.children.values()))


@asynccontextmanager
async def open_front(cluster: Cluster, changes: dict[str, Any], seed: int = 0) -> AsyncIterator[Regions]:
    """Run a gateway in front of a cluster, with ``changes`` to what the cluster would have configured.

    Prompts follow from ``seed``: two gateways of one cluster need different ones, or KV of the same prompts is there.
    """
    listener = bind("127.0.0.1", 0)
    settings = parse_settings(cluster.settings("127.0.0.1:0") | changes)
    async with open_gateway(settings) as gateway, httpx.AsyncClient(timeout=60.0) as client:
        serving = asyncio.create_task(serve(gateway.app, listener, on_stop=lambda: None))
        try:
            holds = Holds()
            for instance in gateway.pools.instances:
                instance.engine = HeldEngine(instance.engine, holds)
            yield Regions(cluster, gateway, f"http://127.0.0.1:{listener.getsockname()[1]}", client, holds, [seed])
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
