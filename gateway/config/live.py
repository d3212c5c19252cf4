"""This process's mirror of the documents in Redis: told at once of a change, and looking itself all the same.

A notice only says that it is time to look, so a lost one costs no more than the time until the next look. What Redis
has lost (it restarted empty, it evicted keys, it came back from an older copy) is not taken over: the last good
documents stay in force, and the mirror puts them back. Only a tombstone takes a document away.
"""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gateway.config.document_store import Ack, Changes, Document, DocumentKey, DocumentStore, Refusal
from gateway.redis.client import AWAY, RedisNotices, SharedRedis
from gateway.tasks import TaskSet, run_every

log = logging.getLogger(__name__)

_RETRY_S = (0.05, 1.0)


class DocumentsRefused(Exception):
    """A set of documents cannot be applied because of the one with ``name`` (empty: because of all together)."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}" if name else reason)
        self.name = name
        self.reason = reason


Apply = Callable[[Sequence[Document]], None]
"""Put a whole set in force, deleted ones left out, or raise DocumentsRefused and change nothing. Must not wait."""
PrepareSet = Callable[[Sequence[Document]], Awaitable[None]]
"""Do beforehand, in turns, what is long in applying a whole set; raises DocumentsRefused where it cannot be applied."""


@dataclass(slots=True)
class _Reader:
    kinds: tuple[str, ...]
    apply: Apply
    prepare: PrepareSet | None = None
    applied: dict[DocumentKey, Document] | None = None
    """What was applied last; None: nothing yet."""
    refused: dict[DocumentKey, Document] | None = None
    refusal: Refusal | None = None


class LiveDocuments:
    """Follows the documents in ``redis``, and says in Redis which revision this process has applied.

    Register with ``follow`` before ``start``. ``on_look`` is called after each try to reach Redis, ``on_refusal`` for
    each set that is refused.
    """

    def __init__(
        self,
        redis: SharedRedis,
        prefix: str = "pdd",
        *,
        interval_s: float = 1.0,
        timeout_s: float = 2.0,
        on_look: Callable[[], None] = lambda: None,
        on_refusal: Callable[[Refusal], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis.client("documents", timeout_s)
        self.store = DocumentStore(self._redis, prefix)
        self._interval_s = interval_s
        self._on_look = on_look
        self._on_refusal = on_refusal
        self._clock = clock
        self._process = uuid4().hex
        self._host = socket.gethostname()
        self._readers: list[_Reader] = []
        self._documents: dict[DocumentKey, Document] = {}
        self._tasks = TaskSet()
        self._due = asyncio.Event()
        self._contact_s: float | None = None
        self.list_fleet: Callable[[], Iterable[str]] = tuple
        """Names the engines and links of this process."""
        self.epoch = ""
        self.revision = 0

    @property
    def up(self) -> bool:
        """Whether the last look succeeded."""
        return self._redis.up

    def follow(self, apply: Apply, *kinds: str, prepare: PrepareSet | None = None) -> None:
        """Give ``apply`` all documents of ``kinds`` whenever one of them has changed, and once at first."""
        self._readers.append(_Reader(kinds, apply, prepare))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """What is not applied, and why."""
        return tuple(reader.refusal for reader in self._readers if reader.refusal is not None)

    @property
    def contact_age_s(self) -> float | None:
        """Seconds since Redis answered; None: it never did."""
        return None if self._contact_s is None else self._clock() - self._contact_s

    async def describe(self, *kinds: str) -> dict[str, Any]:
        """Say which documents of ``kinds`` are in force here, and what each live process says; no bodies.

        ``processes`` None: Redis does not answer.
        """
        try:
            async with self._redis.limit():
                living = await self.store.living()
        except AWAY:
            living = None
        applied = {key: one for reader in self._readers for key, one in (reader.applied or {}).items()}
        return {
            "process": self._process,
            "epoch": self.epoch,
            "revision": self.revision,
            "redis_up": self._redis.shared.up,
            "contact_age_s": self.contact_age_s,
            "refusals": [one for one in self.refusals if set(one.kinds) & set(kinds)],
            "documents": [_describe(one) for _, one in sorted(applied.items()) if one.kind in kinds],
            "processes": living,
        }

    def find_unread(self, kind: str) -> str | None:
        """Say why documents of ``kind`` were never applied; None: they were."""
        for reader in self._readers:
            if kind in reader.kinds and reader.applied is None:
                return reader.refusal.reason if reader.refusal else self._redis.trouble
        return None

    async def start(self) -> None:
        """Look once, then go on in the background, whether Redis answers or not."""
        await self.look()
        self._tasks.start("look", run_every(self._interval_s, self.look, self._due))
        self._tasks.start("listen", self._listen())

    async def aclose(self) -> None:
        """End, and say so where Redis answers."""
        await self._tasks.aclose()
        if self.up:
            with suppress(*AWAY):
                async with self._redis.limit():
                    await self.store.retire(self._process)

    async def look(self) -> bool:
        """Read what is new, apply it, and say so; False when Redis does not take part."""
        try:
            async with self._redis.step():
                await self._take(await self._read())
                await self.store.acknowledge(self._ack())
        except AWAY:
            pass
        else:
            self._contact_s = self._clock()
        self._on_look()
        return self.up

    async def _read(self) -> Changes:
        """Read what is new; what Redis has lost is put back first."""
        kinds = [kind for reader in self._readers for kind in reader.kinds]
        changes = await self.store.read(kinds, self.revision if self.epoch else -1, self.epoch)
        if not changes.complete and not self._adds_up(changes):
            changes = await self.store.read(kinds)
        if changes.complete and self.epoch:
            lost = self._find_lost(changes)
            if lost or not changes.epoch or (changes.epoch == self.epoch and changes.revision < self.revision):
                count = await self.store.restore(self.epoch, self.revision, lost)
                log.warning("Redis had lost its state or %d documents; %d were put back", len(lost), count)
                changes = await self.store.read(kinds)
        return changes

    def _adds_up(self, changes: Changes) -> bool:
        new = {document.key for document in changes.documents} - self._documents.keys()
        held = Counter(kind for keys in (self._documents, new) for kind, _ in keys)
        return all(held[kind] == count for kind, count in changes.counts.items())

    def _find_lost(self, changes: Changes) -> list[Document]:
        there = {document.key: document.revision for document in changes.documents}
        goes_on = changes.epoch in ("", self.epoch)
        return [
            mine
            for key, mine in self._documents.items()
            if key not in there or (goes_on and there[key] < mine.revision)
        ]

    async def _take(self, changes: Changes) -> None:
        goes_on = changes.epoch == self.epoch
        for document in changes.documents:
            mine = self._documents.get(document.key)
            if not goes_on or mine is None or mine.revision <= document.revision:
                self._documents[document.key] = document
        self.epoch, self.revision = changes.epoch, changes.revision
        touched = {document.kind for document in changes.documents}
        for reader in self._readers:
            if touched.intersection(reader.kinds) or (reader.applied is None and reader.refused is None):
                await self._offer(reader)

    async def _offer(self, reader: _Reader) -> None:
        """Let a reader apply its documents if they are not those that it has applied or refused already."""
        state = {key: one for key, one in self._documents.items() if one.kind in reader.kinds}
        if state == reader.applied:
            reader.refused = reader.refusal = None
        if state in (reader.applied, reader.refused):
            return
        documents = [one for one in state.values() if not one.deleted]
        try:
            if reader.prepare is not None:
                await reader.prepare(documents)
            reader.apply(documents)
        except DocumentsRefused as error:
            reader.refused = state
            reader.refusal = Refusal(reader.kinds, error.name, error.reason, self.revision)
            self._on_refusal(reader.refusal)
            log.error("%s refused at revision %d: %s", "/".join(reader.kinds), self.revision, error)
            return
        if reader.applied is not None:
            log.info("%s applied at revision %d", "/".join(reader.kinds), self.revision)
        reader.applied, reader.refused, reader.refusal = state, None, None

    def _ack(self) -> Ack:
        fleet = tuple(self.list_fleet())
        return Ack(self._process, self._host, os.getpid(), self.epoch, self.revision, self.refusals, fleet)

    async def _listen(self) -> None:
        """Look at every notice. A subscription that ended, or that a look was ahead of, is made anew."""
        pause_s = _RETRY_S[0]
        while True:
            pubsub = self._redis.commands.pubsub(ignore_subscribe_messages=True)
            try:
                async with self._redis.limit():
                    await pubsub.subscribe(self.store.channel)
                pause_s = _RETRY_S[0]
                self._due.set()
                await self._hear(pubsub)
            except AWAY:
                pass
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S[1])

    async def _hear(self, pubsub: RedisNotices) -> None:
        """Hear notices until there is reason to think that some do not come."""
        heard = self.revision
        while heard >= self.revision:
            message = await pubsub.get_message(timeout=self._interval_s)
            if message is not None:
                heard = max(heard, int(message["data"]))
                self._due.set()


def _describe(document: Document) -> dict[str, Any]:
    return {
        "kind": document.kind,
        "name": document.name,
        "version": document.version,
        "revision": document.revision,
        "author": document.author,
        "at_s": document.at_ms / 1000,
        "deleted": document.deleted,
    }
