"""What a fake engine shall do with a call: chunking, gates and faults; and the deterministic models it answers from."""

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.gates import HoldGate

NextId = Callable[[Sequence[int]], int]
"""A model: the next token id after a context (prompt + answer so far)."""

VOCABULARY = 1000
EOS = 2


def hashed_next(context: Sequence[int]) -> int:
    """Depend on the length and the last 32 ids: a lost, repeated or changed id shows in all that follow. Never EOS."""
    window = array("I", context[-32:]).tobytes()
    return 3 + zlib.crc32(window, len(context)) % (VOCABULARY - 3)


def fixed_answer(prompt_tokens: int, answer: Sequence[int]) -> NextId:
    """Say ``answer`` after a prompt of that length, then EOS for ever."""

    def model(context: Sequence[int]) -> int:
        position = len(context) - prompt_tokens
        return answer[position] if position < len(answer) else EOS

    return model


def eos_after(context_tokens: int, model: NextId = hashed_next) -> NextId:
    """Follow ``model``, with EOS as the token at absolute position ``context_tokens``."""

    def ending(context: Sequence[int]) -> int:
        return EOS if len(context) == context_tokens else model(context)

    return ending


def continuation(prompt: Sequence[int], tokens: int, model: NextId = hashed_next) -> list[int]:
    """What one un-split run says after ``prompt``: at most ``tokens`` ids, an EOS included and last."""
    context = list(prompt)
    while len(context) < len(prompt) + tokens:
        context.append(model(context))
        if context[-1] == EOS:
            break
    return context[len(prompt) :]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with a status and a body instead of a stream; a mapping becomes JSON."""

    status: int
    body: Mapping[str, Any] | bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection once ``after_tokens`` ids were sent (0: after the headers; None: without any answer)."""

    after_tokens: int | None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """Send an SSE error event after so many ids, then [DONE]."""

    after_tokens: int
    error: Mapping[str, Any] = field(default_factory=lambda: {"message": "engine died", "type": "InternalServerError"})


@dataclass(frozen=True, slots=True)
class EndAs:
    """End after so many ids with any finish_reason (None: none at all), with or without [DONE]."""

    after_tokens: int
    finish_reason: str | None = None
    done: bool = True


@dataclass(frozen=True, slots=True)
class LoseIds:
    """Leave out the ids of these output positions (usage counts them); ``as_null``: their chunks say null, not []."""

    positions: frozenset[int]
    as_null: bool = False


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Send these pieces as the body of a 200 event stream; ``cut``: close without the last zero chunk."""

    pieces: tuple[bytes, ...]
    cut: bool = False


Fault = Refuse | Cut | ErrorEvent | EndAs | LoseIds | Verbatim


@dataclass(frozen=True, slots=True)
class Script:
    """One call's course. The default answers at once, one id a chunk."""

    chunks: tuple[int, ...] = (1,)
    """Ids in each SSE chunk, repeated; 0 gives a chunk without ids. Holds and faults cut a chunk short."""
    arrival: HoldGate | None = None
    """Held before the status line."""
    holds: Mapping[int, HoldGate] = field(default_factory=dict)
    """Held once exactly so many ids were sent (0: after the headers)."""
    step: HoldGate | None = None
    """Held before each chunk."""
    end: HoldGate | None = None
    """Held after the last id, before usage and [DONE]."""
    fault: Fault | None = None
    cached_tokens: int | None = 0
    with_usage: bool = True
    counts_up: bool = True
    """Chunks tell the usage so far where the body asks for it."""
