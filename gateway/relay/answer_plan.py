"""What was decided for one answer before it began, and who is told what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import KvPath
from backends.types import TransferRequest
from gateway.fleet.learning import Learning
from gateway.fleet.links import Link
from gateway.fleet.pools import Pools, store_id
from gateway.index.types import PrefixIndex
from gateway.relay.splice import SpliceTerms
from gateway.relay.types import GenerationRequest
from gateway.telemetry.metrics import Metrics
from policies.handoff import Handoff, HandoffStep, choose_step
from policies.plans import Decision, Plan
from policies.rules import RelayRules, Rules
from policies.singular import relay_finished_first
from policies.types import Snapshot


@dataclass(frozen=True, slots=True)
class AnswerOutcome:
    """Leaves with the index, the statistics and the singular budget what comes of one answer.

    ``look``: at the fleet as it is now. ``link`` None: no KV crosses.
    """

    request: GenerationRequest
    decision: Decision
    rules: Rules
    link: Link | None
    pools: Pools
    index: PrefixIndex
    learning: Learning
    metrics: Metrics
    look: Callable[[], Snapshot]

    def held(self, instance_id: str, ids: Sequence[int], rank: int | None = None) -> None:
        """An instance has these ids in its cache now, or one of its ranks has."""
        self.index.note_routed(instance_id, self.request.model, ids, self.request.cache_salt, rank=rank or 0)

    def moved(self) -> None:
        """The receiving region's store has the prompt."""
        if self.link is not None and not self.link.path.traits.lends:
            self.held(store_id(self.link.dest, self.request.model), self.request.prompt)

    def settle_transfer(self, made: int) -> bool:
        """RLD ended the answer, with so many tokens, before the KV was over: decide whether the rest shall cross."""
        model = self.request.model
        end = relay_finished_first(self.decision.plan, self.decision.facts, made, self.look(), self.rules)
        if end.stop_transfer:
            self.learning.note_converted(model, self.rules)
            self.metrics.decisions.labels(model, "singular", end.reason).inc()
        return not end.stop_transfer

    def ended(self, made: int) -> None:
        self.learning.note_length(self.request.model, self.request.tenant, made, self.rules)

    def decide_handoff(self, handoff: Handoff) -> HandoffStep:
        """How MD takes over, as engines are loaded now."""
        plan, pools = self.decision.plan, self.pools
        load = pools[plan.relay].view(pools.clock()).load if plan.relay else 0.0
        speed = pools[plan.main].extend_tokens_per_s if plan.main else None
        return choose_step(handoff, load, speed, self.rules.handoff)


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """All that was decided for one answer.

    ``path`` None: P and MD share a store, so the KV is there when P's stream ends. ``kv_patience_s``: how long MD's KV
    may take, from the end of the P leg, before a relay (or a recomputation) is preferred to waiting. ``reserve_s``: see
    ``pacing``. ``rtt_s``: of the way to MD. ``lease_s``: how long P keeps KV that it lends to RLD; None: engines do not
    lend.
    """

    request: GenerationRequest
    plan: Plan
    terms: SpliceTerms
    rules: RelayRules
    path: KvPath | None
    transfer: TransferRequest
    kv_patience_s: float
    reserve_s: float
    rtt_s: float
    lease_s: float | None
    outcome: AnswerOutcome
