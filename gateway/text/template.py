"""Chat messages to prompt text by the model's own chat template, as the engines render it.

A template is code that came with the model: it runs in a sandbox, and a request can give it values but no code.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.http.json_bounds import BoundedJson

PromptMessage = Mapping[str, Any]
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

NODES_AT_ONCE = 20_000

RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""A sandboxed template over a client's values can fail in all of Python's ways; none is the gateway's fault."""


class TemplateRejected(Exception):
    """The template cannot render these messages; ``str()`` says why, ``param`` names the request's field."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class GenerationTag(Extension):
    """``{% generation %}``, which marks the assistant's text for training, changes nothing here."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the tag's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse messages."""
    raise TemplateError(message)


def strftime_now(spelling: str) -> str:
    """Return the local time, as the engines give it to templates."""
    return datetime.now().astimezone().strftime(spelling)


def dump_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Spell JSON without jinja2's escapes for HTML. A large value is spelt in pieces, so that other threads may run."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(encoder.iterencode(value)) if has_many_nodes(value) else encoder.encode(value)


def has_many_nodes(value: Any) -> bool:
    """Say whether a value takes long to spell, without looking at all of it."""
    waiting, seen = [value], 0
    while waiting and seen <= NODES_AT_ONCE:
        node = waiting.pop()
        if isinstance(node, Mapping | list | tuple):
            seen += len(node)
            if seen <= NODES_AT_ONCE:
                waiting.extend(node.values() if isinstance(node, Mapping) else node)
    return seen > NODES_AT_ONCE


class ChatTemplate:
    """One model's compiled template. ``variables``: the tokenizer's special tokens by name, as ``bos_token``."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises TemplateRejected when the source is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = dump_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = strftime_now
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateRejected(f"chat template, line {error.lineno}: {error.message}") from error
        self._variables = dict(variables)
        self._takes_parts = loops_over_content(tree)

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text. ``values``: the client's ``chat_template_kwargs``. Raises TemplateRejected."""
        taken = OWN_VARIABLES & set(values or ())
        if taken:
            raise TemplateRejected(f"{sorted(taken)[0]!r} is set by the gateway.", "chat_template_kwargs")
        reader = BoundedJson()
        prepared = [prepare_message(message, self._takes_parts, reader) for message in messages]
        try:
            text = self._template.render(
                **{**self._variables, **(values or {})},
                messages=prepared,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
            )
        except RENDER_ERRORS as error:
            raise TemplateRejected(f"The chat template cannot render these messages: {describe(error)}") from error
        return cut_after(text, prepared[-1]) if continue_final_message else text


def describe(error: Exception) -> str:
    """Return a template's own refusal in its words, and anything else by its kind."""
    return str(error) if type(error) is TemplateError else type(error).__name__


def prepare_message(message: PromptMessage, takes_parts: bool, reader: BoundedJson) -> dict[str, Any]:
    """Bring content to the one spelling that the template reads, and tool call arguments to objects."""
    prepared = dict(message)
    content = message.get("content")
    if takes_parts:
        prepared["content"] = [{"type": "text", "text": text} for text in part_texts(content)]
    else:
        prepared["content"] = "\n".join(part_texts(content))
    if message.get("role") == "assistant" and message.get("tool_calls"):
        prepared["tool_calls"] = [parse_arguments(call, reader) for call in message["tool_calls"]]
    elif "tool_calls" in prepared and not prepared["tool_calls"]:
        del prepared["tool_calls"]
    return prepared


def part_texts(content: Any) -> list[str]:
    """Return the texts of a content in any of its spellings: null, a string, parts (checked by the API)."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [part if isinstance(part, str) else str(part.get("text", part.get("refusal", ""))) for part in content]


def parse_arguments(call: Mapping[str, Any], reader: BoundedJson) -> Mapping[str, Any]:
    """Return a tool call whose arguments are an object: templates spell them as JSON themselves."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = reader.parse(arguments or "{}")
        except json.JSONDecodeError as error:
            raise TemplateRejected("A tool call's arguments are not valid JSON.", "messages") from error
        except ValueError as error:
            raise TemplateRejected(f"The tool calls' arguments are too much JSON: {error}.", "messages") from error
    return {**call, "function": {**function, "arguments": arguments or {}}}


def cut_after(text: str, message: PromptMessage) -> str:
    """Return the text up to the end of the final message's content, for the model to go on from there."""
    content = "\n".join(part_texts(message["content"]))
    stripped = content.strip()
    at = text.rfind(stripped)
    if not stripped or at < 0:
        raise TemplateRejected("The final message's content is not in the rendered text, so it cannot be continued.")
    kept = content.lstrip()
    return text[: at + len(kept)] if text.startswith(kept, at) else text[: at + len(stripped)]


def loops_over_content(tree: nodes.Template) -> bool:
    """Say whether the template reads a message's content as a list of parts."""
    aliases = {
        assignment.target.name
        for assignment in tree.find_all(nodes.Assign)
        if isinstance(assignment.target, nodes.Name) and reads_content(assignment.node)
    }
    return any(
        reads_content(loop.iter) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in aliases | {"content"})
        for loop in tree.find_all(nodes.For)
    )


def reads_content(node: nodes.Node) -> bool:
    """Say whether an expression is ``x.content`` or ``x['content']``."""
    match node:
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False
