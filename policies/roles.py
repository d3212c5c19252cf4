"""Who may fill each role of a case: the filters and WAN costs that depend on the other roles."""

from collections.abc import Callable, Sequence

from policies.pick import sift
from policies.placement import Case, Pool, Site
from policies.types import InstanceView, LinkView, NoInstance, Role
from policies.wan import missing_tokens, soonest_s

Feeds = dict[str, LinkView | None]
"""Regions with a P that can bring KV now, and the link it takes; None: the same region."""


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
        raise missing(case, Role.MD)
    return case.choose(Role.MD, mains, case.rules.placement.main)


def everyone(pool: Pool) -> list[InstanceView]:
    """All instances of a pool."""
    return [view for views in pool.values() for view in views]


def missing(case: Case, role: Role) -> NoInstance:
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
