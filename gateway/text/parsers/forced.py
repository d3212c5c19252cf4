"""Answers under the grammar of a forced tool call: JSON alone, after the reasoning where there is some. No I/O."""

from gateway.text.parsers.json_calls import make_call, read_calls
from gateway.text.parsers.output import CallDelta, MessageParts, Parts
from gateway.text.parsers.reader import AnswerReader


class ForcedReader:
    """Takes an answer's content for calls: of the function ``name``, or an array of them where that is None.

    ``inner`` tells the content from the reasoning; None: there is no reasoning. Content that is no such JSON, as that
    of a cut answer, is content.
    """

    def __init__(self, inner: AnswerReader | None, name: str | None, output: MessageParts) -> None:
        self._inner = inner
        self._name = name
        self._output = output
        self._content = ""

    @property
    def called(self) -> bool:
        """Say whether to end with "tool_calls": where the client named the function it is told "stop", as by OpenAI."""
        return self._output.calls > 0 and self._name is None

    def push(self, text: str) -> Parts:
        parts = Parts(text) if self._inner is None else self._inner.push(text)
        self._content += parts.content
        return Parts("", parts.reasoning)

    def flush(self) -> Parts:
        parts = Parts("") if self._inner is None else self._inner.flush()
        content = (self._content + parts.content).strip()
        named = make_call(self._name, content) if self._name is not None else None
        calls = ([named] if named else None) if self._name is not None else read_calls(content)
        if calls is None:
            return Parts(content, parts.reasoning)
        for call in calls:
            self._output.call(call)
        made: tuple[CallDelta, ...] = self._output.take().calls
        return Parts("", parts.reasoning, made)
