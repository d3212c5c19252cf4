"""The exact ids of chats' turns, for whichever gateway process gets the next one: sealed in Redis, for a while.

Ids of tokens are texts, so none stands there that could be read. While Redis is away processes go by what they know.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable

import msgspec

from gateway.auth.sealed import SealedStore
from gateway.errors import reason_of
from gateway.redis.client import AWAY
from gateway.tasks import TaskSet
from gateway.text.turns import KeptTurn, TurnKey

log = logging.getLogger(__name__)

AWAY_S = 5.0
"""After a failure Redis is not asked for so long: a chat would wait for it."""
MOST_TOLD = 64
"""So many turns may be on their way to Redis at once; more are not told."""
EVERYBODY = ""
"""Keys of turns name their tenant already."""


class _Packed(msgspec.Struct, array_like=True):
    prompt: bytes
    answer: bytes
    characters: int
    digest: bytes
    end: str


class RedisTurns:
    """See ``SharedTurns``."""

    def __init__(self, store: SealedStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._back_s = clock()
        self._tasks = TaskSet()
        self._on_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def find(self, key: TurnKey) -> KeptTurn | None:
        """Return what another process has told."""
        if self._clock() < self._back_s:
            return None
        try:
            data = await self._store.get(EVERYBODY, key.hex())
        except AWAY as error:
            self._note(error)
            return None
        return None if data is None else unpack(data)

    def tell(self, key: TurnKey, turn: KeptTurn) -> None:
        """Write it to Redis in the background."""
        if self._clock() >= self._back_s and self._on_way < MOST_TOLD:
            self._on_way += 1
            self._idle.clear()
            self._tasks.start(key.hex(), self._put(key, turn))

    async def settled(self) -> None:
        """Wait until all that was told is in Redis, or could not be."""
        await self._idle.wait()

    async def aclose(self) -> None:
        """End what is on its way."""
        await self._tasks.aclose()

    async def _put(self, key: TurnKey, turn: KeptTurn) -> None:
        try:
            await self._store.put(EVERYBODY, key.hex(), pack(turn))
        except AWAY as error:
            self._note(error)
        finally:
            self._on_way -= 1
            if not self._on_way:
                self._idle.set()

    def _note(self, error: Exception) -> None:
        self._back_s = self._clock() + AWAY_S
        log.debug("turns are not shared just now: %s", reason_of(error))


def pack(turn: KeptTurn) -> bytes:
    """Return a turn as bytes."""
    packed = _Packed(turn.prompt.tobytes(), turn.answer.tobytes(), turn.characters, turn.digest, turn.end)
    return msgspec.msgpack.encode(packed)


def unpack(data: bytes) -> KeptTurn | None:
    """Return a turn of bytes; None: of another release."""
    try:
        found = msgspec.msgpack.decode(data, type=_Packed)
        prompt, answer = array("I", found.prompt), array("I", found.answer)
    except (msgspec.MsgspecError, ValueError):
        return None
    return KeptTurn(prompt, answer, found.characters, found.digest, found.end)
