"""Short ways to build the values that decisions read, and Hypothesis strategies for arbitrary ones."""

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from policies.route import choose_plan
from policies.rules import Rules, parse_rules
from policies.types import (
    Alignment,
    Decision,
    Facts,
    Hit,
    InstanceView,
    LinkView,
    Placement,
    Role,
    SingularUse,
    Slo,
    Snapshot,
)

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


HITS = st.one_of(st.none(), st.builds(Hit, st.integers(0, 300_000), st.integers(0, 300_000), st.booleans()))

INSTANCES = st.lists(
    st.builds(
        InstanceView,
        id=st.integers(0, 10**9).map(lambda number: f"i{number}"),
        role=st.sampled_from(Role),
        model=st.sampled_from([MODEL, MODEL, MODEL, "other"]),
        region=st.sampled_from("abc"),
        healthy=st.sampled_from([True, True, True, False]),
        draining=st.sampled_from([False, False, False, True]),
        running=st.integers(0, 300),
        waiting=st.integers(0, 20),
        kv_usage=st.floats(0, 1),
        max_running=st.integers(1, 256),
        max_model_len=st.sampled_from([None, None, 4096, 262_144]),
        fingerprint=st.sampled_from(["", "", "v2"]),
        itl_s=st.sampled_from([None, 0.001, 0.05]),
        streams_ids=st.sampled_from([True, True, True, False]),
    ),
    max_size=12,
    unique_by=lambda view: view.id,
).map(tuple)

LINKS = st.lists(
    st.builds(
        LinkView,
        source=st.sampled_from("abc"),
        dest=st.sampled_from("abc"),
        rate_bytes_per_s=st.floats(1e3, 1e10),
        queued_bytes=st.integers(0, 10**10),
        rtt_s=st.floats(0, 0.5),
        up=st.sampled_from([True, True, True, False]),
    ),
    max_size=6,
).map(lambda links: {(one.source, one.dest): one for one in links})

SNAPSHOTS = st.builds(
    Snapshot,
    instances=INSTANCES,
    links=LINKS,
    kv_bytes_per_token=st.integers(1, 10**6),
    kv_chunk_tokens=st.sampled_from([1, 16, 256]),
    prefix_cache_effective=st.sampled_from([True, True, True, False]),
    alignment=st.builds(Alignment, st.just(1000.0), st.floats(0, 1000), st.floats(0, 1000)),
    singular=st.builds(SingularUse, st.floats(0, 10), st.floats(0, 1000)),
    now_s=st.floats(0, 1e6),
)

RULES = st.builds(
    lambda pipelines, bound, classic, enabled, uncached, hit: rules(
        pipelines=pipelines,
        direct_wan_bound_s=bound,
        direct_classic=classic,
        singular={"enabled": enabled, "min_uncached_tokens": uncached, "max_hit": hit},
    ),
    st.sampled_from([["direct"], ["relay"], ["direct", "relay"]]),
    st.floats(0, 10),
    st.booleans(),
    st.booleans(),
    st.integers(1, 50_000),
    st.floats(0, 1),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Facts, Snapshot, Rules, random.Random]:
    """Draw any request in any state of the fleet under any rules."""
    seen = draw(SNAPSHOTS)
    hits = {view.id: draw(HITS) for view in seen.instances if draw(st.booleans())}
    request = Facts(
        model=MODEL,
        prompt_tokens=draw(st.integers(1, 300_000)),
        hits=hits,
        max_output_tokens=draw(st.one_of(st.none(), st.integers(1, 5000))),
        predicted_output_tokens=draw(st.one_of(st.none(), st.integers(1, 5000))),
        unsplittable=draw(st.sampled_from([None, None, None, "seeded_sampling", "single_token", "multimodal"])),
        session=draw(st.sampled_from([None, "s"])),
        slo=draw(st.sampled_from([None, Slo(), Slo(gap_s=0.1)])),
    )
    return request, seen, draw(RULES), random.Random(draw(st.integers(0, 100)))
