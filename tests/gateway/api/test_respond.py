"""Events to SSE bytes, without a socket: whatever the events' sizes, the client's text is the same."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.types import TokenLogprob
from gateway.api.app import ApiState
from gateway.api.chat import prepare_chat
from gateway.api.choices import AnswerFormat, ChatFormat, Choice, CompletionFormat
from gateway.api.completions import prepare_completion
from gateway.api.models import Models
from gateway.api.prepare import Caller, PreparedRequest
from gateway.api.respond import StreamWriter
from gateway.relay.types import Finish, Tokens
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedAnswer, ScriptedGenerator, say
from tests.fakes.gates import Watch
from tests.gateway.api.raw import CHAT
from tests.gateway.text.test_stops import first_match

STOPS = ["e", " the", "th", "😀", "\ufffd", "ab"]


async def make_job(state: ApiState, chat: bool, change: dict[str, Any]) -> PreparedRequest:
    """Return the prepared of a request."""
    models = Models(state.models, state.created)
    caller = Caller("default")
    if chat:
        return await prepare_chat({**CHAT, **change}, 100, models, caller)
    return await prepare_completion({"model": "tiny", "prompt": "x", "max_tokens": 500, **change}, 100, models, caller)


def run(
    prepared: PreparedRequest, form: AnswerFormat, ids: list[int], chunks: list[int]
) -> tuple[list[dict[str, Any]], ScriptedAnswer]:
    """Return the chunks that a scripted answer becomes."""
    answer = ScriptedAnswer(prepared.requests[0], [], Watch())
    writer = StreamWriter(prepared, form, [Choice(0, answer, prepared.model.vocabulary, prepared.text)])
    data = b""
    for step in say(ids, chunks):
        assert isinstance(step, Tokens | Finish)
        data += writer.take(0, step) if isinstance(step, Tokens) else writer.finish(0, step)
    data += writer.end()
    *events, done, rest = data.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events], answer


@pytest.mark.parametrize("chat", [True, False])
def test_text_whatever_the_chunks(state: ApiState, model: ServedModel, chat: bool) -> None:
    """For any ids and event sizes the client's text is the decoded log cut at the first stop string."""
    prepared = asyncio.run(make_job(state, chat, {"stop": STOPS[:2], "stream": True}))
    form: AnswerFormat = ChatFormat() if chat else CompletionFormat()

    @given(st.lists(st.integers(3, model.vocabulary.size - 1), max_size=40), st.lists(st.integers(1, 7), max_size=20))
    @settings(suppress_health_check=[HealthCheck.nested_given])
    def check(ids: list[int], sizes: list[int]) -> None:
        events, answer = run(prepared, form, ids, sizes)
        choices = [event["choices"][0] for event in events]
        text = "".join(c["delta"].get("content", "") if chat else c["text"] for c in choices)
        whole = model.tokenizer.decode(ids)
        match = first_match(whole, STOPS[:2])
        assert text == (whole if match is None else whole[: match[0]])
        assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert choices[-1]["stop_reason"] == (None if match is None else whole[slice(*match)])
        assert (answer.stopped_at is None) == (match is None or match[1] > len(model.tokenizer.decode(ids)))

    check()


async def test_ids_are_cut_with_the_text(state: ApiState, model: ServedModel) -> None:
    """Ids, log-probabilities and usage end at the id that completed the stop string, in the middle of an event too."""
    change = {"stop": "b", "stream": True, "logprobs": 1, "return_token_ids": True}
    prepared = await make_job(state, False, {**change, "stream_options": {"include_usage": True}})
    ids = model.encoder.encode_now("1a2b3c")
    events, answer = run(prepared, CompletionFormat(), ids, [1, len(ids)])
    needed = answer.stopped_at
    assert needed is not None
    assert needed < len(ids)
    assert [i for e in events[:-1] for i in e["choices"][0].get("token_ids", [])] == ids[:needed]
    assert events[-1]["usage"]["completion_tokens"] == needed
    assert events[-1]["choices"] == []


async def test_continuous_usage(state: ApiState, model: ServedModel) -> None:
    """On request every chunk has the counts so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    prepared = await make_job(state, True, {"stream": True, "stream_options": options})
    ids = model.encoder.encode_now("Hello.")
    events, _ = run(prepared, ChatFormat(), ids, [])
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(ids))


async def test_non_finite_logprobs(state: ApiState, generator: ScriptedGenerator) -> None:
    """What JSON cannot spell becomes OpenAI's stand-in."""
    prepared = await make_job(state, True, {"stream": True, "logprobs": True, "top_logprobs": 2})
    choice = Choice(0, ScriptedAnswer(prepared.requests[0], [], Watch()), prepared.model.vocabulary, prepared.text)
    bad = TokenLogprob(300, float("-inf"), ((300, float("nan")), (301, -123456.0)))
    data = StreamWriter(prepared, ChatFormat(), [choice]).take(0, Tokens(0, (300,), (bad,), "P", "p"))
    event = json.loads(data.decode().split("\n\n")[1].removeprefix("data: "))
    entry = event["choices"][0]["logprobs"]["content"][0]
    assert (entry["logprob"], [top["logprob"] for top in entry["top_logprobs"]]) == (-9999.0, [-9999.0, -9999.0])
