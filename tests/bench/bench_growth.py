"""How costs grow with a deployment: CPU of a decision with instances and with the prompt, of a change of the rules with
tenants, and the index's memory and walk with blocks. ``growth``: the power of the size that a cost goes with; 1 is
linear.
"""

import asyncio
import gc
import math
import random
import statistics
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from backends.kv.subscriber import EventSource
from gateway.config.document_store import Document
from gateway.config.rulebook import RULES, RuleBook
from gateway.index.hashing import BLOCK_TOKENS, chain_seed, hash_blocks
from gateway.index.mirror import CacheDelta, Mirror
from gateway.index.types import CacheSpec
from gateway.relay.types import GenerationRequest
from policies.rules import Rules
from tests.bench.bench_decision import MODEL, ROLES, build_index, build_service, vary_loads

INSTANCES = (4, 32, 256, 1000)
PROMPT_TOKENS = (1 << 10, 1 << 13, 1 << 16, 1 << 20)
TENANTS = (10, 1_000, 10_000, 50_000)
INDEX_BLOCKS = (1_000_000, 4_000_000)
HOLDERS = 16
WALKED_TOKENS = 65_536
SEED = chain_seed(MODEL, None, None)


def cpu_us(work: Callable[[], object], rounds: int) -> float:
    """Return the CPU of one round; median."""
    times = []
    for _ in range(rounds):
        began_s = time.thread_time()
        work()
        times.append(time.thread_time() - began_s)
    return statistics.median(times) * 1e6


def grown(costs: Mapping[int, float]) -> dict[str, float]:
    """Return costs by size, and the power of the size that they went with from the first to the last."""
    sizes = list(costs)
    growth = math.log(costs[sizes[-1]] / costs[sizes[0]]) / math.log(sizes[-1] / sizes[0])
    return {f"{size}": cost for size, cost in costs.items()} | {"growth": growth}


def decide_us(instances: int, tokens: int) -> float:
    """Return the CPU of one decision, naming the prompt's blocks apart."""
    rng = random.Random(7)
    roles = [ROLES[number * len(ROLES) // instances] for number in range(instances)]
    index = build_index(rng, roles, tokens // BLOCK_TOKENS, 100)
    service = build_service(rng, index, roles)
    vary_loads(service, rng, list(service.pools.instances))
    request = GenerationRequest("r", MODEL, [0] * tokens, 1024)
    service.decide(request, Rules())
    return cpu_us(lambda: service.decide(request, Rules()), 30)


def hash_us(tokens: int) -> float:
    """Return the CPU of naming a prompt's blocks."""
    prompt = array("I", (number * 7919 % 150_000 for number in range(tokens)))
    return cpu_us(lambda: hash_blocks(prompt, SEED), 5)


def document(name: str, revision: int, body: Mapping[str, Any]) -> Document:
    """Return a stored document of rules."""
    return Document(RULES, name, revision, revision, 0, "bench", msgspec.json.encode(body).decode())


async def change_ms(tenants: int) -> tuple[float, float]:
    """Return the longest turn of the event loop when one tenant's rules change, and when everybody's do."""
    book = RuleBook(Rules())
    documents = [document("default", 1, {"slo": {"ttft_s": 5}})]
    documents += [document(f"t{number}", number + 2, {"limits": {"concurrent": 9}}) for number in range(tenants)]
    await book.prepare(documents)
    book.apply(documents)
    gc.collect()
    found = []
    for at, body in ((1, {"limits": {"concurrent": 3}}), (0, {"slo": {"ttft_s": 6}})):
        documents[at] = document(documents[at].name, 2 * tenants + at, body)
        found.append(await worst_turn_ms(book, documents))
    return found[0], found[1]


async def worst_turn_ms(book: RuleBook, documents: list[Document]) -> float:
    """Return the CPU of the longest turn in which documents were put in force."""
    turns = [0.0]
    at = time.thread_time()

    async def watch() -> None:
        nonlocal at
        while True:
            now = time.thread_time()
            turns.append(now - at)
            at = now
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await book.prepare(documents)
    book.apply(documents)
    await asyncio.sleep(0)
    watching.cancel()
    return max(turns) * 1e3


def resident_bytes() -> int:
    """Return the memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def index_costs(blocks: int) -> tuple[float, float]:
    """Return bytes a block of an index that several instances share, and the CPU of walking a long prompt in it."""
    rng = random.Random(7)
    gc.collect()
    before = resident_bytes()
    mirror = Mirror(time.monotonic, lambda: None)
    for number in range(HOLDERS):
        spec = CacheSpec(f"i{number}", MODEL, BLOCK_TOKENS, (EventSource("tcp://127.0.0.1:1"),))
        mirror.admit(spec)
        for _ in range(blocks // HOLDERS // 10_000):
            mirror.apply(spec.id, 0, CacheDelta(held=[rng.getrandbits(64) for _ in range(10_000)]))
        mirror.set_known(spec.id, True)
    gc.collect()
    used = resident_bytes() - before
    keys = hash_blocks(array("I", range(WALKED_TOKENS)), SEED)
    mirror.apply("i0", 0, CacheDelta(held=list(keys)))
    return used / blocks, cpu_us(lambda: mirror.hits(MODEL, keys, WALKED_TOKENS), 20)


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    changes = {tenants: asyncio.run(change_ms(tenants)) for tenants in TENANTS}
    index = {blocks: index_costs(blocks) for blocks in INDEX_BLOCKS}
    return {
        "growth": {
            "decision_us_by_instances": grown({count: decide_us(count, 8192) for count in INSTANCES}),
            "decision_us_by_prompt_tokens": grown({tokens: decide_us(64, tokens) for tokens in PROMPT_TOKENS}),
            "hash_us_by_prompt_tokens": grown({tokens: hash_us(tokens) for tokens in PROMPT_TOKENS}),
            "change_one_turn_ms_by_tenants": grown({tenants: one for tenants, (one, _) in changes.items()}),
            "change_all_turn_ms_by_tenants": grown({tenants: all_ for tenants, (_, all_) in changes.items()}),
            "index_bytes_a_block": grown({blocks: size for blocks, (size, _) in index.items()}),
            "index_walk_us_by_blocks": grown({blocks: walk for blocks, (_, walk) in index.items()}),
        }
    }


if __name__ == "__main__":
    run()
