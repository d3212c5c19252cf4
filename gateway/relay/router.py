"""Routes each request: facts -> plan -> answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from backends.types import TransferRequest
from gateway.config.rulebook import RuleBook
from gateway.errors import GatewayError
from gateway.fleet.kv_sizes import KvSizes
from gateway.fleet.kv_terms import KvTerms
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning, Sessions
from gateway.fleet.links import Link, Links
from gateway.fleet.pools import Instance, ModelFacts, Pools, store_id
from gateway.index.types import PrefixIndex
from gateway.limits.usage import Use
from gateway.relay.align import Aligner
from gateway.relay.answer import RelayAnswer
from gateway.relay.answer_plan import AnswerOutcome, AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.record import Record
from gateway.relay.splice import SpliceTerms
from gateway.relay.types import GenerationRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace import TracedRequest, Tracer
from policies.eligibility import OWN_ANSWER, unsplittable_reason
from policies.placement import choose_rank
from policies.plans import Decision, Plan
from policies.route import choose_plan
from policies.rules import Rules
from policies.types import Facts, Hit, NoInstance, Rng, Snapshot
from policies.where import Where

NO_LINK = KvTerms(chunk_tokens=1)
"""Where P and MD share a store nothing crosses, and every token that P has stored is there."""


def _count_nothing(tenant: str, model: str, use: Use) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Router:
    """See ``gateway.relay.types.Generator``. ``note_use`` is told what a tenant's answers used of a model, in parts.
    ``name_tenant``: what KV paths call one.
    """

    models: Mapping[str, ModelFacts]
    pools: Pools
    links: Links
    trust: KvTrust
    index: PrefixIndex
    rulebook: RuleBook
    learning: Learning
    sessions: Sessions
    aligner: Aligner
    timelines: Timelines
    metrics: Metrics
    rng: Rng
    note_use: Callable[[str, str, Use], None] = _count_nothing
    name_tenant: Callable[[str], str] = str
    sizes: KvSizes = field(default_factory=KvSizes)
    tracer: Tracer | None = None

    def generate(self, request: GenerationRequest) -> RelayAnswer:
        """Decide and prepare; the engines are called once the answer is run. Raises GatewayError."""
        rules = request.rules or self.rulebook.of(request.tenant, request.session or request.request_id)
        came_s = self.pools.clock()
        decision = self.decide(request, rules)
        self.trust.use(decision.plan.link, request.model, is_salted=request.cache_salt is not None)
        self.learning.note_decision(decision, rules)
        if decision.plan.prefill is not None:
            self.learning.note_prefill(decision.facts, self.pools[decision.plan.prefill].view(self.pools.clock()))
        self._note_session(decision)
        timeline = self.timelines.open(request.request_id, request.model, request.trace)
        if timeline.trace is not request.trace:
            request = replace(request, trace=timeline.trace)
        timeline.decision = decision
        timeline.summary |= {
            "tenant": request.tenant,
            "tokenise_s": round(request.tokenise_s, 6),
            "waited_s": round(request.waited_s, 6),
            "decide_s": round(self.pools.clock() - came_s, 6),
        }
        note_use = partial(self.note_use, request.tenant, request.model)
        traced = self._trace(request, decision.plan, rules)
        record = Record(timeline, self.metrics, decision.plan, note_use, rules.slo, request.waited_s, traced)
        where = Where.of(rules)
        failover = Failover(decision.plan, request, where, self.pools, self.rng, decision.facts.ranks)
        plan = self._plan(request, rules, decision, failover)
        return RelayAnswer(plan, failover, self.pools, self.aligner, record)

    def _trace(self, request: GenerationRequest, plan: Plan, rules: Rules) -> TracedRequest | None:
        if self.tracer is None or not rules.trace.record:
            return None
        return self.tracer.begin(
            request.model, request.tenant, plan.kind, request.prompt, request.cache_salt, request.session
        )

    def decide(self, request: GenerationRequest, rules: Rules) -> Decision:
        """Choose the plan without starting anything. Raises GatewayError."""
        facts = self._facts(request, rules)
        try:
            return choose_plan(facts, self.snapshot(facts.model, facts.session, facts.salted), rules, self.rng)
        except NoInstance as error:
            if error.reason == "too_long":
                raise GatewayError(
                    400, "the prompt is longer than the engines' context", code="context_length_exceeded"
                ) from None
            raise GatewayError(503, str(error), code="no_instance", retry_after_s=1.0) from None

    def _facts(self, request: GenerationRequest, rules: Rules) -> Facts:
        found = self.index.lookup(request.model, request.prompt, request.cache_salt)
        hits: dict[str, Hit | None] = {}
        ranks: dict[str, int] = {}
        stored_tokens: dict[str, int] = {}
        for instance in self.pools.of_model(request.model):
            spec = instance.spec
            if spec.region not in stored_tokens:
                store = found.get(store_id(spec.region, request.model))
                stored_tokens[spec.region] = store.at_least_tokens if store else 0
            hit = found.get(spec.id)
            tokens = hit.tokens if hit is not None else None
            if instance.data_parallel_size > 1:
                by_rank = hit.ranks if hit is not None else ()
                rank = ranks[spec.id] = self._choose_rank(instance, by_rank, len(request.prompt), rules)
                if tokens is not None and rank < len(by_rank):
                    tokens = by_rank[rank]
            if hit is not None and tokens is not None:
                hits[spec.id] = Hit(tokens, stored_tokens[spec.region], hit.predicted)
        expected = self.learning.expected_output(
            request.model, request.tenant, request.max_tokens, request.output_hint_tokens, rules
        )
        return Facts(
            model=request.model,
            prompt_tokens=len(request.prompt),
            hits=hits,
            max_output_tokens=request.max_tokens,
            predicted_output_tokens=expected,
            unsplittable=unsplittable_reason(request.features, rules.splitting),
            tenant=request.tenant,
            session=_session_key(request),
            salted=request.cache_salt is not None,
            ranks=ranks,
        )

    def _choose_rank(self, instance: Instance, by_rank: Sequence[int], prompt_tokens: int, rules: Rules) -> int:
        loads = instance.rank_loads()
        hits = by_rank or [0] * len(loads)
        return choose_rank(instance.spec.role, hits, loads, prompt_tokens, rules.placement, self.rng)

    def snapshot(self, model: str, session: str | None, is_salted: bool = False) -> Snapshot:
        """What policies see now of a model's pools and links, for a prompt with a cache salt or without."""
        facts = self.models[model]
        return Snapshot(
            instances=self.pools.views(model),
            links=self.trust.mark(self.links.views(model), model, is_salted=is_salted),
            kv_bytes_per_token=self.sizes.of(model, facts.kv_bytes_per_token),
            kv_chunk_tokens=self.links.chunk_tokens(model),
            prefix_cache_effective=facts.cache_effective,
            alignment=self.learning.alignment(model),
            singular=self.learning.singular(model),
            sessions={session: self.sessions.served(session)} if session else {},
            now_s=self.pools.clock(),
        )

    def _plan(self, request: GenerationRequest, rules: Rules, decision: Decision, failover: Failover) -> AnswerPlan:
        plan = decision.plan
        link = self._link(plan, rules, request.model)
        kv = link.kv.of(request.model) if link is not None else None
        look = partial(self.snapshot, request.model, decision.facts.session, decision.facts.salted)
        outcome = AnswerOutcome(
            request=request,
            decision=decision,
            rules=rules,
            link=link,
            kv=kv,
            facts=self.models[request.model],
            pools=self.pools,
            index=self.index,
            learning=self.learning,
            metrics=self.metrics,
            trust=self.trust,
            sizes=self.sizes,
            look=look,
        )
        return AnswerPlan(
            request=request,
            plan=plan,
            terms=self._terms(request, rules, decision, outcome, failover),
            rules=rules.relay,
            path=link.path if link else None,
            transfer=self._transfer(request, rules, link, kv or NO_LINK),
            kv_patience_s=plan.kv_patience_s(decision.estimate, rules),
            reserve_s=rules.handoff.reserve_s,
            rtt_s=link.view().rtt_s if link else 0.0,
            lease_s=link.lease_s if plan.lends and link else None,
            outcome=outcome,
        )

    def _link(self, plan: Plan, rules: Rules, model: str) -> Link | None:
        if plan.link is not None:
            return self.links.get(*plan.link, model)
        if plan.prefill is None or not plan.ends_on_relay:
            return None
        # should RLD be lost for good, any MD that can be reached goes on
        return self.links.first_from(self.pools[plan.prefill].spec.region, Where.of(rules), model)

    def _terms(
        self,
        request: GenerationRequest,
        rules: Rules,
        decision: Decision,
        outcome: AnswerOutcome,
        failover: Failover,
    ) -> SpliceTerms:
        plan, unsplittable = decision.plan, decision.facts.unsplittable
        room = self.models[request.model].context.tokens - len(request.prompt)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        eos = frozenset() if request.sampling.ignore_eos else request.eos_token_ids
        return SpliceTerms(
            plan=plan,
            splittable=unsplittable is None or unsplittable in OWN_ANSWER,
            classic=plan.lends or plan.classic,
            relay_allowed="relay" in rules.pipelines,
            limit_tokens=limit,
            min_tokens=min(request.min_tokens, limit),
            terminators=eos | frozenset(request.sampling.stop_token_ids),
            max_attempts=rules.relay.max_attempts,
            decide=outcome.decide_handoff,
            leaves_prefill=partial(outcome.leaves_prefill, failover),
        )

    def _transfer(self, request: GenerationRequest, rules: Rules, link: Link | None, kv: KvTerms) -> TransferRequest:
        facts = self.models[request.model]
        return kv.request(
            request.request_id,
            facts.kv_name,
            request.prompt,
            salt=request.cache_salt,
            served_model=request.model,
            kv_bytes_per_token=self.sizes.of(request.model, facts.kv_bytes_per_token),
            kv_shape=facts.kv_shape,
            kv_groups=facts.kv_groups,
            checks_size=link is None
            or not self.trust.is_on_trial(link.route, request.model, is_salted=request.cache_salt is not None),
            tenant=self.name_tenant(request.tenant),
            weight=rules.limits.wan_weight,
        )

    def _note_session(self, decision: Decision) -> None:
        if decision.facts.session is not None:
            self.sessions.note(decision.facts.session, decision.plan.instances)


def _session_key(request: GenerationRequest) -> str | None:
    return f"{request.tenant}\n{request.session}" if request.session else None
