"""``tool_choice``: which tools the model sees, and whether it has to call one.

A forced call is an answer under a grammar that is made of the tools' schemas, as vLLM makes it: the arguments of the
one tool, or an array of names and parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.fields import STRUCTURED_FIELDS
from gateway.api.wire import ChatFields
from gateway.errors import bad_field
from gateway.http.body import JsonObject

Tool = Mapping[str, Any]
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``shown``: the tools that the model sees. ``callable``: whether calls of theirs are read.

    ``schema``: of the JSON that the answer has to be; ``name``: of the one function that is called with it.
    """

    shown: Sequence[Tool] = ()
    callable: bool = True
    schema: Mapping[str, Any] | None = None
    name: str | None = None

    def constrain(self, rest: JsonObject) -> JsonObject:
        """Return what the engine gets of the body, with the grammar of a forced call in place of any other."""
        if self.schema is None:
            return rest
        others = {name: value for name, value in rest.items() if name not in STRUCTURED_FIELDS}
        return {**others, "structured_outputs": {"json": self.schema}}


def read_tool_choice(fields: ChatFields) -> ToolChoice:
    """Return what the request says of tools. Raises GatewayError."""
    tools: Sequence[Tool] = fields.tools or []
    choice: Any = fields.tool_choice
    names = check_tools(tools)
    match choice:
        case None | "auto":
            return ToolChoice(tools)
        case "none":
            return ToolChoice(tools, callable=False)
        case {"type": "allowed_tools"}:
            tools, choice = find_allowed(choice, tools, names)
            if choice == "auto":
                return ToolChoice(tools)
    if not tools:
        raise bad_field("tool_choice", "tool_choice asks for a call, and there are no tools.", "invalid_value")
    if choice == "required":
        return ToolChoice(tools, schema=array_schema(tools, fields.parallel_tool_calls is not False))
    name = find_name(choice)
    if name is None:
        words = "tool_choice is none, auto, required, a function or allowed_tools."
        raise bad_field("tool_choice", words, "invalid_value")
    if name not in names:
        raise bad_field("tool_choice", f"The tool {name[:100]!r} is not among tools.", "invalid_value")
    return ToolChoice(tools, schema=parameters(tools[names.index(name)]), name=name)


def check_tools(tools: Sequence[Tool]) -> list[str]:
    """Return the functions' names. Raises GatewayError."""
    names = []
    for rank, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{rank}].function", "A tool needs a function with a name.", "invalid_type")
        if not isinstance(function.get("parameters") or {}, dict):
            raise bad_field(f"tools[{rank}].function.parameters", "parameters is a JSON schema.", "invalid_type")
        names.append(function["name"])
    return names


def find_name(choice: Any) -> str | None:
    """Return the function that a choice names: nested, as in chat, or flat, as in Responses."""
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def find_allowed(choice: Mapping[str, Any], tools: Sequence[Tool], names: Sequence[str]) -> tuple[list[Tool], str]:
    """Return the tools that are allowed, and whether one of them has to be called."""
    told = choice.get("allowed_tools", choice)
    allowed = told.get("tools") if isinstance(told, dict) else None
    wanted = [find_name(entry) for entry in allowed] if isinstance(allowed, list) else []
    mode = told.get("mode", "auto") if isinstance(told, dict) else None
    if not wanted or mode not in ("auto", "required"):
        words = "allowed_tools has a mode, auto or required, and tools."
        raise bad_field("tool_choice", words, "invalid_value")
    for name in wanted:
        if name not in names:
            raise bad_field("tool_choice", f"The tool {str(name)[:100]!r} is not among tools.", "invalid_value")
    return [tool for tool, name in zip(tools, names, strict=True) if name in wanted], mode


def parameters(tool: Tool) -> Mapping[str, Any]:
    """Return the schema of a tool's arguments."""
    schema: Mapping[str, Any] = tool["function"].get("parameters") or NO_ARGUMENTS
    return schema


def array_schema(tools: Sequence[Tool], parallel: bool) -> Mapping[str, Any]:
    """Return the schema of an array of calls. Raises GatewayError."""
    definitions: dict[str, Any] = {}
    entries = []
    for rank, tool in enumerate(tools):
        schema = dict(parameters(tool))
        for name, definition in (schema.pop("$defs", None) or {}).items():
            if definitions.setdefault(name, definition) != definition:
                words = f"Another tool defines {name[:100]!r} otherwise."
                raise bad_field(f"tools[{rank}].function.parameters", words, "invalid_value")
        called = {"name": {"type": "string", "enum": [tool["function"]["name"]]}, "parameters": schema}
        entries.append({"properties": called, "required": ["name", "parameters"]})
    return {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": entries},
        **({} if parallel else {"maxItems": 1}),
        **({"$defs": definitions} if definitions else {}),
    }
