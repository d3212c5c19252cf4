"""What holds on a link for a model: what settings pin, and what its engines were seen to store."""

from dataclasses import replace

import pytest

from backends.kv.bridge.key_names import Origin
from backends.types import KvShape
from gateway.fleet.kv_probe import find_uncut
from gateway.fleet.kv_reading import StoreReading
from gateway.fleet.kv_terms import KvBook, KvTerms

READING = StoreReading(
    dialect="lmcache-mp",
    model="m",
    origin=Origin("lmcache-mp", 512, None),
    world_size=8,
    ranks=tuple(range(8)),
    groups=(0, 1),
    dtype=None,
    chunk_bytes=1000,
    is_salted=True,
)
SHAPE = KvShape("packed", 2, 8, 64)


def test_both_sides_are_learnt() -> None:
    """Chunks and groups are those of the sending engines, ranks those of each side; models do not mix."""
    book = KvBook()
    book.note("m", "source", "p1", READING)
    book.note("m", "dest", "md1", replace(READING, world_size=4))
    assert book.settle("m")
    kv = book.of("m")
    assert (kv.chunk_tokens, kv.has_groups, kv.world_size, kv.dest_world_size) == (512, True, 8, 4)
    source, dest = kv.at("source", "m", SHAPE, 2), kv.at("dest", "m", SHAPE, 2)
    assert (source.world_size, source.groups, source.who_says("world_size")) == (8, 2, "p1")
    assert (dest.world_size, dest.who_says("world_size"), dest.who_says("chunk_tokens")) == (4, "md1", "p1")
    assert kv.dtype == KvTerms().dtype and "dtype" not in kv.learnt
    assert book.of("other") == KvTerms()
    assert not book.settle("m")


def test_pinned_values_stay_the_links() -> None:
    """What settings give is neither changed nor said to be anybody else's, also where the other side is silent."""
    book = KvBook(KvTerms(world_size=2, has_groups=False, pinned=frozenset({"world_size", "has_groups"})))
    book.note("m", "source", "p1", READING)
    book.note("m", "dest", "md1", None)
    assert book.settle("m")
    kv = book.of("m")
    assert (kv.world_size, kv.dest_world_size, kv.has_groups, kv.chunk_tokens) == (2, None, False, 512)
    assert kv.at("source", "m").who_says("world_size") == kv.at("dest", "m").who_says("world_size") == "the link"


def test_a_receiving_engine_alone_teaches_too() -> None:
    """Where nothing was seen of P, what MD stores holds; an unknown chunk size leaves the default."""
    book = KvBook()
    book.note("m", "source", "p1", None)
    book.note("m", "dest", "md1", replace(READING, origin=None, groups=(0,), world_size=1))
    book.settle("m")
    kv = book.of("m")
    assert (kv.chunk_tokens, kv.dest_world_size, kv.learnt) == (
        256,
        1,
        {"dialect": "md1", "has_groups": "md1", "dest_world_size": "md1"},
    )


@pytest.mark.parametrize(
    ("kv", "shape", "why"),
    [
        (KvTerms(world_size=8, dest_world_size=4), SHAPE, None),
        (KvTerms(world_size=8), None, None),
        (KvTerms(world_size=8, dest_world_size=4), KvShape("latent", 2, 1, 64), None),
        (KvTerms(world_size=8, dest_world_size=4), None, "KV of 8 ranks cannot be regrouped for 4: its layout"),
        (KvTerms(world_size=8, dest_world_size=3), SHAPE, "KV of 8 ranks cannot be regrouped for 3: "),
        (KvTerms(world_size=8, dest_world_size=4, has_groups=True), SHAPE, "object groups are not regrouped"),
    ],
)
def test_ranks_that_do_not_fit_are_named(kv: KvTerms, shape: KvShape | None, why: str | None) -> None:
    """Ranks that were learnt stop the link where KV cannot be made the other's, with both numbers and the reason."""
    found = find_uncut(kv, shape)
    assert found is None if why is None else found is not None and why in found
