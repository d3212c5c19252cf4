"""Text of clients that spells a model's control tokens, like ``<|im_end|>``: with it a message can pretend to be two.

Engines read it as the tokens that it spells. The rule ``prompts.special_tokens`` may have it refused, or read as text:
then each spelling is cut in two by ``CUT`` before the template gets it, and the two are tokenised apart, so that no
tokeniser sees it whole.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

CUT = "\ufdd0"
"""No character: Unicode leaves it to programs, and no text that is sent to others may hold it."""
ESCAPED_CUT = "\\ufdd0"
SpecialTokensRule = Literal["text", "allow", "refuse"]
Guard = Callable[[Any], Any]
"""Returns JSON-like values with all that their strings spell made harmless. Raises ControlTokensRefused."""


class ControlTokensRefused(ValueError):
    """Text spells a control token, and must not or cannot be read; the message says which."""


class ControlTokens:
    """Those of one model. ``spellings``: how they are written."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted({text for text in spellings if text}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def guard(self, rule: SpecialTokensRule) -> Guard | None:
        """Return what a client's values go through under a rule; None: they stay as they are."""
        if rule == "allow" or (self._pattern is None and rule == "refuse"):
            return None
        return lambda value: self._map(value, self._refuse if rule == "refuse" else self._cut)

    def _map(self, value: Any, change: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, Mapping):
            return {self._map(name, change): self._map(entry, change) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self._map(entry, change) for entry in value]
        return value

    def _refuse(self, text: str) -> str:
        if self._pattern is not None and (found := self._pattern.search(text)) is not None:
            raise ControlTokensRefused(f"The text spells the control token {found[0]!r}.")
        return text

    def _cut(self, text: str) -> str:
        if CUT in text:
            raise ControlTokensRefused("The text holds U+FDD0, which is no character.")
        if self._pattern is None:
            return text
        pieces, start = [], 0
        # From within each spelling on: another one may begin there.
        while (found := self._pattern.search(text, start)) is not None:
            if len(found[0]) == 1:
                raise ControlTokensRefused(f"The control token {found[0]!r} cannot be read as text.")
            pieces.append(text[start : found.start() + 1])
            start = found.start() + 1
        return CUT.join([*pieces, text[start:]])


NO_CONTROL_TOKENS = ControlTokens(())
