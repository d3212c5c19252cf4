"""Which chunks an order means, where an LMCache server keeps groups of layers apart."""

import pytest
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.bitmap_ops.fold import unfold_range
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from msgspec import structs

from backends.kv.bridge.keys import KeysRefused
from backends.kv.bridge.orders import find_chunks
from backends.kv.bridge.types import TransferOrder
from backends.types import KvShape

CHUNK_TOKENS = 4


def order(chunks: int, windows: list[int | None], **fields: object) -> TransferOrder:
    """A prompt of so many full chunks."""
    prompt = list(range(chunks * CHUNK_TOKENS + 1))
    wanted = TransferOrder(
        "t", "lmcache-mp", "m", prompt, chunk_tokens=CHUNK_TOKENS, world_size=2, group_windows=windows
    )
    return structs.replace(wanted, **fields)


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("windows", [[None], [1, None], [None, 2, 1], [4]])
def test_what_lmcache_looks_for_is_moved(chunks: int, windows: list[int | None]) -> None:
    """Of every group exactly those chunks are moved that LMCache needs for a hit of the whole prompt, of all ranks."""
    wanted = order(chunks, windows)
    digests = TokenHasher(CHUNK_TOKENS).compute_chunk_hashes(wanted.token_ids or [])
    needed = {
        _object_key_to_string(ObjectKey(digests[number], "m", ObjectKey.ComputeKVRank(2, rank, 2, rank), group))
        for group, window in enumerate(windows)
        for number in range(*unfold_range(chunks, window or -1))
        for rank in range(2)
    }
    keys = [chunk.key for chunk in find_chunks(wanted)]
    assert set(keys) == needed
    assert len(keys) == len(needed)


def test_the_first_chunk_is_of_a_group_that_needs_all() -> None:
    """Whether a prompt's KV comes at all shows with its first chunk, so that is one that P stores first."""
    groups = [chunk.key.split("@")[2] for chunk in find_chunks(order(3, [1, None], world_size=1))]
    assert groups == ["1", "1", "1", "0"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dialect": "lmcache"}, "dialect lmcache has no object groups"),
        ({"dest_world_size": 1, "shape": KvShape("packed", 2, 8, 4)}, "chunks in object groups are not regrouped"),
    ],
)
def test_groups_that_cannot_be_are_refused(fields: dict[str, object], why: str) -> None:
    """LMCache inside an engine has no groups; those of a server are not regrouped."""
    with pytest.raises(KeysRefused, match=why):
        find_chunks(order(2, [None, 1], **fields))
