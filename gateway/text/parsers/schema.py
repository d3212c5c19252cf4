"""The tools that a request offers, and what the text of an argument means by their schemas."""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.http.json_bounds import BoundedJson

JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}


class Tools:
    """The offered functions by name, with their parameters' schemas."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._schemas: dict[str, Any] = {
            function["name"]: function.get("parameters")
            for function in functions
            if isinstance(function, Mapping) and isinstance(function.get("name"), str)
        }

    def has(self, name: str) -> bool:
        """Say whether the function is offered."""
        return name in self._schemas

    def spell(self, name: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Return the JSON object of arguments that are given as plain text."""
        return join_object({key: self.spell_one(name, key, text) for key, text in arguments})

    def spell_one(self, name: str, key: str, text: str) -> str:
        """Return one argument's plain text as JSON."""
        return spell_value(text, allowed_types(self._schemas.get(name), key))


def join_object(members: Mapping[str, str]) -> str:
    """Return a JSON object of values that are JSON already."""
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()) + "}"


def allowed_types(schema: Any, key: str) -> frozenset[str]:
    """Return the types that a parameter may have; none: its schema does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    waiting = [known.get(key, schema.get("additionalProperties"))]
    types: set[str] = set()
    seen: set[int] = set()
    # Schemas are clients': they may refer to themselves, and be no schemas at all.
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        named = part.get("type")
        types.update(name for name in as_list(named) or [named] if isinstance(name, str))
        types.update(_type_of(value) for value in as_list(part.get("enum")))
        if "const" in part:
            types.add(_type_of(part["const"]))
        waiting.append(find_reference(part.get("$ref"), schema))
        for choice in ("anyOf", "oneOf", "allOf"):
            waiting.extend(as_list(part.get(choice)))
    return JSON_TYPES & types


def as_list(value: Any) -> list[Any]:
    """Return a list, and an empty one for anything else."""
    return value if isinstance(value, list) else []


def find_reference(reference: Any, root: Any) -> Any:
    """Return what a reference within a schema leads to."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
    return "object"


def spell_value(text: str, types: frozenset[str]) -> str:
    """Return an argument's text as JSON of one of the types, and as a string where it is none of them.

    Without a schema only what is clearly an object or an array is taken for one.
    """
    wanted = types or frozenset({"object", "array", "string"})
    if wanted != {"string"}:
        plain = text.strip()
        spelled = PYTHON_WORDS.get(plain, plain)
        value = read_json(spelled)
        if value is None:
            spelled, value = read_python(plain, wanted)
        if value is not None and _fits(value[0], wanted):
            return spelled
    return json.dumps(text, ensure_ascii=False)


def _fits(value: Any, wanted: frozenset[str]) -> bool:
    kind = _type_of(value)
    if kind == "integer" and "number" in wanted:
        return True
    if kind == "number" and "integer" in wanted and value.is_integer():
        return True
    return kind in wanted


def read_json(text: str) -> tuple[Any] | None:
    """Return a JSON value in a tuple; None: it is none by the letter of JSON, or more than is parsed."""
    try:
        value = BoundedJson().parse(text)
        # Python's own parser takes NaN, and escapes of half a character.
        msgspec.json.decode(text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return (value,)


def read_python(text: str, wanted: frozenset[str]) -> tuple[str, tuple[Any] | None]:
    """Return a list or dict that is spelled as Python has it, as JSON; and its value in a tuple, or None."""
    if not wanted & {"object", "array"} or text[:1] not in "[{" or not text:
        return text, None
    try:
        value = ast.literal_eval(text)
        spelled = json.dumps(value, ensure_ascii=False, allow_nan=False)
        spelled.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text, None
    return spelled, (value,)
