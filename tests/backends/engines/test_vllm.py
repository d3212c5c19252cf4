"""``VllmEngine`` against a protocol-true engine on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.engines.vllm import VllmEngine
from backends.errors import (
    BackendError,
    EngineBroken,
    EngineFailed,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    IdsMissing,
)
from backends.types import LegChunk, LegRequest, LegUsage, Sampling
from tests.conformance.engine_suite import EngineCase, EngineSuite, ids_of
from tests.fakes.engine import FakeEngine, error_body
from tests.fakes.gates import HoldGate
from tests.fakes.legs import collect, open_leg
from tests.fakes.raw_server import RawServer, say
from tests.fakes.script import (
    Cut,
    EndAs,
    ErrorEvent,
    Fault,
    LoseIds,
    Refuse,
    Script,
    Verbatim,
    continuation,
    eos_after,
)

PROMPT = (11, 12, 13, 14, 15)


def leg(max_tokens: int | None = 6, **fields: object) -> LegRequest:
    """A leg over the fake's model."""
    return LegRequest("r-1", "demo", PROMPT, max_tokens, **fields)  # type: ignore[arg-type]


class TestConformance(EngineSuite):
    """``VllmEngine`` conforms."""

    @pytest.fixture
    async def case(self, fake: FakeEngine, engine: VllmEngine) -> AsyncIterator[EngineCase]:
        """The adapter over the fake."""
        gone = FakeEngine()
        async with gone:
            unreachable = VllmEngine("gone", gone.url)
        yield EngineCase(engine, unreachable, "demo", tuple(range(20, 40)), fake.max_model_len)


async def test_event_sources_are_found(fake: FakeEngine, engine: VllmEngine) -> None:
    """Every rank's source is told; one that listens everywhere is where the engine is."""
    zmq = {"enable_kv_cache_events": True, "publisher": "zmq"}
    fake.event_sources = {
        "1": zmq | {"endpoint": "ipc:///run/e.1", "replay_endpoint": None},
        "0": zmq | {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://0.0.0.0:5558"},
        "2": {"enable_kv_cache_events": False, "publisher": "null", "endpoint": "tcp://*:1"},
    }
    found = (await engine.probe()).event_sources
    assert found == (("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"), ("ipc:///run/e.1", None))


async def test_ranks_are_those_of_the_sources(fake: FakeEngine, engine: VllmEngine) -> None:
    """Sources are in the order of their ranks, the tenth after the second; the first need not be 0."""
    zmq = {"enable_kv_cache_events": True, "publisher": "zmq"}
    fake.event_sources = {str(rank): zmq | {"endpoint": f"tcp://*:{5557 + rank}"} for rank in range(2, 12)}
    found = await engine.probe()
    assert [pair[0] for pair in found.event_sources] == [f"tcp://127.0.0.1:{5557 + rank}" for rank in range(2, 12)]
    assert (found.data_parallel_size, found.first_rank) == (10, 2)


async def test_ranks_without_events_are_those_of_the_metrics(fake: FakeEngine, engine: VllmEngine) -> None:
    """An engine that publishes no events has metrics of each rank; its load is told by rank where there are several."""
    assert (await engine.probe()).data_parallel_size == 1
    assert (await engine.load()).rank_requests == ()
    fake.metrics = "\n".join(
        f'vllm:{name}{{engine="{rank}",model_name="demo"}} {value}'
        for name, values in {
            "num_requests_running": (3.0, 1.0),
            "num_requests_waiting": (2.0, 0.0),
            "kv_cache_usage_perc": (0.5, 0.1),
        }.items()
        for rank, value in reversed(list(enumerate(values)))
    )
    found, load = await engine.probe(), await engine.load()
    assert (found.data_parallel_size, found.first_rank, found.event_sources) == (2, 0, ())
    assert (load.running, load.waiting, load.kv_usage, load.rank_requests) == (4, 2, 0.5, (5, 1))


@pytest.mark.parametrize("generates", [False, True])
async def test_rank_is_a_header(fake: FakeEngine, engine: VllmEngine, generates: bool) -> None:
    """Both endpoints are told the rank of a leg; a leg without one has no such header."""
    fake.generates = generates
    await engine.probe()
    sampling = Sampling(temperature=0.0, repetition_penalty=1.0)
    for rank in (None, 0, 3):
        await collect(engine, leg(sampling=sampling, data_parallel_rank=rank))
    assert {call.path == "/inference/v1/generate" for call in fake.calls} == {generates}
    assert [call.headers.get("x-data-parallel-rank") for call in fake.calls] == [None, "0", "3"]


@pytest.mark.parametrize("told", [None, {"0": {"publisher": 5}}])
async def test_no_event_sources(fake: FakeEngine, engine: VllmEngine, told: dict[str, Any] | None) -> None:
    """An engine without discovery, or with one that makes no sense, tells of no sources."""
    fake.event_sources = told
    assert (await engine.probe()).event_sources == ()


async def test_id(engine: VllmEngine) -> None:
    """An instance is called what the configuration calls it."""
    assert engine.id == "e-1"


async def test_body_holds_only_what_was_given(fake: FakeEngine, engine: VllmEngine) -> None:
    """Fields that were not given stay absent, so the engine's own defaults apply."""
    await collect(engine, leg(None))
    assert fake.calls[0].body == {
        "model": "demo",
        "prompt": list(PROMPT),
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    assert fake.calls[0].headers["x-request-id"] == "r-1"
    assert "authorization" not in fake.calls[0].headers


async def test_body_holds_all_that_was_given(fake: FakeEngine, engine: VllmEngine) -> None:
    """Every field of the leg has its place, and vendor fields cannot take another's."""
    sampling = Sampling(
        temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=7, presence_penalty=0.1, frequency_penalty=0.2,
        repetition_penalty=1.1, logit_bias={"5": -1.0}, stop_token_ids=(9,), ignore_eos=True, logprobs=2,
        extra={"structured_outputs": {"regex": "a"}, "prompt": "x", "stream": False, "n": 3, "kv_transfer_params": {}},
    )  # fmt: skip
    await collect(engine, leg(6, min_tokens=2, sampling=sampling, cache_salt="tenant", priority=-1))
    assert fake.calls[0].body == {
        "model": "demo", "prompt": list(PROMPT), "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True, "max_tokens": 6, "min_tokens": 2, "cache_salt": "tenant", "priority": -1,
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"5": -1.0}, "stop_token_ids": [9],
        "ignore_eos": True, "logprobs": 2, "return_tokens_as_token_ids": True, "structured_outputs": {"regex": "a"},
    }  # fmt: skip


async def test_any_sequence_of_ids_is_a_prompt(fake: FakeEngine, engine: VllmEngine) -> None:
    """A prompt need not be a list."""
    await collect(engine, LegRequest("r", "demo", range(5, 9), 2))
    assert fake.calls[0].prompt == [5, 6, 7, 8]


async def test_api_key() -> None:
    """OPS-04: the engine's own key goes out with each request, probes too; a wrong one is not the client's fault."""
    async with FakeEngine(api_key="secret") as fake:
        right, wrong = VllmEngine("e", fake.url, api_key="secret"), VllmEngine("e", fake.url)
        assert len(ids_of(await collect(right, leg()))) == 6
        assert (await right.probe()).models == ("demo",)
        with pytest.raises(EngineFailed, match="API key"):
            await collect(wrong, leg())
        with pytest.raises(EngineBroken, match="401"):
            await wrong.probe()
        await right.aclose()
        await wrong.aclose()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(st.integers(0, 17), min_size=1, max_size=5).filter(any), tokens=st.integers(1, 60))
async def test_chunking_does_not_matter(fake: FakeEngine, engine: VllmEngine, chunks: list[int], tokens: int) -> None:
    """Several ids or none in a chunk give the same ids, and the connection is used again."""
    fake.script = Script(chunks=tuple(chunks), cached_tokens=3)
    got = await collect(engine, leg(tokens))
    assert list(ids_of(got)) == continuation(PROMPT, tokens)
    assert got[-1].usage == LegUsage(len(PROMPT), tokens, 3)
    assert fake.connections == 1


async def test_eos_ends_the_leg(fake: FakeEngine, engine: VllmEngine) -> None:
    """An EOS is an id like any other, and the finish chunk may carry ids."""
    fake.model = eos_after(len(PROMPT) + 3)
    fake.script = Script(chunks=(9,))
    got = await collect(engine, leg())
    assert [(len(chunk.token_ids), chunk.finish_reason) for chunk in got] == [(4, "stop"), (0, None)]


@pytest.mark.parametrize(
    ("fault", "error", "ids_before"),
    [
        (Cut(None), EngineUnavailable, 0),
        (Cut(0), EngineBroken, 0),
        (Cut(2), EngineBroken, 2),
        (EndAs(2), EngineBroken, 2),
        (EndAs(2, done=False), EngineBroken, 2),
        (EndAs(2, "stop", done=False), EngineBroken, 2),
        (EndAs(0, "stop"), EngineBroken, 0),
        (EndAs(2, "abort"), EngineFailed, 1),
        (EndAs(2, "error"), EngineFailed, 1),
        (EndAs(2, "content_filter"), EngineFailed, 1),
        (ErrorEvent(2), EngineFailed, 2),
        (ErrorEvent(2, {"code": 400, "message": "x"}), EngineFailed, 2),
        (ErrorEvent(0), EngineFailed, 0),
        (ErrorEvent(0, {"message": "x", "code": None}), EngineFailed, 0),
        (ErrorEvent(0, {"message": "x", "code": "rate_limit"}), EngineFailed, 0),
        (ErrorEvent(0, {"message": "x", "code": 9999}), EngineFailed, 0),
        (ErrorEvent(0, {"message": "x", "code": 422}), EngineRejected, 0),
        (ErrorEvent(0, {"message": "x", "code": 429}), EngineUnavailable, 0),
        (LoseIds(frozenset({2})), IdsMissing, 2),
        (LoseIds(frozenset({2}), as_null=True), IdsMissing, 2),
        (LoseIds(frozenset(range(6)), as_null=True), IdsMissing, 0),
        (Refuse(400, error_body(400, "no", "top_p")), EngineRejected, 0),
        (Refuse(404, b"not json"), EngineRejected, 0),
        (Refuse(429), EngineUnavailable, 0),
        (Refuse(503, b"busy"), EngineUnavailable, 0),
        (Refuse(500, b"[]"), EngineFailed, 0),
        (Refuse(302, b""), EngineFailed, 0),
        (Refuse(200, {"choices": []}), EngineBroken, 0),
    ],
)
async def test_faults(
    fake: FakeEngine, engine: VllmEngine, fault: Fault, error: type[BackendError], ids_before: int
) -> None:
    """Each fault gives its error, after the ids that came before it; the next leg is well."""
    fake.scripts.append(Script(fault=fault))
    ids: list[int] = []
    with pytest.raises(error):
        await engine.generate(leg(), lambda chunk: ids.extend(chunk.token_ids))
    assert len(ids) == ids_before
    assert list(ids_of(await collect(engine, leg()))) == continuation(PROMPT, 6)


async def test_rejection_carries_the_engines_words(fake: FakeEngine, engine: VllmEngine) -> None:
    """Status, message and param are kept for the client, and the message stays out of the log text."""
    fake.script = Script(fault=Refuse(422, error_body(422, "top_p is odd", "top_p")))
    with pytest.raises(EngineRejected) as caught:
        await collect(engine, leg())
    assert (caught.value.status, caught.value.message, caught.value.param) == (422, "top_p is odd", "top_p")
    assert "odd" not in str(caught.value)


async def test_too_long_a_prompt_reported_as_500(fake: FakeEngine, engine: VllmEngine) -> None:
    """An engine that calls its context limit an internal error still rejects the request."""
    text = "This model's maximum context length is 10 tokens."
    fake.script = Script(fault=Refuse(500, error_body(500, text)))
    with pytest.raises(EngineRejected) as caught:
        await collect(engine, leg())
    assert (caught.value.status, caught.value.message) == (400, text)


@pytest.mark.parametrize(
    ("value", "low_s", "high_s"),
    [("7", 7, 7), ("99999999", 3600, 3600), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), ("soon", None, None)],
)
async def test_retry_after(
    fake: FakeEngine, engine: VllmEngine, value: str, low_s: float | None, high_s: float | None
) -> None:
    """Retry-After is taken as seconds or as a date, within bounds."""
    fake.script = Script(fault=Refuse(503, b"", {"Retry-After": value}))
    with pytest.raises(EngineUnavailable) as caught:
        await collect(engine, leg())
    wait_s = caught.value.retry_after_s
    assert wait_s is None if low_s is None or high_s is None else wait_s is not None and low_s <= wait_s <= high_s


def event(text: str) -> bytes:
    """One SSE event."""
    return f"data: {text}\n\n".encode()


TOKEN = '{"choices":[{"token_ids":[5],"text":"x"%s}]}'
DONE = b"data: [DONE]\n\n"
FINISH = event(TOKEN % ',"finish_reason":"length"')


@pytest.mark.parametrize(
    "pieces",
    [
        (b": ping\n\n", b"event: ping\ndata:\n\n", event(TOKEN % ""), b"retry: 3000\n\n", FINISH, DONE),
        (event('{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}'), event(TOKEN % ""), FINISH, DONE),
        (event('{"id":"x"}'), event(TOKEN % ',"finish_reason":""'), event('{"choices":null}'), FINISH, DONE),
        (event(TOKEN % ',"finish_reason":null,"logprobs":null'), FINISH, DONE, DONE),
        (event(TOKEN % ""), FINISH + DONE + FINISH),
        (event(TOKEN % ""), event(TOKEN % ""), event('{"choices":[{"token_ids":[],"finish_reason":"stop"}]}'), DONE),
        (event(TOKEN % ""), FINISH, event('{"error":null,"usage":{"prompt_tokens":1,"completion_tokens":2}}'), DONE),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
async def test_odd_but_good_streams(fake: FakeEngine, engine: VllmEngine, pieces: tuple[bytes, ...], cut: bool) -> None:
    """Empty choices, noise, usage anywhere, and a transport that ends badly after [DONE] change nothing."""
    fake.script = Script(fault=Verbatim(pieces, cut))
    got = await collect(engine, leg())
    assert ids_of(got) == (5, 5)
    assert [chunk.finish_reason for chunk in got if chunk.finish_reason] in (["length"], ["stop"])


@pytest.mark.parametrize(
    "pieces",
    [
        (event('{"choices":[{"text":"text without ids"}]}'), FINISH, DONE),
        (event("not json"), FINISH, DONE),
        (event('{"choices":[{"token_ids":["5"]}]}'), FINISH, DONE),
        (event("[" * 100_000), FINISH, DONE),
        (FINISH, event(TOKEN % ""), DONE),
        (b"data: " + b"x" * (9 * 1024 * 1024),),
        (event('{"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[]}}]}'), FINISH, DONE),
        (event('{"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[0],"top_logprobs":[{},{}]}}]}'), DONE),
        (event('{"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[0],"top_logprobs":[{"a":0}]}}]}'), DONE),
    ],
)
async def test_streams_that_are_not_the_dialect(
    fake: FakeEngine, engine: VllmEngine, pieces: tuple[bytes, ...]
) -> None:
    """What is not understood breaks the leg rather than being guessed."""
    fake.script = Script(fault=Verbatim(pieces))
    with pytest.raises(EngineBroken):
        await collect(engine, leg(sampling=Sampling(logprobs=2)))


async def test_flat_error_event(fake: FakeEngine, engine: VllmEngine) -> None:
    """The error event of older engines, with its fields at the top, is an error too."""
    fake.script = Script(fault=Verbatim((event('{"object":"error","message":"m","param":"p","code":400}'), DONE)))
    with pytest.raises(EngineRejected) as caught:
        await collect(engine, leg())
    assert (caught.value.message, caught.value.param) == ("m", "p")


async def test_logprobs_that_are_not_finite(fake: FakeEngine, engine: VllmEngine) -> None:
    """NaN, infinities and null become the lowest log-probability; the stream goes on."""
    logprobs = (
        '"token_logprobs":[NaN,-Infinity,null,-9999.0],'
        '"top_logprobs":[{"token_id:1":NaN,"token_id:2":-0.5},null,{"token_id:3":Infinity},{}]'
    )
    text = '{"choices":[{"token_ids":[1,2,3,4],"finish_reason":"length","logprobs":{' + logprobs + "}}]}"
    fake.script = Script(fault=Verbatim((event(text), DONE)))
    (chunk,) = await collect(engine, leg(sampling=Sampling(logprobs=2)))
    assert chunk.logprobs is not None
    assert [entry.logprob for entry in chunk.logprobs] == [-9999.0] * 4
    assert [entry.top for entry in chunk.logprobs] == [((2, -0.5), (1, -9999.0)), (), ((3, -9999.0),), ()]


async def test_first_token_timeout(fake: FakeEngine, engine: VllmEngine) -> None:
    """An engine that answers but gives no token in time is given up, and the leg is closed."""
    fake.script = Script(holds={0: HoldGate()})
    with pytest.raises(EngineTimeout):
        await collect(engine, leg(first_token_timeout_s=0.4))
    await fake.idle()
    assert fake.calls[0].state == "aborted"


async def test_no_answer_in_time(fake: FakeEngine, engine: VllmEngine) -> None:
    """An engine that does not even answer is given up by the same limit."""
    fake.script = Script(arrival=HoldGate())
    with pytest.raises(EngineTimeout):
        await collect(engine, leg(first_token_timeout_s=0.4))
    await fake.idle()


async def test_idle_timeout(fake: FakeEngine, engine: VllmEngine) -> None:
    """Silence between tokens is bounded by its own limit."""
    fake.script = Script(holds={2: HoldGate()})
    ids: list[int] = []
    with pytest.raises(EngineTimeout):
        await engine.generate(leg(idle_timeout_s=0.4), lambda chunk: ids.extend(chunk.token_ids))
    assert len(ids) == 2


async def test_a_slow_consumer_is_not_the_engines_silence(fake: FakeEngine, engine: VllmEngine) -> None:
    """Time that passes while nobody asks for the next chunk does not count."""
    gate = HoldGate()
    fake.script = Script(holds={1: gate})
    stream = open_leg(engine, leg(idle_timeout_s=0.6))
    await anext(stream)
    loop = asyncio.get_running_loop()
    waited = loop.create_future()
    loop.call_later(0.8, waited.set_result, None)
    await waited
    gate.open()
    rest = [chunk async for chunk in stream]
    assert len(ids_of(rest)) == 5


async def test_close_is_immediate(fake: FakeEngine, engine: VllmEngine) -> None:
    """aclose() returns with the connection closed, and the engine sees it."""
    gate = HoldGate()
    fake.script = Script(holds={2: gate})
    stream = open_leg(engine, leg())
    await anext(stream)
    await stream.aclose()
    await fake.idle()
    assert fake.calls[0].state == "aborted"
    assert fake.connections == 0


async def test_metrics_of_several_ranks(fake: FakeEngine, engine: VllmEngine) -> None:
    """Ranks add up, the fullest one tells the KV use."""
    fake.metrics = "".join(
        f'vllm:{name}{{engine="{rank}"}} {value}\n'
        for name, values in (
            ("num_requests_running", (2, 3)),
            ("num_requests_waiting", (0, 1)),
            ("kv_cache_usage_perc", (0.25, 0.5)),
        )
        for rank, value in enumerate(values)
    )
    load = await engine.load()
    assert (load.running, load.waiting, load.kv_usage) == (5, 1, 0.5)


async def test_probe_of_an_engine_that_says_little(fake: FakeEngine, engine: VllmEngine) -> None:
    """Unknown things are None, and a load that is not told is an error."""
    fake.metrics = "nothing 1\n"
    capabilities = await engine.probe()
    assert capabilities.block_size_tokens is None
    assert capabilities.boot_id is None
    with pytest.raises(EngineBroken):
        await engine.load()


async def test_boot_id_follows_the_process(fake: FakeEngine, engine: VllmEngine) -> None:
    """A restarted engine has another boot id."""
    before = (await engine.probe()).boot_id
    assert (await engine.load()).boot_id == before
    fake.boot_time += 1
    assert (await engine.load()).boot_id not in (None, before)
    assert (await engine.probe()).boot_id not in (None, before)


async def test_unhealthy_engine(fake: FakeEngine, engine: VllmEngine) -> None:
    """A probe of an engine that calls itself ill says that it is not available."""
    fake.healthy = False
    with pytest.raises(EngineUnavailable):
        await engine.probe()


async def test_probe_of_something_else(engine: VllmEngine, fake: FakeEngine) -> None:
    """A server that is no engine breaks the probe."""
    other = VllmEngine("other", fake.url + "/elsewhere")
    with pytest.raises(EngineBroken):
        await other.probe()
    await other.aclose()


async def test_usage_is_optional(fake: FakeEngine, engine: VllmEngine) -> None:
    """A stream without usage is whole if its ids are."""
    fake.script = Script(with_usage=False)
    got: list[LegChunk] = await collect(engine, leg())
    assert len(ids_of(got)) == 6
    assert all(chunk.usage is None for chunk in got)


async def test_an_engine_that_loses_ids_is_known_by_it(fake: FakeEngine, engine: VllmEngine) -> None:
    """Once ids were lost the probe says so, until the engine process is another one."""
    assert (await engine.probe()).streams_token_ids
    fake.scripts.append(Script(fault=LoseIds(frozenset({1}))))
    with pytest.raises(IdsMissing):
        await collect(engine, leg())
    assert not (await engine.probe()).streams_token_ids
    fake.boot_time += 1
    assert (await engine.probe()).streams_token_ids


async def test_text_without_ids_is_noticed_at_once(fake: FakeEngine, engine: VllmEngine) -> None:
    """A hole shows before anything after it is passed on."""
    pieces = (event(TOKEN % ""), event('{"choices":[{"text":"lost","token_ids":null}]}'), FINISH, DONE)
    fake.script = Script(fault=Verbatim(pieces))
    ids: list[int] = []
    with pytest.raises(IdsMissing):
        await engine.generate(leg(), lambda chunk: ids.extend(chunk.token_ids))
    assert ids == [5]


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_hole_is_found_in_its_chunk(fake: FakeEngine, engine: VllmEngine, size: int) -> None:
    """SPL-07: the engine's running count tells of a lost id before its chunk, or any after it, is passed on."""
    fake.script = Script(chunks=(size,), fault=LoseIds(frozenset({7})))
    ids: list[int] = []
    with pytest.raises(IdsMissing):
        await engine.generate(leg(12), lambda chunk: ids.extend(chunk.token_ids))
    assert ids == continuation(PROMPT, 7 // size * size)


async def test_without_a_running_count_a_hole_shows_at_the_end(fake: FakeEngine, engine: VllmEngine) -> None:
    """SPL-07: an engine that ignores the wish for it is judged by its last usage."""
    fake.script = Script(fault=LoseIds(frozenset({2})), counts_up=False)
    ids: list[int] = []
    with pytest.raises(IdsMissing):
        await engine.generate(leg(), lambda chunk: ids.extend(chunk.token_ids))
    assert len(ids) == 5


async def test_usage_is_told_once(fake: FakeEngine, engine: VllmEngine) -> None:
    """Of an engine's running counts only the last is passed on, whether or not a chunk of its own brings it."""
    assert [chunk.usage for chunk in await collect(engine, leg()) if chunk.usage] == [LegUsage(len(PROMPT), 6, 0)]
    counted = ',"finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":%d}}'
    pieces = [event((TOKEN % "").replace("}]}", counted % count)) for count in (1, 2)]
    fake.script = Script(fault=Verbatim((pieces[0].replace(b'"length"', b"null"), pieces[1], DONE)))
    assert [chunk.usage for chunk in await collect(engine, leg()) if chunk.usage] == [LegUsage(4, 2)]


async def test_probe_of_a_server_that_lists_no_models() -> None:
    """An answer of another shape breaks the probe."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    async with RawServer(say(ok), say(ok)) as server:
        other = VllmEngine("other", server.url)
        with pytest.raises(EngineBroken):
            await other.probe()
        await other.aclose()


async def test_probe_of_a_silent_server() -> None:
    """A probe that is not answered in time says that the engine is not available."""
    async with RawServer(say()) as server:
        silent = VllmEngine("silent", server.url, control_timeout_s=0.05)
        with pytest.raises(EngineUnavailable):
            await silent.probe()
        await silent.aclose()
