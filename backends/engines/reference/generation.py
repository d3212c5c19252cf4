"""One request as the server sees it: a stream of tokens, and the promise that its KV will be in the store."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from backends.engines.reference.sampler import Sampled
from backends.engines.reference.sequence import Sequence

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Output:
    """One token; the last one of an answer says why it ended."""

    token: Sampled
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None


class EngineDead(Exception):
    """The engine stopped while the request was under way."""


def find_finish(sequence: Sequence, context_tokens: int) -> tuple[FinishReason | None, int | None]:
    """Finish and stop reason after the last token of ``sequence``."""
    params = sequence.params
    token = sequence.tokens[-1]
    if token in params.eos_token_ids:
        return "stop", None
    if token in params.stop_token_ids:
        return "stop", token
    if sequence.output_tokens >= params.max_tokens or len(sequence.tokens) >= context_tokens:
        return "length", None
    return None, None


@dataclass(eq=False, slots=True)
class Generation:
    """Iterate over ``batches``; then ``stored`` waits for the KV. Call ``abort`` when the client is gone."""

    sequence: Sequence
    on_abort: Callable[["Generation"], None]
    arrived_s: float = field(default_factory=time.monotonic)
    store_hit_tokens: int = 0
    counted: bool = False
    ended: bool = False
    _queue: asyncio.Queue[Output | None] = field(default_factory=asyncio.Queue)
    _writes: list[asyncio.Future[bool]] = field(default_factory=list)

    @property
    def aborted(self) -> bool:
        """Whether the client left before the end."""
        return self.sequence.aborted

    def push(self, output: Output | None) -> None:
        """Hand over the next token; None: there will be no more."""
        self._queue.put_nowait(output)

    def add_write(self, write: asyncio.Future[bool]) -> None:
        """Let ``stored`` wait for ``write`` as well; its result says whether the KV is in the store."""
        self._writes.append(write)

    async def batches(self) -> AsyncIterator[list[Output]]:
        """Tokens as they come, several at once where the reader is behind; an abort ends them. Raises EngineDead."""
        while True:
            outputs = [await self._queue.get()]
            while not self._queue.empty():
                outputs.append(self._queue.get_nowait())
            batch = [output for output in outputs if output is not None]
            if batch:
                yield batch
            if len(batch) < len(outputs):
                if self.aborted:
                    return
                raise EngineDead
            if batch[-1].finish_reason is not None:
                return

    async def stored(self, timeout_s: float) -> bool:
        """Wait until every write so far has ended; False when the last one failed or the time is up.

        Each write covers all tokens before it, so a later one makes up for an earlier failure.
        """
        try:
            async with asyncio.timeout(timeout_s):
                results = [await asyncio.shield(write) for write in self._writes]
                return not results or results[-1]
        except TimeoutError:
            return False

    def abort(self) -> None:
        """Stop generating; nothing more comes."""
        self.on_abort(self)
