"""Tool calls as a Python list of calls with keyword arguments, as Llama 4 and some Llama 3.2 write them. No I/O."""

import ast
import json
import re

from gateway.text.parsers.cursor import CONTROL, MOST_NAME, Cursor, Steps
from gateway.text.parsers.output import Call
from gateway.text.parsers.schema import Tools
from gateway.text.parsers.tagged import ToolDialect

_BEGINNING = re.compile(r"\s*[A-Za-z_][\w.]*\s*\(")
_BEGUN = re.compile(r"\s*(?:[A-Za-z_][\w.]*\s*)?\Z")
_BETWEEN = re.compile(r"[^'\"()\[\]{}]*")
_IN_STRING = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}


def read_pythonic(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """``[name(key=value), ...]``: calls where all of them name tools that are offered."""
    start = cursor.at - 1
    begun = ""
    while _BEGUN.match(begun) and len(begun) < MOST_NAME:
        begun = cursor.text[cursor.at : cursor.at + MOST_NAME]
        if cursor.ended or not _BEGUN.match(begun):
            break
        yield
    if _BEGINNING.match(begun) is None:
        return None
    end = yield from _find_end(cursor)
    return None if end is None else read_list(cursor.text[start:end].replace(CONTROL, ""), tools)


def _find_end(cursor: Cursor) -> Steps[int | None]:
    """Go past the closing bracket of a list that is open, and return where it ends."""
    at, depth, quote = cursor.at, 1, ""
    while True:
        text = cursor.text
        while at < len(text):
            match = (_IN_STRING[quote] if quote else _BETWEEN).match(text, at)
            at = match.end() if match else at
            letter = text[at : at + 1]
            if not letter or (letter == "\\" and at + 1 == len(text)):
                break
            at += 2 if letter == "\\" else 1
            if quote:
                quote = quote if letter == "\\" else ""
            elif letter in "'\"":
                quote = letter
            else:
                depth += (letter in "([{") - (letter in ")]}")
            if not depth:
                cursor.at = at
                return at
        if cursor.ended:
            cursor.at = len(text)
            return None
        yield


def read_list(text: str, tools: Tools) -> list[Call] | None:
    """Return the calls of a Python list; None: it is something else."""
    try:
        tree = ast.parse(text, mode="eval").body
        entries = tree.elts if isinstance(tree, ast.List) else []
        calls = [_read_entry(entry) for entry in entries]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    known = [call for call in calls if call is not None and tools.has(call.name)]
    return known if known and len(known) == len(calls) else None


def _read_entry(entry: ast.expr) -> Call | None:
    if not isinstance(entry, ast.Call) or entry.args:
        return None
    name = ast.unparse(entry.func)
    arguments = {}
    for keyword in entry.keywords:
        if keyword.arg is None:
            return None
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    spelled.encode()
    return Call(name, spelled)


PYTHONIC = ToolDialect({}, first={"[": read_pythonic})


def read_after_start(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """The same list after a mark of its own."""
    while cursor.at == len(cursor.text) and not cursor.ended:
        yield
    if not cursor.text.startswith("[", cursor.at):
        return None
    cursor.at += 1
    return (yield from read_pythonic(cursor, tools))


LLAMA4_PYTHONIC = ToolDialect(
    {"<|python_start|>": read_after_start}, wrappers=("<|python_end|>",), first={"[": read_pythonic}
)
