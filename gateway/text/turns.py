"""The exact ids of earlier turns, with which the next turn's prompt begins.

A conversation that is rendered anew holds the model's own words as the tokeniser splits them, which often is not how
the model wrote them, and its calls as the template spells them. From the first such place on, nothing that P and MD
have cached is of use. So the ids of a prompt and its answer are kept, bounded, and begin the next prompt where the
rendered conversation says the same:

* up to the answer its text is that of the earlier prompt, and
* the answer's own part of it, read by the model's parsers, has the same thoughts, content and calls.

Else the rendered text alone counts, as engines read it: the template leaves out old thoughts, the client did not send
them back, a message was changed, a call was made under a grammar.
"""

import asyncio
import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gateway.text.parsers.output import Parts
from gateway.text.tokenise import Ids

TurnKey = bytes
"""A conversation up to one of its answers, of one tenant and model."""
Said = tuple[str, str, tuple[tuple[str, str], ...]]
"""Content, thoughts, and calls by name and arguments."""

DIGEST_BYTES = 16
MEMORY_BYTES = 64 << 20
ENTRY_BYTES = 300
INLINE_BYTES = 64 << 10
LOOKED_AT = 3
"""So many answers of a conversation, the last ones, are looked for: a client may have taken back the very last."""


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A prompt and its answer. ``end``: the text of the token that ended the answer, which is not among its ids."""

    prompt: Ids
    answer: Ids
    characters: int
    """Of the text that the prompt stands for; ``digest`` is of it, too."""
    digest: bytes
    end: str

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return (len(self.prompt) + len(self.answer)) * self.prompt.itemsize + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class ModelWords:
    """How a model's words are read and written."""

    encode: Callable[[str], list[int]]
    read: Callable[[Sequence[int], Sequence[int]], Said]
    """What an answer says, given the ids of its prompt and its own."""
    ends: Mapping[int, str]
    """Texts of the tokens that end an answer, by id."""


class SharedTurns(Protocol):
    """What processes tell each other of turns."""

    async def find(self, key: TurnKey) -> KeptTurn | None:
        """Return what another process has told; None also where that cannot be found out now."""
        ...

    def tell(self, key: TurnKey, turn: KeptTurn) -> None:
        """Let others know, some time."""
        ...


class TurnMemory:
    """Kept turns, those that were not used for longest go first. Thread-safe. ``shared``: with other processes."""

    def __init__(self, limit_bytes: int = MEMORY_BYTES, shared: SharedTurns | None = None) -> None:
        self.shared = shared
        self._limit_bytes = limit_bytes
        self._turns: OrderedDict[TurnKey, KeptTurn] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def get(self, key: TurnKey) -> KeptTurn | None:
        with self._lock:
            turn = self._turns.get(key)
            if turn is not None:
                self._turns.move_to_end(key)
            return turn

    def put(self, key: TurnKey, turn: KeptTurn) -> None:
        """Keep a turn in place of an earlier answer to the same, unless it alone is over the limit."""
        if turn.size_bytes > self._limit_bytes:
            return
        with self._lock:
            earlier = self._turns.pop(key, None)
            self._turns[key] = turn
            self.used_bytes += turn.size_bytes - (earlier.size_bytes if earlier else 0)
            while self.used_bytes > self._limit_bytes:
                _, oldest = self._turns.popitem(last=False)
                self.used_bytes -= oldest.size_bytes


class OngoingTurn:
    """One chat request: its prompt begins with what is known, and with its answer it is known itself.

    ``scope``: the tenant's cache and the model; nothing is shared beyond it. ``note`` is told what came of each
    conversation that has answers: ``kept``, ``differs`` or ``unknown``.
    """

    def __init__(
        self,
        memory: TurnMemory,
        scope: Sequence[str | None],
        messages: Sequence[Mapping[str, Any]],
        words: ModelWords,
        note: Callable[[str], object],
    ) -> None:
        self._memory = memory
        self._scope = scope
        self._messages = messages
        self._words = words
        self._note = note
        self._key: TurnKey = b""
        self._text = (0, b"")
        self._prompt: Ids = array("I")

    async def recall(self, size_bytes: int) -> None:
        """Learn of other processes what is not known here. ``size_bytes``: about how much the messages are."""
        shared = self._memory.shared
        if shared is None:
            return
        find = self._find_keys
        keys = find() if size_bytes <= INLINE_BYTES else await asyncio.to_thread(find)
        for key in keys:
            if self._memory.get(key) is not None:
                return
            if (turn := await shared.find(key)) is not None:
                self._memory.put(key, turn)
                return

    def begin(self, text: str) -> tuple[Ids, int] | None:
        """Return the ids that a prompt begins with, and where in its text they end; None: nothing fits."""
        keys = self._find_keys()
        self._text = (len(text), digest_of(text))
        turns = [turn for turn in map(self._memory.get, keys) if turn is not None]
        for turn in turns:
            if (end := self._find_end(turn, text)) is not None:
                self._note("kept")
                return turn.prompt + turn.answer, end
        if keys:
            self._note("differs" if turns else "unknown")
        return None

    def made(self, prompt: Sequence[int]) -> None:
        """The prompt is complete."""
        self._prompt = array("I", prompt)

    def keep(self, answer: Sequence[int]) -> None:
        """Keep the turn. ``answer``: its ids, the one that ended it the last."""
        *written, last = answer
        ends = self._words.ends
        end = ends.get(last)
        if self._key and end is not None and ends.keys().isdisjoint(written):
            turn = KeptTurn(self._prompt, array("I", written), *self._text, end)
            self._memory.put(self._key, turn)
            if self._memory.shared is not None:
                self._memory.shared.tell(self._key, turn)

    def _find_keys(self) -> list[TurnKey]:
        """Find the keys of the conversation's last answers, the very last first, and of the one to come."""
        # The slower library takes whatever a client's JSON may hold: numbers of any size, halves of characters.
        chain = hashlib.blake2b(json.dumps(self._scope).encode(), digest_size=DIGEST_BYTES)
        keys: list[TurnKey] = []
        for message in self._messages:
            if message.get("role") == "assistant":
                keys.append(chain.digest())
            chain.update(json.dumps(message).encode())
        self._key = chain.digest()
        return keys[: -LOOKED_AT - 1 : -1]

    def _find_end(self, turn: KeptTurn, text: str) -> int | None:
        """Find where in a text the answer of a turn ends, if it begins with that turn and says the same."""
        start = turn.characters
        if digest_of(text[:start]) != turn.digest or (end := text.find(turn.end, start)) < 0:
            return None
        words = self._words
        shown = words.encode(text[start:end])
        if shown == list(turn.answer) or words.read(turn.prompt, shown) == words.read(turn.prompt, turn.answer):
            return end
        return None


def say(parts: Sequence[Parts]) -> Said:
    """Return what the parts of an answer say, without what is but spelling."""
    calls: dict[int, tuple[str, str]] = {}
    for delta in (call for part in parts for call in part.calls):
        name, arguments = calls.get(delta.index, ("", ""))
        calls[delta.index] = (delta.name or name, arguments + delta.arguments)
    content, thoughts = "".join(part.content for part in parts), "".join(part.reasoning for part in parts)
    return content.strip(), thoughts.strip(), tuple((name, _plain_json(spelled)) for name, spelled in calls.values())


def _plain_json(text: str) -> str:
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return text


def digest_of(text: str) -> bytes:
    """Return what tells a text from others."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
