"""Cost models of what a simulated fleet is made of."""

from dataclasses import dataclass

from policies.types import Role
from policies.valley import PrefillCurve


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How fast one engine instance is, how much it remembers, and what it costs."""

    prefill: PrefillCurve
    """Seconds for uncached tokens: prompts at P, extends at MD."""
    step_s: float = 0.02
    """Time per token of a request that runs alone."""
    step_per_request_s: float = 0.0002
    """What each further request adds to everybody's time per token."""
    max_running: int = 128
    cache_tokens: int = 2_000_000
    cost: float = 1.0
    """Any unit; the benefit-cost ratio divides by the fleet's sum."""

    def tokens_per_s(self, running: int) -> float:
        """Speed of each of ``running`` requests (at least one)."""
        return 1.0 / (self.step_s + self.step_per_request_s * (running - 1))


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of the fleet."""

    id: str
    role: Role
    region: str
    engine: EngineModel


@dataclass(frozen=True, slots=True)
class WanLine:
    """One WAN line."""

    source: str
    dest: str
    rate_bytes_per_s: float
    rtt_s: float = 0.03
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that costs money."""

    members: tuple[Member, ...]
    lines: tuple[WanLine, ...] = ()
    kv_bytes_per_token: int = 50_000
    block_tokens: int = 256
    """Tokens of a block of the trace, and of a chunk of the KV stores."""
    store_tokens: int = 100_000_000
    """What each region's KV store remembers."""

    @property
    def cost(self) -> float:
        """Sum over instances and lines."""
        return sum(member.engine.cost for member in self.members) + sum(line.cost for line in self.lines)
