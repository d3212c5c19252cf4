"""One request under decision: its pools, which P can feed which MD, and the choices made so far."""

from collections.abc import Callable
from dataclasses import dataclass, field

from policies.pick import place, prefer, reaches, sift, standing
from policies.rules import Rules, Weights
from policies.scorers import Candidates
from policies.types import (
    Decision,
    Estimate,
    Facts,
    InstanceView,
    Placement,
    Plan,
    Rng,
    Role,
    Snapshot,
)

Cost = Callable[[InstanceView, int], float]
"""Seconds that missing KV takes to cross for an instance that has the first n tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    """``pools`` holds the model's instances that are up, by role; ``rejected`` says why others are not chosen from."""

    facts: Facts
    snapshot: Snapshot
    rules: Rules
    rng: Rng
    pools: dict[Role, list[InstanceView]]
    rejected: dict[Role, dict[str, str]]
    placements: list[Placement] = field(default_factory=list)

    def choose(self, role: Role, views: list[InstanceView], weights: Weights, cost: Cost | None = None) -> InstanceView:
        """Place ``role`` on one of ``views`` (at least one) and note how."""
        facts, rejected = self.facts, self.rejected[role]
        views = prefer(views, self._reject_full, rejected)
        reach = reaches(views, facts)
        wan_s = () if cost is None else tuple(map(cost, views, reach))
        sessions = self.snapshot.sessions.get(facts.session, frozenset()) if facts.session else frozenset()
        candidates = Candidates(views, facts.prompt_tokens, reach, wan_s, sessions)
        chosen, placement = place(role, candidates, weights, self.rules.placement, rejected, self.rng)
        self.placements.append(placement)
        return chosen

    def decide(self, plan: Plan, estimate: Estimate | None = None) -> Decision:
        """Close the case."""
        return Decision(plan, self.facts, estimate, tuple(self.placements))

    def feeding_regions(self) -> dict[tuple[str, str], list[str]]:
        """Map each MD site (region, fingerprint) that is up to the regions whose P can bring KV there now."""
        sources = {(view.region, view.fingerprint) for view in self.pools[Role.P]}
        sites = {(view.region, view.fingerprint) for view in self.pools[Role.MD]}
        return {
            (dest, mark): [source for source, other in sources if other == mark and self._open(source, dest)]
            for dest, mark in sites
        }

    def _open(self, source: str, dest: str) -> bool:
        link = self.snapshot.links.get((source, dest))
        return source == dest or (link is not None and link.up)

    def _reject_full(self, view: InstanceView) -> str | None:
        return "kv_full" if view.kv_usage > self.rules.placement.kv_usage_max else None


def open_case(facts: Facts, snapshot: Snapshot, rules: Rules, rng: Rng) -> Case:
    """Sort the model's instances into pools, leaving out those that no role could use."""
    by_role: dict[Role, list[InstanceView]] = {role: [] for role in Role}
    for view in snapshot.instances:
        if view.model == facts.model:
            by_role[view.role].append(view)
    rejected: dict[Role, dict[str, str]] = {role: {} for role in Role}
    reject = standing(facts)
    pools = {role: sift(views, reject, rejected[role]) for role, views in by_role.items()}
    return Case(facts, snapshot, rules, rng, pools, rejected)
