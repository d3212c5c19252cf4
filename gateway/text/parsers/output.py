"""What comes out of an answer's text: reasoning, content and tool calls, without the white space that is markup."""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from gateway.text.parsers.cursor import CONTROL

_LEADING_LINES = re.compile(r"\s*\n")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that is complete. ``arguments``: a JSON object. ``id``: where the model gave one."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallDelta:
    """News of the ``index``-th call: ``id`` and ``name`` once, in its first delta; then more of its arguments' JSON."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What some text added to a message."""

    content: str
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class PartsWanted:
    """What the client wants of an answer's parts."""

    reasoning: bool = True
    parallel_calls: bool = True
    """False: it takes one call, and no second."""
    json: bool = False
    """It asks for JSON: engines may begin with that, whatever the prompt says of reasoning."""


ALL_PARTS = PartsWanted()


def make_call_id() -> str:
    """Return a name for a call as OpenAI spells them."""
    return f"call_{secrets.token_hex(12)}"


class MessageParts:
    """Gathers an answer's parts until they are taken.

    White space around reasoning, before the first content and next to calls is how templates set these apart, and is
    left out; so white space is held back until what follows it is known. ``trims``: the dialect's templates set calls
    apart from content, too.
    """

    def __init__(self, wanted: PartsWanted, *, trims: bool = False, make_id: Callable[[], str] = make_call_id) -> None:
        self.calls = 0
        """Calls so far."""
        self._trims = trims
        self.wanted = wanted
        self._make_id = make_id
        self._reasoning = ""
        self._content = ""
        self._new_calls: list[CallDelta] = []
        self._held = ""
        self._held_reasoning = ""
        self._has_reasoning = False
        self._has_content = False
        self._after_reasoning = False
        self._after_call = False

    def reason(self, text: str) -> None:
        """Add reasoning."""
        if text.isspace():
            self._held_reasoning += text
            return
        text = self._held_reasoning + text.replace(CONTROL, "")
        if not self._has_reasoning:
            text = text.lstrip()
        shown = text.rstrip()
        self._held_reasoning = text[len(shown) :]
        self._reasoning += shown
        self._has_reasoning = self._has_reasoning or bool(shown)

    def end_reasoning(self) -> None:
        """The reasoning is complete."""
        self._held_reasoning = ""
        self._after_reasoning = True

    def add(self, text: str) -> None:
        """Add content."""
        if text.isspace():
            self._held += text
            return
        text = self._held + text.replace(CONTROL, "")
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if not shown:
            return
        if self._after_reasoning and not self._has_content:
            lines = _LEADING_LINES.match(shown)
            shown = shown[lines.end() :] if lines else shown
        self._content += shown
        self._has_content = True
        self._after_call = False

    def mark(self) -> None:
        """Markup of calls comes: white space before it is content only between other content."""
        if self._trims or self._after_call or not self._has_content:
            self._held = ""

    def call(self, call: Call) -> None:
        """Add a complete call."""
        self.mark()
        if self._held:
            self._content += self._held
            self._held = ""
        self._after_call = True
        self.end_reasoning()
        if self.calls and not self.wanted.parallel_calls:
            return
        self._new_calls.append(CallDelta(self.calls, call.arguments, call.id or self._make_id(), call.name))
        self.calls += 1

    def end(self) -> None:
        """Nothing more comes."""
        self._reasoning += self._held_reasoning if self._has_reasoning else ""
        self._held_reasoning = ""
        if not self._after_call and (self._has_content or not self._after_reasoning):
            self._content += self._held
        self._held = ""

    def take(self) -> Parts:
        """Return what was added since the last time."""
        reasoning = self._reasoning if self.wanted.reasoning else ""
        parts = Parts(self._content, reasoning, tuple(self._new_calls))
        self._content, self._reasoning, self._new_calls = "", "", []
        return parts
