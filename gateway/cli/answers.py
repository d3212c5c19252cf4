"""A streamed answer as ``pdd chat`` follows it: whose token comes, where the joints are, how long they were."""

from dataclasses import dataclass, field
from typing import Any

from gateway.operator.terminal import spell_bytes, spell_seconds

UNKNOWN = "other"
"""Who made a token of which nobody tells."""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Text of one role. ``after``: whose text stands before it; None at the answer's beginning."""

    role: str
    text: str
    after: str | None


@dataclass(slots=True)
class FollowedAnswer:
    """One answer. Times in seconds of one clock."""

    sent_s: float
    plan: str | None = None
    reason: str | None = None
    request_id: str | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    content: str = ""
    """The text without thoughts, as a next turn of the conversation has it."""
    usage: dict[str, Any] = field(default_factory=dict)
    wan_bytes: int | None = None
    joint_gap_s: float | None = None
    _first_s: float | None = None
    _last_s: float = 0.0
    _role: str | None = None
    _shown: str | None = None
    _tells_ids: bool = False

    def take(self, chunk: dict[str, Any], now_s: float) -> list[AnswerPiece]:
        """Take a chunk of the stream; what of it is to be shown."""
        self.usage = chunk.get("usage") or self.usage
        pieces: list[AnswerPiece] = []
        for choice in chunk["choices"]:
            delta, ids = choice["delta"], choice.get("token_ids") or []
            content = delta.get("content") or ""
            text = (delta.get("reasoning_content") or delta.get("reasoning") or "") + content
            role = chunk.get("pdd", {}).get("role") or self._role or UNKNOWN
            self._tells_ids = self._tells_ids or bool(ids)
            if ids or text:
                # Where ids are told, text without any is the rest of tokens that were counted.
                self._note(role, len(ids) if self._tells_ids else 1, now_s)
            if text:
                pieces.append(AnswerPiece(role, text, self._shown))
                self._shown = role
            self.content += content
        return pieces

    def _note(self, role: str, count: int, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        elif role != self._role and (self._role, role) != ("P", "RLD"):
            self.joint_gap_s = max(self.joint_gap_s or 0.0, now_s - self._last_s)
        self._last_s, self._role = now_s, role
        self.tokens[role] = self.tokens.get(role, 0) + count

    def figures(self) -> list[str]:
        """Return what there is to tell of it, but for the tokens of each role."""
        found = []
        if self.plan:
            found.append(f"{self.plan} ({(self.reason or '').replace('_', ' ')})")
        if self._first_s is not None:
            found.append(f"first token after {spell_seconds(self._first_s - self.sent_s)}")
        if self.joint_gap_s is not None:
            found.append(f"longest joint gap {spell_seconds(self.joint_gap_s)}")
        if self.usage:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            found.append(f"prompt {self.usage['prompt_tokens']} tokens, {cached} of them cached")
        if self.wan_bytes is not None:
            found.append(f"{spell_bytes(self.wan_bytes)} over the line")
        if self.request_id is not None:
            found.append(f"request {self.request_id}")
        return found
