"""One request under decision: its pools, and the choices made so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policies.pick import place, reaches
from policies.placement_rules import Weights
from policies.plans import Decision, Plan
from policies.rules import Rules
from policies.scorers import Candidates
from policies.types import Estimate, Facts, InstanceView, Placement, Rng, Role, Snapshot
from policies.where import Where

ROLES = tuple(Role)

Site = tuple[str, str]
"""Region and fingerprint: where an instance stands, and whose KV it can read."""

Pool = dict[Site, list[InstanceView]]
"""Instances of one role by their site."""

Costs = Callable[[Sequence[InstanceView], Sequence[int]], list[float]]
"""Seconds that missing KV takes to cross, for instances and the tokens that each has."""


@dataclass(frozen=True, slots=True)
class Case:
    """``pools`` holds the model's instances that are up, by role; ``rejected`` says why others are not chosen from.

    ``stands_in``: the tenant's regions have no MD, so the RLDs there are in MD's pool and end what they begin.
    """

    facts: Facts
    snapshot: Snapshot
    rules: Rules
    rng: Rng
    pools: dict[Role, Pool]
    rejected: dict[Role, dict[str, str]]
    stands_in: bool = False
    placements: list[Placement] = field(default_factory=list)

    def choose(
        self, role: Role, views: list[InstanceView], weights: Weights, costs: Costs | None = None
    ) -> InstanceView:
        """Place ``role`` on one of ``views`` (at least one) and note how; what an earlier filter held is void."""
        facts, rejected = self.facts, self.rejected[role]
        if rejected:
            for view in views:
                rejected.pop(view.id, None)
        views = self._leave_out_weak(views, rejected)
        reach = reaches(views, facts)
        wan_s = () if costs is None else costs(views, reach)
        loads = [(view.running + view.waiting) / view.max_running for view in views]
        sessions = self.snapshot.sessions.get(facts.session, frozenset()) if facts.session else frozenset()
        candidates = Candidates(views, loads, max(1, facts.prompt_tokens), reach, wan_s, sessions)
        chosen, placement = place(role, candidates, weights, self.rules.placement, rejected, self.rng)
        self.placements.append(placement)
        return chosen

    def decide(self, plan: Plan, estimate: Estimate | None = None) -> Decision:
        """Close the case."""
        return Decision(plan, self.facts, estimate, tuple(self.placements), self.stands_in)

    def _leave_out_weak(self, views: list[InstanceView], rejected: dict[str, str]) -> list[InstanceView]:
        """Leave out instances with full KV memory or without streamed ids, unless none would remain."""
        kv_max = self.rules.placement.kv_usage_max
        strong = [view for view in views if view.kv_usage <= kv_max and view.streams_ids]
        if not strong or len(strong) == len(views):
            return views
        rejected.update(
            {view.id: "kv_full" if view.streams_ids else "ids_missing" for view in views if view not in strong}
        )
        return strong


def open_case(facts: Facts, snapshot: Snapshot, rules: Rules, rng: Rng) -> Case:
    """Sort the model's instances into pools: in the tenant's regions, healthy, taking new work, with room for the
    prompt and one token.
    """
    pools: dict[Role, Pool] = {role: {} for role in ROLES}
    rejected: dict[Role, dict[str, str]] = {role: {} for role in ROLES}
    model, needed_tokens, where = facts.model, facts.prompt_tokens + 1, Where.of(rules)
    is_bound = where.is_bound
    for view in snapshot.instances:
        if view.model != model:
            continue
        if is_bound and not where.allows(view.region):
            rejected[view.role][view.id] = "region_pinned"
        elif not view.healthy:
            rejected[view.role][view.id] = "unhealthy"
        elif view.draining:
            rejected[view.role][view.id] = "draining"
        elif view.max_model_len is not None and view.max_model_len < needed_tokens:
            rejected[view.role][view.id] = "too_long"
        elif facts.salted and view.leaks_salts:
            rejected[view.role][view.id] = "leaks_salts"
        else:
            pools[view.role].setdefault((view.region, view.fingerprint), []).append(view)
    stands_in = is_bound and not _has_main(model, where, snapshot)
    if stands_in:
        pools[Role.MD], pools[Role.RLD] = pools[Role.RLD], {}
        rejected[Role.MD].update(rejected[Role.RLD])
    return Case(facts, snapshot, rules, rng, pools, rejected, stands_in)


def _has_main(model: str, where: Where, snapshot: Snapshot) -> bool:
    """Whether an MD that is to stay may be asked, be it up or not."""
    return any(
        view.role is Role.MD and view.model == model and where.allows(view.region) and not view.draining
        for view in snapshot.instances
    )
