"""Decides each request's course and starts it: facts -> plan -> answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from backends.types import TransferRequest
from gateway.config.rulebook import RuleBook
from gateway.errors import GatewayError
from gateway.fleet.learning import Learning
from gateway.fleet.links import Link, Links
from gateway.fleet.models import ModelFacts, store_id
from gateway.fleet.pools import Pools
from gateway.fleet.sessions import Sessions
from gateway.index.types import PrefixIndex
from gateway.limits.usage import Use
from gateway.relay.align import Aligner
from gateway.relay.answer import RelayAnswer
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.record import Record
from gateway.relay.splice import SpliceTerms
from gateway.relay.splice_events import Handoff, Route
from gateway.relay.types import GenerationRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from policies.eligibility import OWN_ANSWER, unsplittable_reason
from policies.handoff import HandoffState, HandoffStep, choose_step
from policies.route import choose_plan
from policies.rules import Rules
from policies.singular import relay_finished_first
from policies.types import Decision, Direct, Facts, Hit, NoInstance, PassThrough, Plan, Relay, Rng, Singular, Snapshot

DIRECT_PATIENCE = 3.0
"""Direct waits this many times as long as it was expected to before a relay steps in."""
LEAST_PATIENCE_S = 1.0


def _count_nothing(tenant: str, model: str, use: Use) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RelayService:
    """See ``gateway.relay.types.Generator``. ``note_use`` is told what a tenant's answers used of a model, in parts."""

    models: Mapping[str, ModelFacts]
    pools: Pools
    links: Links
    index: PrefixIndex
    rulebook: RuleBook
    learning: Learning
    sessions: Sessions
    aligner: Aligner
    timelines: Timelines
    metrics: Metrics
    rng: Rng
    note_use: Callable[[str, str, Use], None] = _count_nothing

    def generate(self, request: GenerationRequest) -> RelayAnswer:
        """Decide and prepare; the engines are called once the answer is iterated. Raises GatewayError."""
        rules = request.rules or self.rulebook.of(request.tenant, request.session or request.request_id)
        decision = self.decide(request, rules)
        self.learning.note_decision(decision, rules)
        self._note_session(decision)
        timeline = self.timelines.open(request.request_id, request.model)
        note_use = partial(self.note_use, request.tenant, request.model)
        record = Record(timeline, self.metrics, decision.plan, note_use, rules.slo, request.waited_s)
        cast = Failover(decision.plan, request, rules.regions, self.pools, self.rng)
        course = self._course(request, rules, decision)
        return RelayAnswer(course, cast, self.pools, self.aligner, record)

    def decide(self, request: GenerationRequest, rules: Rules) -> Decision:
        """Choose the plan without starting anything. Raises GatewayError."""
        facts = self._facts(request, rules)
        try:
            return choose_plan(facts, self._snapshot(request.model, facts.session), rules, self.rng)
        except NoInstance as error:
            if error.reason == "too_long":
                raise GatewayError(
                    400, "the prompt is longer than the engines' context", code="context_length_exceeded"
                ) from None
            raise GatewayError(503, str(error), code="no_instance", retry_after_s=1.0) from None

    def _facts(self, request: GenerationRequest, rules: Rules) -> Facts:
        found = self.index.lookup(request.model, request.prompt, request.cache_salt)
        hits: dict[str, Hit | None] = {}
        stored_tokens: dict[str, int] = {}
        for instance in self.pools.of_model(request.model):
            spec = instance.spec
            if spec.region not in stored_tokens:
                store = found.get(store_id(spec.region, request.model))
                stored_tokens[spec.region] = store.at_least_tokens if store else 0
            hit = found.get(spec.id)
            if hit is not None and hit.tokens is not None:
                hits[spec.id] = Hit(hit.tokens, stored_tokens[spec.region], hit.predicted)
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
        )

    def _snapshot(self, model: str, session: str | None) -> Snapshot:
        facts = self.models[model]
        return Snapshot(
            instances=self.pools.views(model),
            links=self.links.views(),
            kv_bytes_per_token=facts.kv_bytes_per_token,
            kv_chunk_tokens=self.links.chunk_tokens,
            prefix_cache_effective=facts.cache_effective,
            alignment=self.learning.alignment(model),
            singular=self.learning.singular(model),
            sessions={session: self.sessions.served(session)} if session else {},
            now_s=self.pools.clock(),
        )

    def _course(self, request: GenerationRequest, rules: Rules, decision: Decision) -> AnswerPlan:
        plan = decision.plan
        link = self._link(plan, rules)
        return AnswerPlan(
            request=request,
            plan=plan,
            terms=self._terms(request, rules, decision, _lends(plan, link)),
            rules=rules.relay,
            path=link.path if link else None,
            transfer=self._transfer(request, link),
            patience_s=_patience_s(decision, rules),
            reserve_s=rules.handoff.reserve_s,
            rtt_s=link.view().rtt_s if link else 0.0,
            lease_s=link.lease_s if _lends(plan, link) and link else None,
            keep_transfer=lambda made: self._keep_transfer(decision, made, rules),
            note_held=lambda instance, ids: self._note_held(request, instance, ids),
            note_moved=lambda: self._note_moved(request, link),
            note_length=lambda made: self.learning.note_length(request.model, request.tenant, made, rules),
        )

    def _link(self, plan: Plan, rules: Rules) -> Link | None:
        if isinstance(plan, Direct | Relay):
            return self.links.get(*plan.link) if plan.link else None
        return self.links.first_from(self.pools[plan.prefill].spec.region, rules.regions) if plan.prefill else None

    def _terms(self, request: GenerationRequest, rules: Rules, decision: Decision, lends: bool) -> SpliceTerms:
        plan, unsplittable = decision.plan, decision.facts.unsplittable
        context = self.models[request.model].context_tokens
        lengths = (view.max_model_len for view in self.pools.views(request.model))
        room = min([context, *(length for length in lengths if length)]) - len(request.prompt)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        eos = frozenset() if request.sampling.ignore_eos else request.eos_token_ids

        def decide(handoff: Handoff) -> HandoffStep:
            load = self.pools[plan.relay].view(self.pools.clock()).load if plan.relay else 0.0
            speed = self.pools[plan.main].extend_tokens_per_s if plan.main else None
            state = HandoffState(
                pending_tokens=handoff.pending,
                rounds=handoff.rounds,
                relay_load=load,
                extend_tokens_per_s=speed,
                previous_pending_tokens=handoff.previous_pending,
                main_lost=handoff.main_lost,
            )
            return choose_step(state, rules.handoff)

        return SpliceTerms(
            route=_route(plan),
            splittable=unsplittable is None or unsplittable in OWN_ANSWER,
            classic=lends or (isinstance(plan, Direct) and plan.classic),
            relay_allowed="relay" in rules.pipelines,
            limit_tokens=limit,
            min_tokens=min(request.min_tokens, limit),
            terminators=eos | frozenset(request.sampling.stop_token_ids),
            max_attempts=rules.relay.max_attempts,
            decide=decide,
        )

    def _transfer(self, request: GenerationRequest, link: Link | None) -> TransferRequest:
        return TransferRequest(
            transfer_id=request.request_id,
            dialect=link.dialect if link else "",
            model=self.models[request.model].kv_name,
            token_ids=request.prompt,
            chunk_tokens=link.chunk_tokens if link else 1,
            salt=request.cache_salt,
            served_model=request.model,
            kv_bytes_per_token=self.models[request.model].kv_bytes_per_token,
        )

    def _keep_transfer(self, decision: Decision, made: int, rules: Rules) -> bool:
        plan, model = decision.plan, decision.facts.model
        if not isinstance(plan, Relay):
            return True
        end = relay_finished_first(plan, decision.facts, made, self._snapshot(model, decision.facts.session), rules)
        if end.stop_transfer:
            self.learning.note_converted(model, rules)
            self.metrics.decisions.labels(model, "singular", end.reason).inc()
        return not end.stop_transfer

    def _note_session(self, decision: Decision) -> None:
        if decision.facts.session is not None:
            plan = decision.plan
            served = frozenset(id_ for id_ in (plan.prefill, plan.relay, plan.main) if id_ is not None)
            self.sessions.note(decision.facts.session, served)

    def _note_held(self, request: GenerationRequest, instance_id: str, ids: Sequence[int]) -> None:
        self.index.note_routed(instance_id, request.model, ids, request.cache_salt)

    def _note_moved(self, request: GenerationRequest, link: Link | None) -> None:
        if link is not None and not link.path.traits.lends:
            self.index.note_routed(
                store_id(link.dest, request.model), request.model, request.prompt, request.cache_salt
            )


def _lends(plan: Plan, link: Link | None) -> bool:
    """Whether RLD gets its KV from P itself; then RLD makes all tokens from the prompt on, and P's is not shown."""
    return plan.relay is not None and link is not None and link.path.traits.lends


def _session_key(request: GenerationRequest) -> str | None:
    return f"{request.tenant}\n{request.session}" if request.session else None


def _route(plan: Plan) -> Route:
    match plan:
        case Direct():
            return "direct"
        case Relay():
            return "relay"
        case Singular():
            return "singular"
        case PassThrough():
            return "passthrough"


def _patience_s(decision: Decision, rules: Rules) -> float:
    if not isinstance(decision.plan, Direct):
        return rules.relay.extend_timeout_s
    expected_s = decision.estimate.total_s if decision.estimate else None
    return max(LEAST_PATIENCE_S, DIRECT_PATIENCE * max(rules.direct_wan_bound_s, expected_s or 0.0))
