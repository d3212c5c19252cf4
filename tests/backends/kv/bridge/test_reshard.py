"""Tests of regrouping, against keys and chunks that LMCache 0.5.6's own code makes of the same KV."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lmcache import device_ops
from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy
from lmcache.lmcache_native import EngineKVFormat, TransferDirection
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.platform.ops_types import PageBufferShapeDesc

from backends.kv.bridge.keys import KeysRefused
from backends.kv.bridge.orders import find_chunks
from backends.kv.bridge.reshard import LayoutRefused, plan_lots
from backends.kv.bridge.stores import ChunkRefused, Shard, make_shards
from backends.kv.bridge.types import TransferOrder
from backends.types import KvShape

LAYERS, HEAD_DIM, BLOCK_TOKENS, CHUNK_TOKENS, CHUNKS = 3, 4, 4, 16, 2
PROMPT = list(range(100, 100 + CHUNKS * CHUNK_TOKENS))
FORMATS = {
    "packed, heads first": ("packed", EngineKVFormat.NL_X_NB_NH_BS_CS, (0, 2, 1, 3)),
    "packed, tokens first": ("packed", EngineKVFormat.NL_X_NB_BS_NH_CS, (0, 1, 2, 3)),
    "split, keys first": ("split", EngineKVFormat.NL_X_TWO_NB_BS_NH_HS, ()),
}


def engine_cache(kind: str, kv: torch.Tensor) -> list[torch.Tensor]:
    """One rank's paged cache of each layer; ``kv`` is [layers, blocks, tokens, heads, 2, head_dim]."""
    layout, _, order = FORMATS[kind]
    if layout == "split":
        return [layer.permute(3, 0, 1, 2, 4).contiguous() for layer in kv]
    return [layer.flatten(3).permute(order).contiguous() for layer in kv]


def chunks_of_rank(kind: str, kv: torch.Tensor) -> list[bytes]:
    """What LMCache puts into the store for one rank, chunk by chunk."""
    layout, fmt, _ = FORMATS[kind]
    layers, blocks, _, heads, _, _ = kv.shape
    planes = 2 if layout == "split" else 1
    shape = PageBufferShapeDesc()
    shape.kv_size, shape.nl, shape.nb, shape.bs = planes, layers, blocks, BLOCK_TOKENS
    shape.nh, shape.hs, shape.element_size = heads, HEAD_DIM * 2 // planes, kv.element_size()
    objects = [
        torch.zeros(planes, layers, CHUNK_TOKENS, heads * HEAD_DIM * 2 // planes, dtype=kv.dtype) for _ in range(CHUNKS)
    ]
    device_ops.multi_layer_block_kv_transfer(
        engine_cache(kind, kv),
        [made if planes == 2 else made[0] for made in objects],
        torch.arange(blocks),
        "cpu",
        TransferDirection.D2H,
        shape,
        CHUNK_TOKENS,
        fmt,
        0,
    )
    return [made.view(torch.uint8).numpy().tobytes() for made in objects]


def stored_by(kind: str, kv: torch.Tensor, world: int) -> dict[str, bytes]:
    """A store after LMCache's server stored a prompt for ``world`` ranks, as vLLM cuts heads among them."""
    heads = kv.shape[3]
    digests = TokenHasher(CHUNK_TOKENS).compute_chunk_hashes(PROMPT)
    store = {}
    for rank in range(world):
        ranks = ParallelStrategy(False, world, rank, world, 1, 1)
        held = range(rank * heads // world, (rank + 1) * heads // world) if world <= heads else [rank * heads // world]
        for digest, value in zip(digests, chunks_of_rank(kind, kv[:, :, :, list(held)]), strict=True):
            kv_rank = ObjectKey.ComputeKVRank(
                ranks.kv_world_size, ranks.kv_worker_id, ranks.kv_world_size, ranks.kv_worker_id
            )
            store[_object_key_to_string(ObjectKey(digest, "org/m", kv_rank, cache_salt="s"))] = value
    return store


def some_kv(heads: int, dtype: torch.dtype) -> torch.Tensor:
    shape = (LAYERS, CHUNKS * CHUNK_TOKENS // BLOCK_TOKENS, BLOCK_TOKENS, heads, 2, HEAD_DIM)
    width = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(heads)
    raw = torch.randint(0, 256, (*shape[:-1], HEAD_DIM * width), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def order(kind: str, heads: int, width: int, source: int, dest: int) -> TransferOrder:
    shape = KvShape(FORMATS[kind][0], LAYERS, heads, HEAD_DIM * width)  # type: ignore[arg-type]
    return TransferOrder(
        "t",
        "lmcache-mp",
        model="org/m",
        token_ids=[*PROMPT, 1, 2, 3],
        chunk_tokens=CHUNK_TOKENS,
        salt="s",
        world_size=source,
        dest_world_size=dest,
        shape=shape,
    )


def move(order: TransferOrder, source: dict[str, bytes]) -> dict[str, bytes]:
    """What the bridge writes."""
    written: dict[str, bytes] = {}
    for chunk in find_chunks(order):
        assert chunk.made is not None
        shards = make_shards(chunk.made, [Shard(b"", source[key]) for key in chunk.read_keys])
        for key, shard in zip(chunk.written_keys, shards, strict=True):
            assert key not in written
            written[key] = bytes(shard.value)
    return written


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
@pytest.mark.parametrize(("source", "dest"), [(s, d) for s in (1, 2, 4, 8) for d in (1, 2, 4, 8) if s != d], ids=str)
def test_as_if_the_receiver_had_stored_it(kind: str, dtype: torch.dtype, source: int, dest: int) -> None:
    """Regrouped shards and their keys are, bit by bit, those of an LMCache whose engine has the receiver's ranks."""
    kv = some_kv(8, dtype)
    moved = move(order(kind, 8, kv.element_size(), source, dest), stored_by(kind, kv, source))
    assert moved == stored_by(kind, kv, dest)


@pytest.mark.parametrize(("source", "dest"), [(8, 4), (4, 8), (8, 1), (1, 8), (2, 8), (8, 2)])
def test_more_ranks_than_heads(source: int, dest: int) -> None:
    """Where ranks share a head, each gets it, and only one of those that have it is read."""
    kv = some_kv(2, torch.bfloat16)
    wanted = order("packed, heads first", 2, 2, source, dest)
    store = stored_by("packed, heads first", kv, source)
    assert move(wanted, store) == stored_by("packed, heads first", kv, dest)
    assert sum(len(chunk.read_keys) for chunk in find_chunks(wanted)) == CHUNKS * min(source, 2)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int]:
    heads = draw(st.integers(1, 24))
    worlds = [world for world in range(1, 25) if not (heads % world and world % heads)]
    return heads, draw(st.sampled_from(worlds)), draw(st.sampled_from(worlds))


@given(cuts())
def test_every_rank_gets_its_heads(cut: tuple[int, int, int]) -> None:
    """For any cut that vLLM allows each rank's shard is made once, and holds its heads in their order."""
    heads, source, dest = cut
    made: dict[int, list[int]] = {}
    for lot in plan_lots(KvShape("split", 1, heads, 1), 1, source, dest):
        held = [_heads_of(heads, source, rank) for rank in lot.source_ranks]
        shards = lot.regrouping.apply([bytes(numbers) * 2 for numbers in held])
        for rank, number in zip(lot.dest_ranks, lot.made, strict=True):
            assert rank not in made
            made[rank] = list(shards[number][: lot.regrouping.dest_heads])
    assert made == {rank: list(_heads_of(heads, dest, rank)) for rank in range(dest)}


def _heads_of(heads: int, world: int, rank: int) -> range:
    if world >= heads:
        head = rank // (world // heads)
        return range(head, head + 1)
    return range(rank * heads // world, (rank + 1) * heads // world)


def _refusals() -> Iterator[tuple[TransferOrder, str]]:
    yield order("packed, heads first", 6, 2, 4, 2), "6 KV heads cannot be cut evenly among 4 ranks"
    yield order("packed, heads first", 6, 2, 2, 4), "6 KV heads cannot be cut evenly among 4 ranks"
    plain = {"world_size": 2, "dest_world_size": 1}
    yield TransferOrder("t", "lmcache-mp", model="m", token_ids=[1], **plain), "shape must say"  # type: ignore[arg-type]
    yield TransferOrder("t", "lmcache-mp", keys=["k"], **plain), "dest_world_size needs token_ids"  # type: ignore[arg-type]
    latent = KvShape("latent", 61, 1, 1152)
    yield TransferOrder("t", "lmcache-mp", model="m", token_ids=[1], shape=latent, **plain), "latent"  # type: ignore[arg-type]
    packed = KvShape("packed", 2, 8, 64)
    yield TransferOrder("t", "lmcache", model="m", token_ids=[1], shape=packed, **plain), "packed"  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "why"), list(_refusals()), ids=[why for _, why in _refusals()])
def test_what_cannot_be_regrouped_is_refused_by_name(wanted: TransferOrder, why: str) -> None:
    """Cuts that no engine makes, and layouts that this dialect does not have, are named."""
    with pytest.raises(KeysRefused, match=why):
        find_chunks(wanted)


def test_a_shard_of_another_size_is_refused() -> None:
    """KV whose size is not the shape's is not cut somewhere: it is refused with both sizes."""
    chunk = find_chunks(order("packed, heads first", 8, 2, 2, 1))[0]
    assert chunk.made is not None
    good = chunk.made.regrouping.source_bytes
    with pytest.raises(ChunkRefused, match=f"{good - 1} bytes, where the KV's shape makes {good}"):
        make_shards(chunk.made, [Shard(b"", bytes(good)), Shard(b"", bytes(good - 1))])


def test_a_latent_has_one_owner() -> None:
    """LMCache keeps an MLA model's KV once, whatever the ranks: orders for it have one rank on either side."""
    worlds = {ParallelStrategy(True, 8, rank, 8, 1, 1).kv_world_size for rank in range(8)}
    assert worlds == {1}
    with pytest.raises(LayoutRefused, match="one rank"):
        plan_lots(KvShape("latent", 61, 1, 1152), 256, 8, 1)
