"""Who may fill each role of a case: the filters and WAN costs that depend on the other roles."""

from policies.case import Case
from policies.pick import sift
from policies.types import InstanceView, LinkView, NoInstance, Role
from policies.wan import crossing_s, missing_tokens

Site = tuple[str, str]
"""Region and fingerprint: where an instance stands, and whose KV it can read."""

Feeds = dict[str, LinkView | None]
"""Regions with a P that can bring KV now, and the link it takes; None: the same region."""


def site(view: InstanceView) -> Site:
    """Return an instance's site."""
    return view.region, view.fingerprint


def find_feeds(case: Case) -> dict[Site, Feeds]:
    """Find what can feed each MD site that is up."""
    links = case.snapshot.links
    sources = set(map(site, case.pools[Role.P]))
    found: dict[Site, Feeds] = {}
    for dest, mark in set(map(site, case.pools[Role.MD])):
        feeds = found[dest, mark] = {}
        for source in (source for source, other in sources if other == mark):
            link = links.get((source, dest))
            if source == dest:
                feeds[source] = None
            elif link is not None and link.up:
                feeds[source] = link
    return found


def find_mains(case: Case, feeds: dict[Site, Feeds]) -> list[InstanceView]:
    """MD instances that some P can feed."""

    def reject(view: InstanceView) -> str | None:
        return None if feeds[view.region, view.fingerprint] else "unfed"

    if all(feeds.values()):
        return case.pools[Role.MD]
    return sift(case.pools[Role.MD], reject, case.rejected[Role.MD])


def choose_main(case: Case, mains: list[InstanceView], feeds: dict[Site, Feeds]) -> InstanceView:
    """Choose MD among ``mains`` (at least one, all fed)."""
    prompt, snapshot = case.facts.prompt_tokens, case.snapshot

    def cost(view: InstanceView, reach_tokens: int) -> float:
        tokens = missing_tokens(prompt, reach_tokens, snapshot.kv_chunk_tokens)
        return soonest_s(tokens * snapshot.kv_bytes_per_token, feeds[view.region, view.fingerprint])

    return case.choose(Role.MD, mains, case.rules.placement.main, cost)


def choose_prefill(case: Case, main: InstanceView, feeds: Feeds) -> InstanceView:
    """Choose a P that can feed ``main``, through ``feeds`` (not empty)."""
    facts, snapshot = case.facts, case.snapshot
    hit = facts.hits.get(main.id)
    tokens = missing_tokens(facts.prompt_tokens, hit.reach_tokens if hit else 0, snapshot.kv_chunk_tokens)
    wan_bytes = tokens * snapshot.kv_bytes_per_token
    seconds = {region: soonest_s(wan_bytes, {region: link}) for region, link in feeds.items()}

    def reject(view: InstanceView) -> str | None:
        if view.fingerprint != main.fingerprint:
            return "other_fingerprint"
        return None if view.region in feeds else "no_link"

    prefills = sift(case.pools[Role.P], reject, case.rejected[Role.P])
    return case.choose(Role.P, prefills, case.rules.placement.prefill, lambda view, _: seconds[view.region])


def soonest_s(wan_bytes: int, feeds: Feeds) -> float:
    """Seconds until ``wan_bytes`` have crossed on the best of ``feeds`` (not empty)."""
    return min([0.0 if link is None else crossing_s(wan_bytes, link) for link in feeds.values()])


def find_relays(case: Case, prefill: InstanceView) -> list[InstanceView]:
    """RLD instances that share P's fast KV path and have room."""
    placement, load_max = case.rules.placement, case.rules.relay.load_max

    def reject(view: InstanceView) -> str | None:
        if view.region != prefill.region:
            return "other_region"
        if view.fingerprint != prefill.fingerprint:
            return "other_fingerprint"
        if view.load >= load_max or view.kv_usage > placement.kv_usage_max:
            return "overloaded"
        return None if view.streams_ids else "ids_missing"

    return sift(case.pools[Role.RLD], reject, case.rejected[Role.RLD])


def choose_any_main(case: Case) -> InstanceView:
    """Choose an MD that is up, fed or not. Raises NoInstance."""
    mains = case.pools[Role.MD]
    if not mains:
        raise missing(case, Role.MD)
    return case.choose(Role.MD, mains, case.rules.placement.main)


def missing(case: Case, role: Role) -> NoInstance:
    """Make the error that says why nobody fills ``role``: of the reasons found, the one that may pass soonest."""
    reasons = set(case.rejected[role].values())
    ranked = (reason for reason in ("unhealthy", "draining", "too_long") if reason in reasons)
    return NoInstance(role, next(ranked, "none_configured"))
