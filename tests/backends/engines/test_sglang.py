"""``SglangEngine`` against servers that speak as SGLang's sources do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from backends.engines.sglang import PrefillOptions, SglangEngine, SglangOptions
from backends.errors import EngineBroken, EngineFailed, EngineRejected, EngineUnavailable, IdsMissing
from backends.types import LegRequest, LegUsage, Sampling
from tests.conformance.engine_suite import EngineCase, EngineSuite, ids_of
from tests.fakes.gates import HoldGate
from tests.fakes.legs import collect
from tests.fakes.script import Cut, EndAs, ErrorEvent, Refuse, Script, Verbatim, continuation, eos_after
from tests.fakes.sglang import FakeSglang

PROMPT = (11, 12, 13, 14, 15)


def leg(max_tokens: int | None = 6, **fields: object) -> LegRequest:
    """A leg over the fake's model."""
    return LegRequest("r-1", "demo", PROMPT, max_tokens, **fields)  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["cumulative", "incremental"])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeSglang]:
    """A running server of either way to stream."""
    async with FakeSglang(incremental=request.param) as server:
        yield server


@pytest.fixture
async def engine(fake: FakeSglang) -> AsyncIterator[SglangEngine]:
    """The adapter under test, over the fake."""
    adapter = SglangEngine("e-1", fake.url)
    yield adapter
    await adapter.aclose()


class TestConformance(EngineSuite):
    """``SglangEngine`` conforms, whichever way the server streams."""

    @pytest.fixture
    async def case(self, fake: FakeSglang, engine: SglangEngine) -> AsyncIterator[EngineCase]:
        """The adapter over the fake."""
        async with FakeSglang() as gone:
            unreachable = SglangEngine("gone", gone.url)
        yield EngineCase(engine, unreachable, "demo", tuple(range(20, 40)), fake.max_model_len)


class TestPairConformance(EngineSuite):
    """A pair of a prefill and a decode server conforms as one engine."""

    @pytest.fixture
    async def case(self) -> AsyncIterator[EngineCase]:
        """The adapter over two fakes."""
        async with FakeSglang() as gone:
            unreachable = SglangEngine("gone", gone.url)
        async with FakeSglang(mode="prefill") as prefill, FakeSglang(mode="decode") as decode:
            prefill.script = Script(fault=EndAs(1, "length"))
            adapter = SglangEngine("pair", decode.url, options=SglangOptions(PrefillOptions(prefill.url)))
            yield EngineCase(adapter, unreachable, "demo", tuple(range(20, 40)), decode.max_model_len)
            await adapter.aclose()


async def test_body_holds_only_what_was_given(fake: FakeSglang, engine: SglangEngine) -> None:
    """Fields that were not given stay absent, so the server's own defaults apply."""
    fake.script = Script(fault=EndAs(2, "length"))
    await collect(engine, leg(None))
    assert fake.bodies == [{"rid": "r-1", "input_ids": list(PROMPT), "sampling_params": {}, "stream": True}]


async def test_body_holds_all_that_was_given(fake: FakeSglang, engine: SglangEngine) -> None:
    """Every field of the leg has its place in SGLang's words."""
    schema = {"type": "object"}
    sampling = Sampling(
        temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, seed=7, presence_penalty=0.1, frequency_penalty=0.2,
        repetition_penalty=1.1, logit_bias={"5": -1.0}, stop_token_ids=(9,), ignore_eos=True, logprobs=2,
        extra={"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
    )  # fmt: skip
    await collect(engine, leg(6, min_tokens=2, sampling=sampling, cache_salt="tenant", priority=-1))
    assert fake.bodies[0] == {
        "rid": "r-1", "input_ids": list(PROMPT), "stream": True, "extra_key": "tenant", "priority": -1,
        "return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2,
        "sampling_params": {
            "max_new_tokens": 6, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1,
            "sampling_seed": 7, "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
            "logit_bias": {"5": -1.0}, "stop_token_ids": [9], "ignore_eos": True, "json_schema": '{"type":"object"}',
        },
    }  # fmt: skip


async def test_a_field_that_sglang_lacks_is_refused(fake: FakeSglang, engine: SglangEngine) -> None:
    """An answer without what the client asked for is worse than none; plain text output is no constraint."""
    with pytest.raises(EngineRejected) as caught:
        await collect(engine, leg(sampling=Sampling(extra={"guided_choice": ["a"]})))
    assert (caught.value.status, caught.value.param) == (400, "guided_choice")
    await collect(engine, leg(sampling=Sampling(extra={"response_format": {"type": "text"}})))
    assert "json_schema" not in fake.bodies[0]["sampling_params"]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"json": {"type": "object"}}, {"json_schema": '{"type":"object"}'}),
        ({"json": '{"type":"array"}', "regex": None}, {"json_schema": '{"type":"array"}'}),
        ({"json_object": True}, {"json_schema": '{"type":"object"}'}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"grammar": "root ::= x"}, {"ebnf": "root ::= x"}),
        ({"choice": ["a"]}, None),
        ({"json": {}, "whitespace_pattern": " "}, None),
    ],
)
async def test_grammars(fake: FakeSglang, engine: SglangEngine, asked: Any, sent: Any) -> None:
    """vLLM's words for a grammar become SGLang's, and what SGLang has no word for is refused."""
    fake.script = Script(fault=EndAs(2, "length"))
    asking = collect(engine, leg(None, sampling=Sampling(extra={"structured_outputs": asked})))
    if sent is None:
        with pytest.raises(EngineRejected):
            await asking
    else:
        await asking
        assert fake.bodies[0]["sampling_params"] == sent


@pytest.mark.parametrize("chunks", [(1,), (3,), (1, 4, 2), (0, 2)])
async def test_each_id_comes_once(fake: FakeSglang, engine: SglangEngine, chunks: tuple[int, ...]) -> None:
    """However many ids an event holds, old ones are not given again."""
    fake.script = Script(chunks=chunks)
    got = await collect(engine, leg(20, sampling=Sampling(logprobs=1)))
    assert ids_of(got) == tuple(continuation(PROMPT, 20))
    assert [entry.token_id for chunk in got for entry in chunk.logprobs or ()] == continuation(PROMPT, 20)
    assert [chunk.usage for chunk in got if chunk.usage] == [LegUsage(5, 20, 0)]


async def test_eos_is_the_last_id_and_no_stop_reason(fake: FakeSglang, engine: SglangEngine) -> None:
    """EOS ends the answer as vLLM's does, though SGLang names it as matched."""
    fake.model = eos_after(len(PROMPT) + 3)
    got = await collect(engine, leg(20))
    assert len(ids_of(got)) == 4
    assert [(chunk.finish_reason, chunk.stop_reason) for chunk in got if chunk.finish_reason] == [("stop", None)]


async def test_a_stop_token_under_ignore_eos_ends_the_servers_work(fake: FakeSglang, engine: SglangEngine) -> None:
    """SGLang would go on; the leg ends at the stop token, and so does the server's call."""
    stop = continuation(PROMPT, 3)[-1]
    fake.script = Script(holds={10: HoldGate()})
    sampling = Sampling(ignore_eos=True, stop_token_ids=(stop,), logprobs=0)
    got = await collect(engine, leg(4000, sampling=sampling))
    assert ids_of(got) == tuple(continuation(PROMPT, 3))
    assert got[-1].usage == LegUsage(5, 3, 0)
    await fake.idle()
    assert fake.calls[0].state == "aborted"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script(fault=Cut(None)), EngineUnavailable),
        (Script(fault=Cut(2)), EngineBroken),
        (Script(fault=EndAs(2)), EngineBroken),
        (Script(fault=EndAs(2, "length", done=False)), EngineBroken),
        (Script(fault=EndAs(2, "abort")), EngineFailed),
        (Script(fault=EndAs(2, "mystery")), EngineFailed),
        (Script(fault=EndAs(0, "length")), IdsMissing),
        (Script(fault=ErrorEvent(2)), EngineFailed),
        (Script(fault=ErrorEvent(0)), EngineRejected),
        (Script(fault=ErrorEvent(0, {"message": "full", "code": 503})), EngineUnavailable),
        (Script(fault=ErrorEvent(0, {"message": "bad", "code": 500})), EngineFailed),
        (Script(fault=Refuse(503)), EngineUnavailable),
        (Script(fault=Refuse(422, {"detail": "x"})), EngineRejected),
        (Script(fault=Refuse(401)), EngineFailed),
        (Script(fault=Refuse(200, b"{}")), EngineBroken),
    ],
)
async def test_failures(fake: FakeSglang, engine: SglangEngine, script: Script, error: type[Exception]) -> None:
    """Every way to fail is one of the seam's errors."""
    fake.script = script
    with pytest.raises(error) as caught:
        await collect(engine, leg())
    assert type(caught.value) is error


def event(ids: object, told: object, finish: object = None, **meta: object) -> bytes:
    """One SSE event."""
    fields = {"finish_reason": finish, "prompt_tokens": 5, "completion_tokens": told} | meta
    return b"data: " + orjson.dumps({"text": "x", "output_ids": ids, "meta_info": fields}) + b"\n\n"


LENGTH = {"type": "length", "length": 2}


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((event([5], 1), event([7], 3)), IdsMissing),
        ((event([5], 1), event([], 3, LENGTH)), IdsMissing),
        ((event(None, 1),), IdsMissing),
        ((event([5], 1, LENGTH), event([6], 2)), EngineBroken),
        ((event([5], 1, LENGTH), event([5, 6], 2)), EngineBroken),
        ((b'data: {"output_ids":[5]}\n\n',), EngineBroken),
        ((b"data: [5]\n\n",), EngineBroken),
        ((b'data: "\xff"\n\n',), EngineBroken),
        ((event([5], 1, output_token_logprobs=[[-0.1, 6, None]]),), EngineBroken),
        ((event([5], 1, output_token_logprobs=[]),), EngineBroken),
    ],
)
async def test_streams_that_cannot_be_trusted(
    fake: FakeSglang, engine: SglangEngine, pieces: tuple[bytes, ...], error: type[Exception]
) -> None:
    """Ids that are missing, late or not told as agreed break the leg."""
    fake.script = Script(fault=Verbatim((*pieces, b"data: [DONE]\n\n")))
    sampling = Sampling(logprobs=0) if b"logprobs" in pieces[0] else Sampling()
    with pytest.raises(error):
        await collect(engine, leg(sampling=sampling))


async def test_ids_that_came_before_their_count(fake: FakeSglang, engine: SglangEngine) -> None:
    """A cumulative list may be ahead of its own count; what is ahead is taken with the next event."""
    pieces = (event([5, 6], 1), event([5, 6, 7], 3, LENGTH), b"data: [DONE]\n\n")
    fake.script = Script(fault=Verbatim(pieces))
    assert [chunk.token_ids for chunk in await collect(engine, leg())] == [(5,), (6, 7)]


async def test_probe_says_what_is_missing() -> None:
    """A server that streams no ids, has no metrics or is half of a pair is refused with words for the operator."""
    async with FakeSglang(old=True) as old, FakeSglang(mode="prefill") as half, FakeSglang() as silent:
        silent.metrics = "# nothing\n"
        with pytest.raises(EngineBroken, match="no output_ids: SGLang must be new enough, or started with --skip"):
            await SglangEngine("old", old.url).probe()
        with pytest.raises(EngineBroken, match="--disaggregation-mode prefill, and not null"):
            await SglangEngine("half", half.url).probe()
        with pytest.raises(EngineBroken, match="must be started with --enable-metrics"):
            await SglangEngine("silent", silent.url).load()
        silent.script = Script(fault=Refuse(404))
        with pytest.raises(EngineBroken, match="/generate does not take a prompt of token ids: it answered 404"):
            await SglangEngine("other", silent.url).probe()


async def test_an_engine_that_lost_ids_says_so(fake: FakeSglang, engine: SglangEngine) -> None:
    """A leg whose ids did not come makes the engine useless for a split, until a probe sees them again."""
    fake.scripts.append(Script(fault=EndAs(0, "length")))
    with pytest.raises(IdsMissing):
        await collect(engine, leg())
    assert (await engine.probe()).streams_token_ids


async def test_both_servers_of_a_pair_get_the_same_room() -> None:
    """The bodies agree in their bootstrap fields, and each leg has a room of its own."""
    async with FakeSglang(mode="prefill", api_key="key") as prefill, FakeSglang(mode="decode", api_key="key") as decode:
        options = SglangOptions(PrefillOptions(prefill.url, bootstrap_host="p.internal"))
        pair = SglangEngine("pair", decode.url, api_key="key", options=options)
        for _ in range(2):
            assert ids_of(await collect(pair, leg())) == tuple(continuation(PROMPT, 6))
        assert prefill.bodies == decode.bodies
        rooms = {body["bootstrap_room"] for body in decode.bodies}
        assert len(rooms) == 2 and all(0 <= room < 1 << 63 for room in rooms)
        assert (decode.bodies[0]["bootstrap_host"], decode.bodies[0]["bootstrap_port"]) == ("p.internal", 8998)
        await pair.aclose()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script(fault=Refuse(503)), EngineUnavailable),
        (Script(fault=Cut(None)), EngineUnavailable),
        (Script(fault=ErrorEvent(0)), EngineRejected),
        (Script(fault=EndAs(1, "abort")), EngineRejected),
    ],
)
async def test_a_prefill_that_fails_ends_the_leg(script: Script, error: type[Exception]) -> None:
    """The decode server, which would wait for its KV for ever, is let go at once."""
    async with FakeSglang(mode="prefill") as prefill, FakeSglang(mode="decode") as decode:
        prefill.script, decode.script = script, Script(arrival=HoldGate())
        pair = SglangEngine("pair", decode.url, options=SglangOptions(PrefillOptions(prefill.url)))
        with pytest.raises(error):
            await collect(pair, leg())
        await decode.idle()
        assert all(call.state == "aborted" for call in decode.calls)
        await pair.aclose()


async def test_a_pair_that_is_let_go_is_let_go_whole() -> None:
    """Cancelling a leg before its first token ends both calls."""
    async with FakeSglang(mode="prefill") as prefill, FakeSglang(mode="decode") as decode:
        gate = HoldGate()
        prefill.script = decode.script = Script(arrival=gate)
        pair = SglangEngine("pair", decode.url, options=SglangOptions(PrefillOptions(prefill.url)))
        task = asyncio.create_task(collect(pair, leg()))
        await gate.arrivals(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await prefill.idle()
        await decode.idle()
        assert [call.state for call in prefill.calls + decode.calls] == ["aborted", "aborted"]
        await pair.aclose()
