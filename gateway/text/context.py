"""How many tokens a model's prompt and answer may have together: one number for all that asks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

UNKNOWN_TOKENS = 1 << 20
"""Where neither the settings nor an engine nor config.json tell a number: engines refuse what is too long for them."""
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
LANGUAGE_PARTS = ("text_config", "thinker_config", "llm_config", "language_config")


class ContextLength:
    """The settings' number, or else the least that engines tell; config.json's only until one has told."""

    __slots__ = ("_configured", "_fixed", "_told")

    def __init__(
        self,
        fixed: int | None = None,
        configured: int | None = None,
        told: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """``fixed``: of the settings. ``configured``: of config.json. ``told``: gives those of the engines."""
        self._fixed = fixed
        self._configured = configured
        self._told = told

    def follow(self, told: Callable[[], Iterable[int]]) -> None:
        """Take the engines' numbers from here."""
        self._told = told

    @property
    def excess_over(self) -> int | None:
        """What config.json tells, where the settings' number is more than that."""
        if self._fixed is None or self._configured is None or self._fixed <= self._configured:
            return None
        return self._configured

    @property
    def known_tokens(self) -> int | None:
        """The number; None: nobody tells it."""
        if self._fixed is not None:
            return self._fixed
        return min(self._told(), default=self._configured)

    @property
    def tokens(self) -> int:
        """The number, or a very large one."""
        return self.known_tokens or UNKNOWN_TOKENS


def find_context(config: Mapping[str, Any]) -> int | None:
    """Return the context length of config.json; models of several parts keep it one level down or two."""
    for key in LENGTHS:
        if isinstance(config.get(key), int):
            return int(config[key])
    inner = [config[name] for name in LANGUAGE_PARTS if isinstance(config.get(name), Mapping)]
    return next((length for part in inner if (length := find_context(part)) is not None), None)
