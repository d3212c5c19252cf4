"""Plans for requests that one engine answers alone, and for times when no MD can be fed."""

from policies.case import Case, Site
from policies.roles import choose_any_main, everyone, find_relays, missing
from policies.types import Decision, InstanceView, PassThrough, Relay, Role


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
        raise missing(case, Role.MD)
    return pass_through(case, "no_link" if case.pools[Role.P] else "no_prefill")


def _relay_meanwhile(case: Case, waiting: list[InstanceView], reason: str) -> Decision | None:
    """Start on RLD for an MD that should come back; the answer moves there as soon as it can."""
    placement = case.rules.placement
    for site, prefills in case.pools[Role.P].items():
        mains = [view for view in waiting if _is_joined(case, site, view)]
        relays = find_relays(case, prefills[0]) if mains else []
        if relays:
            main = case.choose(Role.MD, mains, placement.main)
            prefill = case.choose(Role.P, prefills, placement.prefill)
            relay = case.choose(Role.RLD, relays, placement.relay)
            route = None if prefill.region == main.region else (prefill.region, main.region)
            return case.decide(Relay(prefill.id, relay.id, main.id, reason, route))
    return None


def _is_joined(case: Case, site: Site, main: InstanceView) -> bool:
    region, fingerprint = site
    linked = region == main.region or (region, main.region) in case.snapshot.links
    return linked and main.fingerprint == fingerprint
