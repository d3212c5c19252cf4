"""Versioned documents over a real server."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from gateway.config.document_store import Ack, BadDocument, Conflict, DocumentStore
from tests.valkey import open_documents, run_valkey

pytestmark = pytest.mark.slow


@pytest.fixture
async def store() -> AsyncGenerator[DocumentStore, None]:
    """An empty store over a server of its own."""
    async with run_valkey() as url, open_documents(url) as store:
        yield store


async def test_versions_and_revisions(store: DocumentStore) -> None:
    """Each change makes a document's next version; the revision counts over all documents."""
    first = await store.put("rules", "default", {"a": 1}, author="ann")
    other = await store.put("tenant", "default", {}, author="bob")
    second = await store.put("rules", "default", {"a": 2}, author="bob", expected_version=1)
    assert [(one.version, one.revision) for one in (first, other, second)] == [(1, 1), (1, 2), (2, 3)]
    assert await store.get("rules", "default") == second
    assert second.value == {"a": 2} and second.author == "bob" and second.at_ms >= first.at_ms > 1_600_000_000_000
    assert await store.get("rules", "nobody") is None


async def test_compare_and_swap(store: DocumentStore) -> None:
    """A change that expects another version is refused with the present one, and changes nothing."""
    first = await store.put("rules", "t", {"a": 1}, author="ann", expected_version=0)
    for expected in (0, 2, 7):
        with pytest.raises(Conflict, match="is at version 1") as refused:
            await store.put("rules", "t", {"a": 2}, author="bob", expected_version=expected)
        assert refused.value.current == first
    with pytest.raises(Conflict, match="is at version 1"):
        await store.delete("rules", "t", author="bob", expected_version=3)
    with pytest.raises(Conflict, match="does not exist") as absent:
        await store.put("rules", "u", {}, author="bob", expected_version=1)
    assert absent.value.current is None
    assert await store.history("rules", "t") == [first]
    assert (await store.read(["rules"])).revision == 1


async def test_only_one_of_many_swaps_wins(store: DocumentStore) -> None:
    """Of changes at the same time that expect the same version, exactly one is done."""
    await store.put("rules", "t", 0, author="a")
    done = await asyncio.gather(
        *(store.put("rules", "t", n, author="a", expected_version=1) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in done) == 19
    assert (await store.read(["rules"])).revision == 2


async def test_delete_leaves_a_tombstone(store: DocumentStore) -> None:
    """A deleted document is gone for readers, counts as absent, and its versions go on; twice is a conflict."""
    with pytest.raises(Conflict):
        await store.delete("rules", "t", author="ann")
    await store.put("rules", "t", 1, author="ann")
    tomb = await store.delete("rules", "t", author="ann", expected_version=1)
    assert tomb.deleted and tomb.value is None and tomb.version == 2
    assert await store.get("rules", "t") is None and await store.all_of("rules") == []
    with pytest.raises(Conflict, match="does not exist") as twice:
        await store.delete("rules", "t", author="ann")
    assert twice.value.current is None
    again = await store.put("rules", "t", 2, author="ann", expected_version=0)
    assert again.version == 3
    assert [one.version for one in await store.history("rules", "t")] == [3, 2, 1]


async def test_history_is_bounded(store: DocumentStore) -> None:
    """The newest hundred versions are kept, newest first."""
    for number in range(105):
        await store.put("rules", "t", number, author="ann")
    kept = await store.history("rules", "t")
    assert [one.value for one in kept] == list(range(104, 4, -1))
    assert [one.value for one in await store.history("rules", "t", 2)] == [104, 103]


async def test_audit_tells_who_but_not_what(store: DocumentStore) -> None:
    """Each change leaves who, when, and from which version; never the content."""
    await store.put("key", "k1", {"hash": "SECRET"}, author="ann")
    await store.put("key", "k1", {"hash": "SECRET2"}, author="bob")
    await store.delete("key", "k1", author="eve")
    entries = await store.audit()
    assert [(one.author, one.from_version, one.to_version, one.deleted) for one in entries] == [
        ("eve", 2, 3, True),
        ("bob", 1, 2, False),
        ("ann", 0, 1, False),
    ]
    assert {(one.kind, one.name) for one in entries} == {("key", "k1")}
    assert "SECRET" not in repr(entries)


async def test_reading_what_changed(store: DocumentStore) -> None:
    """Only what changed since a revision is read, of the kinds asked for; an unknown history is read whole."""
    await store.put("rules", "a", 1, author="x")
    await store.put("rules", "b\u00e9 {}", 1, author="x")
    whole = await store.read(["rules", "topology"])
    assert whole.complete and whole.counts == {"rules": 2, "topology": 0} and len(whole.documents) == 2
    await store.put("tenant", "t", 1, author="x")
    await store.put("rules", "a", 2, author="x")
    since = await store.read(["rules", "topology"], whole.revision, whole.epoch)
    assert not since.complete and [(one.name, one.value) for one in since.documents] == [("a", 2)]
    assert since.revision == 4
    assert (await store.read(["rules"], whole.revision, "another")).complete
    assert (await store.read(["rules"], 99, whole.epoch)).complete
    nothing = await store.read(["rules"], since.revision, since.epoch)
    assert not nothing.complete and not nothing.documents


async def test_restore_into_an_empty_server(store: DocumentStore) -> None:
    """What was lost comes back with versions, revision and tombstones, once, and changes go on from there."""
    await store.put("rules", "a", {"x": "y" * 300}, author="x")
    await store.put("rules", "b", 1, author="x")
    await store.delete("rules", "b", author="x")
    before = await store.read(["rules"])
    await store.redis.commands.flushall()
    assert await store.restore(before.epoch, before.revision, before.documents) == 2
    assert await store.restore(before.epoch, before.revision, before.documents) == 0
    after = await store.read(["rules"])
    assert (after.epoch, after.revision) == (before.epoch, before.revision)
    assert sorted(after.documents, key=lambda one: one.name) == sorted(before.documents, key=lambda one: one.name)
    assert (await store.put("rules", "a", 2, author="x", expected_version=1)).revision == 4


async def test_restore_keeps_what_is_newer(store: DocumentStore) -> None:
    """In the same history the later change wins, whoever restores; in another one, what is there wins."""
    old = await store.put("rules", "a", "old", author="x")
    new = await store.put("rules", "a", "new", author="x")
    epoch = (await store.read(["rules"])).epoch
    assert await store.restore(epoch, 2, [old]) == 0
    await store.redis.commands.flushall()
    await store.restore(epoch, 1, [old])
    assert await store.restore(epoch, 2, [new]) == 1
    assert await store.get("rules", "a") == new
    await store.redis.commands.flushall()
    await store.put("rules", "a", "another history", author="x")
    lost = replace(new, name="b", revision=50)
    assert await store.restore(epoch, 50, [new, lost]) == 1
    assert [one.value for one in await store.all_of("rules")] == ["another history", "new"]
    assert (await store.read(["rules"])).revision == 2


@pytest.mark.parametrize(("kind", "name"), [("Rules", "a"), ("rules", ""), ("rules", "a\nb"), ("rules", "x" * 201)])
async def test_bad_names_are_refused(store: DocumentStore, kind: str, name: str) -> None:
    """Names that could not be told apart in Redis, and documents beyond all measure, are refused."""
    with pytest.raises(BadDocument, match="cannot name"):
        await store.put(kind, name, 1, author="x")
    with pytest.raises(BadDocument, match="larger"):
        await store.put("rules", "a", "x" * (1 << 20), author="x")


async def test_living_processes(store: DocumentStore) -> None:
    """Who gave a sign of life lately is listed with what it said; who retired, or fell silent, is not."""
    acks = [Ack(name, "h", number, "e", 3) for number, name in enumerate(("one", "two", "three"))]
    for ack in acks:
        await store.acknowledge(ack)
    assert await store.living() == acks
    await store.retire("two")
    assert await store.living() == [acks[0], acks[2]]
    assert await DocumentStore(store.redis, dead_s=0).living() == []
    await DocumentStore(store.redis, dead_s=0).acknowledge(acks[0])
    assert await store.living() == []
