"""Tells a model's reasoning from its answer, by ``<think>`` and ``</think>`` in the text, however it is cut."""

from enum import Enum, auto

OPENING = "<think>"
CLOSING = "</think>"


class _Place(Enum):
    """Where in the output the reader is."""

    START = auto()
    INSIDE = auto()
    AFTER = auto()


class ReasoningReader:
    """Splits text into reasoning and content; every character but the tags' comes out once, in order.

    ``begins_inside``: the prompt already ends with the opening tag, as some templates have it.
    """

    def __init__(self, *, begins_inside: bool) -> None:
        self._place = _Place.INSIDE if begins_inside else _Place.START
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Return (reasoning, content)."""
        if self._place is _Place.AFTER:
            return "", text
        text, self._held = self._held + text, ""
        if self._place is _Place.START:
            begun = text.lstrip()
            if not begun.startswith(OPENING):
                if OPENING.startswith(begun):
                    self._held = text
                    return "", ""
                self._place = _Place.AFTER
                return "", text
            self._place = _Place.INSIDE
            text = begun.removeprefix(OPENING)
        reasoning, closing, content = text.partition(CLOSING)
        if closing:
            self._place = _Place.AFTER
            return reasoning, content
        shown = len(text) - begun_marker(text, CLOSING)
        self._held = text[shown:]
        return text[:shown], ""

    def flush(self) -> tuple[str, str]:
        """Return what was held back and turned out to be no tag."""
        held, self._held = self._held, ""
        return (held, "") if self._place is _Place.INSIDE else ("", held)


def begun_marker(text: str, marker: str) -> int:
    """Return how many of the text's last characters are a beginning of the marker."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
