"""Time of one decision for a 64K-token prompt over 64 instances, hits already looked up."""

import random
import statistics
import time

from policies.route import choose_plan
from policies.rules import Rules
from policies.types import Facts, Hit, InstanceView, LinkView, Role, Snapshot
from policies.valley import PrefillCurve

ROLES = (Role.P,) * 24 + (Role.RLD,) * 8 + (Role.MD,) * 32
CURVE = PrefillCurve((256, 2048, 8192, 65536), (0.05, 0.2, 0.7, 6.0))


def build_snapshot(rng: random.Random) -> Snapshot:
    """Two P regions, each linked to two MD regions, with 64 instances under random load."""
    instances = tuple(
        InstanceView(
            id=f"{role.value.lower()}-{index}",
            role=role,
            model="m",
            region=f"{'b' if role is Role.MD else 'a'}{index % 2}",
            running=rng.randrange(128),
            kv_usage=rng.random() * 0.9,
            max_model_len=131_072,
            curve=CURVE if role is Role.P else None,
        )
        for index, role in enumerate(ROLES)
    )
    links = {(a, b): LinkView(a, b, 1e9, rng.randrange(10**9), 0.03) for a in ("a0", "a1") for b in ("b0", "b1")}
    return Snapshot(instances, links, kv_bytes_per_token=50_000)


def run(rounds: int = 400) -> dict[str, float]:
    """Return ``decision_us``: the median over random snapshots of one decision on one core."""
    rng = random.Random(7)
    rules = Rules()
    times_s = []
    for _ in range(rounds):
        snapshot = build_snapshot(rng)
        hits = {view.id: Hit(rng.randrange(0, 65_536, 16)) for view in snapshot.instances}
        facts = Facts("m", 65_536, hits, max_output_tokens=1024, session="s")
        start = time.thread_time()
        choose_plan(facts, snapshot, rules, rng)
        times_s.append(time.thread_time() - start)
    return {"decision_us": statistics.median(times_s) * 1e6}


if __name__ == "__main__":
    print(run())
