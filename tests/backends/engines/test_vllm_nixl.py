"""Tests of prefill legs that lend their KV, and of legs that use a ticket, against a protocol-true engine."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.vllm import VllmEngine
from backends.engines.vllm_nixl import decode_lending, encode_lending
from backends.errors import BackendError, EngineBroken, EngineFailed, EngineRejected, EngineUnavailable
from backends.types import LegChunk, LegRequest, LegUsage, Sampling
from tests.conformance.engine_suite import ids_of
from tests.fakes.engine import FakeEngine
from tests.fakes.legs import collect
from tests.fakes.loans import Loans
from tests.fakes.script import Refuse, Script, continuation

PROMPT = (11, 12, 13)


def leg(**fields: Any) -> LegRequest:
    """A leg over the fake's model."""
    return LegRequest("r-1", "demo", PROMPT, 1, **fields)


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    """A running fake engine that lends."""
    async with FakeEngine("p1", loans=Loans()) as engine:
        yield engine


def test_body_is_whole_and_bare() -> None:
    """Not streamed, one token, no least length, no logprobs; the rest is as in any leg."""
    sampling = Sampling(temperature=0.5, logprobs=3)
    body = orjson.loads(encode_lending(leg(min_tokens=1, sampling=sampling, cache_salt="s", lends_kv=True)))
    assert body["stream"] is False and body["max_tokens"] == 1
    assert not {"stream_options", "min_tokens", "logprobs"} & body.keys()
    assert (body["temperature"], body["cache_salt"], body["prompt"]) == (0.5, "s", list(PROMPT))


async def test_lending_leg_is_one_chunk_with_a_ticket(fake: FakeEngine, engine: VllmEngine) -> None:
    """The chunk has the token, the usage and the engine's own words, unread."""
    fake.script = Script(cached_tokens=2)
    (chunk,) = await collect(engine, leg(lends_kv=True))
    assert chunk.token_ids == tuple(continuation(PROMPT, 1))
    assert chunk.usage == LegUsage(3, 1, 2)
    assert chunk.kv_ticket is not None and chunk.kv_ticket["remote_request_id"] == "p1-0"
    assert fake.calls[0].headers["x-request-id"] == "r-1"


async def test_lending_leg_names_its_rank(fake: FakeEngine, engine: VllmEngine) -> None:
    """The rank that computed the prompt is the one that lends its KV."""
    await collect(engine, leg(lends_kv=True, data_parallel_rank=1))
    assert fake.calls[0].headers["x-data-parallel-rank"] == "1"


async def test_ticket_goes_out_as_it_came(fake: FakeEngine, engine: VllmEngine) -> None:
    """A leg with a ticket sends it verbatim and streams as always."""
    (lent,) = await collect(engine, leg(lends_kv=True))
    chunks = await collect(engine, leg(kv_ticket=lent.kv_ticket))
    assert list(ids_of(chunks)) == continuation(PROMPT, 1)
    assert fake.calls[1].body["kv_transfer_params"] == dict(lent.kv_ticket or {})
    assert fake.calls[1].body["stream"] is True


async def test_engine_without_a_connector_gives_no_ticket(fake: FakeEngine, engine: VllmEngine) -> None:
    """An engine that does not know the field answers without it."""
    fake.loans = None
    (chunk,) = await collect(engine, leg(lends_kv=True))
    assert chunk.kv_ticket is None


@pytest.mark.parametrize(
    ("refuse", "error"),
    [
        (Refuse(400, {"error": {"message": "no"}}), EngineRejected),
        (Refuse(503, b""), EngineUnavailable),
        (Refuse(500, b""), EngineFailed),
        (Refuse(200, b"nonsense"), EngineBroken),
    ],
)
async def test_refusals_are_judged_as_in_any_leg(
    fake: FakeEngine, engine: VllmEngine, refuse: Refuse, error: type[BackendError]
) -> None:
    """An error answer, or one that is no completion, raises what the seam says."""
    fake.script = Script(fault=refuse)
    with pytest.raises(error):
        await collect(engine, leg(lends_kv=True))


@pytest.mark.parametrize("finish", [None, "abort", "error"])
def test_leg_that_did_not_end_lends_nothing(finish: str | None) -> None:
    """KV of a leg that was aborted is not to be read."""
    body = {"choices": [{"token_ids": [1], "finish_reason": finish}], "kv_transfer_params": {"remote_host": "h"}}
    with pytest.raises(EngineFailed):
        decode_lending(orjson.dumps(body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
WHOLE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("choices", "usage", "kv_transfer_params", "error"), JSON)
).map(orjson.dumps)


@given(st.one_of(st.binary(max_size=60), JSON.map(orjson.dumps), WHOLE))
def test_no_answer_raises_anything_else(body: bytes) -> None:
    """Whatever the bytes, the result is a chunk or a backend error."""
    try:
        assert isinstance(decode_lending(body), LegChunk)
    except BackendError:
        pass
