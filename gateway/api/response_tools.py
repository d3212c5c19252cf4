"""The tools of ``/v1/responses`` as functions, which is all that a model's template knows, and their calls back again.

A namespace's functions are called ``NAMESPACE__NAME``. A custom tool takes free text: as a function it has one text,
``input``. The rules are vLLM 0.32's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.errors import bad_field
from gateway.http.body import JsonObject

SEPARATOR = "__"
FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class ToolNames:
    """How calls of functions are told to the client. ``spaces``: namespace and name there, by a function's name."""

    spaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    custom: frozenset[str] = frozenset()

    def spell_call(self, name: str, arguments: str) -> JsonObject:
        """Return the fields of a call's item that depend on what was called; ``arguments`` empty: it has just begun."""
        if name in self.custom:
            return {"type": "custom_tool_call", "name": name, "input": arguments and input_of(arguments)}
        space, local = self.spaces.get(name, (None, name))
        spaced = {} if space is None else {"namespace": space}
        return {"type": "function_call", "name": local, **spaced, "arguments": arguments}

    def spell_piece(self, name: str, text: str) -> str:
        """Return a complete call's arguments as its delta has them."""
        return input_of(text) if name in self.custom else text


def input_of(arguments: str) -> str:
    """Return a custom tool's text; what is no such call is the text itself."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def name_tools(tools: Any) -> ToolNames:
    """Return the names of the tools of a body that was read."""
    spaces = {
        f"{tool['name']}{SEPARATOR}{inner['name']}": (tool["name"], inner["name"])
        for tool in tools or ()
        if tool["type"] == "namespace"
        for inner in tool["tools"]
    }
    return ToolNames(spaces, frozenset(tool["name"] for tool in tools or () if tool["type"] == "custom"))


def read_tools(tools: Any) -> list[JsonObject]:
    """Return the tools as chat has them. Raises GatewayError."""
    if not isinstance(tools, list):
        raise bad_field("tools", "tools must be a list.", "invalid_type")
    return [read for rank, tool in enumerate(tools) for read in _read_tool(tool, f"tools[{rank}]")]


def _read_tool(tool: Any, path: str) -> Iterator[JsonObject]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":
        yield _function(tool, path)
    elif kind == "custom":
        yield _function({"description": tool.get("description"), "name": tool.get("name"), "parameters": TEXT}, path)
    elif kind == "namespace" and isinstance(tool.get("name"), str) and isinstance(tool.get("tools"), list):
        for rank, inner in enumerate(tool["tools"]):
            place = f"{path}.tools[{rank}]"
            if not isinstance(inner, dict) or inner.get("type") != "function":
                raise bad_field(f"{place}.type", "A namespace holds functions.", "unsupported_tool")
            read = _function(inner, place)
            read["function"]["name"] = f"{tool['name']}{SEPARATOR}{inner['name']}"
            yield read
    elif kind != "web_search" or tool.get("external_web_access") is not False:
        # Without access to the web a search is but what OpenAI's servers have stored: Codex offers it by itself.
        message = (
            f"Tools of type {str(kind)[:40]!r} need OpenAI's servers; functions, custom tools and namespaces do not."
        )
        raise bad_field(f"{path}.type", message, "unsupported_tool")


def _function(tool: Mapping[str, Any], path: str) -> JsonObject:
    if not isinstance(tool.get("name"), str):
        raise bad_field(f"{path}.name", "A tool needs a name.", "missing_field")
    return {
        "type": "function",
        "function": {name: tool[name] for name in FUNCTION_FIELDS if tool.get(name) is not None},
    }


def read_choice(choice: Any, tools: Any) -> Any:
    """Return a choice as chat has it; a function of a namespace may be named alone. Raises GatewayError."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return _named(choice, tools)
    if kind == "allowed_tools":
        named = choice.get("tools")
        allowed = [
            _named(one, tools) if isinstance(one, dict) else one for one in (named if isinstance(named, list) else [])
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": allowed}}
    raise bad_field("tool_choice.type", "tool_choice names a function, or allowed_tools.", "invalid_value")


def _named(choice: Mapping[str, Any], tools: Any) -> JsonObject:
    name = choice.get("name")
    spaces = name_tools(tools).spaces
    found = [flat for flat, (_, local) in spaces.items() if local == name]
    if name not in spaces and len(found) == 1:
        name = found[0]
    return {"type": "function", "function": {"name": name}}


def read_call(item: Mapping[str, Any]) -> JsonObject:
    """Return a call of the past as chat has it."""
    name, space = str(item.get("name", "")), item.get("namespace")
    if item.get("type") == "custom_tool_call":
        arguments = orjson.dumps({"input": item.get("input") or ""}).decode()
    else:
        arguments = item.get("arguments") or "{}"
    flat = f"{space}{SEPARATOR}{name}" if isinstance(space, str) and space else name
    function = {"name": flat, "arguments": arguments}
    return {"id": str(item.get("call_id") or item.get("id") or ""), "type": "function", "function": function}
