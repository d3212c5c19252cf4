"""What was decided for one answer before it began."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import KvPath
from backends.types import TransferRequest
from gateway.relay.splice import SpliceTerms
from gateway.relay.types import GenerationRequest
from policies.plans import Plan
from policies.rules import RelayRules


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """All that was decided for one answer.

    ``path`` None: P and MD share a store, so the KV is there when P's stream ends. ``patience_s``: how long MD's KV may
    take, from the end of the P leg, before a relay (or a recomputation) is preferred to waiting. ``reserve_s``: see
    ``pacing``. ``rtt_s``: of the way to MD. ``lease_s``: how long P keeps KV that it lends to RLD; None: engines do not
    lend.
    ``keep_transfer``: asked when RLD ends the answer first; False stops the transfer under way. ``note_held`` is told
    which instance now caches which ids, ``note_moved`` that the receiving store has the prompt, ``note_length`` the
    answer's length.
    """

    request: GenerationRequest
    plan: Plan
    terms: SpliceTerms
    rules: RelayRules
    path: KvPath | None
    transfer: TransferRequest
    patience_s: float
    reserve_s: float
    rtt_s: float
    lease_s: float | None
    keep_transfer: Callable[[int], bool]
    note_held: Callable[[str, Sequence[int]], None]
    note_moved: Callable[[], None]
    note_length: Callable[[int], None]
