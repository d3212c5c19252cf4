"""Token counts that a passed answer tells of itself, whichever API it belongs to. No I/O, and nothing is changed."""

from typing import Any

import orjson

from backends.transport.sse import EventTooLarge, SseParser


class UsageReader:
    """Reads the events of a stream, or a whole JSON answer. The last count that is told holds."""

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self._parser: SseParser | None = SseParser()

    def feed(self, piece: bytes) -> None:
        """Look at a piece of an event stream."""
        if self._parser is None:
            return
        try:
            events = self._parser.feed(piece)
        except EventTooLarge:
            self._parser = None
            return
        for event in events:
            if b'"usage"' in event:
                self.read(event)

    def read(self, document: bytes) -> None:
        """Look at one JSON document; anything else is left alone."""
        try:
            value = orjson.loads(document)
        except orjson.JSONDecodeError:
            return
        if isinstance(value, dict):
            for holder in (value, value.get("message"), value.get("response")):
                if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                    self._take(holder["usage"])

    def _take(self, usage: dict[str, Any]) -> None:
        prompt = _count(usage, "prompt_tokens", "input_tokens")
        completion = _count(usage, "completion_tokens", "output_tokens")
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.completion_tokens = self.completion_tokens if completion is None else completion


def _count(usage: dict[str, Any], *names: str) -> int | None:
    counts = [usage[name] for name in names if type(usage.get(name)) is int and usage[name] >= 0]
    return counts[0] if counts else None
