"""Plans: who makes an answer, in which order, and all that follows from that.

A plan is asked what it does, never of which class it is. Four files know one plan from another, and a new plan touches
no more than them: this one has its class, ``route`` chooses it, ``explain`` says what its reasons mean, and ``rules``
has the switch for it, where it needs one. Whoever carries a plan out reads the fields and properties below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from policies.rules import Rules
from policies.types import Estimate, Facts, Placement, Role

DIRECT_PATIENCE = 3.0
"""Direct waits this many times as long as it was expected to before a relay steps in."""
LEAST_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What all plans have. ``prefill``, ``relay`` and ``main`` name instances; None: nobody has that role.

    ``link``: source and receiving region of the KV; None: no link is crossed. ``classic``: P's token is thrown away.
    ``fused``: P goes on after its first token, in RLD's place; an RLD, if one is named, stands by. ``lends``: RLD reads
    the KV out of P's memory, and makes all tokens from the prompt on, so P's is thrown away, too.
    """

    kind: ClassVar[str]
    prefill: str | None
    relay: str | None
    main: str | None
    reason: str
    link: tuple[str, str] | None = None
    classic: bool = False
    fused: bool = False
    lends: bool = False

    @property
    def roles(self) -> Mapping[Role, str]:
        """Who fills which role, in the order in which they are called."""
        named = ((Role.P, self.prefill), (Role.RLD, self.relay), (Role.MD, self.main))
        return {role: id_ for role, id_ in named if id_ is not None}

    @property
    def instances(self) -> frozenset[str]:
        return frozenset(self.roles.values())

    @property
    def has_prefill(self) -> bool:
        """It begins with a P leg; otherwise MD does everything."""
        return self.prefill is not None

    @property
    def writer(self) -> str | None:
        """Who makes the tokens after the first while the KV crosses; None: nobody does."""
        return self.prefill if self.fused else self.relay

    @property
    def relays_first(self) -> bool:
        """Somebody writes between P's first token and MD's."""
        return self.writer is not None

    @property
    def ends_on_relay(self) -> bool:
        """RLD makes the answer's last token. The singular budget counts such plans."""
        return self.main is None

    @property
    def moves_kv(self) -> bool:
        """What P computes is for MD too, so it is brought there from the start."""
        return self.prefill is not None and self.main is not None

    def kv_patience_s(self, estimate: Estimate | None, rules: Rules) -> float:
        """How long MD's KV may take after P's end before a relay, or computing it again, is better than to wait."""
        return rules.relay.extend_timeout_s


@dataclass(frozen=True, slots=True)
class Direct(Plan):
    """P, then MD, which goes on from P's token; ``classic``: MD makes every token, so nothing is split."""

    kind = "direct"
    prefill: str
    relay: None = field(default=None, init=False)
    main: str
    fused: bool = field(default=False, init=False)
    lends: bool = field(default=False, init=False)

    def kv_patience_s(self, estimate: Estimate | None, rules: Rules) -> float:
        """Nobody writes while MD waits, so it is as short as the estimate allows."""
        expected_s = estimate.total_s if estimate else None
        return max(LEAST_PATIENCE_S, DIRECT_PATIENCE * max(rules.direct_wan_bound_s, expected_s or 0.0))


@dataclass(frozen=True, slots=True)
class Relay(Plan):
    """P, then RLD while the KV crosses ``link``, then MD; ``fused``: P goes on itself, and there may be no RLD."""

    kind = "relay"
    prefill: str
    main: str
    classic: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Singular(Plan):
    """P, then RLD to the end; the KV does not cross. Only the singular rule makes this plan."""

    kind = "singular"
    prefill: str
    relay: str
    main: None = field(default=None, init=False)
    link: None = field(default=None, init=False)
    classic: bool = field(default=False, init=False)
    fused: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class PassThrough(Plan):
    """MD does everything, prefill included: one leg, nothing to splice and no KV to move."""

    kind = "passthrough"
    prefill: None = field(default=None, init=False)
    relay: None = field(default=None, init=False)
    main: str
    link: None = field(default=None, init=False)
    classic: bool = field(default=False, init=False)
    fused: bool = field(default=False, init=False)
    lends: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan and all that led to it. ``estimate`` None: no link is involved."""

    plan: Plan
    facts: Facts
    estimate: Estimate | None
    scores: tuple[Placement, ...]
    stands_in: bool = False
    """An RLD has MD's place: the tenant's regions have no MD."""
