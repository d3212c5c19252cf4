"""``POST /v1/responses``: OpenAI's newer requests as chats. Whole conversations come as input, also those of which the
client had named the stored part (``gateway.api.stored``).
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.api.chat import prepare_chat
from gateway.api.fields import refuse_untold
from gateway.api.models import Models
from gateway.api.prepare import Caller, PreparedRequest, rename
from gateway.api.response_tools import read_call, read_choice, read_tools
from gateway.errors import bad_field
from gateway.http.body import JsonObject

AS_IN_CHAT = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "prompt_cache_key", "user", "metadata")
OWN = ("input", "instructions", "max_output_tokens", "tools", "tool_choice", "reasoning", "text")
PASSED_OVER = frozenset(
    {
        *("client_metadata", "include", "prompt_cache_retention", "safety_identifier", "service_tier", "store"),
        *("stream_options", "truncation"),
    }
)
"""Fields that no engine needs to know: what they ask for is done here, or nothing."""
REFUSED = {
    "previous_response_id": "No responses are stored here (responses.keep_s): send the whole conversation as input.",
    "conversation": "No conversations are stored here: send the whole one as input.",
    "background": "Answers in the background are not supported.",
    "prompt": "No prompts are stored here.",
    "max_tool_calls": "Tools run at the client, which counts their calls.",
    "top_logprobs": "Log-probabilities are not told here; chat completions tell them.",
    "context_management": "Conversations are not shortened here.",
    "enable_response_messages": "Only items are told, and no messages of the model's own format.",
    "previous_input_messages": "Earlier messages are read as input items alone.",
}
TOLD_APART = "message.output_text.logprobs"
THOUGHTS_ASKED = "reasoning.encrypted_content"
"""What ``include`` names where the client wants to send thoughts back in a form that it does not read."""


async def prepare_response(value: JsonObject, size_bytes: int, models: Models, caller: Caller) -> PreparedRequest:
    """Make a translated body ready. Raises GatewayError."""
    return rename(await prepare_chat(value, size_bytes, models, caller), "resp_")


def translate_response(value: JsonObject) -> JsonObject:
    """Return a body of ``/v1/responses`` as one of chat. Raises GatewayError."""
    for name, why in REFUSED.items():
        if value.get(name):
            raise bad_field(name, why, "unsupported_field")
    refuse_untold(value)
    include = value.get("include")
    if isinstance(include, list) and TOLD_APART in include:
        raise bad_field("include", REFUSED["top_logprobs"], "unsupported_field")
    known = {*AS_IN_CHAT, *OWN, *PASSED_OVER, *REFUSED}
    chat: JsonObject = {name: entry for name, entry in value.items() if name not in known}
    chat |= {name: value[name] for name in AS_IN_CHAT if value.get(name) is not None}
    chat["messages"] = [*_read_instructions(value.get("instructions")), *read_input(value.get("input"))]
    chat |= _read_truncation(value.get("truncation"))
    if value.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = value["max_output_tokens"]
    if value.get("tools"):
        chat["tools"] = read_tools(value["tools"])
    if value.get("tool_choice") is not None:
        chat["tool_choice"] = read_choice(value["tool_choice"], value.get("tools"))
    reasoning = value.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat | _read_format(value.get("text"))


def _read_truncation(asked: Any) -> JsonObject:
    if asked not in (None, "disabled", "auto"):
        raise bad_field("truncation", "truncation is auto or disabled.", "invalid_value")
    return {"truncate_prompt_tokens": -1} if asked == "auto" else {}


def _read_instructions(instructions: Any) -> list[dict[str, Any]]:
    if instructions is None:
        return []
    if not isinstance(instructions, str):
        raise bad_field("instructions", "instructions must be text.", "invalid_type")
    return [{"role": "system", "content": instructions}]


def read_input(given: Any) -> list[dict[str, Any]]:
    """Return the messages that items stand for: an answer's thoughts, text and calls are one. Raises GatewayError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad_field("input", "input must be text or a list of items that is not empty.", "invalid_value")
    messages: list[dict[str, Any]] = []
    for rank, item in enumerate(given):
        path = f"input[{rank}]"
        if not isinstance(item, dict):
            raise bad_field(path, "An item is an object.", "invalid_type")
        message = _read_item(item, path)
        if message["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
            _join(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _join(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    """Add what an answer goes on with."""
    for name in ("reasoning", "content", "tool_calls"):
        if name in later:
            parts = [entry for entry in (earlier.get(name), later[name]) if entry]
            earlier[name] = parts[0] if len(parts) == 1 else parts[0] + parts[1] if parts else later[name]


def _read_item(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        return _read_message(item, path)
    if kind in ("function_call", "custom_tool_call"):
        return {"role": "assistant", "tool_calls": [read_call(item)]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = _read_text(item.get("output"), f"{path}.output")
        return {"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": output}
    if kind == "reasoning":
        return {"role": "assistant", "reasoning": _read_thoughts(item)}
    raise bad_field(f"{path}.type", f"Items of type {str(kind)[:40]!r} are not supported here.", "unsupported_content")


def _read_message(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_field(f"{path}.role", "A message's role is user, assistant, system or developer.", "invalid_value")
    content = item.get("content")
    if role == "assistant":
        return {"role": role, "content": _read_text(content, f"{path}.content")}
    if isinstance(content, list):
        content = [{"type": "text", "text": text} for text in _list_texts(content, f"{path}.content")]
        content = content[0]["text"] if len(content) == 1 else content
    return {"role": role, "content": content}


def _read_text(content: Any, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise bad_field(path, "Text or a list of parts is needed here.", "invalid_type")
    return "".join(_list_texts(content, path))


def _list_texts(parts: list[Any], path: str) -> Iterator[str]:
    for rank, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        key = "refusal" if kind == "refusal" else "text"
        if kind not in ("input_text", "output_text", "text", "refusal") or not isinstance(part.get(key), str):
            message = f"Parts of type {str(kind)[:40]!r} are not supported here."
            raise bad_field(f"{path}[{rank}].type", message, "unsupported_content")
        yield part[key]


def pack_thoughts(text: str) -> str:
    """Return thoughts as a client keeps them that does not read them."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def _read_thoughts(item: Mapping[str, Any]) -> str:
    """Return what was thought: as it was told, or out of ``pack_thoughts``; other servers' are nothing to go by."""
    parts = item.get("content") or ()
    told = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    packed = item.get("encrypted_content")
    if told or not isinstance(packed, str):
        return "".join(told)
    try:
        return base64.b64decode(packed, altchars=b"-_", validate=True).decode()
    except ValueError:
        return ""


def _read_format(text: Any) -> JsonObject:
    """Return the answer's form in chat's words."""
    form = text.get("format") if isinstance(text, dict) else None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind != "json_schema" or not isinstance(form, dict):
        raise bad_field("text.format.type", "The format is text, json_object or json_schema.", "invalid_value")
    schema = {name: entry for name, entry in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def wants_thoughts(asked: JsonObject) -> bool:
    """Say whether the client wants thoughts in a form that it does not read."""
    include = asked.get("include")
    return isinstance(include, list) and THOUGHTS_ASKED in include
