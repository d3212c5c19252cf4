"""What each kind of leg asks of an engine: the table of fields per leg, as code."""

from collections.abc import Sequence

from backends.types import LegRequest, Sampling
from gateway.relay.splice_events import LegKind, StartLeg
from gateway.relay.types import GenerationRequest
from policies.rules import RelayRules
from policies.types import Role

ROLE_OF: dict[LegKind, Role] = {
    LegKind.PREFILL: Role.P,
    LegKind.RELAY: Role.RLD,
    LegKind.EXTEND: Role.MD,
    LegKind.FINAL: Role.MD,
}

GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0)
"""For legs whose token is thrown away: the cheapest there is, and nothing is left to an engine's defaults."""


def build_leg(
    request: GenerationRequest, start: StartLeg, log: Sequence[int], rules: RelayRules, extend_wait_s: float
) -> LegRequest:
    """Spell out one leg. Its id is new for each attempt; the client's id never reaches an engine.

    ``extend_wait_s``: how long MD's first token may take where the prompt's KV is at hand.
    """
    kv_is_near = start.kv_expected and ROLE_OF[start.kind] is Role.MD
    return LegRequest(
        request_id=f"{request.request_id}-{start.kind.name.lower()}-{start.leg}",
        model=request.model,
        prompt=[*request.prompt, *log[: start.base]],
        max_tokens=start.max_tokens,
        min_tokens=start.min_tokens,
        sampling=GREEDY if start.kind is LegKind.EXTEND else request.sampling,
        cache_salt=request.cache_salt,
        priority=request.priority,
        first_token_timeout_s=extend_wait_s if kv_is_near else rules.first_token_timeout_s,
        idle_timeout_s=rules.idle_timeout_s,
    )


def build_align_leg(request: GenerationRequest, log: Sequence[int], rules: RelayRules) -> LegRequest:
    """The leg that brings MD's cache into line with an answer that ended at RLD."""
    return LegRequest(
        request_id=f"{request.request_id}-align",
        model=request.model,
        prompt=[*request.prompt, *log],
        max_tokens=1,
        sampling=GREEDY,
        cache_salt=request.cache_salt,
        priority=request.priority,
        first_token_timeout_s=rules.extend_timeout_s,
        idle_timeout_s=rules.idle_timeout_s,
    )
