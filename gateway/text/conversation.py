"""A request's messages and tools as a chat template gets them: the rules of vLLM 0.32, which engines go by.

Where vLLM refuses a message that a client may well send, it is read in the way that loses nothing: arguments may be
objects, parts may be bare strings. One rule is another on purpose: thoughts among the parts are the message's
reasoning, where vLLM takes a ``thinking`` part for text, as if the model had said it aloud, and refuses the others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any

from gateway.http.json_bounds import BoundedJson

PromptMessage = Mapping[str, Any]
PromptMessages = list[dict[str, Any]]

THOUGHT_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "tool_reference"}) | THOUGHT_PARTS
"""Types of parts that a text model can read."""
CALL_FIELDS, FUNCTION_FIELDS = ("id", "function", "type"), ("arguments", "name")
PART_FIELDS = frozenset(
    {
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url"),
        *("input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"),
        *("video_embeds", "video_url"),
    }
)
"""Fields that mean something to engines in a part; a template gets a text part's other ones as well."""
BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a line of Claude Code's system texts that differs from request to request; no prefix would go beyond it."""


def ignore_unread() -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True)
class ArgumentReader:
    """Reads tool calls' arguments as objects; ``on_unread`` is called for each that are none."""

    on_unread: Callable[[], object] = ignore_unread
    _json: BoundedJson = field(default_factory=BoundedJson)

    def read(self, arguments: Any) -> dict[str, Any]:
        """Return an object, an empty one in place of what is none: every later turn would fail for it otherwise.

        Raises ValueError: too much JSON.
        """
        if isinstance(arguments, str) and arguments:
            try:
                arguments = self._json.parse(arguments)
            except JSONDecodeError:
                self.on_unread()
                return {}
        if isinstance(arguments, Mapping):
            return dict(arguments)
        if arguments not in (None, ""):
            self.on_unread()
        return {}


def read_conversation(
    messages: Sequence[PromptMessage], parts: bool, on_unread: Callable[[], object] = ignore_unread
) -> PromptMessages:
    """Return the messages as a template gets them. ``parts``: with contents as lists of parts.

    ``on_unread`` is called for each tool call whose arguments are no JSON object. Raises ValueError: too much JSON.
    """
    arguments = ArgumentReader(on_unread)
    return [_read_message(message, parts, arguments) for message in messages]


def _read_message(message: PromptMessage, parts: bool, arguments: ArgumentReader) -> dict[str, Any]:
    role = message["role"]
    given = _list_parts(message.get("content"))
    if role == "system":
        given = _without_billing(given)
    read: dict[str, Any] = {"role": role, "content": _read_content(given, parts)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            read["tool_calls"] = [_read_call(call, arguments) for call in calls]
        thoughts = _find_reasoning(message, given)
        if thoughts is not None:
            # Templates know it by either name.
            read["reasoning"] = read["reasoning_content"] = thoughts
    elif role == "tool":
        if "tool_call_id" in message:
            read["tool_call_id"] = message["tool_call_id"]
        read["content"] = _as_result(read["content"])
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            read[key] = message[key]
    if role == "developer":
        read["tools"] = message.get("tools")
    return read


def _list_parts(content: Any) -> list[Mapping[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]


def _without_billing(parts: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    kept = []
    for part in parts:
        text = part.get("text")
        if part.get("type") == "text" and isinstance(text, str) and text.startswith(BILLING_HEADER):
            _, _, rest = text.partition("\n")
            if not rest:
                continue
            part = {**part, "text": rest}
        kept.append(part)
    return kept


def _read_content(given: list[Mapping[str, Any]], parts: bool) -> str | list[dict[str, Any]]:
    shown = [part for part in given if part.get("type") not in THOUGHT_PARTS]
    if not parts:
        return "\n".join(filter(None, map(text_of, shown)))
    return [
        {"type": "tool_reference", "name": part.get("name")}
        if part.get("type") == "tool_reference"
        else {"type": "text", "text": text_of(part)} | {key: part[key] for key in part.keys() - PART_FIELDS}
        for part in shown
    ]


def text_of(part: Mapping[str, Any]) -> str:
    """Return a part's text."""
    kind = part.get("type")
    key = "refusal" if kind == "refusal" else "name" if kind == "tool_reference" else "text"
    return str(part.get(key, ""))


def _as_result(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a tool's result as text, unless it refers to tools: templates that take parts do so for users alone."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _find_reasoning(message: PromptMessage, given: list[Mapping[str, Any]]) -> str | None:
    """Return what the model thought, by either name of the field, or else out of parts."""
    for key in ("reasoning", "reasoning_content"):
        if message.get(key) is not None:
            return str(message[key])
    keys = ("thinking", "reasoning", "text")
    thoughts = [
        part[key]
        for part in given
        for key in keys
        if part.get("type") in THOUGHT_PARTS and isinstance(part.get(key), str) and part[key]
    ]
    return "\n".join(thoughts) if thoughts else None


def _read_call(call: Mapping[str, Any], arguments: ArgumentReader) -> dict[str, Any]:
    """Return a tool call in the order that engines have it, its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    read: dict[str, Any] = {"arguments": arguments.read(function.get("arguments"))}
    read |= {"name": function["name"]} if "name" in function else {}
    read |= {key: value for key, value in function.items() if key not in FUNCTION_FIELDS}
    ordered = {key: call[key] for key in CALL_FIELDS if key in call}
    others = {key: value for key, value in call.items() if key not in CALL_FIELDS}
    return {**ordered, "function": read, **others}


def as_engines_take(messages: Sequence[PromptMessage]) -> PromptMessages:
    """Return the messages in the one spelling that engines are sure to take, with the same meaning."""
    return [_spell_message(message) for message in messages]


def _spell_message(message: PromptMessage) -> dict[str, Any]:
    spelled = {key: value for key, value in message.items() if key != "reasoning_content"}
    given = _list_parts(message.get("content"))
    if isinstance(message.get("content"), list):
        spelled["content"] = [dict(part) for part in given if part.get("type") not in THOUGHT_PARTS]
    elif message.get("content") is None and message["role"] != "assistant":
        spelled["content"] = ""
    if message["role"] == "assistant" and (thoughts := _find_reasoning(message, given)) is not None:
        spelled["reasoning"] = thoughts
    if calls := message.get("tool_calls"):
        spelled["tool_calls"] = [_spell_call(call, number) for number, call in enumerate(calls)]
    return spelled


def _spell_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function")
    spelled = {"id": f"call_{number}", "type": "function", **call}
    if isinstance(function, Mapping) and not isinstance(function.get("arguments"), str):
        arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
        spelled["function"] = {**function, "arguments": arguments}
    return spelled


def without_developers(messages: PromptMessages) -> PromptMessages:
    """Return the messages for a template that knows no developers: their texts become the system's, in one message.

    That is the first, as many templates want it, unless there is but one and it stands first already.
    """
    if not any(message["role"] == "developer" for message in messages):
        return messages
    named = [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]
    system = [{key: value for key, value in m.items() if key != "tools"} for m in named if m["role"] == "system"]
    others = [message for message in named if message["role"] != "system"]
    if len(system) == 1 and named[0]["role"] == "system":
        return [*system, *others]
    texts = [_joined(message["content"]) for message in system]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools in the form that engines give templates: their known fields, in one order; None: there are none.

    Whether null stands for what was not given decides how a template spells it.
    """
    if not tools:
        return None
    return [_read_tool(tool) for tool in tools]


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    read: dict[str, Any] = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    given = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", deferred)}
    read |= {key: value for key, value in given.items() if value is not None}
    rest = {} if deferred is None else {"defer_loading": deferred}
    return {"type": "function", "function": read, **rest}
