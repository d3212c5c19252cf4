"""How fast one leg's tokens came."""

from dataclasses import dataclass

from gateway.control.fleet.pools import Instance
from gateway.relay.steps import LegKind


@dataclass(slots=True)
class Pace:
    """Times of a leg's tokens, in monotonic seconds."""

    started_s: float
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0

    def note(self, tokens: int, now_s: float) -> bool:
        """Take the next tokens; whether they are the first."""
        is_first = self.first_s is None
        if is_first:
            self.first_s = now_s
        self.last_s = now_s
        self.tokens += tokens
        return is_first

    def teach(self, instance: Instance, kind: LegKind, extended_tokens: int) -> None:
        """Let the instance's figures learn from the leg; one that brought nothing teaches nothing."""
        if self.first_s is None:
            return
        if kind is LegKind.EXTEND:
            instance.note_extend(extended_tokens, self.first_s - self.started_s)
        else:
            instance.note_decode(self.tokens, self.last_s - self.first_s)
