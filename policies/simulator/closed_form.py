"""Whether PDD pays, without a simulation: chip-seconds of a request by phase and chip, and what they cost.

    gain = (p + dA) cA / (p (1 + rld) cA + dB cB + line) - 1

``p``, ``dA`` and ``dB`` are the instance-seconds of one request's prefill on A and of its decode on A and on B, ``rld``
what RelayDecode adds to A's work, ``line`` the line's cost for one request.
"""

from dataclasses import dataclass

from policies.simulator.engine_model import EngineModel

RLD_SHARE = 0.1
"""RelayDecode's instances by P's, 4 of 43 in the reported fleet."""
UTILISATION = 0.9
"""Share of its capacity at which a fleet keeps its promises; the rest is queueing. The same for all topologies."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A request on average, and what is promised of it."""

    prompt_tokens: float
    uncached_tokens: float
    """What P computes."""
    missing_tokens: float
    """What MD's side lacks, and so crosses."""
    output_tokens: float
    itl_s: float
    """Longest mean time between tokens that keeps the promises."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Instance-seconds of one request."""

    prefill_s: float
    decode_s: float
    batch: int
    """Answers that the decode instance runs at once."""


def prefill_need_s(engine: EngineModel, load: Workload) -> float:
    """Return the prefill's seconds where others fill each step up."""
    cached, new = load.prompt_tokens - load.uncached_tokens, load.uncached_tokens
    pairs = new * (cached + new / 2)
    whole_s = engine.step_time_s(engine.budget_tokens, pairs * engine.budget_tokens / max(1.0, new), cached, 0, 0)
    return whole_s * new / engine.budget_tokens


def decode_need_s(engine: EngineModel, load: Workload) -> tuple[float, int]:
    """Return the decode's seconds and its batch: the largest that memory and the promised pace allow, at least one."""
    context = load.prompt_tokens + load.output_tokens / 2
    room = engine.kv_tokens / (load.prompt_tokens + load.output_tokens)
    low, high = 1, max(1, min(engine.max_running, int(room)))
    while low < high:
        middle = (low + high + 1) // 2
        if engine.decode_step_s(middle, context) / engine.tokens_per_step <= load.itl_s:
            low = middle
        else:
            high = middle - 1
    step_s = engine.decode_step_s(low, context)
    return load.output_tokens / engine.tokens_per_step * step_s / low, low


def needs(prefill: EngineModel, decode: EngineModel, load: Workload) -> Needs:
    """What one request takes of a prefill and of a decode instance."""
    decode_s, batch = decode_need_s(decode, load)
    return Needs(prefill_need_s(prefill, load), decode_s, batch)


@dataclass(frozen=True, slots=True)
class ChipPair:
    """Two kinds of instances, and a line between their regions."""

    prefill: EngineModel
    """A as P."""
    own_decode: EngineModel
    """A as MD."""
    decode: EngineModel
    """B as MD."""
    line_bytes_per_s: float
    line_cost: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What the formula says. Rates are requests in a second for each unit of cost, at ``UTILISATION``."""

    same: Needs
    """One region, all on A's chips."""
    pdd: Needs
    same_bcr: float
    pdd_bcr: float
    wan_bytes: float
    """Of one request."""
    line_rate_per_s: float
    """Requests in a second that fill the line."""

    @property
    def gain(self) -> float:
        """Benefit by cost of PDD over that of one region with A alone, less 1."""
        return self.pdd_bcr / self.same_bcr - 1


def closed_form(pair: ChipPair, load: Workload, rate_per_s: float, rld_share: float = RLD_SHARE) -> ClosedForm:
    """Reckon both fleets at their best ratios, large enough for ``rate_per_s``, which the line's cost is shared by."""
    same = needs(pair.prefill, pair.own_decode, load)
    pdd = needs(pair.prefill, pair.decode, load)
    wan_bytes = load.missing_tokens * pair.kv_bytes_per_token
    line_rate = pair.line_bytes_per_s / wan_bytes if wan_bytes else float("inf")
    lines = max(1.0, rate_per_s / (line_rate * UTILISATION))
    cost_a, cost_b = pair.prefill.cost, pair.decode.cost
    same_cost = same.prefill_s * cost_a + same.decode_s * pair.own_decode.cost
    pdd_cost = pdd.prefill_s * (1 + rld_share) * cost_a + pdd.decode_s * cost_b
    pdd_cost += lines * pair.line_cost * UTILISATION / rate_per_s
    return ClosedForm(same, pdd, UTILISATION / same_cost, UTILISATION / pdd_cost, wan_bytes, line_rate)


def fleet_rate(prefills: float, decodes: float, need: Needs) -> float:
    """Requests in a second that so many instances serve at most."""
    return min(prefills / need.prefill_s, decodes / need.decode_s)
