"""Who may fill each role of a case: the filters and WAN costs that depend on the other roles."""

from policies.case import Case
from policies.pick import prefer, sift
from policies.types import InstanceView, NoInstance, Role
from policies.wan import crossing_s, missing_tokens

Feeding = dict[tuple[str, str], list[str]]
"""Regions whose P can bring KV to an MD site (region, fingerprint) now."""


def site(view: InstanceView) -> tuple[str, str]:
    """Where an instance stands, and whose KV it can read."""
    return view.region, view.fingerprint


def find_mains(case: Case, feeding: Feeding) -> list[InstanceView]:
    """MD instances that some P can feed."""

    def reject(view: InstanceView) -> str | None:
        return None if feeding[site(view)] else "unfed"

    return sift(case.pools[Role.MD], reject, case.rejected[Role.MD])


def choose_main(case: Case, mains: list[InstanceView], feeding: Feeding) -> InstanceView:
    """Choose MD among ``mains`` (at least one, all fed)."""

    def cost(view: InstanceView, reach_tokens: int) -> float:
        return min(_crossing_s(case, source, view.region, reach_tokens) for source in feeding[site(view)])

    mains = prefer(mains, reject_silent, case.rejected[Role.MD])
    return case.choose(Role.MD, mains, case.rules.placement.main, cost)


def choose_prefill(case: Case, main: InstanceView, feeding: Feeding) -> InstanceView:
    """Choose a P that can feed ``main``; there is one, as ``feeding`` says."""
    sources = feeding[site(main)]
    hit = case.facts.hits.get(main.id)
    main_reach = 0 if hit is None else hit.reach_tokens

    def reject(view: InstanceView) -> str | None:
        if view.fingerprint != main.fingerprint:
            return "other_fingerprint"
        return None if view.region in sources else "no_link"

    def cost(view: InstanceView, _: int) -> float:
        return _crossing_s(case, view.region, main.region, main_reach)

    prefills = sift(case.pools[Role.P], reject, case.rejected[Role.P])
    prefills = prefer(prefills, reject_silent, case.rejected[Role.P])
    return case.choose(Role.P, prefills, case.rules.placement.prefill, cost)


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
        return reject_silent(view)

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


def reject_silent(view: InstanceView) -> str | None:
    """Reject engines that do not stream token ids."""
    return None if view.streams_ids else "ids_missing"


def _crossing_s(case: Case, source: str, dest: str, reach_tokens: int) -> float:
    if source == dest:
        return 0.0
    snapshot = case.snapshot
    tokens = missing_tokens(case.facts.prompt_tokens, reach_tokens, snapshot.kv_chunk_tokens)
    return crossing_s(tokens * snapshot.kv_bytes_per_token, snapshot.links[source, dest])
