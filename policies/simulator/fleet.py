"""A fleet to simulate: instances, lines, region stores, and how KV is moved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from policies.simulator.engine_model import EngineModel
from policies.types import Role


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of the fleet."""

    id: str
    role: Role
    region: str
    engine: EngineModel


INITIAL_WINDOW_BYTES = 14_600
"""Ten segments (RFC 6928)."""
IDLE_S = 0.3
"""A connection that was idle for longer starts slowly again (RFC 5681: one RTO; Linux: at least 0.2 s)."""


@dataclass(frozen=True, slots=True)
class WanLine:
    """One WAN line, without loss below its rate (TCP with BBR or a shaped line)."""

    source: str
    dest: str
    rate_bytes_per_s: float
    rtt_s: float = 0.03
    cost: float = 0.0
    connections: int = 8
    """Of the bridge; they grow side by side after idle time."""
    transfer_bytes_per_s: float = float("inf")
    """Most that one transfer gets."""

    @property
    def ramp_s(self) -> float:
        """What slow start adds on an idle line: round trips until the windows hold what the line takes."""
        window, wanted = INITIAL_WINDOW_BYTES * self.connections, self.rate_bytes_per_s * self.rtt_s
        trips = 0
        while window < wanted:
            window, trips = window * 2, trips + 1
        return max(0, trips - 1) * self.rtt_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that costs money, and how its KV moves."""

    members: tuple[Member, ...]
    lines: tuple[WanLine, ...] = ()
    kv_bytes_per_token: int = 50_000
    block_tokens: int = 256
    """Tokens of a block of the trace, and of a chunk of the KV stores."""
    store_tokens: int = 100_000_000
    """What each region's KV store remembers."""
    stores: Mapping[str, int] = field(default_factory=dict)
    """The same for single regions, where it differs."""
    overlap: Literal["chunk", "none"] = "chunk"
    """chunk: KV crosses as P stores it, so only the last chunk's is left at P's end. none: all of it starts there."""
    wire_share: float = 1.0
    """Bytes on the line by bytes of KV; less than 1 where it is compressed."""
    delta_only: bool = True
    """False: all KV of a prompt crosses each time, whatever MD has."""
    shows_first: bool = True
    """False: P's token is held back until the next one, as it is where decode engines alone answer."""
    align_jobs: int = 256
    """Answers whose KV may be brought to MD afterwards at once; more are dropped."""

    @property
    def cost(self) -> float:
        """Sum over instances and lines."""
        return sum(member.engine.cost for member in self.members) + sum(line.cost for line in self.lines)
