import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.engines.reference.events import EventPublisher, EventSettings
from tests.backends.engines.reference.rig import BLOCK, ScriptedModel, run_engine

PROMPT = list(range(10, 20))


async def read_events(response: httpx.Response) -> AsyncIterator[Any]:
    """Decoded SSE events; the last one is the string ``[DONE]``."""
    async for line in response.aiter_lines():
        if line:
            assert line.startswith("data: ")
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


async def stream(url: str, **fields: Any) -> list[Any]:
    """All events of a streamed completion."""
    body = {"prompt": PROMPT, "stream": True, "return_token_ids": True, **fields}
    async with (
        httpx.AsyncClient(verify=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        return [event async for event in read_events(response)]


async def post(url: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    """A plain POST."""
    async with httpx.AsyncClient(verify=False) as client:
        return await client.post(f"{url}{path}", json=fields)


async def get(url: str, path: str) -> httpx.Response:
    """A plain GET."""
    async with httpx.AsyncClient(verify=False) as client:
        return await client.get(f"{url}{path}")


def ids(events: list[Any]) -> list[int]:
    """Token ids of all chunks."""
    return [token for event in events[:-1] if event.get("choices") for token in event["choices"][0]["token_ids"]]


async def test_a_stream_has_vllms_form() -> None:
    """Ids in order, the prompt's ids once, the finish reason on the last token, then usage, then DONE."""
    async with run_engine(ScriptedModel()) as rig:
        events = await stream(rig.url, max_tokens=3, stream_options={"include_usage": True}, model="tiny")
    assert ids(events) == [20, 21, 22]
    first, *_, last, usage, done = events
    assert first["object"] == "text_completion" and first["model"] == "tiny" and first["id"].startswith("cmpl-")
    assert first["choices"][0]["prompt_token_ids"] == PROMPT
    assert all("prompt_token_ids" not in event["choices"][0] for event in events[1:-2])
    assert last["choices"][0]["finish_reason"] == "length" and last["usage"] is None
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert done == "[DONE]"


async def test_chunks_count_their_tokens() -> None:
    """With continuous usage each chunk tells how many ids came up to it, and the last one tells what was cached."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with run_engine(ScriptedModel()) as rig:
        events = await stream(rig.url, max_tokens=5, stream_options=options, model="tiny")
    seen = 0
    for event in events[:-2]:
        seen += len(event["choices"][0]["token_ids"])
        assert event["usage"] == {"prompt_tokens": 10, "completion_tokens": seen, "total_tokens": 10 + seen}
    assert seen == 5 and events[-2]["usage"]["completion_tokens"] == 5


async def test_a_whole_answer_with_logprobs(llama: Path) -> None:
    """Not streamed: text, finish reason, usage; logprobs name tokens as ids on request."""
    async with run_engine(ScriptedModel(), directory=llama) as rig:
        fields: dict[str, Any] = {
            "prompt": [PROMPT],
            "max_tokens": 2,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        answer = (await post(rig.url, **fields)).json()
    (choice,) = answer["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 11],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["token_id:20", "token_id:21"],
        "top_logprobs": [{"token_id:20": -0.5, "token_id:7": -0.25}, {"token_id:21": -0.5, "token_id:7": -0.25}],
    }
    assert len(choice["text"]) == 2 and "token_ids" not in choice
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "tokens", "finish", "stop"),
    [
        ({"prompt": [316]}, [317, 318, 319, 0], "stop", None),
        ({"prompt": [316], "ignore_eos": True, "max_tokens": 5}, [317, 318, 319, 0, 1], "length", None),
        ({"prompt": [5], "stop_token_ids": [7, 9]}, [6, 7], "stop", 7),
        ({"prompt": [1] * 198}, [2, 3], "length", None),
    ],
)
async def test_answers_end_where_they_should(
    fields: dict[str, Any], tokens: list[int], finish: str, stop: int | None
) -> None:
    """At EOS, at a stop id (both are part of the ids), at the limit, and at the end of the context."""
    async with run_engine(ScriptedModel()) as rig:
        events = await stream(rig.url, **fields)
    assert ids(events) == tokens
    choice = events[-2]["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish, stop)


async def test_text_goes_in_and_out(llama: Path) -> None:
    """String prompts are tokenised; /tokenize and /detokenize are each other's inverse."""
    async with run_engine(ScriptedModel(), directory=llama) as rig:
        tokens = (await post(rig.url, "/tokenize", prompt="the lazy dog", model="tiny")).json()
        text = (await post(rig.url, "/detokenize", tokens=tokens["tokens"])).json()
        answer = (await post(rig.url, prompt="the lazy dog", max_tokens=1)).json()
    assert text == {"prompt": "the lazy dog"}
    assert tokens["count"] == len(tokens["tokens"]) == answer["usage"]["prompt_tokens"]
    assert tokens["max_model_len"] == 200


async def test_without_a_tokenizer_text_is_refused_and_ids_are_served() -> None:
    """A model directory may have no tokenizer.json."""
    async with run_engine(ScriptedModel()) as rig:
        for path, field in (("/v1/completions", "prompt"), ("/tokenize", "prompt")):
            refused = await post(rig.url, path, prompt="the")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert (await post(rig.url, "/detokenize", tokens=[1])).status_code == 400
        assert (await post(rig.url, prompt=PROMPT)).json()["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/completions", {"prompt": PROMPT, "model": "other"}, 404),
        ("/v1/completions", {"prompt": [1, 320]}, 400),
        ("/v1/completions", {"prompt": [1, True]}, 400),
        ("/v1/completions", {"prompt": []}, 400),
        ("/v1/completions", {"prompt": [[1], [2]]}, 400),
        ("/v1/completions", {"prompt": [1] * 200}, 400),
        ("/v1/completions", {"prompt": [1], "n": 2}, 400),
        ("/tokenize", {}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/nowhere", {}, 404),
    ],
)
async def test_bad_requests_get_an_openai_error(path: str, fields: dict[str, Any], status: int) -> None:
    """And the engine goes on."""
    async with run_engine(ScriptedModel()) as rig:
        refused = await post(rig.url, path, **fields)
        assert refused.status_code == status
        error = refused.json()["error"]
        assert error["code"] == status and error["message"]
        assert (await post(rig.url, prompt=PROMPT)).status_code == 200


async def test_the_engine_describes_itself() -> None:
    """Models, health, metrics under vLLM's names, and where its events are."""
    publisher = EventPublisher(EventSettings(), BLOCK)
    async with run_engine(ScriptedModel(), publisher=publisher) as rig:
        await post(rig.url, prompt=PROMPT)
        (model,) = (await get(rig.url, "/v1/models")).json()["data"]
        metrics = (await get(rig.url, "/metrics")).text
        ((rank, source),) = (await get(rig.url, "/kv_event_sources")).json().items()
        assert (await get(rig.url, "/health")).status_code == 200
    await publisher.aclose()
    assert (model["id"], model["max_model_len"]) == ("tiny", 200)
    assert source["endpoint"].startswith("tcp://127.0.0.1:") and rank == "0"
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:external_prefix_cache_queries_total",
        "vllm:external_prefix_cache_hits_total",
        "vllm:cache_config_info",
    ):
        assert name in metrics
    assert 'source="local_compute"} 10.0' in metrics


async def test_requests_that_come_together_run_together() -> None:
    """Iteration-level batching: a request joins while another one decodes."""
    model = ScriptedModel()
    async with run_engine(model) as rig:
        model.gate.clear()
        one = asyncio.create_task(stream(rig.url, max_tokens=4))
        await model.wait_step()
        two = asyncio.create_task(stream(rig.url, prompt=[50, 51], max_tokens=4))
        async with asyncio.timeout(10):
            while not rig.scheduler.waiting:
                await asyncio.to_thread(lambda: None)
        model.gate.set()
        assert ids(await one) == [20, 21, 22, 23]
        assert ids(await two) == [52, 53, 54, 55]
    assert [1, 2] in model.batches and [1, 1] in model.batches


async def test_cached_tokens_and_the_reset() -> None:
    """A repeated prompt is found in whole blocks; after a reset it is not; another salt never finds it."""

    async def cached(**fields: Any) -> int:
        usage = (await post(rig.url, prompt=PROMPT, max_tokens=1, **fields)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async with run_engine(ScriptedModel()) as rig:
        assert [await cached(), await cached(), await cached(cache_salt="x")] == [0, 8, 0]
        assert (await post(rig.url, "/reset_prefix_cache")).status_code == 200
        assert await cached() == 0


async def test_a_closed_connection_aborts_the_request() -> None:
    """Streamed or not, running or waiting: nothing of it is left, and its blocks are free."""
    model = ScriptedModel()
    async with run_engine(model) as rig:
        model.gate.clear()
        async with httpx.AsyncClient(verify=False) as client:
            body = {"prompt": PROMPT, "max_tokens": 150}
            calls = [
                asyncio.create_task(client.post(f"{rig.url}/v1/completions", json={**body, "stream": streamed}))
                for streamed in (True, False)
            ]
            await model.wait_step()
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        model.gate.set()
        await rig.until_idle()
        assert ids(await stream(rig.url, max_tokens=2)) == [20, 21]
    assert len(model.batches) < 100


async def test_the_engines_death_is_told() -> None:
    """A failed model step ends streams with an error event; health and new requests say 503."""
    model = ScriptedModel(error=RuntimeError("no memory"))
    async with run_engine(model) as rig:
        events = await stream(rig.url)
        assert events[0]["error"]["code"] == 500 and events[-1] == "[DONE]"
        assert (await get(rig.url, "/health")).status_code == 503
        assert (await post(rig.url, prompt=PROMPT)).status_code == 503
