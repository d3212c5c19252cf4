"""Which parsers there are, by the names that vLLM's ``--tool-call-parser`` and ``--reasoning-parser`` have.

More come from installed packages, by the entry points ``pdd_gateway.tool_parsers`` and
``pdd_gateway.reasoning_parsers``: a ``ToolDialect`` and a ``Thinking``, or functions that make them of the prefix of
control tokens.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoints, entry_points
from typing import Any, TypeVar, cast

from gateway.text.parsers import gemma, harmony, json_calls, markup, pythonic
from gateway.text.parsers.cursor import CONTROL, Cursor, Steps
from gateway.text.parsers.forced import ForcedReader
from gateway.text.parsers.harmony import Harmony
from gateway.text.parsers.output import ALL_PARTS, MessageParts, PartsWanted, make_call_id
from gateway.text.parsers.reader import MessageReader
from gateway.text.parsers.schema import Tools
from gateway.text.parsers.tagged import Format, TaggedMessage, Thinking, ToolDialect, plain

FormatPart = TypeVar("FormatPart", ToolDialect, Thinking)

NONE = "none"
"""The name that asks for no parser."""
K3_TOKENS = ("<|open|>", "<|close|>", "<|sep|>")

TOOL_PARSERS: Mapping[str, Callable[[str], ToolDialect] | ToolDialect] = {
    "deepseek_v3": json_calls.DEEPSEEK,
    "deepseek_v31": json_calls.DEEPSEEK,
    "deepseek_v32": markup.DEEPSEEK_V32,
    "deepseek_v4": markup.DEEPSEEK_V4,
    "deepseek_v41": markup.DEEPSEEK_V41,
    "functiongemma": gemma.FUNCTIONGEMMA,
    "gemma4": gemma.GEMMA4,
    "glm45": markup.GLM,
    "glm47": markup.GLM,
    "hermes": json_calls.HERMES,
    "kimi_k2": json_calls.KIMI_K2,
    "kimi_k3": markup.kimi_k3,
    "llama3_json": json_calls.LLAMA_JSON,
    "llama4_json": json_calls.LLAMA_JSON,
    "llama4_pythonic": pythonic.LLAMA4_PYTHONIC,
    "minimax_m2": markup.MINIMAX_M2,
    "mistral": json_calls.mistral,
    "pythonic": pythonic.PYTHONIC,
    "qwen": json_calls.HERMES,
    "qwen3_coder": markup.QWEN_XML,
    "qwen3_json": json_calls.HERMES,
    "qwen3_xml": markup.QWEN_XML,
    "seed_oss": markup.SEED_OSS,
}
"""How models write tool calls; Harmony's parser reads the whole message."""

ALWAYS = Thinking(begins_inside=True)


def mistral_thinking(control: str) -> Thinking:
    """Mistral's control tokens, or the tags of its first reasoning models."""
    return Thinking(((f"{control}[THINK]", f"{control}[/THINK]"), ("<think>", "</think>")))


def k3_thinking(control: str) -> Thinking:
    """Kimi K3's channels."""
    open_, close, sep = (control + token for token in K3_TOKENS)
    return Thinking(((f"{open_}think{sep}", f"{close}think{sep}"),), True, (f"{open_}response{sep}",))


REASONING_PARSERS: Mapping[str, Callable[[str], Thinking] | Thinking] = {
    "deepseek_r1": ALWAYS,
    "deepseek_v3": Thinking(),
    "deepseek_v4": Thinking(),
    "deepseek_v41": Thinking(),
    "gemma4": Thinking((("<|channel>thought\n", "<channel|>"),)),
    "glm45": ALWAYS,
    "glm47": ALWAYS,
    "holo2": Thinking(),
    "kimi_k2": ALWAYS,
    "kimi_k3": k3_thinking,
    "minimax_m2": ALWAYS,
    "mistral": mistral_thinking,
    "qwen3": ALWAYS,
    "seed_oss": Thinking((("<seed:think>", "</seed:think>"),), begins_inside=True),
    "think": Thinking(),
}
"""How models mark reasoning."""

HARMONY_NAMES = frozenset({"openai", "openai_gptoss"})


class UnknownParser(Exception):
    """No parser has this name; ``str()`` names it and those there are."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """What reads one model's answers. ``control``: what stands before control tokens' text."""

    tools: ToolDialect | None = None
    thinking: Thinking | None = None
    harmony: bool = False
    control: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)
    """By control token, how its text is given to the reader; other control tokens are left out as ever."""

    @property
    def reads_tools(self) -> bool:
        return self.harmony or self.tools is not None

    def make_parts(self, wanted: PartsWanted, dialect: ToolDialect | None = None) -> MessageParts:
        """Return what gathers an answer's parts, with ids for calls as the model's template wants them back."""
        make_id = make_call_id if self.tools is None else self.tools.make_id
        return MessageParts(wanted, trims=dialect is not None and dialect.trims, make_id=make_id)

    def make_forced(self, opening: str, wanted: PartsWanted, name: str | None) -> ForcedReader:
        """Return what reads an answer under the grammar of a call of the function ``name``, or of several calls."""
        return ForcedReader(self.make_reader(opening, None, wanted), name, self.make_parts(wanted))

    def make_reader(
        self, opening: str, tools: Sequence[Mapping[str, Any]] | None = None, wanted: PartsWanted = ALL_PARTS
    ) -> MessageReader | None:
        """Return what reads one answer; None: all of it is content.

        ``opening``: the end of the prompt. ``tools``: those offered; None: what looks like a call is content.
        """
        dialect = self.tools if tools is not None else None
        if not self.harmony and dialect is None and self.thinking is None:
            return None

        def begin(cursor: Cursor) -> tuple[MessageParts, Steps[None]]:
            offered = Tools(tools or ())
            output = self.make_parts(wanted, dialect)
            if self.harmony:
                return output, Harmony(cursor, output, offered if tools is not None else None, self.control).read()
            return output, TaggedMessage(cursor, output, Format(self.thinking, dialect), offered, opening).read()

        return MessageReader(begin)


NO_PARSERS = Parsers()


def find_parsers(tool_parser: str | None, reasoning_parser: str | None, control_tokens: Collection[str]) -> Parsers:
    """Return the parsers of these names. ``control_tokens``: texts of the model's. Raises UnknownParser."""
    if {tool_parser, reasoning_parser} & HARMONY_NAMES:
        control = CONTROL if "<|channel|>" in control_tokens else ""
        return Parsers(harmony=True, control=control, shown=_show(harmony.TOKENS, control_tokens, control))
    tools = _find(tool_parser, TOOL_PARSERS, "pdd_gateway.tool_parsers", control_tokens)
    thinking = _find(reasoning_parser, REASONING_PARSERS, "pdd_gateway.reasoning_parsers", control_tokens)
    shown: dict[str, str] = {}
    for part in (tools, thinking):
        if part is not None:
            marks = part.marks
            shown |= _show(map(plain, marks), control_tokens, CONTROL if any(CONTROL in mark for mark in marks) else "")
    return Parsers(tools, thinking, shown=shown)


def _show(marks: Iterable[str], control_tokens: Collection[str], control: str) -> dict[str, str]:
    return {token: control + token for mark in marks for token in control_tokens if token in mark}


def _find(
    name: str | None,
    known: Mapping[str, FormatPart | Callable[[str], FormatPart]],
    group: str,
    control_tokens: Collection[str],
) -> FormatPart | None:
    """Return the parser of a name, that of an installed package where the gateway has none."""
    if name is None or name == NONE:
        return None
    found: Any = known.get(name)
    if found is None:
        others: EntryPoints = entry_points(group=group)
        if name not in others.names:
            kind = group.removeprefix("pdd_gateway.").removesuffix("s")
            raise UnknownParser(f"{kind} {name!r} is none of {sorted({*known, *others.names, *HARMONY_NAMES, NONE})}")
        found = others[name].load()
    if not callable(found):
        return cast("FormatPart", found)
    # Letters are told from tokens where the tokenizer has these as control tokens.
    part = cast("FormatPart", found(""))
    is_control = any(token in mark for mark in part.marks for token in control_tokens)
    return cast("FormatPart", found(CONTROL)) if is_control else part
