"""Small conversations, one for each way in which a conversation can be put together; none is anybody's text.

They show whether two readers of a chat request make the same prompt of it: this gateway and an engine, or this gateway
and vLLM's renderer.
"""

from collections.abc import Mapping
from typing import Any

ShapeBody = Mapping[str, Any]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'A name, as "São Paulo"'},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer", "default": 1},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
STRICT = {
    "type": "function",
    "vendor": 1,
    "function": {"strict": True, "parameters": {"type": "object", "properties": {}}, "name": "now", "x_note": "é"},
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def role(name: str, content: Any) -> dict[str, Any]:
    return {"role": name, "content": content}


def call(arguments: Any, number: int = 1, name: str = "get_weather") -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, number: int = 1) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


ASK, PRAGUE = user("What is the weather in Prague?"), '{"city": "Prague", "days": 2}'
CALLED = [ASK, says(None, tool_calls=[call(PRAGUE)])]

SHAPES: Mapping[str, ShapeBody] = {
    "user": {"messages": [user("Tell me about the fox.")]},
    "system": {"messages": [role("system", "Be brief."), user("Hello")]},
    "turns": {"messages": [role("system", "Be brief."), user("One"), says("1"), user("Two"), says("2"), user("Three")]},
    "blanks": {"messages": [role("system", "\n Be brief. \n"), user("  One \n\n"), says("\n1 "), user(" \n ")]},
    "unicode": {"messages": [user("Žluťoučký kůň 東京 😀👨‍👩‍👧 e\u0301 \u200d")]},
    "markup": {"messages": [user("<b>&amp;</b> {{ x }} {% if %} \"a\" 'b' \\n </s>")]},
    "name": {"messages": [{**user("Hello"), "name": "anna"}, says("Hi"), {**user("Bye"), "name": "ben", "extra": 1}]},
    "parts": {"messages": [user([text("First."), text("Second.")]), says([text("A"), text("B")]), user("More")]},
    "system_parts": {"messages": [role("system", [text("One."), text("Two.")]), user([text("Hello")])]},
    "refusal": {"messages": [user("Do it"), says([{"type": "refusal", "refusal": "No."}]), user("Please")]},
    "developer": {"messages": [role("developer", "Be brief."), user("Hello")]},
    "system_developer": {"messages": [role("system", "Be kind."), role("developer", "Be brief."), user("Hello")]},
    "developer_later": {"messages": [user("Hello"), says("Hi"), role("developer", [text("Be brief.")]), user("Go on")]},
    "system_later": {"messages": [user("Hello"), says("Hi"), role("system", "Be brief."), user("Go on")]},
    "tools": {"messages": [role("system", "Be brief."), ASK], "tools": [WEATHER, CLOCK]},
    "tools_strict": {"messages": [ASK], "tools": [STRICT]},
    "tools_unused": {"messages": [ASK], "tools": [WEATHER], "tool_choice": "none"},
    "result": {"messages": [*CALLED, result("Rain, 7 °C\nWind")], "tools": [WEATHER]},
    "result_parts": {"messages": [*CALLED, result([text("Rain"), text("7 °C")])], "tools": [WEATHER]},
    "result_then_user": {"messages": [*CALLED, result("Rain"), says("It rains."), user("Thanks")], "tools": [WEATHER]},
    "two_calls": {
        "messages": [
            ASK,
            says("I look.", tool_calls=[call(PRAGUE), call("{}", 2, "clock")]),
            result('{"t": 7}'),
            result("noon", 2),
        ],
        "tools": [WEATHER, CLOCK],
    },
    "arguments_cut": {
        "messages": [ASK, says("", tool_calls=[call('{"city": "Pra')]), result("?")],
        "tools": [WEATHER],
    },
    "arguments_odd": {
        "messages": [ASK, says("", tool_calls=[call("[]"), call("", 2), call("42", 3)]), result("?")],
        "tools": [WEATHER],
    },
    "reasoning": {
        "messages": [ASK, says("Rain.", reasoning="It is autumn."), user("Sure?")],
    },
    "reasoning_content": {
        "messages": [ASK, says(None, reasoning_content="Look it up.", tool_calls=[call(PRAGUE)]), result("Rain")],
        "tools": [WEATHER],
    },
    "reasoning_tags": {"messages": [ASK, says("<think>\nAutumn.\n</think>\n\nRain."), user("Sure?")]},
    "thinking": {"messages": [ASK, says([{"type": "thinking", "thinking": "Hm."}, text("Rain.")]), user("Sure?")]},
    "effort_low": {"messages": [user("Hello")], "reasoning_effort": "low"},
    "effort_none": {"messages": [role("system", "Be brief."), user("Hello")], "reasoning_effort": "none"},
    "thinking_off": {
        "messages": [user("Hello")],
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    },
    "continued": {
        "messages": [user("Count"), says("One, two, ")],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "no_prompt": {"messages": [user("Count"), says("One")], "add_generation_prompt": False},
    "billing": {
        "messages": [role("system", [text("x-anthropic-billing-header: cch=1f;"), text("Be brief.")]), user("Hello")]
    },
}
"""By name: the fields of a chat request that its prompt is made of."""

READ_ON_PURPOSE = frozenset({"thinking"})
"""Shapes that the gateway reads in another way than vLLM, see ``gateway.text.conversation``."""
CHECKED: Mapping[str, ShapeBody] = {name: body for name, body in SHAPES.items() if name not in READ_ON_PURPOSE}
"""The shapes that engines are asked for."""

PROMPT_FIELDS = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
    "reasoning_effort",
)
"""The fields of a chat request that its prompt is made of."""


def features_of(chat: Mapping[str, Any]) -> frozenset[str]:
    """Return what a chat is put together of, beyond texts of users and answers to them.

    A shape stands for every chat that has all of its features.
    """
    found = {key for key in PROMPT_FIELDS[1:] if chat.get(key) not in (None, [], {})}
    for rank, message in enumerate(chat["messages"]):
        found |= _features_of_message(message, is_first=not rank)
    return frozenset(found)


def _features_of_message(message: Mapping[str, Any], *, is_first: bool) -> set[str]:
    name = message["role"]
    found = set()
    if name not in ("user", "assistant"):
        found.add(name if is_first or name == "tool" else f"later {name}")
    if isinstance(message.get("content"), list):
        found.add(f"{name} in parts")
    if message.get("name") is not None:
        found.add("name")
    if name == "assistant":
        calls = message.get("tool_calls") or []
        found |= {"calls"} if calls else set()
        found |= {"several calls"} if len(calls) > 1 else set()
        if any(message.get(key) is not None for key in ("reasoning", "reasoning_content")):
            found.add("reasoning")
    return found
