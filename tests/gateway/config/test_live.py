"""The mirror of the documents, over a real server that restarts, forgets and goes back."""

import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from backends.transport.valkey import EmbeddedValkey
from gateway.config.document_store import Document, DocumentStore, Refusal
from gateway.config.live import DocumentsRefused, LiveDocuments
from gateway.redis.client import SharedRedis
from tests.fakes.gates import Watch
from tests.fakes.silent_store import SilentStore
from tests.valkey import open_documents

pytestmark = pytest.mark.slow

SLOW_S = 3600.0
"""An interval that no test lives to see: what is seen came by a notice."""


@dataclass(slots=True)
class Process:
    """One process's mirror, and what it was given to apply."""

    live: LiveDocuments
    looks: Watch
    bad: set[str] = field(default_factory=set)
    refusals: list[Refusal] = field(default_factory=list)
    sets: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rules(self) -> dict[str, Any]:
        """The set in force."""
        return self.sets[-1]

    def apply(self, documents: Sequence[Document]) -> None:
        """Take a set, unless one of it is bad."""
        for document in documents:
            if document.value in self.bad:
                raise DocumentsRefused(document.name, "bad")
        self.sets.append({document.name: document.value for document in documents})

    async def until_rules(self, rules: dict[str, Any], up: bool = True) -> None:
        """Wait until a set is in force, and Redis as said."""
        await self.looks.until(lambda: self.sets[-1:] == [rules] and self.live.up is up)


@asynccontextmanager
async def run_process(url: str, interval_s: float = 0.05, bad: Sequence[str] = ()) -> AsyncGenerator[Process, None]:
    """Be one process that follows the rules."""
    looks = Watch()
    refusals: list[Refusal] = []
    shared = SharedRedis(url)
    live = LiveDocuments(
        shared, interval_s=interval_s, timeout_s=1.0, on_look=looks.changed, on_refusal=refusals.append
    )
    process = Process(live, looks, set(bad), refusals)
    live.follow(process.apply, "rules")
    try:
        await live.start()
        yield process
    finally:
        await live.aclose()
        await shared.aclose()


@pytest.fixture
async def store(server: EmbeddedValkey) -> AsyncGenerator[DocumentStore, None]:
    """An operator's hand on the server."""
    async with open_documents(server.url) as store:
        yield store


async def test_every_process_is_told_at_once(server: EmbeddedValkey, store: DocumentStore) -> None:
    """A change, a deletion and documents of other kinds: both processes apply their kind's whole set, pushed."""
    await store.put("rules", "a", 1, author="x")
    async with run_process(server.url, SLOW_S) as one, run_process(server.url, SLOW_S) as other:
        for process in (one, other):
            await process.until_rules({"a": 1})
        await store.put("tenant", "t", 1, author="x")
        await store.put("rules", "b", 2, author="x")
        for process in (one, other):
            await process.until_rules({"a": 1, "b": 2})
        await store.delete("rules", "a", author="x")
        for process in (one, other):
            await process.until_rules({"b": 2})
        assert one.sets == [{"a": 1}, {"a": 1, "b": 2}, {"b": 2}]


async def test_an_empty_store_is_a_set_too(server: EmbeddedValkey) -> None:
    """Where nobody has written anything, the empty set is applied once, and nothing is unread."""
    async with run_process(server.url) as process:
        assert process.sets == [{}]
        assert process.live.find_unread("rules") is None
        assert process.live.contact_age_s is not None and process.live.contact_age_s < 10


async def test_lost_notices_heal(server: EmbeddedValkey, store: DocumentStore) -> None:
    """A change whose notice never came is seen by the next look, and then the subscription is made anew."""
    async with run_process(server.url) as process:
        await store.put("rules", "a", 1, author="x")
        await process.until_rules({"a": 1})
        await SilentStore(store.redis).put("rules", "a", 2, author="x")
        await process.until_rules({"a": 2})
        await store.put("rules", "a", 3, author="x")
        await process.until_rules({"a": 3})


async def test_refused_documents_change_nothing(server: EmbeddedValkey, store: DocumentStore) -> None:
    """A set that is refused leaves the last good one in force, is said once in the acknowledgement, and ends."""
    async with run_process(server.url, bad=["bad"]) as process:
        await store.put("rules", "a", "good", author="x")
        await process.until_rules({"a": "good"})
        await store.put("rules", "a", "bad", author="x")
        await process.looks.until(lambda: bool(process.live.refusals))
        (ack,) = await store.living()
        assert ack.revision == 2 and [(one.name, one.reason, one.revision) for one in ack.refusals] == [("a", "bad", 2)]
        assert process.rules == {"a": "good"} and len(process.refusals) == 1
        await process.live.look()
        assert len(process.refusals) == 1
        await store.put("rules", "a", "better", author="x")
        await process.until_rules({"a": "better"})
        assert process.live.refusals == () and (await store.living())[0].refusals == ()


async def test_a_bad_first_set_leaves_rules_unread(server: EmbeddedValkey, store: DocumentStore) -> None:
    """A process whose very first set is refused says that it has none, and why."""
    await store.put("rules", "a", "bad", author="x")
    async with run_process(server.url, bad=["bad"]) as process:
        assert process.sets == [] and process.live.find_unread("rules") == "bad"
        await store.put("rules", "a", "good", author="x")
        await process.until_rules({"a": "good"})
        assert process.live.find_unread("rules") is None


async def test_acknowledgements_follow_the_revision(server: EmbeddedValkey, store: DocumentStore) -> None:
    """Each live process says what it has applied, under its own process id; one that ended is gone."""
    async with run_process(server.url) as one:
        async with run_process(server.url):
            document = await store.put("rules", "a", 1, author="x")
            await one.until_rules({"a": 1})
            acks = await store.living()
            assert len({ack.process for ack in acks}) == 2 and {ack.pid for ack in acks} == {os.getpid()}
            assert max(ack.revision for ack in acks) == document.revision
            told = await one.live.describe("rules")
            assert [(row["name"], row["version"], row["author"]) for row in told["documents"]] == [("a", 1, "x")]
            assert told["revision"] == 1 and len(told["processes"]) == 2 and told["redis_up"]
            assert (await one.live.describe("topology"))["documents"] == []
        assert len(await store.living()) == 1


async def test_empty_restart_is_put_back(server: EmbeddedValkey, store: DocumentStore) -> None:
    """RED-05: a server that comes back empty takes no document away; the processes put all back, versions too."""
    async with run_process(server.url) as one, run_process(server.url) as other:
        await store.put("rules", "a", 1, author="x")
        await store.put("rules", "b", 1, author="x")
        await store.delete("rules", "b", author="x")
        last = await store.put("rules", "a", 2, author="x")
        for process in (one, other):
            await process.until_rules({"a": 2})
        os.kill(server.pid, signal.SIGKILL)
        for process in (one, other):
            await process.until_rules({"a": 2}, up=False)
        assert (await one.live.describe("rules"))["processes"] is None
        await server.stop()
        await server.start()
        await store.redis.commands.connection_pool.disconnect()
        for process in (one, other):
            await process.until_rules({"a": 2})
        assert await store.get("rules", "a") == last
        changed = await store.put("rules", "a", 3, author="x", expected_version=2)
        assert changed.revision == last.revision + 1
        for process in (one, other):
            await process.until_rules({"a": 3})
            assert {} not in process.sets[1:]


async def test_write_before_the_processes_see_the_loss(server: EmbeddedValkey, store: DocumentStore) -> None:
    """Where the empty server was written to first, what was written holds, and the rest is put back beside it."""
    async with run_process(server.url, SLOW_S) as process:
        await store.put("rules", "a", "old", author="x")
        await store.put("rules", "b", "kept", author="x")
        await process.until_rules({"a": "old", "b": "kept"})
        await store.redis.commands.flushall()
        await store.put("rules", "a", "new", author="x")
        await process.until_rules({"a": "new", "b": "kept"})
        assert [one.value for one in await store.all_of("rules")] == ["new", "kept"]


async def test_evicted_documents_are_put_back(server: EmbeddedValkey, store: DocumentStore) -> None:
    """RED-05: when Redis drops a kind's documents, or the revisions, the rules stay and Redis has them again."""
    async with run_process(server.url) as process:
        await store.put("rules", "a", 1, author="x")
        await process.until_rules({"a": 1})
        for key in ("documents:rules", "meta", "changes"):
            before = process.live.revision
            await store.redis.commands.delete(f"pdd:{{control}}:{key}")
            assert await process.live.look()
            assert [one.value for one in await store.all_of("rules")] == [1]
            assert process.live.revision == before
        await store.put("rules", "b", 2, author="x")
        await process.until_rules({"a": 1, "b": 2})
        assert process.sets == [{}, {"a": 1}, {"a": 1, "b": 2}]


async def test_an_older_copy_is_brought_forward(server: EmbeddedValkey, store: DocumentStore) -> None:
    """A server that comes back with an older state, as a replica may, gets the newer documents again."""
    async with run_process(server.url) as process:
        await store.put("rules", "a", 1, author="x")
        await store.put("rules", "b", 1, author="x")
        old = await store.read(["rules"])
        await store.put("rules", "a", 2, author="x")
        await store.delete("rules", "b", author="x")
        await process.until_rules({"a": 2})
        await store.redis.commands.flushall()
        await store.restore(old.epoch, old.revision, old.documents)
        assert await process.live.look()
        assert {one.name: one.value for one in await store.all_of("rules")} == {"a": 2}
        assert process.rules == {"a": 2} and process.live.revision == 4


async def test_no_redis_at_first(server: EmbeddedValkey) -> None:
    """Without Redis nothing is applied and the reason is said; once it is there, all is applied."""
    await server.stop()
    async with run_process(server.url) as process:
        assert process.sets == [] and "does not answer" in str(process.live.find_unread("rules"))
        assert process.live.contact_age_s is None
        await server.start()
        await process.until_rules({})


async def test_hung_redis(server: EmbeddedValkey, store: DocumentStore) -> None:
    """RED-02, RED-03: a Redis that hangs is noticed within the time limit, and followed again when it goes on."""
    async with run_process(server.url) as process:
        await store.put("rules", "a", 1, author="x")
        await process.until_rules({"a": 1})
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await process.until_rules({"a": 1}, up=False)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await store.put("rules", "a", 2, author="x")
        await process.until_rules({"a": 2})
