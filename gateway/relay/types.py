"""What the relay takes from the API layer and gives back to it: token ids only, no text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from backends.base import Room
from backends.types import Sampling, TokenLogprob
from gateway.fleet.blame import Culprit
from gateway.telemetry.trace_context import TraceContext
from policies.eligibility import RequestFeatures
from policies.rules import Rules


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice of one client request, ready to run.

    ``max_tokens`` None: the client set no limit (the context limit applies). ``features`` tell whether the answer may
    be split. ``output_hint_tokens``: the client's own guess. ``session``: the client's name for the conversation.
    ``rules``: those that the request keeps; None: those in force for its tenant and session. ``waited_s``: how long it
    waited for a place. ``tokenise_s``: how long its prompt took to become ids.
    """

    request_id: str
    model: str
    prompt: Sequence[int]
    max_tokens: int | None
    min_tokens: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    eos_token_ids: frozenset[int] = frozenset()
    tenant: str = "default"
    cache_salt: str | None = None
    priority: int | None = None
    features: RequestFeatures = field(default_factory=RequestFeatures)
    output_hint_tokens: int | None = None
    session: str | None = None
    rules: Rules | None = None
    waited_s: float = 0.0
    tokenise_s: float = 0.0
    trace: TraceContext | None = None
    """The span that engines are told they work for."""
    part_of: str | None = None
    """The client's request that this is one of several choices of."""

    @property
    def culprit(self) -> Culprit:
        """Who is named where its legs fail."""
        return Culprit(self.part_of or self.request_id, self.tenant)


class Tokens(msgspec.Struct, frozen=True):
    """Ids of output positions ``position .. position + len(ids) - 1``, and who made them.

    One value from the engine's answer to the client's: the splice judges it, and lets it pass or cuts it short.
    """

    position: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    role: str
    """``P``, ``RLD`` or ``MD``."""
    instance: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer ended. ``terminator``: the last id is an EOS or stop token, which text leaves out.

    ``stop_reason`` is the stop token's id when the client asked for it by ``stop_token_ids``.
    """

    reason: Literal["stop", "length"]
    terminator: bool
    stop_reason: int | None
    completion_tokens: int
    cached_tokens: int | None


class AnswerSink(Protocol):
    """Who gets an answer. It is called by whoever reads an engine, in the same turn of the event loop, and never waits.

    A GatewayError that it raises ends the answer.
    """

    @property
    def room(self) -> Room:
        """Engines are not read while the sink's reader is behind."""
        ...

    def take(self, tokens: Tokens) -> None:
        """Take the next tokens, in order and without gaps."""
        ...

    def keep_alive(self) -> None:
        """Nothing came for the keep-alive interval; the client should see a sign of life."""
        ...

    def finish(self, finish: Finish) -> None:
        """Take the end; nothing comes after it."""
        ...


class Answer(Protocol):
    """One answer. ``run`` it to its end, then ``aclose()`` it, also when it did not get there."""

    @property
    def plan_name(self) -> str:
        """``direct``, ``relay``, ``singular`` or ``passthrough``."""
        ...

    @property
    def plan_reason(self) -> str:
        """Short machine-readable reason of the plan."""
        ...

    async def run(self, sink: AnswerSink) -> None:
        """Give everything to ``sink``, its Finish last. Once only. Raises GatewayError."""
        ...

    def stop_at(self, completion_tokens: int) -> None:
        """Said by the sink while it takes tokens: a stop string was found in the text of the first so many ids.

        No more tokens will be given; once these are taken a Finish of reason ``stop`` follows.
        """
        ...

    async def aclose(self) -> None:
        """End every leg and the transfer, but for what brings MD into line. Idempotent."""
        ...


class Generator(Protocol):
    """Starts answers."""

    def generate(self, request: GenerationRequest) -> Answer:
        """Decide the plan. Raises GatewayError when nothing can serve the request."""
        ...
