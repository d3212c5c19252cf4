"""How vLLM is asked for its prompt of a chat."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from backends.base import find_chat_reader
from backends.engines.patient import PatientEngine
from backends.engines.sglang import SglangEngine
from backends.engines.vllm import VllmEngine
from backends.engines.vllm_chat import decode_ids, encode_render, encode_tokenize
from backends.errors import EngineBroken, EngineRejected
from tests.fakes.engine import FakeEngine
from tests.fakes.script import Refuse

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("chat", "body"),
    [
        ({"tools": [], "documents": None}, {"chat_template_kwargs": {}}),
        ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"x": 1}, "documents": [{"a": "b"}]},
            {
                "chat_template_kwargs": {
                    "enable_thinking": False,
                    "x": 1,
                    "reasoning_effort": "none",
                    "documents": [{"a": "b"}],
                }
            },
        ),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
        ),
    ],
)
def test_tokenize_means_what_the_chat_means(chat: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Fields that /tokenize does not know go to the template as the chat endpoint would give them."""
    told = orjson.loads(encode_tokenize("m", {"messages": [USER], **chat}))
    assert told == {"model": "m", "messages": [USER], "chat_template_kwargs": {}, **body}


def test_reasoning_has_the_name_that_is_read() -> None:
    """/tokenize knows reasoning by one name only."""
    answer = {"role": "assistant", "content": "A", "reasoning_content": "T"}
    told = orjson.loads(encode_tokenize("m", {"messages": [answer]}))
    assert told["messages"] == [{"role": "assistant", "content": "A", "reasoning": "T"}]


def test_render_gets_the_chat() -> None:
    """/render takes a chat request as it is, without what was not given."""
    chat = {"messages": [USER], "tools": None, "reasoning_effort": "low", "continue_final_message": False}
    assert orjson.loads(encode_render("m", chat)) == {
        "model": "m",
        "messages": [USER],
        "reasoning_effort": "low",
        "continue_final_message": False,
    }


@pytest.mark.parametrize("body", [b"{}", b'{"tokens": []}', b'{"tokens": "x"}', b"[" * 5000, b'{"token_ids": null}'])
def test_an_answer_without_ids(body: bytes) -> None:
    """What tells no ids is broken."""
    with pytest.raises(EngineBroken):
        decode_ids(body)


async def test_the_path_that_is_there_is_asked(fake: FakeEngine, engine: VllmEngine) -> None:
    """Without /render, /tokenize is asked; its refusal is the chat's, and so is a missing path."""
    with pytest.raises(EngineRejected) as caught:
        await engine.read_chat("demo", {"messages": [USER]})
    assert caught.value.status == 404
    fake.reads_chat = lambda chat: (
        [1, 2, 3] if chat["messages"] == [USER] else Refuse(400, {"error": {"message": "no"}})
    )
    assert await engine.read_chat("demo", {"messages": [USER]}) == [1, 2, 3]
    with pytest.raises(EngineRejected) as caught:
        await engine.read_chat("demo", {"messages": [USER, USER]})
    assert (caught.value.status, caught.value.message) == (400, "no")


async def test_who_reads_chats(engine: VllmEngine) -> None:
    """An engine is found within what is around it; one that tells nothing is not."""
    assert find_chat_reader(PatientEngine(engine, 1.0)) is engine
    other = SglangEngine("s", "http://127.0.0.1:9")
    assert find_chat_reader(other) is None
    await other.aclose()
