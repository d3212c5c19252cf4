"""What keys in a store tell of the engine that wrote them, for the layouts that LMCache has."""

from dataclasses import replace

import pytest

from backends.kv.bridge.key_names import Origin
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.types import FoundKey, KvShape, StoreSide
from gateway.fleet.kv_reading import (
    LinkTerms,
    StoreReading,
    find_contradictions,
    find_differences,
    is_same_size,
    read_store,
)
from gateway.fleet.kv_terms import KvTerms

PROMPT = list(range(100, 700))
TERMS = LinkTerms("lmcache-mp", "org/m", 256, None, "bfloat16", 1)
TOKEN_BYTES = 1000
SIDES: tuple[StoreSide, ...] = ("source", "dest")


def stored(world_size: int = 1, groups: int = 1, token_bytes: float = TOKEN_BYTES, copies: int = 1) -> list[FoundKey]:
    """Keys that an LMCache server leaves, ``token_bytes`` over all ranks, of which ``copies`` hold the same heads."""
    keys = []
    for group in range(groups):
        request = KeyRequest("org/m", PROMPT, 256, "salt", world_size=world_size, group=group)
        size = round(256 * token_bytes * copies / world_size / groups)
        keys += [FoundKey(key, size) for key in DIALECTS["lmcache-mp"].chunk_keys(request)]
    return keys


def read(found: list[FoundKey], terms: LinkTerms = TERMS) -> StoreReading:
    """Read what is there."""
    reading = read_store(found, PROMPT, terms)
    assert reading is not None
    return reading


def test_a_server_s_keys_are_read() -> None:
    """Chunk size, ranks, groups, salt and bytes are those of the engine, whatever the link says."""
    reading = read(stored(), replace(TERMS, chunk_tokens=64))
    assert reading.origin == Origin("lmcache-mp", 256, None)
    assert (reading.ranks, reading.groups, reading.is_salted) == ((0,), (0,), True)
    assert reading.bytes_of_token() == TOKEN_BYTES
    assert "chunks of 256 tokens" in reading.describe() and "1000 a token" in reading.describe()
    assert find_contradictions("p1", reading, TERMS) == []


def test_other_keys_beside_them_do_not_matter() -> None:
    """Keys that cannot be read, and fewer ones of another writer, are left out; nothing at all is no reading."""
    other = [FoundKey("pdd:salt", 5), FoundKey(f"other@01000100@0@{'ab' * 32}@salt", 7)]
    assert read(other + stored()).model == "org/m"
    assert read_store([FoundKey("pdd:salt", 5)], PROMPT, TERMS) is None


def test_ranks_are_counted_by_side() -> None:
    """TP 8 at P and 4 at MD fit a link that regroups; a rank without keys, or one too many, does not."""
    p, md = read(stored(8)), read(stored(4))
    wide, narrow = replace(TERMS, world_size=8), replace(TERMS, world_size=4)
    assert find_contradictions("p1", p, wide) == find_contradictions("md1", md, narrow) == []
    assert find_differences("p1", p, "md1", md, heads=8) == []
    assert "of 8 ranks, the link says 4" in find_contradictions("p1", p, narrow)[0]
    half = read([one for one in stored(2) if "@0200" in one.key])
    assert "ranks 0 of 2 only" in find_contradictions("p1", half, replace(TERMS, world_size=2))[0]


def test_copies_of_heads_count_once() -> None:
    """Eight ranks of a model with four KV heads store each head twice: that is no other size."""
    p, md = read(stored(8, copies=2)), read(stored(4))
    assert find_differences("p1", p, "md1", md, heads=4) == []
    assert find_differences("p1", p, "md1", md, heads=None) != []


def test_fp8_beside_bf16_is_refused() -> None:
    """Equal keys with half the bytes are no KV of the same model."""
    (line,) = find_differences("p1", read(stored()), "md1", read(stored(token_bytes=TOKEN_BYTES / 2)), None)
    assert line.startswith("p1 stores 1000 bytes of KV a token, md1 500")


def test_object_groups_must_be_moved() -> None:
    """Groups that the link does not move would be missing at MD."""
    reading = read(stored(groups=3))
    assert "object groups 0, 1, 2, the link moves 1" in find_contradictions("p1", reading, TERMS)[0]
    assert find_contradictions("p1", reading, replace(TERMS, groups=3)) == []


def test_a_random_seed_is_told_of() -> None:
    """POL-102: keys in process whose seed nobody knows cannot be foreseen, and the remedy is named."""
    terms = replace(TERMS, dialect="lmcache", hash_seed=0)
    request = KeyRequest("org/m", PROMPT, 256, "salt", dtype="bfloat16", hash_seed=987_654)
    dialect = DIALECTS["lmcache"]
    found = [FoundKey(dialect.value_key(key).decode(), 5) for key in dialect.chunk_keys(request)]
    reading = read(found, terms)
    assert reading.origin is None and reading.bytes_of_token() is None
    (line,) = find_contradictions("p1", reading, terms)
    assert "PYTHONHASHSEED must be set" in line
    known = read(found, replace(terms, hash_seed=987_654))
    assert known.origin == Origin("lmcache", 256, 987_654)
    assert find_contradictions("p1", known, terms) == [
        "p1 chains its hashes from seed 987654, the link says 0 (hash_seed)"
    ]


def test_small_seeds_are_found() -> None:
    """POL-102: a seed below 256 is read off the keys, with the chunk size beside it."""
    request = KeyRequest("org/m", PROMPT, 128, "salt", dtype="bfloat16", hash_seed=217)
    dialect = DIALECTS["lmcache"]
    found = [FoundKey(dialect.value_key(key).decode(), 5) for key in dialect.chunk_keys(request)]
    assert read(found).origin == Origin("lmcache", 128, 217)


def test_terms_follow_the_side_and_the_shape() -> None:
    """A latent is one whatever the ranks are; groups count where the link keeps them apart."""
    kv = KvTerms(world_size=8, dest_world_size=4)
    grouped = KvShape("packed", 2, 8, 64)
    assert [kv.at(side, "m", grouped).world_size for side in SIDES] == [8, 4]
    assert kv.at("dest", "m", KvShape("latent", 2, 1, 576)).world_size == 1
    assert kv.at("source", "m", None, 3).groups == 1
    assert replace(kv, has_groups=True).at("source", "m", None, 3).groups == 3
    assert kv.at("source", "m", grouped).token_bytes(256 * 100) == 800
    assert kv.at("source", "m", replace_heads(grouped, 4)).token_bytes(256 * 100) == 400


def replace_heads(shape: KvShape, heads: int) -> KvShape:
    """The same shape with fewer heads than ranks."""
    return KvShape(shape.layout, shape.layers, heads, shape.head_bytes)


@pytest.mark.parametrize(("one", "other", "same"), [(100, 101, True), (100, 102, False), (1, 2, False), (0, 0, True)])
def test_one_percent(one: float, other: float, same: bool) -> None:
    """Up to one in a hundred is the same size."""
    assert is_same_size(one, other) is is_same_size(other, one) is same
