"""Short ways to build the values that decisions read, and Hypothesis strategies for arbitrary ones."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from policies.plans import Decision
from policies.route import choose_plan
from policies.rules import Rules, parse_rules
from policies.types import Alignment, Facts, Hit, InstanceView, LinkView, Placement, Role, SingularUse, Snapshot

KV_BYTES = 50_000
MODEL = "m"


class FixedRng:
    """Always gives the same number."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def random(self) -> float:
        """Return the number."""
        return self.value


def instance(name: str, role: Role, region: str | None = None, **fields: Any) -> InstanceView:
    """One healthy, idle instance; P and RLD stand in region a, MD in region b."""
    return InstanceView(name, role, MODEL, region or ("b" if role is Role.MD else "a"), **fields)


def link(source: str = "a", dest: str = "b", **fields: Any) -> LinkView:
    """A link of 100 MB/s and 30 ms."""
    return LinkView(source, dest, **{"rate_bytes_per_s": 1e8, "rtt_s": 0.03, **fields})


P1 = instance("p1", Role.P)
R1 = instance("r1", Role.RLD)
M1 = instance("m1", Role.MD)
TRIO = (P1, R1, M1)


def snapshot(*instances: InstanceView, links: tuple[LinkView, ...] = (link(),), **fields: Any) -> Snapshot:
    """A snapshot of the given instances (P, RLD and MD, one each, where none are given)."""
    return Snapshot(
        instances=instances or TRIO,
        links={(one.source, one.dest): one for one in links},
        **{"kv_bytes_per_token": KV_BYTES, **fields},
    )


def facts(prompt_tokens: int = 20_000, hits: Mapping[str, Hit | None] | None = None, **fields: Any) -> Facts:
    """A request whose every default instance is known to have nothing, unless ``hits`` says otherwise."""
    known: Mapping[str, Hit | None] = {"p1": Hit(0), "r1": Hit(0), "m1": Hit(0)} if hits is None else hits
    return Facts(MODEL, prompt_tokens, known, **fields)


def rules(**sections: Any) -> Rules:
    """Rules with some sections given as plain objects."""
    return parse_rules(sections)


def decide(case: Facts, seen: Snapshot | None = None, given: Rules | None = None, rng: float = 0.0) -> Decision:
    """Choose a plan, ties broken by ``rng``."""
    return choose_plan(case, snapshot() if seen is None else seen, given or Rules(), FixedRng(rng))


def placed(decision: Decision, role: Role) -> Placement:
    """How ``role`` was filled."""
    return next(placement for placement in decision.scores if placement.role is role)


QUIRKS: list[dict[str, Any]] = [
    *({} for _ in range(12)),
    {"healthy": False},
    {"draining": True},
    {"kv_usage": 0.99},
    {"max_model_len": 4096},
    {"fingerprint": "v2"},
    {"streams_ids": False},
    {"running": 256},
    {"waiting": 40, "running": 230},
    {"model": "other"},
    {"region": "c"},
    {"region": "a"},
    {"itl_s": 0.5},
]
"""What may be odd about an instance; half of them have nothing."""

HITS = st.one_of(
    st.none(), st.just(Hit(0)), st.builds(Hit, st.integers(0, 300_000), st.integers(0, 300_000), st.booleans())
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[InstanceView, ...]:
    """Draw up to three instances of each role, most of them in order."""
    return tuple(
        replace(instance(f"{role.value.lower()}{number}", role, running=10 * number), **draw(st.sampled_from(QUIRKS)))
        for role in Role
        for number in range(draw(st.sampled_from([1, 1, 1, 2, 3, 0])))
    )


LINKS = st.builds(
    lambda rates, queued, cut: {
        (source, dest): link(source, dest, rate_bytes_per_s=rate, queued_bytes=queued, up=(source, dest) != cut)
        for (source, dest), rate in zip([("a", "b"), ("c", "b"), ("a", "c")], rates, strict=True)
        if rate
    },
    st.tuples(*[st.sampled_from([1e8, 1e8, 1e6, 1e10, 0.0])] * 3),
    st.integers(0, 10**10),
    st.sampled_from([None, None, None, ("a", "b"), ("a", "c")]),
)

SNAPSHOTS = st.builds(
    Snapshot,
    instances=fleets(),
    links=LINKS,
    kv_bytes_per_token=st.sampled_from([50_000, 50_000, 1, 10**6]),
    kv_chunk_tokens=st.sampled_from([256, 16, 1]),
    prefix_cache_effective=st.sampled_from([True] * 9 + [False]),
    alignment=st.sampled_from([Alignment(), Alignment(), Alignment(1000.0, 900.0, 100.0)]),
    singular=st.builds(SingularUse, st.sampled_from([0.0, 0.0, 4.0]), st.sampled_from([100.0, 1000.0, 0.0])),
    now_s=st.floats(0, 1000),
)

RULES = st.builds(
    lambda pipelines, bound, classic, singular, gap_s, fused: rules(
        pipelines=pipelines,
        direct_wan_bound_s=bound,
        direct_classic=classic,
        singular=singular,
        slo={"gap_s": gap_s},
        relay={"fused": fused},
    ),
    st.sampled_from([["direct", "relay"], ["direct", "relay"], ["relay"], ["direct"]]),
    st.sampled_from([0.5, 0.0, 10.0]),
    st.booleans(),
    st.sampled_from(
        [{}, {"enabled": False}, {"min_uncached_tokens": 1, "max_hit": 1.0}, {"min_uncached_tokens": 10_000}]
    ),
    st.sampled_from([None, None, 0.1]),
    st.sampled_from(["never", "never", "auto", "always"]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Facts, Snapshot, Rules, random.Random]:
    """Draw a request in any state of the fleet under any rules; half of the fleets are well."""
    seen = draw(SNAPSHOTS)
    if draw(st.booleans()):
        twins = tuple(replace(view, id=view.id + "x", running=9) for view in TRIO)
        seen = replace(seen, instances=TRIO + twins, links={("a", "b"): link()}, prefix_cache_effective=True)
    hits = {view.id: draw(HITS) for view in seen.instances}
    request = Facts(
        model=MODEL,
        prompt_tokens=draw(st.one_of(st.integers(30_000, 300_000), st.integers(1, 300_000))),
        hits=hits,
        max_output_tokens=draw(st.sampled_from([64, None, 600])),
        predicted_output_tokens=draw(st.sampled_from([None, 100, 3000])),
        unsplittable=draw(st.sampled_from([None] * 12 + ["seeded_sampling", "single_token", "structured_output"])),
        session=draw(st.sampled_from([None, "s"])),
    )
    return request, seen, draw(RULES), random.Random(draw(st.integers(0, 100)))
