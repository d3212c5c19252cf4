"""``POST /v1/messages``: Anthropic's requests as chats. The rules are those of vLLM 0.32's own endpoint.

One rule is another: fields and blocks that would be without effect are refused by name, but for those that only steer
Anthropic's own servers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.api.chat import prepare_chat
from gateway.api.fields import refuse_untold
from gateway.api.models import Models
from gateway.api.prepare import Caller, PreparedRequest, rename
from gateway.errors import bad_field
from gateway.http.body import JsonObject
from gateway.text.conversation import BILLING_HEADER

AS_IN_CHAT = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k", "chat_template_kwargs")
OWN = ("messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config", "metadata")
OF_ANTHROPICS_SERVERS = frozenset({"context_management", "service_tier", "inference_geo", "betas"})
"""Fields that say how Anthropic's servers are to go about it; they are passed over."""
REFUSED = ("container", "mcp_servers")
EFFORTS = ("low", "medium", "high", "xhigh", "max")


async def prepare_messages(value: JsonObject, size_bytes: int, models: Models, caller: Caller) -> PreparedRequest:
    """Make a translated body ready. Raises GatewayError."""
    return rename(await prepare_chat(value, size_bytes, models, caller), "msg_")


def translate_messages(value: JsonObject) -> JsonObject:
    """Return a body of ``/v1/messages`` as one of chat. Raises GatewayError."""
    if value.get("max_tokens") is None:
        raise bad_field("max_tokens", "The field 'max_tokens' is required.", "missing_field")
    return translate_prompt(value)


def translate_prompt(value: JsonObject) -> JsonObject:
    """Return a body as one of chat, which may have no limit, as where tokens are counted. Raises GatewayError."""
    for name in REFUSED:
        if value.get(name):
            raise bad_field(name, f"The field {name!r} is not supported.", "unsupported_field")
    refuse_untold(value)
    known = {*AS_IN_CHAT, *OWN, *OF_ANTHROPICS_SERVERS, *REFUSED}
    chat: JsonObject = {name: entry for name, entry in value.items() if name not in known}
    chat |= {name: value[name] for name in AS_IN_CHAT if value.get(name) is not None}
    chat["messages"] = [*_read_system(value.get("system")), *_read_messages(value.get("messages"))]
    if value.get("stop_sequences"):
        chat["stop"] = value["stop_sequences"]
    if (user := _of(value, "metadata", dict).get("user_id")) is not None:
        chat["prompt_cache_key"] = user
    if value.get("tools"):
        chat["tools"] = [_read_tool(tool, rank) for rank, tool in enumerate(_of(value, "tools", list))]
    chat |= _read_choice(_of(value, "tool_choice", dict))
    return chat | _read_thinking(value)


def _of(value: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a field of a kind, an empty one where it is not given. Raises GatewayError."""
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind):
        words = "an object" if kind is dict else "a list"
        raise bad_field(name, f"{name} must be {words}.", "invalid_type")
    return found


def _read_system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    if not isinstance(system, list):
        raise bad_field("system", "system must be text or a list of text blocks.", "invalid_type")
    texts = [_text_of(block, f"system[{rank}]") for rank, block in enumerate(system)]
    # A line of Claude Code's that differs from request to request: no prefix would go beyond it.
    kept = "".join(text for text in texts if not text.startswith(BILLING_HEADER))
    return [{"role": "system", "content": kept}] if kept else []


def _text_of(block: Any, path: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise bad_field(path, "A text block is needed here.", "invalid_type")
    return str(block["text"])


def _read_messages(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "messages must be a list that is not empty.", "invalid_value")
    for rank, message in enumerate(messages):
        path = f"messages[{rank}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise bad_field(f"{path}.role", "A message has the role user, assistant or system.", "invalid_value")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": message["role"], "content": content}
        elif not isinstance(content, list):
            raise bad_field(f"{path}.content", "content must be text or a list of blocks.", "invalid_type")
        elif message["role"] == "assistant":
            yield _read_answer(content, f"{path}.content")
        elif message["role"] == "system":
            yield from _read_system(content)
        else:
            yield from _read_turn(content, f"{path}.content")


def _read_turn(blocks: list[Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a user's turn: the results of tools are messages of their own, before what is said."""
    said: list[dict[str, Any]] = []
    for rank, block in enumerate(blocks):
        place = f"{path}[{rank}]"
        if _kind_of(block, place) == "tool_result":
            yield _read_result(block, place)
        elif block["type"] == "text":
            said.append({"type": "text", "text": _text_of(block, place)})
        else:
            raise _unsupported(block, place)
    if said:
        yield {"role": "user", "content": said[0]["text"] if len(said) == 1 else said}


def _read_result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        texts = [_result_text(part, f"{path}.content[{rank}]") for rank, part in enumerate(content)]
        content = "\n".join(texts)
    elif not (content is None or isinstance(content, str)):
        raise bad_field(f"{path}.content", "A tool's result is text or a list of text blocks.", "invalid_type")
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": content or ""}


def _result_text(part: Any, path: str) -> str:
    if _kind_of(part, path) != "text":
        raise _unsupported(part, path)
    return _text_of(part, path)


def _read_answer(blocks: list[Any], path: str) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for rank, block in enumerate(blocks):
        place = f"{path}[{rank}]"
        kind = _kind_of(block, place)
        if kind == "text":
            texts.append({"type": "text", "text": _text_of(block, place)})
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            arguments = orjson.dumps(block.get("input") or {}).decode()
            function = {"name": str(block.get("name", "")), "arguments": arguments}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif kind != "redacted_thinking":  # which nobody but Anthropic could read
            raise _unsupported(block, place)
    message: dict[str, Any] = {"role": "assistant"}
    if texts:
        message["content"] = texts[0]["text"] if len(texts) == 1 else texts
    elif not calls:
        message["content"] = ""
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _kind_of(block: Any, path: str) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise bad_field(path, "A block is an object with a type.", "invalid_type")
    return str(block["type"])


def _unsupported(block: Mapping[str, Any], path: str) -> Exception:
    kind = str(block["type"])[:40]
    return bad_field(f"{path}.type", f"Blocks of type {kind!r} are not supported here.", "unsupported_content")


def _read_tool(tool: Any, rank: int) -> dict[str, Any]:
    path = f"tools[{rank}]"
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise bad_field(path, "A tool is an object with a name.", "invalid_type")
    if tool.get("type") not in (None, "custom") or not isinstance(tool.get("input_schema"), dict):
        message = f"The tool {tool['name'][:100]!r} runs on Anthropic's servers, and there is none here."
        raise bad_field(f"{path}.type", message, "unsupported_tool")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    deferred = {} if tool.get("defer_loading") is None else {"defer_loading": tool["defer_loading"]}
    return {"type": "function", "function": function, **deferred}


def _read_choice(choice: Mapping[str, Any]) -> JsonObject:
    kind = choice.get("type")
    words: Mapping[Any, Any] = {None: None, "auto": "auto", "any": "required", "none": "none"}
    found: JsonObject = {}
    if kind == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind not in words:
        raise bad_field("tool_choice.type", "tool_choice is auto, any, tool or none.", "invalid_value")
    elif words[kind] is not None:
        found["tool_choice"] = words[kind]
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    return found


def _read_thinking(value: JsonObject) -> JsonObject:
    """Return what the client says of thinking and of the answer's form, in chat's words."""
    thinking, output = _of(value, "thinking", dict), _of(value, "output_config", dict)
    kind, effort, form = thinking.get("type"), output.get("effort"), output.get("format")
    found: JsonObject = {}
    if effort is not None:
        if effort not in EFFORTS:
            raise bad_field("output_config.effort", f"effort is one of {', '.join(EFFORTS)}.", "invalid_value")
        found["reasoning_effort"] = effort
    if kind == "disabled":
        found["reasoning_effort"] = "none"
    elif kind == "enabled":
        found["chat_template_kwargs"] = {"enable_thinking": True, **(value.get("chat_template_kwargs") or {})}
        found["thinking_token_budget"] = thinking.get("budget_tokens")
    elif kind not in (None, "adaptive"):
        raise bad_field("thinking.type", "thinking is enabled, disabled or adaptive.", "invalid_value")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise bad_field("output_config.format", "The format is a json_schema with its schema.", "invalid_value")
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found
