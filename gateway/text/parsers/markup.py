"""Tool calls whose arguments are elements of markup, each a plain text or JSON: Qwen3-Coder, GLM, MiniMax, DeepSeek's
DSML, Kimi K3. No I/O.

Values are not escaped, so the text of a closing tag within one is told from the tag itself by what comes after it.
"""

import html
import re
from collections.abc import Mapping, Sequence

from gateway.text.parsers.cursor import (
    CONTROL,
    Cursor,
    Marks,
    Steps,
    follows,
    pass_over,
    skip_blanks,
    take,
    take_name,
    take_until,
)
from gateway.text.parsers.output import Call
from gateway.text.parsers.schema import Tools, join_object, read_json, spell_value
from gateway.text.parsers.tagged import ToolDialect

NAME = re.compile(r"[^\s<>\"'/]*")


def take_value(cursor: Cursor, closings: Mapping[str, Sequence[str]], *, or_end: str = "") -> Steps[str | None]:
    """Go past a value and its closing text, and return the value.

    ``closings``: by closing text, what comes after it, white space aside. A closing text that begins with a line break
    is the next part's opening, and is not gone past. ``or_end``: the one that may also come last in an answer.
    """
    marks = Marks(tuple(closings))
    at = cursor.at
    while True:
        match = marks.find(cursor.text, at)
        if match is None:
            if cursor.ended:
                cursor.at = len(cursor.text)
                return None
            at = marks.end_of_certain(cursor.text, at)
            yield
            continue
        closing = match[0]
        after = closings[closing]
        if not after or (yield from follows(cursor, match.end(), *after, or_end=closing == or_end)):
            # The line break before the next part belongs to the value's markup.
            end = match.start() + 1 if closing.startswith("\n") else match.start()
            value = cursor.text[cursor.at : end]
            cursor.at = end if closing.startswith("\n") else match.end()
            return value
        at = match.start() + 1


def trim_lines(value: str) -> str:
    """Return a value without the one line break on either side that templates write."""
    return value.removeprefix("\n").removesuffix("\n")


KEY = re.compile(r"[^>\n]*")


def functions(opening: str, closing: str) -> ToolDialect:
    """``<function=NAME>`` with ``<parameter=KEY>`` elements, between two tags that are left out at times."""
    closings = {
        "</parameter>": ("<parameter=", "</function>", closing),
        "\n<parameter=": (),
        "\n</function>": (closing, opening, "<function="),
    }

    def read_function(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        name = yield from take_name(cursor, NAME)
        if not name or not (yield from take(cursor, ">")):
            return None
        arguments: list[tuple[str, str]] = []
        while (yield from skip_blanks(cursor)):
            tag = yield from take(cursor, "<parameter=", "</function>", closing)
            if tag == "<parameter=":
                key = yield from take_name(cursor, KEY)
                closed = yield from take(cursor, ">")
                value = (yield from take_value(cursor, closings, or_end="\n</function>")) if closed else None
                if value is None:
                    return None
                arguments.append((key.strip(), trim_lines(value)))
                continue
            if tag is None:
                return None
            if tag == "</function>":
                yield from pass_over(cursor, closing)
            return [Call(name, tools.spell(name, arguments))]
        return None

    def read(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        if not (yield from skip_blanks(cursor)) or not (yield from take(cursor, "<function=")):
            return None
        return (yield from read_function(cursor, tools))

    return ToolDialect({opening: read, "<function=": read_function}, trims=True, inner=(closing,))


QWEN_XML = functions("<tool_call>", "</tool_call>")
SEED_OSS = functions("<seed:tool_call>", "</seed:tool_call>")

GLM_VALUE = {"</arg_value>": ("<arg_key>", "</tool_call>"), "</tool_call>": ("<tool_call>",)}
GLM_KEY = Marks(("</arg_key>", "</tool_call>"))


def read_glm(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``."""
    if not (yield from skip_blanks(cursor)):
        return None
    name = yield from take_name(cursor, NAME)
    arguments: list[tuple[str, str]] = []
    while name and (yield from skip_blanks(cursor)):
        tag = yield from take(cursor, "<arg_key>", "</tool_call>")
        if tag == "<arg_key>":
            key = yield from take_until(cursor, GLM_KEY)
            if key is None or key[1] != "</arg_key>" or not (yield from skip_blanks(cursor)):
                return None
            if not (yield from take(cursor, "<arg_value>")):
                return None
            value = yield from take_value(cursor, GLM_VALUE, or_end="</tool_call>")
            if value is None:
                return None
            arguments.append((key[0].strip(), value))
            # The last value's own closing tag may be missing: then the call's ended it.
            if not cursor.text.endswith("</tool_call>", 0, cursor.at):
                continue
        elif tag is None:
            return None
        return [Call(name, tools.spell(name, arguments))]
    return None


GLM = ToolDialect(
    {"<tool_call>": read_glm},
    trims=True,
    inner=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)


def invocations(mark: str, space: str, wrapper: str) -> ToolDialect:
    """``<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>``; ``mark``: what tags begin with.

    ``space`` stands after the mark. DSML says of each value whether it is a ``string``.
    """
    invoke, end = f'<{mark}{space}invoke name="', f"</{mark}{space}invoke>"
    parameter, end_parameter = f'<{mark}{space}parameter name="', f"</{mark}{space}parameter>"
    quote = Marks(('"', "\n"))
    closings = {end_parameter: (parameter, end)}

    def read(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        name = yield from take_until(cursor, quote)
        closed = (yield from take(cursor, ">", "/>", " />")) if name and name[1] == '"' else None
        if name is None or closed is None or not name[0]:
            return None
        if closed != ">":
            return [Call(name[0], "{}")]
        members: dict[str, str] = {}
        while (yield from skip_blanks(cursor)):
            tag = yield from take(cursor, parameter, end)
            if tag == end:
                return [Call(name[0], join_object(members))]
            key = (yield from take_until(cursor, quote)) if tag else None
            if key is None or key[1] != '"':
                return None
            kind = yield from take(cursor, ' string="true">', ' string="false">', ">")
            value = (yield from take_value(cursor, closings)) if kind else None
            if value is None:
                return None
            members[key[0]] = spell(name[0], key[0], value, kind, tools)
        return None

    def spell(name: str, key: str, value: str, kind: str | None, tools: Tools) -> str:
        if kind == ' string="true">':
            return spell_value(value, frozenset({"string"}))
        if kind == ' string="false">' and read_json(value) is not None:
            return value.strip()
        return tools.spell_one(name, key, value)

    return ToolDialect({invoke: read}, wrappers=(f"<{wrapper}>", f"</{wrapper}>"), trims=True)


MINIMAX_M2 = invocations("", "", "minimax:tool_call")
DEEPSEEK_V32 = invocations("｜DSML｜", "", "｜DSML｜function_calls")
DEEPSEEK_V4 = invocations("｜DSML｜", "", "｜DSML｜tool_calls")
DEEPSEEK_V41 = invocations("｜DSML｜", " ", "｜DSML｜ calls")


def kimi_k3(control: str) -> ToolDialect:
    """``<|open|>call tool="NAME"...<|sep|>`` with argument elements that name their types."""
    open_, close, sep = (f"{control}<|{word}|>" for word in ("open", "close", "sep"))
    argument, end_argument = f'{open_}argument key="', f"{close}argument{sep}"
    end = f"{close}call{sep}"
    head = Marks((sep, open_, close))
    closings = {end_argument: (argument, end)}

    def read_head(cursor: Cursor) -> Steps[tuple[str, str] | None]:
        """Go past an element's head, and return (its first attribute, the others)."""
        found = yield from take_until(cursor, head)
        if found is None or found[1] != sep or '"' not in found[0]:
            return None
        first, _, others = found[0].partition('"')
        return html.unescape(first), others

    def read(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
        name = yield from read_head(cursor)
        members: dict[str, str] = {}
        while name and (yield from skip_blanks(cursor)):
            tag = yield from take(cursor, argument, end)
            if tag == end:
                return [Call(name[0], join_object(members))]
            key = (yield from read_head(cursor)) if tag else None
            value = (yield from take_value(cursor, closings)) if key else None
            if key is None or value is None:
                return None
            value = value.replace(CONTROL, "")
            known = 'type="string"' not in key[1] and read_json(value) is not None
            members[key[0]] = value.strip() if known else spell_value(value, frozenset({"string"}))
        return None

    wrappers = tuple(f"{tag}{word}{sep}" for tag in (open_, close) for word in ("response", "tools", "message"))
    return ToolDialect({f'{open_}call tool="': read}, wrappers=wrappers, inner=(open_, close, sep))
