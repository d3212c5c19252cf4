"""A chat answer's text as the parts of a message: reasoning, content, tool calls."""

from dataclasses import dataclass

from gateway.text.reasoning import ReasoningReader
from gateway.text.tools import CallDelta, ToolReader


@dataclass(frozen=True, slots=True)
class Parts:
    """What some text added to a message."""

    content: str
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class MessageReader:
    """Reads one choice's text; None stands for a part that this request or model does not have."""

    def __init__(self, reasoning: ReasoningReader | None, tools: ToolReader | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def called(self) -> bool:
        """Say whether a tool was called."""
        return self._tools is not None and self._tools.count > 0

    def push(self, text: str) -> Parts:
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
        if self._tools is None or not text:
            return Parts(text, reasoning)
        content, calls = self._tools.push(text)
        return Parts(content, reasoning, tuple(calls))

    def flush(self) -> Parts:
        """Return what was held back."""
        reasoning, content = ("", "") if self._reasoning is None else self._reasoning.flush()
        if self._tools is None:
            return Parts(content, reasoning)
        content, calls = self._tools.push(content)
        return Parts(content + self._tools.flush(), reasoning, tuple(calls))
