"""What real vLLM 0.32.0 sent (see ``record``) is understood by the adapter and by the index."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.engines.dialect import refusal
from backends.engines.vllm import VllmEngine
from backends.engines.vllm_completions import CompletionDecoder, parse_odd_chunk
from backends.errors import EngineRejected, IdsMissing
from backends.kv.events import BlocksStored, decode_batch
from backends.transport.sse import SseParser
from backends.types import Capabilities, LegChunk
from gateway.demo.cluster import EngineEvents
from gateway.index.hashing import chain_seed, hash_blocks
from gateway.index.residency import Residency
from gateway.index.types import CacheHit, CacheSpec
from tests.contract.prompts import BLOCK_TOKENS, PROMPT, RECORDINGS, SALT, SALTED
from tests.fakes.memory_index import MemoryIndex
from tests.fakes.server import AppServer
from tests.gateway.index.publisher import run_publisher


class _Frame(msgspec.Struct):
    sequence: int
    payload: str


FRAMES = msgspec.json.decode((RECORDINGS / "kv_events.json").read_bytes(), type=list[_Frame])
PAGES = {
    "/health": b"",
    "/v1/models": (RECORDINGS / "models.json").read_bytes(),
    "/metrics": (RECORDINGS / "metrics.txt").read_bytes(),
    "/kv_event_sources": (RECORDINGS / "kv_event_sources.json").read_bytes(),
}


def _read_http(name: str) -> tuple[int, str, bytes]:
    head, _, body = (RECORDINGS / f"{name}.http").read_bytes().partition(b"\n")
    status, _, content_type = head.decode().partition(" ")
    return int(status), content_type, body


def _decode_stream(name: str, alternatives: int | None = None) -> list[LegChunk]:
    status, content_type, body = _read_http(name)
    assert status == 200 and content_type.startswith("text/event-stream")
    decoder = CompletionDecoder(alternatives)
    chunks = [chunk for event in SseParser().feed(body) if (chunk := decoder.feed(event)) is not None]
    assert decoder.is_done
    return chunks


def test_stream_with_token_ids() -> None:
    """All ids come, each once; the finish reason and the usage come with them."""
    chunks = _decode_stream("completion")
    assert sum(len(chunk.token_ids) for chunk in chunks) == 8
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 8)


@pytest.mark.parametrize("name", ["completion", "completion_logprobs", "generate"])
def test_each_chunk_counts_up(name: str) -> None:
    """SPL-07: beside its ids each chunk tells how many tokens were made, so a lost id shows at once."""
    _, _, body = _read_http(name)
    events = [parse_odd_chunk(event) for event in SseParser().feed(body) if event != b"[DONE]"]
    made = 0
    for chunk in events[:-1]:
        assert chunk.choices and chunk.choices[0].token_ids and chunk.usage
        made += len(chunk.choices[0].token_ids)
        assert chunk.usage.completion_tokens == made
    decoder = CompletionDecoder(2 if name == "completion_logprobs" else None)
    holed = [event for place, event in enumerate(SseParser().feed(body)) if place != 1]
    decoder.feed(holed[0])
    with pytest.raises(IdsMissing):
        decoder.feed(holed[1])


def test_usage_tells_cached_tokens() -> None:
    """The same prompt again is found in the cache, but for its last block."""
    usage = [chunk.usage for chunk in _decode_stream("completion_again") if chunk.usage][-1]
    assert usage.cached_tokens == (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_same_prompt_gives_the_same_first_token() -> None:
    """A prefill leg of one token gives the first of the longer answer's ids."""
    first = _decode_stream("completion")[0].token_ids[0]
    assert _decode_stream("completion_again")[0].token_ids == (first,)


def test_logprobs_by_token_id() -> None:
    """Each id has its own log-probability and two alternatives, the chosen one first as the answer is greedy."""
    chunks = [chunk for chunk in _decode_stream("completion_logprobs", 2) if chunk.token_ids]
    tokens = [token for chunk in chunks for token in chunk.logprobs or ()]
    assert [token.token_id for token in tokens] == [id_ for chunk in chunks for id_ in chunk.token_ids]
    for token in tokens:
        assert len(token.top) == 2 and token.top[0] == (token.token_id, token.logprob)


def test_token_endpoint_gives_what_completions_give() -> None:
    """/inference/v1/generate makes the same greedy ids and logprobs, and counts them."""
    chunks = _decode_stream("generate")
    ids = [id_ for chunk in chunks for id_ in chunk.token_ids]
    assert len(ids) == 8
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    assert (usage.prompt_tokens, usage.completion_tokens) == (40, 8)
    by_text = [token for chunk in _decode_stream("completion_logprobs", 2) for token in chunk.logprobs or ()]
    by_ids = [token for chunk in _decode_stream("generate_logprobs", 2) for token in chunk.logprobs or ()]
    assert [token.token_id for token in by_ids] == [token.token_id for token in by_text] == ids[:4]
    for one, other in zip(by_ids, by_text, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [id_ for id_, _ in one.top] == [id_ for id_, _ in other.top]


def test_token_endpoint_is_known_by_its_method() -> None:
    """A GET finds the path but not the method."""
    assert _read_http("generate_by_get")[0] == 405


def test_token_endpoint_refuses_in_the_stream() -> None:
    """What completions refuse by status, the token endpoint refuses by its first event: the same to a leg."""
    with pytest.raises(EngineRejected) as refused:
        _decode_stream("generate_too_long")
    assert refused.value.status == 400 and "maximum model length" in refused.value.message


@pytest.mark.parametrize(("name", "status"), [("too_long", 400), ("unknown_model", 404)])
def test_refusals(name: str, status: int) -> None:
    """A request that the engine refuses is the client's fault, with the engine's own words."""
    found, _, body = _read_http(name)
    error = refusal(found, body)
    assert isinstance(error, EngineRejected) and error.status == status and error.message


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[VllmEngine]:
    """An adapter in front of a server that answers with the recordings."""

    async def answer(request: Request) -> Response:
        page = PAGES.get(request.url.path)
        return Response(page or b"", 404 if page is None else 200)

    app = Starlette(routes=[Route("/{path:path}", answer)])
    async with AppServer(app) as server:
        engine = VllmEngine("p1", server.url)
        yield engine
        await engine.aclose()


async def test_probe(engine: VllmEngine) -> None:
    """Models, model length, block size and the process's start are found."""
    found = await engine.probe()
    assert found.boot_id is not None
    sources = (("ipc:///run/pdd/p1.events", "ipc:///run/pdd/p1.replay"),)
    assert found == Capabilities(("demo",), 8192, BLOCK_TOKENS, True, found.boot_id, sources)


async def test_load(engine: VllmEngine) -> None:
    """An idle engine's load is read."""
    load = await engine.load()
    assert (load.running, load.waiting) == (0, 0) and 0 <= load.kv_usage < 1


def test_event_sources() -> None:
    """Discovery names the source of rank 0 with its replay."""
    found = msgspec.json.decode((RECORDINGS / "kv_event_sources.json").read_bytes(), type=dict[str, EngineEvents])
    assert list(found) == ["0"] and found["0"].endpoint and found["0"].replay_endpoint


def test_event_frames() -> None:
    """The sequence has no gap, nothing is skipped, and blocks hold the prompt's ids."""
    assert [frame.sequence for frame in FRAMES] == list(range(FRAMES[0].sequence, FRAMES[0].sequence + len(FRAMES)))
    batches = [decode_batch(bytes.fromhex(frame.payload)) for frame in FRAMES]
    assert not any(batch.skipped for batch in batches)
    assert {batch.rank for batch in batches} == {0}
    stored = [event for batch in batches for event in batch.events if isinstance(event, BlocksStored)]
    assert {event.block_size for event in stored} == {BLOCK_TOKENS}
    assert stored[0].parent is None and list(stored[0].token_ids) == PROMPT[: len(stored[0].token_ids)]
    assert any(event.extra_keys and [SALT] in event.extra_keys for event in stored)


async def test_recorded_frames_are_those_of_one_of_two_ranks() -> None:
    """What the engine sent counts as it is where a second rank stands beside it, which has nothing."""
    changes = asyncio.Event()
    index = MemoryIndex(on_change=changes.set)
    async with run_publisher(replay=False) as first, run_publisher(rank=1) as second:
        sources = (first.source, second.source)
        index.add_instance(CacheSpec("p1", "demo", BLOCK_TOKENS, sources, dp_size=2))
        await index.start()
        for rank in (first, second):
            await rank.wait_for_subscriber()
        for frame in FRAMES:
            await first.send_raw(b"", frame.sequence.to_bytes(8, "big"), bytes.fromhex(frame.payload))
        whole = len(PROMPT) // BLOCK_TOKENS * BLOCK_TOKENS
        async with asyncio.timeout(10):
            while index.lookup("demo", [*PROMPT, 1])["p1"] != CacheHit(whole, whole, False, (whole, 0)):
                changes.clear()
                await changes.wait()
        assert not index.stats().counters.get("bad_frames")
    await index.aclose()


def test_index_knows_the_prompts() -> None:
    """The engine's blocks become the index's own: both prompts are found, each under its own salt only."""
    counters: Counter[str] = Counter()
    residency = Residency(lambda lora, salt: chain_seed("demo", lora, salt), counters)
    for frame in FRAMES:
        residency.apply(decode_batch(bytes.fromhex(frame.payload)))
    held = {key for change in residency.snapshot() for key in change.delta.held}
    for prompt, salt in ((PROMPT, None), (SALTED, SALT)):
        whole = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
        keys = hash_blocks(prompt[:whole], chain_seed("demo", None, salt))
        assert keys and held >= set(keys)
        assert held.isdisjoint(hash_blocks(prompt[:whole], chain_seed("demo", None, "another")))
    assert not counters["orphan_blocks"] and not counters["opaque_blocks"]
