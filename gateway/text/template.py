"""Chat messages to prompt text by the model's own chat template, as the engines render it.

A template is code that came with the model: it runs in a sandbox, and a request can give it values but no code.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.text.content_format import takes_parts
from gateway.text.control_tokens import ESCAPED_CUT, ControlTokensRefused, Guard
from gateway.text.conversation import (
    PromptMessage,
    ignore_unread,
    read_conversation,
    read_tools,
    without_developers,
)

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

    def __init__(self, message: str, param: str = "messages", code: str = "template_error") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class GenerationTag(Extension):
    """``{% generation %}``, which marks the assistant's text for training, changes nothing here."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the tag's body, whose variables are its own."""
        line = next(parser.stream).lineno
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)]


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse messages."""
    raise TemplateError(message)


def strftime_now(spelling: str) -> str:
    """Return the local time, as the engines give it to templates: without a zone."""
    return datetime.now().strftime(spelling)


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


class OneTemplate:
    """One compiled source and what it takes. Raises TemplateRejected when the source is no template."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = dump_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = strftime_now
        try:
            tree = environment.parse(source)
            self.code = environment.from_string(source)
            self.code.globals = dict(self.code.globals)  # it is copied for each prompt, which takes long in layers
        except TemplateSyntaxError as error:
            raise TemplateRejected(f"chat template, line {error.lineno}: {error.message}") from error
        self.takes_parts = takes_parts(tree)
        self.knows_developers = '"developer"' in source or "'developer'" in source


class ChatTemplate:
    """One model's templates. ``variables``: the tokenizer's special tokens by name, as ``bos_token``.

    ``with_tools`` is for requests that offer tools, where the model has one of its own for those. Raises
    TemplateRejected.
    """

    def __init__(self, source: str | None, variables: Mapping[str, str], with_tools: str | None = None) -> None:
        self._plain = None if source is None else OneTemplate(source)
        self._with_tools = self._plain if with_tools is None else OneTemplate(with_tools)
        self._variables = dict(variables)

    def render_chat(
        self, chat: Mapping[str, Any], on_unread: Callable[[], object] = ignore_unread, guard: Guard | None = None
    ) -> str:
        """Return the prompt text of a chat request's fields. Raises TemplateRejected."""
        continued = bool(chat.get("continue_final_message"))
        return self.render(
            chat["messages"],
            tools=chat.get("tools") or None,
            documents=chat.get("documents"),
            add_generation_prompt=chat.get("add_generation_prompt") is not False and not continued,
            continue_final_message=continued,
            values=find_values(chat.get("chat_template_kwargs"), chat.get("reasoning_effort")),
            on_unread=on_unread,
            guard=guard,
        )

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        values: Mapping[str, Any] | None = None,
        on_unread: Callable[[], object] = ignore_unread,
        guard: Guard | None = None,
    ) -> str:
        """Return the prompt text. Raises TemplateRejected.

        ``values``: the client's ``chat_template_kwargs``; null says nothing. ``on_unread`` is called for each tool call
        whose arguments are no JSON object. ``guard``: all that the client says goes through it, once it is read.
        """
        taken = OWN_VARIABLES & set(values or ())
        if taken:
            raise TemplateRejected(f"{sorted(taken)[0]!r} is set by the gateway.", "chat_template_kwargs")
        template = self._with_tools if tools else self._plain
        if template is None:
            raise TemplateRejected("This model's chat template is for requests with tools alone.", "tools")
        try:
            prepared = read_conversation(messages, template.takes_parts, on_unread)
        except ValueError as error:
            raise TemplateRejected(f"The tool calls' arguments are too much JSON: {error}.") from error
        if not template.knows_developers:
            prepared = without_developers(prepared)
        given: dict[str, Any] = {"messages": prepared, "tools": read_tools(tools), "documents": documents}
        given["values"] = given_values(values)
        if guard is not None:
            try:
                given = {name: guard(value) for name, value in given.items()}
            except ControlTokensRefused as error:
                raise TemplateRejected(str(error), code="control_token") from error
        prepared = given["messages"]
        last = mark_end(prepared[-1]) if continue_final_message else ""
        try:
            text = template.code.render(
                **{**self._variables, **given["values"]},
                messages=prepared,
                tools=given["tools"],
                documents=given["documents"],
                add_generation_prompt=add_generation_prompt,
            )
        except RENDER_ERRORS as error:
            raise TemplateRejected(f"The chat template cannot render these messages: {describe(error)}") from error
        if guard is not None and ESCAPED_CUT in text:
            raise TemplateRejected(
                "The chat template cannot show a control token that is spelt as text.", code="control_token"
            )
        return cut_at_end(text, last) if continue_final_message else text


def find_values(values: Mapping[str, Any] | None, effort: str | None) -> Mapping[str, Any]:
    """Return the values that a template gets: the client's, and what its effort says in names that templates know."""
    if effort is None:
        return values or {}
    return {"enable_thinking": effort != "none", **(values or {}), "reasoning_effort": effort}


def given_values(values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a client's values but for those that say nothing, as engines do."""
    return {name: value for name, value in (values or {}).items() if value is not None and value != "auto"}


def describe(error: Exception) -> str:
    """Return a template's own refusal in its words, and anything else by its kind."""
    return str(error) if type(error) is TemplateError else type(error).__name__


END_MARK = "PDD_FINAL_MESSAGE_ENDS "
"""Where the final message is to go on; its blank shows whether the template keeps those at a message's end."""


def mark_end(message: dict[str, Any]) -> str:
    """Mark the end of a message's content in place; return its text. Raises TemplateRejected."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + END_MARK
        text = content
    else:
        last: dict[str, Any] = next((part for part in reversed(content) if "text" in part), {"text": ""})
        text = last["text"]
        last["text"] += END_MARK
    if not text.strip():
        raise TemplateRejected("The final message has no content that could be continued.")
    return text


def cut_at_end(text: str, last: str) -> str:
    """Return the text up to the mark, for the model to go on from there. Raises TemplateRejected."""
    at = text.rfind(END_MARK.strip())
    if at < 0 or last.strip() not in text:
        raise TemplateRejected("The final message's content is not in the rendered text, so it cannot be continued.")
    kept = text[:at]
    return kept if text.startswith(END_MARK, at) else kept.rstrip()
