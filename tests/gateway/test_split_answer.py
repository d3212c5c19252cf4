"""From request to bytes over engines on sockets: an answer that was split says what an unsplit one says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.text.model import ServedModel, load_model
from gateway.text.parsers.registry import find_parsers
from policies.rules import Rules, parse_rules
from tests.fakes.gates import HoldGate
from tests.fakes.script import EOS, Script, fixed_answer
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.raw import connect
from tests.gateway.model_dir import make_model_dir
from tests.gateway.relay.stage import MODEL, QUICK, Stage, open_stage

TEXT = (
    "<think>Hmm 😀, ďá\u0301belské</think>Příliš 👩‍👩‍👧 kůň <|im_start|> ไทย"
    '<tool_call>\n{"name": "get", "arguments": {"city": "東京"}}\n</tool_call>'
    '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>'
)
NEVER_CLOSED = '<think>Hmm 😀 <tool_call>\n{"name": "get", "arguments": {"city": "東京"}}\n</tool_call>\n'
QUOTED = f"{NEVER_CLOSED}or not</think>Příliš 👩‍👩‍👧 kůň"
TOOL = {"type": "function", "function": {"name": "get"}}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there. " * 40}]}
PLAIN = parse_rules({"direct_wan_bound_s": 0, "relay": QUICK, "splitting": {"enabled": False}})
CHUNKS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
FIELDS = st.fixed_dictionaries(
    {"max_tokens": st.integers(30, 200)},
    optional={
        "stream_options": st.just({"include_usage": True}),
        "tools": st.just([TOOL]),
        "tool_choice": st.sampled_from(["auto", "none"]),
        "stop": st.lists(
            st.sampled_from(["</think>", "\u0301", "👩", "Př", "城", '"}', "never", "\ufffd"]), max_size=3
        ),
        "include_stop_str_in_output": st.booleans(),
        "min_tokens": st.integers(0, 30),
        "logprobs": st.just(True),
        "top_logprobs": st.integers(0, 3),
        "skip_special_tokens": st.booleans(),
        "spaces_between_special_tokens": st.booleans(),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.just([300, 400, 500]),
        "return_token_ids": st.booleans(),
    },
)
SHOWN_STOP: dict[str, Any] = {"max_tokens": 99, "stop": ["Př"], "include_stop_str_in_output": True}


@dataclass(slots=True)
class Rig:
    """The API over a relay service over one engine of each role; ``rules`` may be changed between requests."""

    stage: Stage
    server: AppServer
    model: ServedModel
    rules: list[Rules]

    async def ask(self, body: dict[str, Any]) -> Any:
        """Return the essence of an answer."""
        async with connect(self.server) as connection:
            await connection.post("/v1/chat/completions", body)
            status, headers = await connection.read_head()
            if "content-length" in headers:
                answer = json.loads(await connection.reader.readexactly(int(headers["content-length"])))
                assert status == 200, answer
                return essence_of_whole(answer)
            *events, done, _ = b"".join(await connection.read_chunks()).decode().split("\n\n")
            assert done == "data: [DONE]"
            return essence_of_chunks([json.loads(event.removeprefix("data: ")) for event in events])

    async def split(self, body: dict[str, Any], mode: str, cut: int, late: int, relay: tuple[int, ...]) -> Any:
        """Let MD take over when RLD has made ``cut`` ids, and ``late`` more while MD catches up."""
        rules = {"direct_wan_bound_s": 0, "relay": QUICK, "handoff": {"mode": mode, "threshold_tokens": 1}}
        self.rules[:] = [parse_rules(rules)]
        gate, behind, path = HoldGate(), HoldGate(), self.stage.path
        path.is_instant = False
        rld, md = self.stage.engines["rld1"], self.stage.engines["md1"]
        holds = {cut: gate, cut + late: behind} if late and mode == "catch_up" else {cut: gate}
        rld.scripts.append(Script(chunks=relay, holds=holds))
        opened = len(path.transfers)

        async def arrive() -> None:
            await gate.arrivals()
            catching_up = HoldGate()
            if len(holds) > 1:
                md.scripts.append(Script(arrival=catching_up))
            (await path.opened(opened + 1)).complete()
            if len(holds) > 1:
                await catching_up.arrivals()
                gate.open()
                await behind.arrivals()
                catching_up.open()

        arrival = asyncio.create_task(arrive())
        try:
            return await self.ask(body)
        finally:
            arrival.cancel()
            await asyncio.gather(arrival, return_exceptions=True)
            for transfer in path.transfers[opened:]:
                transfer.complete()
            await self.stage.quiet()
            rld.scripts.clear()
            md.scripts.clear()

    async def plain(self, body: dict[str, Any]) -> Any:
        """Let MD make the answer alone."""
        self.rules[:] = [PLAIN]
        self.stage.path.is_instant = True
        answer = await self.ask(body)
        await self.stage.quiet()
        return answer


def comparable(essence: dict[str, Any]) -> dict[str, Any]:
    """Leave out what no engine may have told yet where a stop string ended the answer before the engine did."""
    usage = essence["usage"]
    if not isinstance(essence["end"][1], str) or usage is None:
        return essence
    return essence | {"usage": usage | {"prompt_tokens_details": None}}


def essence_of_whole(answer: dict[str, Any]) -> dict[str, Any]:
    """What a whole answer says, but for names and times."""
    (choice,) = answer["choices"]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()],
        "logprobs": (choice["logprobs"] or {}).get("content", []),
        "ids": choice.get("token_ids", []),
        "end": (choice["finish_reason"], choice["stop_reason"]),
        "usage": answer["usage"],
    }


def essence_of_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a stream says, put together; each call's name and id come once, and the finish comes once and last."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "logprobs": [], "ids": [], "end": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert said["end"] is None
            delta = choice["delta"]
            said["content"] += delta.get("content") or ""
            said["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(said["calls"])
                    said["calls"].append((call["function"]["name"], ""))
                name, arguments = said["calls"][call["index"]]
                said["calls"][call["index"]] = (name, arguments + call["function"]["arguments"])
            said["logprobs"] += (choice["logprobs"] or {}).get("content", [])
            said["ids"] += choice.get("token_ids", [])
            said["end"] = choice["finish_reason"] and (choice["finish_reason"], choice["stop_reason"])
    said["usage"] = chunks[-1].get("usage")
    return said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """A byte-level model whose answers hold reasoning and calls."""
    directory: Path = make_model_dir(tmp_path_factory.mktemp("split_answer"))
    served = load_model(MODEL, directory)
    yield replace(served, parsers=find_parsers("hermes", "think", ()))
    served.close()


@pytest.fixture
async def rig(model: ServedModel) -> AsyncIterator[Rig]:
    """Everything on sockets."""
    rules = [PLAIN]
    access = replace(make_access(), rules_of=lambda tenant, key: rules[0])
    async with open_stage(ids=("p1", "rld1", "md1")) as stage:
        pages = Pages(lambda: [], lambda request_id: None, lambda: (b"", "text/plain"))
        state = ApiState({MODEL: model}, stage.service, 0, access, pages)
        async with AppServer(build_app(state)) as server:
            yield Rig(stage, server, model, rules)


@pytest.mark.timeout(240)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=FIELDS,
    stream=st.booleans(),
    cut=st.integers(1, 120),
    late=st.integers(0, 40),
    mode=st.sampled_from(["one_shot", "catch_up"]),
    chunks=st.tuples(CHUNKS, CHUNKS),
    text=st.sampled_from([TEXT, NEVER_CLOSED, QUOTED]),
    other_ids=st.none() | st.lists(st.integers(3, 700), min_size=1, max_size=60),
)
@example(SHOWN_STOP, True, 5, 100, "catch_up", ((1,), (1,)), TEXT, None)
@example(SHOWN_STOP, False, 5, 100, "catch_up", ((1,), (1,)), TEXT, None)
async def test_a_split_answer_says_what_an_unsplit_one_says(
    rig: Rig,
    fields: dict[str, Any],
    stream: bool,
    cut: int,
    late: int,
    mode: str,
    chunks: tuple[tuple[int, ...], tuple[int, ...]],
    text: str,
    other_ids: list[int] | None,
) -> None:
    """Text, its parts, calls, ids, log-probabilities, finish and usage are the same wherever the joint is."""
    if "top_logprobs" in fields:
        fields["logprobs"] = True
    if not stream:
        fields.pop("stream_options", None)
    body = {**CHAT, **fields, "stream": stream}
    template = rig.model.template
    assert template is not None
    prompt = rig.model.encoder.encode_now(template.render(CHAT["messages"], tools=fields.get("tools")))
    ids = other_ids or [*rig.model.encoder.encode_now(text), EOS]
    for engine in rig.stage.engines.values():
        engine.model = fixed_answer(len(prompt), ids)
    rig.stage.engines["md1"].calls.clear()
    rig.stage.engines["md1"].script = Script(chunks=chunks[1], cached_tokens=len(prompt))
    split = await rig.split(body, mode, cut, late, chunks[0])
    if split["ids"] and len(split["ids"]) > cut + late + 1:
        assert rig.stage.engines["md1"].calls
    assert comparable(split) == comparable(await rig.plain(body))
