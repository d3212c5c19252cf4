"""Requests that were made to hurt the process or others: their bodies, and how each is refused."""

from typing import Any

USER = {"role": "user", "content": "Hi"}


def call(arguments: str, count: int = 1) -> dict[str, Any]:
    """A chat whose past has ``count`` tool calls with these arguments."""
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}] * count
    return {"messages": [USER, {"role": "assistant", "tool_calls": calls}, USER]}


MUCH_JSON: dict[str, dict[str, Any]] = {
    "a 1 MB list of numbers in arguments": call("[" + "0," * 300_000 + "0]"),
    "a million marks in arguments": call("[" + "{}," * 200_000 + "{}]"),
    "1,000 open lists in arguments": call("[" * 1000),
    "90,000 lists in each other in arguments": call("[" * 90_000 + "]" * 90_000),
    "101 objects in each other in arguments": call('{"a":' * 101 + "0" + "}" * 101),
    "101 calls with 1,000 values each": call("[" + "0," * 1000 + "0]", 101),
    "a number of 5,000 digits in arguments": call("1" * 5000),
}
"""Chats whose tool calls' arguments are refused with ``template_error``, as they hold too much JSON or none."""

MUCH_BESIDE: dict[str, dict[str, Any]] = {
    "an unknown field": {"odd": "x" * 70_000},
    "many unknown fields": {f"odd{rank}": rank for rank in range(8000)},
    "a bias for many tokens": {"logit_bias": {str(rank): 1 for rank in range(8000)}},
    "many ids that end an answer": {"stop_token_ids": list(range(20_000))},
    "a large schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 70_000]}}}},
}
"""What travels beside a prompt into every leg and is refused with ``too_much_beside``."""
