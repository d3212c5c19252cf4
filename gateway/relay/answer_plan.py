"""What was decided for one answer before it began, and who is told what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import KvPath
from backends.types import TransferRequest
from gateway.fleet.kv_sizes import KvSizes, describe_size
from gateway.fleet.kv_terms import KvTerms
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning
from gateway.fleet.links import Link
from gateway.fleet.pools import ModelFacts, Pools, store_id
from gateway.index.types import PrefixIndex
from gateway.relay.failover import Failover
from gateway.relay.splice import SpliceTerms
from gateway.relay.types import GenerationRequest
from gateway.telemetry.metrics import Metrics
from policies.fused import must_leave
from policies.handoff import Handoff, HandoffStep, choose_step
from policies.plans import Decision, Plan
from policies.rules import RelayRules, Rules
from policies.singular import relay_finished_first
from policies.types import Role, Snapshot


@dataclass(frozen=True, slots=True)
class AnswerOutcome:
    """Leaves with the index, the statistics and the singular budget what comes of one answer.

    ``look``: at the fleet as it is now. ``link`` None: no KV crosses; ``kv``: how that is named and cut.
    """

    request: GenerationRequest
    decision: Decision
    rules: Rules
    link: Link | None
    kv: KvTerms | None
    facts: ModelFacts
    pools: Pools
    index: PrefixIndex
    learning: Learning
    metrics: Metrics
    trust: KvTrust
    sizes: KvSizes
    look: Callable[[], Snapshot]

    def held(self, instance_id: str, ids: Sequence[int], rank: int | None = None) -> None:
        """An instance has these ids in its cache now, or one of its ranks has."""
        self.index.note_routed(instance_id, self.request.model, ids, self.request.cache_salt, rank=rank or 0)

    def took(self, instance_id: str, cached_tokens: int | None) -> bool:
        """MD's first leg tells what it took of the KV that had crossed; None: it does not tell. False: far too little.

        Only now is the receiving region's store known to have the prompt in a form that its engines can use.
        """
        link, kv, request = self.link, self.kv, self.request
        if link is None or kv is None or link.path.traits.lends:
            return True
        moved_tokens = kv.full_tokens(len(request.prompt))
        spare_tokens = max(kv.chunk_tokens, self.rules.relay.kv_least_load_tokens)
        if cached_tokens is not None and moved_tokens - cached_tokens > spare_tokens:
            self.trust.note_unread(
                link.route, request.model, instance_id, moved_tokens, cached_tokens, is_salted=self.is_salted
            )
            return False
        hit = self.decision.facts.hits.get(instance_id)
        own_tokens = hit.tokens if hit is not None else 0
        if cached_tokens is not None and moved_tokens - own_tokens > spare_tokens:
            self.trust.note_read(link.route, request.model, is_salted=self.is_salted)
            self.sizes.prove(request.model)
        self.held(store_id(link.dest, request.model), request.prompt)
        return True

    @property
    def is_salted(self) -> bool:
        """Whether the keys of its KV have a salt in them."""
        return self.request.cache_salt is not None

    def unseen(self, after_s: float) -> str:
        """P's store has not shown the first chunk, so long after P's end; say what was looked for."""
        link, request = self.link, self.request
        if link is None:
            return "no link"
        why = link.describe_unseen(request.model, self.facts.kv_name, self.is_salted, after_s)
        self.trust.note_unseen(link.route, request.model, why, is_salted=self.is_salted)
        return why

    def refuse_size(self, chunk_bytes: int) -> str | None:
        """Say why KV whose chunks are of this size, for each rank, is not to be moved; None: it is.

        A request that tries a link that was given up moves it all the same: what MD makes of it decides.
        """
        link, kv, model, given = self.link, self.kv, self.request.model, self.facts.kv_bytes_per_token
        if link is None or kv is None or kv.has_groups:
            return None
        token_bytes = kv.at("source", self.facts.kv_name, self.facts.kv_shape).token_bytes(chunk_bytes)
        if self.sizes.note(model, given, token_bytes) or self.facts.kv_shape is None:
            return None
        if self.trust.is_on_trial(link.route, model, is_salted=self.is_salted):
            return None
        return describe_size(token_bytes, self.sizes.of(model, given))

    def odd_size(self, why: str) -> None:
        """The KV in P's store is not that of the model, so it was not moved."""
        if self.link is not None:
            self.trust.note_odd_size(self.link.route, self.request.model, why, is_salted=self.is_salted)

    def is_link_up(self) -> bool:
        """Whether the sending store can be asked now."""
        return self.link is not None and self.link.view().up

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

    def known_cached_tokens(self) -> int | None:
        """What P had of the prompt when the plan was made; None: nobody knew."""
        facts, prefill = self.decision.facts, self.decision.plan.prefill
        hit = facts.hits.get(prefill) if prefill is not None else None
        return min(hit.reach_tokens, facts.prompt_tokens) if hit is not None else None

    def leaves_prefill(self, failover: Failover) -> bool:
        """Whether a P that writes has become so busy that an RLD, which there is, shall go on."""
        now_s, rules = self.pools.clock(), self.rules.relay
        prefill, relay = failover.pick(Role.P), failover.pick(Role.RLD)
        relay_view = None if relay is None else relay.view(now_s)
        if prefill is None or not must_leave(prefill.view(now_s), relay_view, rules):
            return False
        self.metrics.fused_left.labels(self.request.model).inc()
        return True

    def decide_handoff(self, handoff: Handoff) -> HandoffStep:
        """How MD takes over, as engines are loaded now."""
        plan, pools = self.decision.plan, self.pools
        load = pools[plan.writer].view(pools.clock()).load if plan.writer else 0.0
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
