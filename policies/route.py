"""The decision of a request: which engines serve it, in which pipeline, and why, or whether a provider does.

MD is chosen first, because its cache decides what must cross; then a P that can feed it; then, where the KV would take
too long, an RLD beside that P. A plan without MD is made in one place only, behind the singular rule; but where a
tenant is pinned to regions without any MD, an RLD there takes MD's place.
"""

from collections.abc import Sequence

from policies.eligibility import OWN_ANSWER
from policies.fused import may_fuse
from policies.placement import (
    Case,
    Site,
    choose_any_main,
    choose_main,
    choose_prefill,
    everyone,
    find_feeds,
    find_mains,
    find_relays,
    nobody_for,
    open_case,
)
from policies.plans import Decision, Direct, PassThrough, Relay, Singular
from policies.rules import Rules
from policies.singular import refuse_singular, relay_time_s
from policies.types import Estimate, Facts, InstanceView, LinkView, Rng, Role, Snapshot
from policies.wan import estimate_transfer, wait_after_prefill_s
from policies.where import Where

LOUD_REFUSALS = {"misaligned": "singular_misaligned", "budget_spent": "singular_budget_spent"}
"""Refusals of the singular rule that an operator should see as the reason of the relay."""


def choose_plan(facts: Facts, snapshot: Snapshot, rules: Rules, rng: Rng) -> Decision:
    """Choose a request's plan. Raises NoInstance when nothing can serve it."""
    case = open_case(facts, snapshot, rules, rng)
    if not snapshot.prefix_cache_effective:
        return pass_through(case, "prefix_cache_ineffective")
    feeds = find_feeds(case)
    mains = find_mains(case, feeds)
    if not mains:
        return decide_unfed(case)
    main = choose_main(case, mains, feeds)
    main_feeds = feeds[main.region, main.fingerprint]
    prefill = choose_prefill(case, main, main_feeds)
    return _plan(case, prefill, main, main_feeds[prefill.region])


def _plan(case: Case, prefill: InstanceView, main: InstanceView, link: LinkView | None) -> Decision:
    """Choose between Direct, Relay and Singular for a P and an MD that it can feed; ``link`` None: same region."""
    facts, rules = case.facts, case.rules
    hit = facts.hits.get(main.id)
    estimate = None if link is None else estimate_transfer(facts.prompt_tokens, hit, link, case.snapshot)
    route = None if link is None else (link.source, link.dest)

    def direct(reason: str, classic: bool = False) -> Decision:
        classic = classic or rules.direct_classic
        return case.decide(Direct(prefill.id, main.id, reason, route, classic), estimate)

    if facts.unsplittable is not None:
        return direct(facts.unsplittable, classic=facts.unsplittable not in OWN_ANSWER)
    if not (prefill.streams_ids and main.streams_ids):
        return direct("ids_missing", classic=True)
    if estimate is None or link is None:
        return direct("region_pinned" if case.stands_in else "same_region")
    wait_s = estimate.total_s
    if link.overlaps_prefill:
        wait_s = wait_after_prefill_s(estimate, facts.prompt_tokens, prefill, facts.hits.get(prefill.id))
    reason = _direct_reason(estimate, wait_s, rules)
    if reason is not None:
        return direct(reason)
    fused = may_fuse(prefill, link, rules)
    relays = find_relays(case, prefill)
    if not relays:
        if fused:
            return case.decide(Relay(prefill.id, None, main.id, "fused", route, fused=True), estimate)
        return direct(_relay_shortage(case))
    relay = case.choose(Role.RLD, relays, rules.placement.relay)
    refused = _refuse_singular(case, estimate, prefill, relay, main, link)
    if refused is None:
        return case.decide(Singular(prefill.id, relay.id, "singular", lends=link.lends), estimate)
    slow = "wan_slow" if "direct" in rules.pipelines else "relay_only"
    reason = LOUD_REFUSALS.get(refused, "fused" if fused else slow)
    lends = link.lends and not fused
    return case.decide(Relay(prefill.id, relay.id, main.id, reason, route, fused=fused, lends=lends), estimate)


def _direct_reason(estimate: Estimate, wait_s: float | None, rules: Rules) -> str | None:
    """Say why no relay is needed or wanted; None: the KV would come too late. ``wait_s``: for it, after P's end."""
    if estimate.worst_s == 0:
        return "under_one_chunk"
    if estimate.missing_tokens == 0:
        return "nothing_to_move"
    if "relay" not in rules.pipelines:
        return "relay_not_allowed"
    if "direct" not in rules.pipelines:
        return None
    bound_s = _gap_bound_s(rules)
    if estimate.worst_s <= bound_s:
        return "short_transfer"
    if wait_s is None:
        return "hit_unknown"
    return "hit_within_bound" if wait_s <= bound_s else None


def _gap_bound_s(rules: Rules) -> float:
    """Longest wait for KV that Direct may show: the bound, or the promise to the client where that is tighter."""
    promised_s = rules.slo.gap_s
    return rules.direct_wan_bound_s if promised_s is None else min(rules.direct_wan_bound_s, promised_s)


def _relay_shortage(case: Case) -> str:
    return "relay_overloaded" if "overloaded" in case.rejected[Role.RLD].values() else "no_relay"


def _refuse_singular(
    case: Case,
    estimate: Estimate,
    prefill: InstanceView,
    relay: InstanceView,
    main: InstanceView,
    link: LinkView,
) -> str | None:
    """Apply the singular rule, and ask whether RLD, from P's end on, would be done before the KV is over."""
    facts, rules = case.facts, case.rules
    limits = [tokens for tokens in (facts.predicted_output_tokens, facts.max_output_tokens) if tokens is not None]
    answer_tokens = min(limits, default=None)
    main_hit = facts.hits.get(main.id)
    refused = refuse_singular(facts, main_hit, answer_tokens, case.snapshot, rules, counted=False)
    if refused is not None or answer_tokens is None or estimate.total_s is None:
        return refused
    hit = facts.hits.get(prefill.id)
    uncached = max(0, facts.prompt_tokens - (hit.reach_tokens if hit else 0))
    prefill_s = 0.0 if prefill.curve is None or not link.overlaps_prefill else prefill.curve.at(uncached)
    done_s = prefill_s + relay_time_s(answer_tokens, relay, rules.singular)
    return None if done_s < estimate.total_s else "kv_sooner"


def pass_through(case: Case, reason: str) -> Decision:
    """Let one MD do everything. Raises NoInstance."""
    return case.decide(PassThrough(choose_any_main(case).id, reason))


def decide_unfed(case: Case) -> Decision:
    """No MD that is up can get KV from a P that is up: wait for one on RLD, or let MD do all. Raises NoInstance."""
    mains = everyone(case.pools[Role.MD])
    rejected = case.rejected[Role.MD]
    waiting = mains or [view for view in case.snapshot.instances if rejected.get(view.id) == "unhealthy"]
    if case.facts.unsplittable is None and "relay" in case.rules.pipelines:
        decision = _relay_meanwhile(case, waiting, "link_down" if mains else "main_down")
        if decision is not None:
            return decision
    if not mains:
        raise nobody_for(case, Role.MD)
    if not case.pools[Role.P]:
        return pass_through(case, "no_prefill")
    return pass_through(case, _why_unfed(case))


def _why_unfed(case: Case) -> str:
    if not all(link.trusted for link in case.snapshot.links.values()):
        return "kv_unread"
    up = [view for role in (Role.P, Role.MD) for view in everyone(case.pools[role])]
    return "no_link" if all(view.judged for view in up) else "first_canary"


def _relay_meanwhile(case: Case, waiting: list[InstanceView], reason: str) -> Decision | None:
    """Start on RLD for an MD that should come back; the answer moves there as soon as it can."""
    placement = case.rules.placement
    is_link_awaited = reason == "link_down"
    for site, prefills in case.pools[Role.P].items():
        mains = [view for view in waiting if _is_joined(case, site, view, is_link_awaited)]
        relays = find_relays(case, prefills[0]) if mains else []
        if relays:
            main = case.choose(Role.MD, mains, placement.main)
            prefill = case.choose(Role.P, prefills, placement.prefill)
            relay = case.choose(Role.RLD, relays, placement.relay)
            route = None if prefill.region == main.region else (prefill.region, main.region)
            link = case.snapshot.links.get(route) if route is not None else None
            lends = link is not None and link.lends
            return case.decide(Relay(prefill.id, relay.id, main.id, reason, route, lends=lends))
    return None


def _is_joined(case: Case, site: Site, main: InstanceView, is_link_awaited: bool) -> bool:
    """Whether KV can come to an MD once it, or the link, is back; a link whose KV is of no use is not waited for."""
    region, fingerprint = site
    if main.fingerprint != fingerprint:
        return False
    if region == main.region:
        return True
    link = case.snapshot.links.get((region, main.region))
    return link is not None and (link.trusted or not is_link_awaited)


# Outside


def choose_overflow(views: Sequence[InstanceView], rules: Rules, *, refused: bool) -> str | None:
    """Return the reason to ask the provider that the rules name; None: the own engines answer.

    ``refused``: no engine could take the request. A tenant that is pinned to regions never leaves them.
    """
    overflow = rules.overflow
    if overflow.model is None or Where.of(rules).is_bound:
        return None
    if overflow.when == "always":
        return "always"
    if refused:
        return "no_instance"
    mains = [view for view in views if view.role is Role.MD and view.healthy and not view.draining]
    if overflow.when == "overloaded" and mains and all(view.load >= overflow.load_max for view in mains):
        return "overloaded"
    return None
