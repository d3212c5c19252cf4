"""Plain texts of arguments by the tools' schemas."""

from typing import Any

import pytest

from gateway.text.parsers.schema import Tools


def spell(schema: Any, text: str) -> str:
    """Return the JSON of an argument ``a`` of this schema."""
    parameters = {"type": "object", "properties": {"a": schema}}
    return Tools([{"function": {"name": "f", "parameters": parameters}}]).spell_one("f", "a", text)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "02139", '"02139"'),
        ({"type": "string"}, '{"a": 1}', '"{\\"a\\": 1}"'),
        ({"type": "integer"}, " 7 ", "7"),
        ({"type": "integer"}, "7.0", "7.0"),
        ({"type": "integer"}, "7.5", '"7.5"'),
        ({"type": "integer"}, "seven", '"seven"'),
        ({"type": "number"}, "1e20", "1e20"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "label", '"label"'),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
        ({"enum": [1, "x"]}, "1", "1"),
        ({"const": True}, "true", "true"),
        ({"type": "object"}, "{'a': True, 'b': None}", '{"a": true, "b": null}'),
        ({"type": "object"}, "{broken", '"{broken"'),
        ({}, "12345", '"12345"'),
        ({}, '{"a": 1}', '{"a": 1}'),
        ({"$ref": "#/properties/a"}, "5", '"5"'),
        ({"anyOf": [{"$ref": "#/properties/a"}] * 40 + [{"type": "integer"}]}, "5", "5"),
        ({"type": [{}, 5], "anyOf": 5, "enum": "x", "$ref": 5}, "5", '"5"'),
        ("none", "5", '"5"'),
    ],
)
def test_values(schema: Any, text: str, expected: str) -> None:
    """A value gets a type that its schema allows, and stays a string where it fits none; odd schemas do no harm."""
    assert spell(schema, text) == expected


def test_what_no_schema_tells() -> None:
    """Unknown tools and parameters, and additional properties of a type, are read as far as they tell."""
    tools = Tools([{"function": {"name": "f", "parameters": {"additionalProperties": {"type": "integer"}}}}, {"x": 1}])
    assert tools.spell("f", [("b", "5")]) == '{"b": 5}'
    assert tools.spell("g", [("b", "5"), ("c", "[1]")]) == '{"b": "5", "c": [1]}'
    assert tools.has("f")
    assert not tools.has("g")
