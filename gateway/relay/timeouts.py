"""How long one answer waits for its main engines, and what they have of it."""

from dataclasses import dataclass, field

from backends.types import TransferRequest
from gateway.fleet.pools import Instance
from gateway.relay.splice_events import LegKind, StartLeg
from policies.handoff import Extend, first_token_wait_s
from policies.rules import RelayRules


@dataclass(slots=True)
class FirstTokenTimeouts:
    """``transfer`` tells what of the prompt's KV crosses; ``rtt_s``: of the way to the main region."""

    transfer: TransferRequest
    rtt_s: float
    rules: RelayRules
    _tail_tokens: int = field(init=False)
    _kv_bytes: int = field(init=False)
    _held: dict[str, int] = field(default_factory=dict)
    _silences: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prompt_tokens = len(self.transfer.token_ids)
        self._tail_tokens = prompt_tokens % self.transfer.chunk_tokens
        self._kv_bytes = (prompt_tokens - self._tail_tokens) * self.transfer.kv_bytes_per_token

    def knows(self, instance: Instance) -> bool:
        """Whether the instance has answered a leg of this answer."""
        return instance.spec.id in self._held

    def lacking_tokens(self, start: StartLeg, instance: Instance) -> int:
        """What the instance has to compute for a leg before its first token."""
        if self.knows(instance):
            return max(0, start.base - self._held[instance.spec.id])
        return start.base + (self._tail_tokens if start.kv_expected else len(self.transfer.token_ids))

    def wait_s(self, start: StartLeg, instance: Instance, now_s: float) -> float:
        """How long a leg's first token may take; MD with the prompt's KV at hand gets what its extend should take."""
        if not start.kv_expected or start.kind not in (LegKind.EXTEND, LegKind.FINAL):
            return self.rules.first_token_timeout_s
        view = instance.view(now_s)
        extend = Extend(
            tokens=self.lacking_tokens(start, instance),
            ahead_tokens=instance.extending_tokens,
            kv_bytes=0 if self.knows(instance) else self._kv_bytes,
            tokens_per_s=instance.extend_tokens_per_s,
            rtt_s=self.rtt_s,
            waiting=view.waiting + max(0, view.running - view.max_running),
            silences=self._silences.get(instance.spec.id, 0),
        )
        return first_token_wait_s(extend, self.rules)

    def note_answer(self, start: StartLeg, instance: Instance) -> None:
        """A leg's first token is there: the instance has computed all of its prompt."""
        self._held[instance.spec.id] = start.base

    def note_silence(self, instance: Instance) -> None:
        """A leg's first token did not come in time."""
        self._silences[instance.spec.id] = self._silences.get(instance.spec.id, 0) + 1
