"""What the engine does with its KV store, by role."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from backends.engines.reference.core import EngineRole
from backends.engines.reference.kv_store import StoreFailed
from tests.backends.engines.reference.rig import MemoryStore, ScriptedModel, run_engine
from tests.backends.engines.reference.test_server import get, ids, post, read_events, stream

LONG = [value % 300 + 1 for value in range(43)]


async def cached_tokens(url: str, **fields: Any) -> int:
    """What the engine says of its cache for one request."""
    usage = (await post(url, max_tokens=1, **fields)).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_a_prefill_leg_ends_when_its_kv_is_stored() -> None:
    """Its token and finish reason come at once; the end of the stream waits for the store."""
    store = MemoryStore()
    body = {"prompt": LONG, "max_tokens": 1, "stream": True, "return_token_ids": True}
    async with run_engine(ScriptedModel(), role="prefill", store=store) as rig:
        store.write_gate.clear()
        async with (
            httpx.AsyncClient(verify=False) as client,
            client.stream("POST", f"{rig.url}/v1/completions", json=body) as response,
        ):
            events = read_events(response)
            first = await anext(events)
            assert first["choices"][0]["token_ids"] == [44]
            assert first["choices"][0]["finish_reason"] == "length"
            end = asyncio.ensure_future(anext(events))
            await asyncio.wait([end], timeout=0.05)
            assert not end.done() and store.present(LONG, None) == 0
            store.write_gate.set()
            assert await end == "[DONE]"
        assert store.present(LONG, None) == 40


async def test_chunks_are_stored_while_the_prompt_is_computed() -> None:
    """Each step's chunks go out before the next step is done, and chunks that the store has are not sent again."""
    store, model = MemoryStore(), ScriptedModel()
    store.put(LONG[:16])
    async with run_engine(model, role="prefill", store=store) as rig:
        assert await cached_tokens(rig.url, prompt=LONG) == 16
        assert store.writes == [(16, 32), (32, 40)]
        assert await cached_tokens(rig.url, prompt=LONG) == 40
        assert len(store.writes) == 2


async def test_what_the_store_lost_is_stored_again() -> None:
    """A prefill leg whose prompt is cached here still makes sure that the store has it."""
    store = MemoryStore()
    async with run_engine(ScriptedModel(), role="prefill", store=store) as rig:
        await post(rig.url, prompt=LONG, max_tokens=1)
        store.stored.clear()
        assert await cached_tokens(rig.url, prompt=LONG) == 40
    assert store.present(LONG, None) == 40


async def test_a_store_that_fails_is_told_and_survived() -> None:
    """The token is there, then an error instead of a proper end; it is counted, and the next request works."""
    store = MemoryStore(failing=StoreFailed("down"))
    async with run_engine(ScriptedModel(), role="prefill", store=store) as rig:
        events = await stream(rig.url, prompt=LONG, max_tokens=1)
        assert ids(events) == [44]
        assert events[-2]["error"]["message"] == "the KV could not be stored"
        assert (await post(rig.url, prompt=LONG, max_tokens=1)).status_code == 500
        assert "pdd:kv_store_failures_total" in (await get(rig.url, "/metrics")).text
        store.failing = None
        assert (await post(rig.url, prompt=LONG, max_tokens=1)).status_code == 200


class RecoveringStore(MemoryStore):
    """Its first write fails."""

    def store(self, tokens: Sequence[int], cache_salt: str | None, start: int, blocks: Sequence[int]) -> None:
        """Fail once."""
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        super().store(tokens, cache_salt, start, blocks)


async def test_a_store_that_recovers_in_time_is_no_failure() -> None:
    """A later write covers what an earlier one could not store."""
    store = RecoveringStore(failing=StoreFailed("down"))
    async with run_engine(ScriptedModel(), role="prefill", store=store) as rig:
        events = await stream(rig.url, prompt=LONG, max_tokens=1)
    assert ids(events) == [44] and events[-1] == "[DONE]" and "error" not in events[-2]
    assert store.writes == [(0, 32), (32, 40)]
    assert store.present(LONG, None) == 40


async def test_a_store_that_hangs_does_not_hang_the_stream() -> None:
    """The end of a prefill stream waits for a bounded time."""
    store = MemoryStore()
    async with run_engine(ScriptedModel(), role="prefill", store=store, stored_timeout_s=0.05) as rig:
        store.write_gate.clear()
        events = await stream(rig.url, prompt=LONG, max_tokens=1)
        assert events[-2]["error"]["code"] == 500
        store.write_gate.set()
        await rig.until_idle()


@pytest.mark.parametrize(("role", "kept"), [("main", 48), ("relay", 0), ("prefill", 40)])
async def test_answers_are_kept_by_main_engines_only(role: EngineRole, kept: int) -> None:
    """A main engine stores prompt and answer, a relay nothing, a prefill engine the prompt."""
    store = MemoryStore()
    async with run_engine(ScriptedModel(), role=role, store=store) as rig:
        answer = ids(await stream(rig.url, prompt=LONG, max_tokens=10))
        await rig.until_idle()
    assert store.present(LONG + answer, None) == kept


async def test_decode_engines_take_what_the_store_has_and_compute_the_rest() -> None:
    """Usage and metrics tell local hits, fetched tokens and computed ones apart; salts are kept apart."""
    store, model = MemoryStore(), ScriptedModel()
    store.put(LONG[:32], "s")
    async with run_engine(model, role="relay", store=store) as rig:
        assert await cached_tokens(rig.url, prompt=LONG) == 0
        assert await cached_tokens(rig.url, prompt=LONG, cache_salt="s") == 32
        assert await cached_tokens(rig.url, prompt=LONG, cache_salt="s") == 40
        metrics = (await get(rig.url, "/metrics")).text
    assert model.batches[-2:] == [[11], [3]]
    for source, tokens in (("external_kv_transfer", 32), ("local_cache_hit", 40), ("local_compute", 57)):
        assert f'source="{source}"}} {tokens}.0' in metrics


async def test_others_decode_while_one_fetches() -> None:
    """A slow store delays only the request that waits for it."""
    store = MemoryStore()
    store.put(LONG)
    async with run_engine(ScriptedModel(), role="relay", store=store) as rig:
        store.gate.clear()
        slow = asyncio.create_task(stream(rig.url, prompt=LONG, max_tokens=2))
        async with asyncio.timeout(10):
            await asyncio.to_thread(store.fetching.wait)
        assert len(ids(await stream(rig.url, prompt=[1, 2, 3], max_tokens=20))) == 20
        assert not slow.done()
        store.gate.set()
        assert ids(await slow) == [44, 45]


async def test_a_closed_connection_aborts_the_fetch() -> None:
    """The request never runs, and its blocks are free as soon as the fetch has stopped."""
    store, model = MemoryStore(), ScriptedModel()
    store.put(LONG)
    async with run_engine(model, role="relay", store=store) as rig:
        store.gate.clear()
        call = asyncio.create_task(stream(rig.url, prompt=LONG))
        async with asyncio.timeout(10):
            await asyncio.to_thread(store.fetching.wait)
        call.cancel()
        await asyncio.wait([call])
        await store.wait_cancelled()
        store.gate.set()
        await rig.until_idle()
    assert model.batches == []


async def test_a_fetch_that_raises_is_survived() -> None:
    """The prompt is computed instead."""
    store = MemoryStore(fetch_error=RuntimeError("broken"))
    store.put(LONG)
    async with run_engine(ScriptedModel(), role="relay", store=store) as rig:
        assert await cached_tokens(rig.url, prompt=LONG) == 0
