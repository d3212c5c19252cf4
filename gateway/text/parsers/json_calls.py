"""Tool calls whose arguments are JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek to V3.1, Kimi K2. No I/O."""

import json
import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.text.parsers.cursor import (
    CONTROL,
    Cursor,
    Marks,
    Steps,
    follows,
    pass_over,
    skip_blanks,
    take,
    take_json,
    take_name,
    take_until,
)
from gateway.text.parsers.output import Call
from gateway.text.parsers.schema import Tools, read_json
from gateway.text.parsers.tagged import ToolDialect

ARGUMENTS = ("arguments", "parameters")
ABOUT = frozenset({"name", "id", "type", "index"})
"""Members of a call that say nothing about its arguments."""
NAME = re.compile(r"[^\s\udc00<>\[\]{}\"|]*")
KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>[^\s:]+):\d+")
MISTRAL_ID_LETTERS = string.ascii_letters + string.digits


def read_call(text: str) -> Call | None:
    """Return a call that is one JSON object of a name and arguments; None: it is no call."""
    try:
        members: Mapping[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(members["name"])
    except (msgspec.MsgspecError, ValueError, RecursionError, LookupError):
        return read_loose_call(text)
    given = [bytes(members[key]).decode() for key in ARGUMENTS if key in members]
    arguments = given[0] if given else "{}"
    if len(given) > 1 or not isinstance(name, str) or (not given and members.keys() - ABOUT):
        return None
    return make_call(name, arguments)


def read_loose_call(text: str) -> Call | None:
    """Return a call whose strings hold line breaks and other characters that JSON wants escaped."""
    try:
        members = json.loads(text, strict=False)
        name = members["name"]
        given = [json.dumps(members[key], ensure_ascii=False) for key in ARGUMENTS if key in members]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return make_call(name, given[0]) if len(given) == 1 and isinstance(name, str) else None


def make_call(name: str, arguments: str, call_id: str | None = None) -> Call | None:
    """Return the call, if its arguments are a JSON object; in a string that holds one, too."""
    parsed = read_json(arguments)
    if parsed is not None and isinstance(parsed[0], str):
        arguments = parsed[0]
        parsed = read_json(arguments)
    if parsed is not None and parsed[0] is None:
        arguments, parsed = "{}", ({},)
    if parsed is None:
        arguments, parsed = escape_loose(arguments)
    if parsed is None or not isinstance(parsed[0], dict) or not name or not is_text(name):
        return None
    return Call(name, arguments, call_id)


def escape_loose(text: str) -> tuple[str, tuple[Any] | None]:
    """Return JSON whose strings hold unescaped line breaks as strict JSON, and its value in a tuple, or None."""
    try:
        spelled = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text, None
    return spelled, read_json(spelled)


def is_text(name: str) -> bool:
    """Say whether a name can be spelled: no escape of half a character is in it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def take_object(cursor: Cursor) -> Steps[str | None]:
    """Go past white space and a JSON object, and return its text."""
    if not (yield from skip_blanks(cursor)) or cursor.text[cursor.at] != "{":
        return None
    found = yield from take_json(cursor)
    return None if found is None else found.replace(CONTROL, "")


def one(call: Call | None) -> list[Call] | None:
    return None if call is None else [call]


def read_hermes(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""
    text = yield from take_object(cursor)
    if text is None:
        return None
    yield from pass_over(cursor, "</tool_call>")
    return one(read_call(text))


HERMES = ToolDialect({"<tool_call>": read_hermes}, trims=True, inner=("</tool_call>",))


def read_llama(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """A JSON object alone, ``{"name": ..., "parameters": {...}}``: a call where it names a tool that is offered."""
    cursor.at -= cursor.text.startswith("{", cursor.at - 1)
    text = yield from take_object(cursor)
    call = None if text is None else read_call(text)
    if call is None or not tools.has(call.name):
        return None
    yield from pass_over(cursor, ";")
    return [call]


LLAMA_JSON = ToolDialect({"<|python_tag|>": read_llama}, first={"{": read_llama})


def make_mistral_id() -> str:
    """Return a name for a call as Mistral's templates demand them."""
    return "".join(secrets.choice(MISTRAL_ID_LETTERS) for _ in range(9))


def mistral(control: str) -> ToolDialect:
    """``[TOOL_CALLS]`` with a JSON array of calls, or with a name, ``[ARGS]`` and JSON."""
    arguments, call_id = f"{control}[ARGS]", f"{control}[CALL_ID]"

    def read(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        if not (yield from skip_blanks(cursor)):
            return None
        if cursor.text[cursor.at] in "[{":
            text = yield from take_json(cursor)
            return None if text is None else read_calls(text.replace(CONTROL, ""))
        name = yield from take_name(cursor, NAME)
        given = None
        if (yield from take(cursor, call_id)) is not None:
            given = yield from take_name(cursor, NAME)
        yield from take(cursor, arguments)
        text = yield from take_object(cursor)
        return one(None if text is None else make_call(name, text, given))

    return ToolDialect({f"{control}[TOOL_CALLS]": read}, make_id=make_mistral_id, inner=(arguments, call_id))


def read_calls(text: str) -> list[Call] | None:
    """Return the calls of a JSON array, all or none; or of the one object."""
    if text.startswith("{"):
        return one(read_call(text))
    try:
        entries = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    calls = [read_call(bytes(entry).decode()) for entry in entries]
    known = [call for call in calls if call is not None]
    return known if known and len(known) == len(calls) else None


SEPARATOR = Marks(("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"))


def read_deepseek(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """``name<｜tool▁sep｜>{...}``, or ``function<｜tool▁sep｜>name`` and the JSON in a code block."""
    found = yield from take_until(cursor, SEPARATOR)
    if found is None or found[1] != "<｜tool▁sep｜>":
        return None
    name = found[0].strip()
    if name == "function" and not (yield from follows(cursor, cursor.at, "{")):
        name = yield from take_name(cursor, NAME)
        yield from pass_over(cursor, "```json")
    text = yield from take_object(cursor)
    yield from pass_over(cursor, "```")
    if text is None or not (yield from skip_blanks(cursor)) or not (yield from take(cursor, "<｜tool▁call▁end｜>")):
        return None
    return one(make_call(name, text))


DEEPSEEK = ToolDialect(
    {"<｜tool▁call▁begin｜>": read_deepseek},
    wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    trims=True,
    inner=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)

HEADER = Marks(("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"))


def read_kimi(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """``functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``; later turns want that id back."""
    found = yield from take_until(cursor, HEADER)
    if found is None or found[1] != "<|tool_call_argument_begin|>":
        return None
    call_id = found[0].strip()
    match = KIMI_ID.fullmatch(call_id)
    text = yield from take_object(cursor)
    if text is None or not (yield from skip_blanks(cursor)) or not (yield from take(cursor, "<|tool_call_end|>")):
        return None
    return one(None if match is None else make_call(match["name"], text, call_id))


KIMI_K2 = ToolDialect(
    {"<|tool_call_begin|>": read_kimi},
    wrappers=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    inner=("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
