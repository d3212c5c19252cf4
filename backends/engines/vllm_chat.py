"""How vLLM tells its prompt of a chat or a text: ``/v1/chat/completions/render`` where it is on, else ``/tokenize``."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from backends.errors import EngineBroken

RENDER_PATH = "/v1/chat/completions/render"
TOKENIZE_PATH = "/tokenize"
TOKENIZED = ("tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")
"""What ``/tokenize`` knows by the names that a chat has; all else goes to the template as a value of its own."""


class _Answer(msgspec.Struct):
    tokens: list[int] | None = None
    token_ids: list[int] | None = None


def encode_render(model: str, chat: Mapping[str, Any]) -> bytes:
    """Build a body for RENDER_PATH out of the fields that make a chat's prompt."""
    return orjson.dumps({**_given(chat), "model": model})


def encode_tokenize(model: str, chat: Mapping[str, Any]) -> bytes:
    """Build a body for TOKENIZE_PATH with the same meaning."""
    given = _given(chat)
    values = dict(given.get("chat_template_kwargs") or {})
    if (effort := given.get("reasoning_effort")) is not None:
        values = {"enable_thinking": effort != "none", **values, "reasoning_effort": effort}
    if (documents := given.get("documents")) is not None:
        values["documents"] = documents
    body = {key: given[key] for key in TOKENIZED if key in given}
    messages = [_rename_reasoning(message) for message in given["messages"]]
    return orjson.dumps({**body, "model": model, "messages": messages, "chat_template_kwargs": values})


def encode_text(model: str, text: str, special: bool) -> bytes:
    """Build a body for TOKENIZE_PATH out of a text."""
    return orjson.dumps({"model": model, "prompt": text, "add_special_tokens": special})


def _given(chat: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in chat.items() if value is not None}
    if given.get("continue_final_message"):
        given["add_generation_prompt"] = False
    if not given.get("tools"):
        given.pop("tools", None)
    return given


def _rename_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give reasoning the one name that is read here."""
    thoughts = message.get("reasoning_content")
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return rest if thoughts is None or rest.get("reasoning") is not None else {**rest, "reasoning": thoughts}


def decode_ids(body: bytes) -> list[int]:
    """Return the ids of an answer of either path. Raises EngineBroken."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        raise EngineBroken("the ids of a chat are not told as agreed") from None
    ids = answer.token_ids if answer.tokens is None else answer.tokens
    if not ids:
        raise EngineBroken("a chat has no ids")
    return ids
