"""How fast KV of one tensor-parallel size is made KV of another, on one core, beside a plain copy of the same bytes."""

import os
import time

from backends.kv.bridge.reshard import plan_lots
from backends.types import KvShape

SHAPES = {
    "packed": KvShape("packed", 32, 8, 256),
    "split": KvShape("split", 32, 8, 256),
}
"""A model of 8B parameters: 32 layers, 8 heads of 128 elements in bfloat16."""
CHUNK_TOKENS = 256
RANKS = ((8, 4), (4, 8), (2, 1), (1, 2), (8, 1))
ROUNDS = 15


def measure(layout: str, source: int, dest: int) -> tuple[float, float]:
    """Regroup a chunk again and again; GB/s of that, and of a copy."""
    lots = plan_lots(SHAPES[layout], CHUNK_TOKENS, source, dest)
    shards = [[os.urandom(lot.regrouping.source_bytes) for _ in lot.source_ranks] for lot in lots]
    total = sum(len(shard) for of_lot in shards for shard in of_lot)
    regrouped_s, copied_s = [], []
    for _ in range(ROUNDS):
        begun_s = time.thread_time()
        for lot, of_lot in zip(lots, shards, strict=True):
            lot.regrouping.apply(of_lot)
        half_s = time.thread_time()
        for of_lot in shards:
            for shard in of_lot:
                bytearray(shard)
        regrouped_s.append(half_s - begun_s)
        copied_s.append(time.thread_time() - half_s)
    return total / sorted(regrouped_s)[ROUNDS // 2] / 1e9, total / sorted(copied_s)[ROUNDS // 2] / 1e9


def run() -> dict[str, float]:
    """Measure all; the figure is the slowest."""
    print("Regrouping KV heads of a 32 MiB chunk, one core")
    print(f"{'layout':>8} {'ranks':>8} {'GB/s':>8} {'copy GB/s':>10}")
    rates = []
    for layout in SHAPES:
        for source, dest in RANKS:
            rate, copied = measure(layout, source, dest)
            rates.append(rate)
            print(f"{layout:>8} {f'{source}->{dest}':>8} {rate:>8.2f} {copied:>10.2f}")
    return {"reshard_gb_per_s": min(rates), "reshard_gb_per_s_mean": sum(rates) / len(rates)}


if __name__ == "__main__":
    run()
