"""Versioned documents in Redis: rules, topology, tenants and keys, each of a kind and with a name.

A change is compare-and-swap on the version; it writes history and an audit entry and tells every process. Deleting
leaves a tombstone, so that a document that is simply missing is one that Redis has lost, never one that was deleted.
All keys share one slot of a cluster.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from gateway.redis.client import RedisClient

MOST_BODY_BYTES = 1 << 20
MOST_HISTORY = 100
MOST_AUDIT = 10_000
DEAD_S = 5.0
"""A process that has given no sign of life for so long is not waited for any more."""
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_PACKED = msgspec.msgpack.Decoder(tuple[int, int, int, str, str])

DocumentKey = tuple[str, str]
"""Kind and name."""


class BadDocument(ValueError):
    """The document can not be stored: its name or size is out of bounds."""


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a document. ``body`` is JSON; empty: this version says that the document was deleted.

    ``version`` counts this document's changes, ``revision`` those of all documents.
    """

    kind: str
    name: str
    version: int
    revision: int
    at_ms: int
    """Time of the change by Redis's clock, Unix milliseconds."""
    author: str
    body: str

    @property
    def key(self) -> DocumentKey:
        """Kind and name."""
        return self.kind, self.name

    @property
    def deleted(self) -> bool:
        """Whether this is a tombstone."""
        return not self.body

    @property
    def value(self) -> Any:
        """The body as JSON values; None for a deleted one."""
        return msgspec.json.decode(self.body) if self.body else None


class Conflict(Exception):
    """The document is not at the expected version, or there is none to delete. ``current`` None: there is none."""

    def __init__(self, kind: str, name: str, current: Document | None) -> None:
        lives = current is not None and not current.deleted
        state = f"is at version {current.version}" if current is not None and lives else "does not exist"
        super().__init__(f"{kind} {name} {state}")
        self.current = current if lives else None


@dataclass(frozen=True, slots=True)
class Changes:
    """What was read. ``complete``: ``documents`` is all there is, and not only what changed since."""

    epoch: str
    """Name of the history that Redis holds; empty: it holds none."""
    revision: int
    complete: bool
    counts: Mapping[str, int]
    """Documents in Redis by kind, deleted ones too."""
    documents: Sequence[Document]


class Refusal(msgspec.Struct, frozen=True):
    """Why a process does not apply the newest documents of some kinds. ``name`` may be empty: the set as a whole."""

    kinds: tuple[str, ...]
    name: str
    reason: str
    revision: int


class Ack(msgspec.Struct, frozen=True):
    """What a live process says: up to which revision it has applied, and what it refused of that.

    ``fleet``: the ids of its engines and the names of its links.
    """

    process: str
    host: str
    pid: int
    epoch: str
    revision: int
    refusals: tuple[Refusal, ...] = ()
    fleet: tuple[str, ...] = ()


class AuditEntry(msgspec.Struct, frozen=True):
    """Who changed what, and from which version; never the content. ``from_version`` 0: it did not exist."""

    kind: str
    name: str
    author: str
    from_version: int = msgspec.field(name="from")
    to_version: int = msgspec.field(name="to")
    deleted: bool
    at_ms: int
    revision: int


@dataclass(slots=True)
class DocumentStore:
    """Reads and changes documents. Every method raises ``AWAY``; time limits are the caller's."""

    redis: RedisClient
    prefix: str = "pdd"
    dead_s: float = DEAD_S

    @property
    def channel(self) -> str:
        """Where changes are announced."""
        return self._key("changed")

    async def get(self, kind: str, name: str) -> Document | None:
        """Return a document; None: there is none, or it was deleted."""
        packed: Any = await self.redis.commands.hget(self._documents(kind), name)
        document = None if packed is None else _unpack(kind, name, packed)
        return None if document is None or document.deleted else document

    async def all_of(self, kind: str) -> list[Document]:
        """Return all documents of a kind by name, without deleted ones."""
        found: Any = await self.redis.commands.hgetall(self._documents(kind))
        documents = (_unpack(kind, name.decode(), packed) for name, packed in found.items())
        return sorted((one for one in documents if not one.deleted), key=lambda one: one.name)

    async def put(
        self, kind: str, name: str, value: object, *, author: str, expected_version: int | None = None
    ) -> Document:
        """Write a new version of a document and return it; 0 expects that there is none. Raises Conflict, BadDocument.

        ``value`` is anything that msgspec writes as JSON.
        """
        body = msgspec.json.encode(value).decode()
        if len(body) > MOST_BODY_BYTES:
            raise BadDocument(f"{kind} {name} is larger than {MOST_BODY_BYTES} bytes")
        return await self._write(kind, name, body, author, expected_version)

    async def delete(self, kind: str, name: str, *, author: str, expected_version: int | None = None) -> Document:
        """Delete a document and return its tombstone. Raises Conflict, also where there is none, and BadDocument."""
        return await self._write(kind, name, "", author, expected_version)

    async def history(self, kind: str, name: str, count: int = MOST_HISTORY) -> list[Document]:
        """Return the newest versions of a document, newest first, tombstones too."""
        packed: Any = await self.redis.commands.lrange(self._history(kind, name), 0, count - 1)
        return [_unpack(kind, name, one) for one in packed]

    async def audit(self, count: int = 100, since_s: float | None = None) -> list[AuditEntry]:
        """Return the newest changes of all documents, newest first; those of the last ``since_s`` seconds alone."""
        first = "-"
        if since_s is not None:
            seconds, micros = await self.redis.commands.time()
            first = str(max(0, int((seconds + micros / 1e6 - since_s) * 1000)))
        found: Any = await self.redis.commands.xrevrange(self._key("audit"), min=first, count=count)
        entries = ({name.decode(): value.decode() for name, value in fields.items()} for _, fields in found)
        return [msgspec.convert(entry, AuditEntry, strict=False) for entry in entries]

    async def read(self, kinds: Sequence[str], since: int = -1, epoch: str = "") -> Changes:
        """Return what changed of ``kinds`` after revision ``since`` of ``epoch``; all, where that is not known."""
        keys = [self._key("meta"), self._key("changes"), *map(self._documents, kinds)]
        found_epoch, revision, complete, counts, flat = await self._run("read", keys, since, epoch, *kinds)
        parts = iter(flat)
        documents = [
            _unpack(kind.decode(), name.decode(), packed)
            for kind, name, packed in zip(parts, parts, parts, strict=True)
        ]
        by_kind = dict(zip(kinds, counts, strict=True))
        return Changes(found_epoch.decode(), revision, bool(complete), by_kind, documents)

    async def restore(self, epoch: str, revision: int, documents: Iterable[Document]) -> int:
        """Put back documents that Redis has lost; how many were. ``epoch`` and ``revision`` are those of ``read``."""
        keys, arguments = [self._key("meta"), self._key("changes")], []
        for one in documents:
            keys.append(self._documents(one.kind))
            packed = msgspec.msgpack.encode((one.version, one.revision, one.at_ms, one.author, one.body))
            arguments += [one.kind, one.name, packed]
        return int(await self._run("restore", keys, epoch, revision, self.channel, *arguments))

    async def acknowledge(self, ack: Ack) -> None:
        """Say what this process has applied. To be repeated more often than every ``dead_s``."""
        said = msgspec.msgpack.encode(ack)
        await self._run("acknowledge", self._acks(), ack.process, said, int(self.dead_s * 1000))

    async def living(self) -> list[Ack]:
        """Return what every live process says, by host and process id."""
        said = await self._run("living", self._acks(), int(self.dead_s * 1000))
        acks = [msgspec.msgpack.decode(one, type=Ack) for one in said if one]
        return sorted(acks, key=lambda ack: (ack.host, ack.pid, ack.process))

    async def retire(self, process: str) -> None:
        """Say that a process ends: nobody waits for it any more."""
        processes, said = self._acks()
        async with self.redis.commands.pipeline(transaction=True) as pipeline:
            pipeline.zrem(processes, process)
            pipeline.hdel(said, process)
            await pipeline.execute()

    async def _write(self, kind: str, name: str, body: str, author: str, expected: int | None) -> Document:
        if not (_KIND.fullmatch(kind) and _NAME.fullmatch(name)):
            raise BadDocument(f"{kind!r} {name!r} cannot name a document")
        keys = [self._key("meta"), self._key("changes"), self._documents(kind), self._history(kind, name)]
        wanted = "" if expected is None else expected
        arguments = [kind, name, body, author, wanted, uuid4().hex, self.channel, MOST_HISTORY, MOST_AUDIT]
        done, packed = await self._run("put", [*keys, self._key("audit")], *arguments)
        document = _unpack(kind, name, packed) if packed else None
        if not done or document is None:
            raise Conflict(kind, name, document)
        return document

    async def _run(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        return await self.redis.script(f"documents_{name}")(keys, arguments)

    def _key(self, name: str) -> str:
        return f"{self.prefix}:{{control}}:{name}"

    def _documents(self, kind: str) -> str:
        return self._key(f"documents:{kind}")

    def _history(self, kind: str, name: str) -> str:
        return self._key(f"history:{kind}:{name}")

    def _acks(self) -> list[str]:
        return [self._key("processes"), self._key("acks")]


def _unpack(kind: str, name: str, packed: bytes) -> Document:
    return Document(kind, name, *_PACKED.decode(packed))
