"""Stop strings over a text that arrives in pieces of any size."""

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=128)
def find_fallbacks(text: str) -> tuple[int, ...]:
    """Return for each of the text's prefixes the length of the longest shorter prefix that it ends with."""
    fallback = [0] * len(text)
    for end in range(1, len(text)):
        length = fallback[end - 1]
        while length and text[end] != text[length]:
            length = fallback[length - 1]
        fallback[end] = length + (text[end] == text[length])
    return tuple(fallback)


class StopString:
    """One stop string's progress through the text: how many of its characters the text ends with (Knuth-Morris-Pratt).

    Cost per character is constant however long the string is.
    """

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = find_fallbacks(text)

    def feed(self, piece: str, may_stop: bool) -> int | None:
        """Read a piece; return the index in it after the first complete match, or None.

        With ``may_stop`` false a complete match is passed over.
        """
        text, matched, fallback = self.text, self.matched, self._fallback
        if not matched and text[0] not in piece:
            return None
        at = 0
        while at < len(piece):
            if not matched:
                at = piece.find(text[0], at)
                if at < 0:
                    break
            letter = piece[at]
            while matched and letter != text[matched]:
                matched = fallback[matched - 1]
            matched += letter == text[matched]
            at += 1
            if matched == len(text):
                matched = fallback[matched - 1]
                if may_stop:
                    self.matched = matched
                    return at
        self.matched = matched
        return None


class StopMatcher:
    """Passes text on, but for what may be the beginning of a stop string, until one is found.

    The match that ends first counts; of several that end together, the longest.
    """

    __slots__ = ("_held", "_include", "_strings", "stopped")

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self._strings = [StopString(text) for text in stop]
        self._include = include_stop_str_in_output
        self._held = ""
        self.stopped: str | None = None

    def push(self, piece: str, may_stop: bool = True) -> str:
        """Return the text that can be shown; after a match, nothing more.

        ``may_stop`` false: the minimum length is not reached, so stop strings that this piece completes do not count.
        """
        if self.stopped is not None:
            return ""
        if not self._strings:
            return piece
        text = self._held + piece
        held = 0
        matches: list[tuple[int, int, str]] = []
        for string in self._strings:
            end = string.feed(piece, may_stop)
            if end is not None:
                matches.append((end, -len(string.text), string.text))
            elif string.matched > held:
                held = string.matched
        if not matches:
            self._held = text[len(text) - held :]
            return text[: len(text) - held]
        end, _, self.stopped = min(matches)
        end += len(self._held)
        self._held = ""
        return text[: end if self._include else end - len(self.stopped)]

    def flush(self) -> str:
        """Return the text that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held
