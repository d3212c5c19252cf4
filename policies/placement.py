"""Who fills each role of a request: its instances by site, the filters, the signals that rank the rest, the choice.

Each signal gives one number in [0, 1] per candidate, 1 the best, and knows no other signal. The weights of the rules
make one total of them; the best total wins, and ties are broken at random.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.placement_rules import MainWeights, PlacementRules, PrefillWeights, RelayWeights, Weights
from policies.plans import Decision, Plan
from policies.rules import Rules
from policies.types import Estimate, Facts, InstanceView, LinkView, NoInstance, Placement, Rng, Role, Snapshot
from policies.wan import missing_tokens, soonest_s
from policies.where import Where

ROLES = tuple(Role)

Site = tuple[str, str]
"""Region and fingerprint: where an instance stands, and whose KV it can read."""

Pool = dict[Site, list[InstanceView]]
"""Instances of one role by their site."""

Feeds = dict[str, LinkView | None]
"""Regions with a P that can bring KV now, and the link it takes; None: the same region."""

Costs = Callable[[Sequence[InstanceView], Sequence[int]], list[float]]
"""Seconds that missing KV takes to cross, for instances and the tokens that each has."""

GRACE_S = 0.05
"""Added to times before they are compared: differences far below it are not worth a choice."""


# One request under decision.


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


# The filters and WAN costs of a role, which depend on who has the other roles.


def find_feeds(case: Case) -> dict[Site, Feeds]:
    """Find what can feed each MD site that is up."""
    links = case.snapshot.links
    found: dict[Site, Feeds] = {}
    for dest, mark in case.pools[Role.MD]:
        feeds = found[dest, mark] = {}
        for source, other in case.pools[Role.P]:
            if other != mark:
                continue
            link = links.get((source, dest))
            if source == dest:
                feeds[source] = None
            elif link is not None and link.up:
                feeds[source] = link
    return found


def find_mains(case: Case, feeds: dict[Site, Feeds]) -> list[InstanceView]:
    """MD instances that some P can feed."""
    return _gather(case, Role.MD, lambda site: None if feeds[site] else "unfed")


def choose_main(case: Case, mains: list[InstanceView], feeds: dict[Site, Feeds]) -> InstanceView:
    """Choose MD among ``mains`` (at least one, all fed)."""
    chunk = case.snapshot.kv_chunk_tokens
    full, chunk_bytes = case.facts.prompt_tokens // chunk, chunk * case.snapshot.kv_bytes_per_token
    links = {site: tuple(found.values()) for site, found in feeds.items()}

    def costs(views: Sequence[InstanceView], reach: Sequence[int]) -> list[float]:
        return [
            soonest_s((full - tokens // chunk) * chunk_bytes, links[view.region, view.fingerprint])
            for view, tokens in zip(views, reach, strict=True)
        ]

    return case.choose(Role.MD, mains, case.rules.placement.main, costs)


def choose_prefill(case: Case, main: InstanceView, feeds: Feeds) -> InstanceView:
    """Choose a P that can feed ``main``, through ``feeds`` (not empty)."""
    facts, snapshot = case.facts, case.snapshot
    hit = facts.hits.get(main.id)
    tokens = missing_tokens(facts.prompt_tokens, hit.reach_tokens if hit else 0, snapshot.kv_chunk_tokens)
    wan_bytes = tokens * snapshot.kv_bytes_per_token
    seconds = {region: soonest_s(wan_bytes, (link,)) for region, link in feeds.items()}

    def reject(site: Site) -> str | None:
        if site[1] != main.fingerprint:
            return "other_fingerprint"
        return None if site[0] in feeds else "no_link"

    def costs(views: Sequence[InstanceView], _: Sequence[int]) -> list[float]:
        return [seconds[view.region] for view in views]

    return case.choose(Role.P, _gather(case, Role.P, reject), case.rules.placement.prefill, costs)


def find_relays(case: Case, prefill: InstanceView) -> list[InstanceView]:
    """RLD instances that share P's fast KV path and have room."""
    kv_max, load_max = case.rules.placement.kv_usage_max, case.rules.relay.load_max

    def reject_site(site: Site) -> str | None:
        if site[0] != prefill.region:
            return "other_region"
        return None if site[1] == prefill.fingerprint else "other_fingerprint"

    def reject(view: InstanceView) -> str | None:
        if view.load >= load_max or view.kv_usage > kv_max:
            return "overloaded"
        return None if view.streams_ids else "ids_missing"

    return sift(_gather(case, Role.RLD, reject_site), reject, case.rejected[Role.RLD])


def choose_any_main(case: Case) -> InstanceView:
    """Choose an MD that is up, fed or not. Raises NoInstance."""
    mains = everyone(case.pools[Role.MD])
    if not mains:
        raise nobody_for(case, Role.MD)
    return case.choose(Role.MD, mains, case.rules.placement.main)


def everyone(pool: Pool) -> list[InstanceView]:
    return [view for views in pool.values() for view in views]


def nobody_for(case: Case, role: Role) -> NoInstance:
    """Make the error that says why nobody fills ``role``: of the reasons found, the one that may pass soonest."""
    reasons = set(case.rejected[role].values())
    ranked = (
        reason for reason in ("unhealthy", "draining", "leaks_salts", "too_long", "region_pinned") if reason in reasons
    )
    return NoInstance(role, next(ranked, "none_configured"))


def _gather(case: Case, role: Role, reject: Callable[[Site], str | None]) -> list[InstanceView]:
    """Instances at the sites that ``reject`` lets pass."""
    kept: list[InstanceView] = []
    for site, views in case.pools[role].items():
        reason = reject(site)
        if reason is None:
            kept += views
        else:
            case.rejected[role].update((view.id, reason) for view in views)
    return kept


# Filter and pick, whatever the role.

Filter = Callable[[InstanceView], str | None]
"""Gives the reason why an instance cannot be chosen, or None."""


def sift(views: Sequence[InstanceView], reject: Filter, rejected: dict[str, str]) -> list[InstanceView]:
    """Return the instances that ``reject`` lets pass; write the others' reasons into ``rejected``."""
    kept = []
    for view in views:
        reason = reject(view)
        if reason is None:
            kept.append(view)
        else:
            rejected[view.id] = reason
    return kept


def reaches(views: Sequence[InstanceView], facts: Facts) -> list[int]:
    """Known prefix of each instance, capped at the prompt; unknown ones get the mean of the known (0 if none is)."""
    hits, prompt = facts.hits, facts.prompt_tokens
    found = [hits.get(view.id) for view in views]
    known = [hit.tokens if hit.tokens > hit.store_tokens else hit.store_tokens for hit in found if hit is not None]
    known = [reach if reach < prompt else prompt for reach in known]
    if len(known) == len(found):
        return known
    mean = sum(known) // len(known) if known else 0
    in_order = iter(known)
    return [mean if hit is None else next(in_order) for hit in found]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The instances that passed the filters, and what is known of each, in the same order."""

    views: Sequence[InstanceView]
    loads: Sequence[float]
    prompt_tokens: int
    reach_tokens: Sequence[int]
    """Known prefix, never above the prompt; unknown ones hold the mean of the known: they neither win nor lose."""
    wan_s: Sequence[float] = ()
    """How long missing KV would take to cross; empty where nothing crosses for this role."""
    session_ids: frozenset[str] = frozenset()


def place(
    role: Role,
    candidates: Candidates,
    weights: Weights,
    rules: PlacementRules,
    rejected: Mapping[str, str],
    rng: Rng,
) -> tuple[InstanceView, Placement]:
    """Choose one of the candidates (at least one) for ``role``."""
    shares = {name: weight for name in weights.__struct_fields__ if (weight := getattr(weights, name)) > 0}
    whole = sum(shares.values())
    signals = {name: SIGNALS[name](candidates) for name in shares}
    totals = [0.0] * len(candidates.views)
    for name, weight in shares.items():
        share = weight / whole
        totals = [total + share * value for total, value in zip(totals, signals[name], strict=True)]
    bar = max(totals) - rules.tie_margin
    tied = [index for index, total in enumerate(totals) if total >= bar]
    chosen = candidates.views[tied[int(rng.random() * len(tied))]]
    ids = [view.id for view in candidates.views]
    return chosen, Placement(role, chosen.id, ids, totals, signals, rejected)


def choose_rank(
    role: Role, hits: Sequence[int], loads: Sequence[float], prompt_tokens: int, rules: PlacementRules, rng: Rng
) -> int:
    """Choose a data-parallel rank of one instance, as ``place`` chooses among instances: by its hit and its queue.

    Ranks are engines of their own but for their address: KV of one is of no use to another.
    """
    by_role: dict[Role, PrefillWeights | RelayWeights | MainWeights] = {
        Role.P: rules.prefill,
        Role.RLD: rules.relay,
        Role.MD: rules.main,
    }
    weights = by_role[role]
    candidates = Candidates((), loads, max(1, prompt_tokens), hits)
    weighted = ((weights.prefix, score_prefix(candidates)), (weights.queue, score_queue(candidates)))
    totals = [sum([weight * signal[rank] for weight, signal in weighted]) for rank in range(len(hits))]
    best = max(totals)
    tied = [rank for rank, total in enumerate(totals) if total == best]
    return tied[int(rng.random() * len(tied))]


# The signals.

Scorer = Callable[[Candidates], list[float]]


def score_prefix(candidates: Candidates) -> list[float]:
    """Share of the prompt in cache, faded where the instance is busier than the least busy one.

    So a hot prefix draws requests until its holder is full while another is not, or half a batch busier than all
    others, and then spreads. A mean would hold the holders themselves: one cold instance beside many would get nothing.
    """
    loads, prompt = candidates.loads, candidates.prompt_tokens
    least = min(loads)
    full = max(1.0, least + 0.5)
    return [
        reach / prompt * (full - load) / (full - least) if load < full else 0.0
        for reach, load in zip(candidates.reach_tokens, loads, strict=True)
    ]


def score_queue(candidates: Candidates) -> list[float]:
    """Room in the batch: 1 when idle, a half when full, falling on while requests queue."""
    return [1.0 / (1.0 + load) for load in candidates.loads]


def score_kv(candidates: Candidates) -> list[float]:
    """Free share of the KV memory."""
    return [1.0 - usage if (usage := view.kv_usage) < 1.0 else 0.0 for view in candidates.views]


def score_session(candidates: Candidates) -> list[float]:
    """1 for the instances that served this conversation before."""
    return [1.0 if view.id in candidates.session_ids else 0.0 for view in candidates.views]


def score_wan(candidates: Candidates) -> list[float]:
    """How soon missing KV would have crossed, against the soonest."""
    return _against_shortest(candidates.wan_s) if candidates.wan_s else [1.0] * len(candidates.views)


def score_prefill(candidates: Candidates) -> list[float]:
    """How soon prefill would be done by the measured curves, against the soonest; the unmeasured take the mean."""
    prompt = candidates.prompt_tokens
    times = [
        None if view.curve is None else view.curve.at(prompt - reach)
        for view, reach in zip(candidates.views, candidates.reach_tokens, strict=True)
    ]
    known = [time for time in times if time is not None]
    if not known:
        return [1.0] * len(times)
    mean = sum(known) / len(known)
    return _against_shortest([mean if time is None else time for time in times])


def _against_shortest(times_s: Sequence[float]) -> list[float]:
    shortest = min(times_s) + GRACE_S
    return [shortest / (time_s + GRACE_S) for time_s in times_s]


SIGNALS: Mapping[str, Scorer] = {
    "prefix": score_prefix,
    "queue": score_queue,
    "kv": score_kv,
    "session": score_session,
    "wan": score_wan,
    "prefill": score_prefill,
}
"""Every signal under the name that its weight has in the rules."""
