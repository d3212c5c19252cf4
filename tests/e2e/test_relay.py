"""Every pipeline over real vLLM and LMCache: one engine's ids, KV that crosses once, and a link that stays quiet."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from gateway.demo.cluster import MODEL
from gateway.demo.scenarios import ScenarioRun, ScenarioStage, run_alone, run_scenarios
from tests.e2e.figures import Figures
from tests.integration.regions import ANSWER_TOKENS, RELAYED, Regions, eventually

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

WORDS = 2400
TOKENS = 800
"""On most machines RLD needs longer for them than the KV takes to cross; on others it waits before the last ones."""
MAIN_TOKENS = 100
CHUNK_TOKENS = 256
CHUNK_BYTES = CHUNK_TOKENS * 4096
ONE_SHOT = RELAYED | {"handoff": {"mode": "one_shot"}}
DIRECT = RELAYED | {"direct_wan_bound_s": 3600, "pipelines": ["direct", "relay"]}
SINGULAR: dict[str, Any] = RELAYED | {
    "singular": {"min_uncached_tokens": 256, "budget": 0.25},
    "alignment": {"bound": 1},
}


async def test_scenarios_give_one_engines_ids_and_the_promised_figures(whole: Regions, figures: Figures) -> None:
    """Naive, one-shot, catch-up and a second turn: exact ids; the relay's first token does not wait for the WAN."""
    stage = ScenarioStage(whole.cluster, whole.gateway, whole.base_url, lambda name, run: nullcontext())
    with whole.relay_kept_to(TOKENS - MAIN_TOKENS, of=TOKENS):
        runs = await run_scenarios(stage, WORDS, TOKENS)
    naive, relay, second = runs["naive"], runs["catch_up"], runs["second_turn"]
    identical = all(run.identical for run in runs.values())
    figures.add(
        tokens_identical=identical,
        naive_ttft_s=round(naive.ttft_s, 4),
        relay_ttft_s=round(relay.ttft_s, 4),
        joint_gap_s=round(relay.joint_gap_s, 4),
        median_itl_s=round(relay.median_itl_s, 5),
        md_cached_tokens=relay.md_cached_tokens,
        wan_bytes_first_turn=relay.wan_bytes,
        wan_bytes_second_turn=second.wan_bytes,
        kv_bytes_first_turn=relay.kv_bytes,
        kv_bytes_second_turn=second.kv_bytes,
        runs={name: run.figures() for name, run in runs.items()},
    )
    assert identical
    for run in runs.values():
        assert len(run.ids) == TOKENS
    for name in ("one_shot", "catch_up"):
        assert all(runs[name].tokens.values()), f"{name}: a role made nothing"
    for run in (naive, runs["one_shot"], relay):
        assert run.md_cached_tokens >= run.prompt_tokens // CHUNK_TOKENS * CHUNK_TOKENS - 1
    assert _first_token_waits_for_kv(whole, naive)
    assert not any(_first_token_waits_for_kv(whole, runs[name]) for name in ("one_shot", "catch_up"))
    assert relay.wan_bytes >= relay.prompt_tokens // CHUNK_TOKENS * CHUNK_BYTES
    assert second.kv_bytes < CHUNK_BYTES


def _first_token_waits_for_kv(regions: Regions, run: ScenarioRun) -> bool:
    """Whether all KV had crossed before the first token."""
    (timeline,) = regions.gateway.timelines.find(run.request_id)
    events = [event["event"] for event in timeline.as_dict()["events"]]
    return events.index("transfer_complete") < events.index("first_token")


async def test_direct_shows_prefills_token_and_then_mains(whole: Regions) -> None:
    """Direct with a patient bound: P's token at once, all others MD's, exact."""
    whole.use(DIRECT)
    async with whole.ask(words=600) as asked:
        await asked.read()
    assert asked.response.headers["x-pdd-plan"] == "direct"
    assert asked.ids == await whole.alone(asked)
    assert set(asked.roles) == {"P", "MD"}


async def test_singular_ends_at_the_relay_and_moves_nothing(whole: Regions) -> None:
    """A singular answer is RLD's to the end, and no chunk crosses the link."""
    whole.use(RELAYED)
    for _ in range(8):
        async with whole.ask(words=20, tokens=2) as asked:
            await asked.read()
    await whole.gateway.aligner.drained()
    whole.use(SINGULAR)
    before = await whole.cluster.store_bytes()
    async with whole.ask(words=1600, tokens=12) as asked:
        await asked.read()
    assert asked.response.headers["x-pdd-plan"] == "singular"
    assert asked.ids == await whole.alone(asked, 12)
    assert set(asked.roles) == {"P", "RLD"}
    assert await whole.cluster.store_bytes() - before < CHUNK_BYTES // 4


@pytest.mark.parametrize("length", [CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 4 * CHUNK_TOKENS])
async def test_prompts_around_a_chunks_end(whole: Regions, length: int) -> None:
    """Only full chunks cross, whatever the prompt's length, and the answer is exact."""
    whole.use(ONE_SHOT)
    prompt = [300 + (7 * number + length) % 1000 for number in range(length)]
    before = await whole.cluster.taken_from_store("md1")
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    reply = await whole.client.post(f"{whole.base_url}/v1/completions", json=body | {"return_token_ids": True})
    await whole.gateway.aligner.drained()
    cached = await whole.cluster.taken_from_store("md1") - before
    chunks = length // CHUNK_TOKENS
    assert reply.json()["choices"][0]["token_ids"] == await run_alone(
        whole.cluster.children["p1"].url, MODEL, prompt, 60
    )
    assert chunks * CHUNK_TOKENS - 1 <= cached <= chunks * CHUNK_TOKENS


async def test_answers_at_once_are_each_exact(whole: Regions) -> None:
    """Four relays at the same time share engines, stores and link; each is one engine's."""

    async def one(words: int) -> None:
        async with whole.ask(words=words) as asked:
            await asked.read()
        assert asked.error is None and asked.ids == await whole.alone(asked)

    await asyncio.gather(*(one(words) for words in (300, 600, 900, 1200)))


async def test_relay_leg_loads_what_prefill_stored(whole: Regions) -> None:
    """When P's stream has ended, its KV is where RLD finds it: RLD computes less than a chunk and what it adds."""
    before = await whole.cluster.taken_from_store("rld1")
    async with whole.ask(words=1600) as asked:
        await asked.read()
    cached = await whole.cluster.taken_from_store("rld1") - before
    assert cached >= len(asked.prompt_ids) // CHUNK_TOKENS * CHUNK_TOKENS - 1
    assert asked.ids == await whole.alone(asked)


async def test_sampled_answers_are_whole(whole: Regions) -> None:
    """At a temperature the answer has its length and its roles, though not one engine's ids."""
    async with whole.ask(temperature=0.8) as asked:
        await asked.read()
    assert len(asked.ids) == ANSWER_TOKENS and asked.finish_reason == "length"
    assert await eventually(lambda: whole.engines_idle(1.0), 5.0)
