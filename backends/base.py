"""Seams: what the gateway asks of an engine and of a KV path.

Every implementation of ``Engine`` must pass ``tests/conformance/engine_suite.py``.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from backends.types import (
    Capabilities,
    EngineLoad,
    FoundKey,
    LegChunk,
    LegRequest,
    PathTraits,
    StoreSide,
    TransferPriority,
    TransferProgress,
    TransferRequest,
)


class Room(Protocol):
    """Whether a reader is near; ``asyncio.Event`` is one."""

    def is_set(self) -> bool:
        """Say whether it can take more."""
        ...

    async def wait(self) -> object:
        """Wait until it can."""
        ...


Take = Callable[[LegChunk], Room | None]
"""Takes the next chunk of a leg at once; what it returns is to be waited for before more of the leg is read."""


class Engine(Protocol):
    """One engine instance behind its own HTTP API."""

    @property
    def id(self) -> str:
        """Name of the instance in the configuration, metrics and traces."""
        ...

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Run one leg, and give ``take`` its chunks as they come.

        Ids come in order, each exactly once; the last chunk with ids may carry ``finish_reason``. A normal end means
        that the engine ended the stream properly; for a prefill leg, that its KV is in the region's store. Who cancels
        it before that aborts the leg: the connection is closed before it ends. Raises the errors of
        ``backends.errors``; never anything of the transport's. ``leg.data_parallel_rank`` below
        ``Capabilities.data_parallel_size`` is obeyed; an engine without ranks ignores it.
        """
        ...

    async def probe(self) -> Capabilities:
        """Ask the engine what it is. Raises EngineUnavailable or EngineBroken."""
        ...

    async def load(self) -> EngineLoad:
        """Read the engine's load. Raises EngineUnavailable or EngineBroken."""
        ...

    async def aclose(self) -> None:
        """Close pooled connections; running legs must have ended."""
        ...


@runtime_checkable
class ChatReader(Protocol):
    """What some engines can beside: tell which prompt they make of a chat or a text themselves."""

    async def read_chat(self, model: str, chat: Mapping[str, Any]) -> list[int]:
        """Return the prompt's ids. ``chat``: the fields of OpenAI's chat request that make the prompt.

        Raises EngineRejected, also where the engine cannot tell (status 404); EngineUnavailable or EngineBroken.
        """
        ...

    async def read_text(self, model: str, text: str, special: bool) -> list[int]:
        """Return the ids of a text, ``special``: with those that the tokeniser puts around one. Raises the same."""
        ...


def find_chat_reader(engine: Engine) -> ChatReader | None:
    """Return who reads chats for an engine, within whatever is around it."""
    inner = getattr(engine, "wrapped", None)
    if inner is not None:
        return find_chat_reader(inner)
    return engine if isinstance(engine, ChatReader) else None


class KvPath(Protocol):
    """A way for prompt KV to reach a decode region.

    Every implementation must pass ``tests/conformance/kv_path_suite.py``.
    """

    @property
    def traits(self) -> PathTraits:
        """What it can and cannot do; never changes."""
        ...

    def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """Move the KV. The first progress says what there is to do.

        The last has state ``complete``: every full chunk is where the receiving region's engines find it. ``aclose()``
        before that stops the transfer; with ``traits.can_stop`` its traffic ends within one chunk or slice. Raises
        TransferFailed.
        """
        ...

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Say who waits for a transfer from now on; at first ``TransferRequest.priority`` says it.

        Returns at once and raises nothing. A path that orders no transfers ignores it, and so does one that has no open
        transfer of this id.
        """
        ...

    async def aclose(self) -> None:
        """Release pooled connections."""
        ...


@runtime_checkable
class ShowsKeys(Protocol):
    """What a ``KvPath`` may offer besides: a look at how keys in its two stores are spelled."""

    async def find_keys(self, side: StoreSide, markers: Sequence[str]) -> list[FoundKey]:
        """Keys of a store that have one of ``markers`` in their name. Raises EngineUnavailable or EngineBroken."""
        ...
