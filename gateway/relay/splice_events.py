"""What the splice is told and what it answers: events, actions, and the words they use."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NewType, TypeAlias

import msgspec

from gateway.relay.types import Tokens

LegId = NewType("LegId", int)


class IllegalEvent(Exception):
    """The event cannot happen in this state: a fault of the caller."""


class Phase(Enum):
    """See the table at the head of ``splice``."""

    PREFILL = "prefill"
    WAIT = "wait"
    EAGER = "eager"
    CATCH_UP = "catch_up"
    FINAL = "final"
    MAIN = "main"
    DONE = "done"


class LegKind(Enum):
    """What a leg is for; its role follows from it."""

    PREFILL = "P"
    RELAY = "RLD"
    EXTEND = "extend"
    FINAL = "MD"


class KvState(Enum):
    """What is known of the KV's way to the main region."""

    ABSENT = "absent"
    UNNEEDED = "unneeded"
    MOVING = "moving"
    READY = "ready"
    FAILED = "failed"
    HOPELESS = "hopeless"


# Events: what happened.


class LegTokens(msgspec.Struct, frozen=True):
    """A leg returned ids, which may be none; ``finish`` when its last id ended it."""

    leg: LegId
    tokens: Tokens
    finish: Literal["stop", "length"] | None = None


@dataclass(frozen=True, slots=True)
class LegEnded:
    """A leg's stream ended properly. For a P leg: its KV is stored."""

    leg: LegId


@dataclass(frozen=True, slots=True)
class LegFailed:
    """A leg failed. ``refused``: the engine rejects the request itself, so that no other instance would take it."""

    leg: LegId
    refused: bool = False


@dataclass(frozen=True, slots=True)
class LegUnplaced:
    """No instance can take the leg that was asked for; it never ran."""

    leg: LegId


@dataclass(frozen=True, slots=True)
class KvReady:
    """Every full chunk of the prompt's KV is in the main region's store."""


@dataclass(frozen=True, slots=True)
class KvFailed:
    """The transfer ended without all chunks."""


@dataclass(frozen=True, slots=True)
class KvUnseen:
    """P's end is long past and its KV is not in its store: it will not come, so a main instance computes the prompt."""


@dataclass(frozen=True, slots=True)
class KvLate:
    """The transfer takes longer than a direct answer may wait for it."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The back-off of the last RetryLater is over."""


@dataclass(frozen=True, slots=True)
class StopMatched:
    """A stop string ends within the text of the first ``completion_tokens`` ids."""

    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Nobody reads any more."""


Event: TypeAlias = (
    LegTokens
    | LegEnded
    | LegFailed
    | LegUnplaced
    | KvReady
    | KvFailed
    | KvUnseen
    | KvLate
    | RetryDue
    | StopMatched
    | ClientGone
)

# Actions: what the caller shall do.


@dataclass(frozen=True, slots=True)
class StartLeg:
    """Start a leg with prompt + log[:base]. ``kv_expected``: its prompt's KV is in the store of its region."""

    leg: LegId
    kind: LegKind
    base: int
    max_tokens: int
    min_tokens: int
    kv_expected: bool


@dataclass(frozen=True, slots=True)
class CloseLeg:
    """Abort a leg; what it still returns is dropped."""

    leg: LegId


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Move the prompt's KV to the main region."""


@dataclass(frozen=True, slots=True)
class StopTransfer:
    """Stop the transfer if it still runs."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Feed RetryDue after the ``attempt``-th back-off (1, 2, ...); at most one is pending at a time."""

    attempt: int


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete. ``align``: the main region lacks what the relay made, and may be brought into line."""

    reason: Literal["stop", "length"]
    terminator: bool
    align: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The answer cannot go on. ``refused`` names the leg whose engine refused the request, if that is why."""

    refused: LegId | None


Action: TypeAlias = Tokens | StartLeg | CloseLeg | StartTransfer | StopTransfer | RetryLater | End | Fail
"""Tokens are to be given to the client."""
