"""What a step of one engine instance costs: a roofline over its chips, for the model that it serves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from policies.simulator.chips import MBU, MFU, Chip
from policies.simulator.llms import Llm
from policies.valley import PrefillCurve

STEP_S = 0.004
"""Scheduling, launches and the collectives' latency of one step; vLLM and SGLang report 2 to 8 ms."""
MEMORY_SHARE = 0.9
"""Share of a chip's memory that weights and KV may take (vLLM's ``gpu_memory_utilization``)."""
BUDGET_TOKENS = 16_384
"""Tokens computed in one step of prefill: the batch of DeepSeek's published profile of prefill, with EP32."""
EXTEND_BUDGET_TOKENS = 2_048
"""The same where decodes share the step; vLLM's default for online serving."""
HOST_BYTES = 250e9
"""Memory of a chip's host that a KV store gets: servers of eight chips with 2 TB."""
LONGEST_TOKENS = 131_072
"""Where the curve of prefill times ends; it goes on with the slope of its last chunk."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One instance as seconds. ``pair_s``: of attention, for a query token and a key token."""

    token_s: float
    """Compute of one token."""
    pair_s: float = 0.0
    decode_pair_s: float = 0.0
    padding_tokens: float = 0.0
    """Compute that a step with a prompt in it loses to half-filled tiles."""
    weights_s: float = 0.0
    """Reading the weights, once a step."""
    kv_read_s: float = 0.0
    """Reading the KV of one token of context."""
    step_s: float = STEP_S
    budget_tokens: int = BUDGET_TOKENS
    tokens_per_step: float = 1.0
    max_running: int = 256
    kv_tokens: int = 2_000_000
    """What its memory holds, for running requests and as cache."""
    load_bytes_per_s: float = 25e9
    """How fast it takes KV from its region's store or from P."""
    store_tokens: int = 10_000_000
    """What its hosts' memory adds to its region's KV store."""
    cost: float = 1.0
    """Any unit; the benefit-cost ratio divides by the fleet's sum."""

    def step_time_s(
        self, new_tokens: float, pairs: float, read_tokens: float, decodes: int, decode_context: float
    ) -> float:
        """Seconds of a step that computes ``new_tokens`` of prompts and goes on with ``decodes`` answers.

        ``read_tokens``: context of the prompts in it. Compute and memory overlap, so the longer one counts.
        """
        computed = new_tokens + self.padding_tokens if new_tokens else 0.0
        compute_s = (computed + decodes) * self.token_s + pairs * self.pair_s + decode_context * self.decode_pair_s
        memory_s = self.weights_s + (read_tokens + decode_context) * self.kv_read_s
        return self.step_s + (compute_s if compute_s > memory_s else memory_s)

    def decode_step_s(self, decodes: int, context_tokens: float) -> float:
        """Seconds of a step without any prompt; ``context_tokens``: of each answer."""
        return self.step_time_s(0, 0, 0, decodes, decodes * context_tokens)

    def chunk_s(self, new_tokens: int, cached_tokens: int) -> float:
        """Seconds of a step with nothing but one chunk behind so many tokens."""
        return self.step_time_s(new_tokens, new_tokens * (cached_tokens + new_tokens / 2), cached_tokens, 0, 0)

    def prefill_s(self, uncached_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to compute a prompt alone on an idle instance, chunk by chunk."""
        seconds, done = 0.0, 0
        while done < uncached_tokens:
            chunk = min(self.budget_tokens, uncached_tokens - done)
            seconds += self.chunk_s(chunk, cached_tokens + done)
            done += chunk
        return seconds

    def curve(self) -> PrefillCurve:
        """What ``pdd profile`` would measure of it: both sides of each edge of a chunk."""
        points = sorted({1, *self._edges()})
        return PrefillCurve(tuple(points), tuple(self.prefill_s(point) for point in points))

    def _edges(self) -> Iterator[int]:
        for edge in range(self.budget_tokens, LONGEST_TOKENS + 1, self.budget_tokens):
            yield edge
            yield edge + 1


def build_engine(
    chip: Chip, llm: Llm, chips: int = 1, group: int = 32, mfu: float = MFU, mbu: float = MBU
) -> EngineModel:
    """Model an instance of ``chips`` chips whose experts are spread over ``group`` chips (no fewer than its own).

    With wide expert parallelism each chip has its own scheduler, batch and KV, so that it is an instance; then each one
    holds and reads its part of the weights only. Raises ValueError where the weights leave no memory for KV.
    """
    share = chips / group
    flops = chips * chip.tflops * 1e12 * mfu
    bandwidth = chips * chip.memory_tb_per_s * 1e12 * mbu
    weights = llm.params * llm.weight_bytes * share
    room = chips * chip.memory_gb * 1e9 * MEMORY_SHARE - weights
    if room < llm.kv_bytes:
        raise ValueError(f"{llm.name} does not fit into {chips} x {chip.name} of a group of {group}")
    attention_flops = flops / 2  # at 16 bits
    return EngineModel(
        token_s=2 * llm.active_params / flops,
        pair_s=llm.prefill_pair_flops / attention_flops,
        decode_pair_s=llm.decode_pair_flops / attention_flops,
        padding_tokens=llm.padding_tokens * share,
        weights_s=weights / bandwidth,
        kv_read_s=llm.kv_read_bytes / bandwidth,
        tokens_per_step=llm.tokens_per_step,
        kv_tokens=int(room / llm.kv_bytes),
        load_bytes_per_s=chips * chip.link_gb_per_s * 1e9,
        store_tokens=int(chips * HOST_BYTES / llm.kv_bytes),
        cost=chips * chip.price_per_hour,
    )


def as_decoder(engine: EngineModel) -> EngineModel:
    """The same instance as it is set up to decode: small chunks, so that extends do not hold the decodes up."""
    return replace(engine, budget_tokens=min(engine.budget_tokens, EXTEND_BUDGET_TOKENS))


def measured_engine(
    curve: PrefillCurve, itl_s: float, budget_tokens: int = LONGEST_TOKENS, **fields: float
) -> EngineModel:
    """Model an engine from what ``pdd profile`` and its answers showed, in place of chips' figures.

    ``budget_tokens``: most tokens of one of its steps; the curve's ends tell what a step and what a token takes.
    """
    first, last = curve.tokens[0], curve.tokens[-1]
    times = -(-last // budget_tokens) / -(-first // budget_tokens)  # steps of the longest by those of the shortest
    token_s = max(1e-9, (curve.seconds[-1] - times * curve.seconds[0]) / (last - times * first))
    step_s = max(0.0, curve.seconds[0] - token_s * first)
    known = {"budget_tokens": budget_tokens, "weights_s": max(0.0, itl_s - step_s), **fields}
    return EngineModel(token_s=token_s, step_s=step_s, **known)  # type: ignore[arg-type]
