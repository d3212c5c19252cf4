"""How fast one leg's tokens came."""

from dataclasses import dataclass

from gateway.fleet.pools import Instance
from gateway.relay.splice_events import LegKind, StartLeg

HANDOFF_TOKENS = 16
"""A final with fewer tokens says little of the speed of extends."""


@dataclass(slots=True)
class LegPace:
    """Times of a leg's tokens, in monotonic seconds. ``lacking_tokens``: to compute before the first.

    ``is_first_extend``: the instance has none of this answer's KV but what crossed.
    """

    instance: Instance
    start: StartLeg
    started_s: float
    lacking_tokens: int = 0
    is_first_extend: bool = False
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.instance.extending_tokens += self.lacking_tokens

    def note(self, tokens: int, now_s: float) -> bool:
        """Take the next tokens; whether they are the first."""
        is_first = self.first_s is None
        if is_first:
            self.first_s = now_s
            self.instance.extending_tokens -= self.lacking_tokens
        self.last_s = now_s
        self.tokens += tokens
        return is_first

    def end(self) -> None:
        """Let the instance's figures learn from the leg; one that brought nothing teaches nothing."""
        if self.first_s is None:
            self.instance.extending_tokens -= self.lacking_tokens
            return
        if self._is_extend():
            self.instance.note_extend(self.lacking_tokens, self.first_s - self.started_s)
        if self.start.kind is not LegKind.EXTEND:
            self.instance.note_decode(self.tokens, self.last_s - self.first_s)

    def _is_extend(self) -> bool:
        if self.start.kind is LegKind.FINAL:
            return self.is_first_extend and self.start.kv_expected and self.start.base >= HANDOFF_TOKENS
        return self.start.kind is LegKind.EXTEND
