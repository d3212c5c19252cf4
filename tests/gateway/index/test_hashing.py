"""Names of prefixes."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.hashing import BLOCK_TOKENS, block_keys, chain_digests, chain_seed, hash_blocks

SEED = chain_seed("model", None, None)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@settings(deadline=None)
@given(TOKENS, TOKENS)
def test_equal_names_mean_equal_prefixes(first: list[int], second: list[int]) -> None:
    """Two prompts share exactly the names of the full blocks in their common prefix."""
    common = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    length = min(len(first), len(second)) if common is None else common
    names = list(zip(hash_blocks(first, SEED), hash_blocks(second, SEED), strict=False))
    assert [one == other for one, other in names] == [i < length // BLOCK_TOKENS for i in range(len(names))]


@settings(deadline=None)
@given(TOKENS, st.integers(0, 6))
def test_chain_goes_on_from_any_block(token_ids: list[int], cut: int) -> None:
    """Hashing in two parts that meet at a block boundary gives the names of hashing at once."""
    whole = chain_digests(token_ids, SEED)
    cut = min(cut, len(whole))
    head = chain_digests(token_ids[: cut * BLOCK_TOKENS], SEED)
    tail = chain_digests(token_ids[cut * BLOCK_TOKENS :], head[-1] if head else SEED)
    assert head + tail == whole


@settings(deadline=None)
@given(TOKENS)
def test_arrays_and_lists_have_the_same_names(token_ids: list[int]) -> None:
    """The type of the sequence does not matter."""
    names = hash_blocks(token_ids, SEED)
    assert hash_blocks(array("I", token_ids), SEED) == hash_blocks(tuple(token_ids), SEED) == names
    assert hash_blocks(array("L", token_ids), SEED) == names


def test_names_do_not_change() -> None:
    """Processes of different versions share state, so names are fixed for good."""
    assert chain_seed("m", "lora", "salt", b"key").hex() == "2c676597b2af1a370b46aaf1a41ac2a0"
    assert hash_blocks(range(40), chain_seed("m", None, None)) == [590792531380829740, 15947637579714607340]


def test_seeds_tell_their_fields_apart() -> None:
    """No two of these share a seed: fields are framed, None is not "", and the key counts."""
    triples = [("ab", "c", None), ("a", "bc", None), ("ab", None, "c"), ("ab", "", "c"), ("abc", None, None)]
    triples += [("abc", "", None), ("abc", None, ""), ("abc", "", "")]
    seeds = {chain_seed(*triple) for triple in triples} | {chain_seed("abc", None, None, b"k")}
    assert len(seeds) == len(triples) + 1


@pytest.mark.parametrize("prompt", [[1, 2, 3] * 16, [12, 3] * 24, [1234] * 16, [12345] * 16, [0] * 16])
def test_lookalike_prompts_have_names_of_their_own(prompt: list[int]) -> None:
    """Ids are hashed as ids, not by their number or their digits."""
    others = [[1, 2, 3] * 16, [12, 3] * 24, [1234] * 16, [12345] * 16, [0] * 16]
    assert sum(hash_blocks(other, SEED)[0] == hash_blocks(prompt, SEED)[0] for other in others) == 1


@pytest.mark.parametrize("token_ids", [[-1] * 16, [2**32] * 16, [1.5] * 16, ["1"] * 16, [None] * 16])
def test_ids_out_of_range_are_refused(token_ids: list[int]) -> None:
    """Whatever is not an id raises ValueError."""
    with pytest.raises(ValueError, match="token ids"):
        hash_blocks(token_ids, SEED)


def test_keys_are_half_of_each_digest() -> None:
    """A key is the first eight bytes of a digest; there are none for a partial block."""
    (digest,) = chain_digests(range(31), SEED)
    assert block_keys([digest]) == [int.from_bytes(digest[:8], "little")]
    assert hash_blocks(range(15), SEED) == block_keys([]) == []
