"""Which chunks an order means: the keys that are read and written, and what is made of them in between. No I/O."""

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

from backends.kv.bridge.keys import DIALECTS, KeyRequest, KeysRefused
from backends.kv.bridge.reshard import LayoutRefused, plan_lots
from backends.kv.bridge.types import MAX_CHUNKS, ChunkId, Made, TransferOrder


def find_chunks(order: TransferOrder) -> list[ChunkId]:
    """Chunks of an order, in the prompt's order. Raises KeysRefused."""
    chunks, part = _all_chunks(order), order.part
    if part is None:
        return chunks
    return [chunk for chunk in chunks if crc32(chunk.key.encode()) % part.count == part.number]


def _all_chunks(order: TransferOrder) -> list[ChunkId]:
    if (order.token_ids is None) == (order.keys is None):
        raise KeysRefused("give either token_ids or keys")
    dest_world = order.dest_world_size or order.world_size
    _check_count(order, dest_world)
    if order.keys is not None:
        if dest_world != order.world_size:
            raise KeysRefused("dest_world_size needs token_ids")
        return [ChunkId(order.dialect, key) for key in order.keys]
    request = KeyRequest(
        model=order.model,
        token_ids=order.token_ids or [],
        chunk_tokens=order.chunk_tokens,
        salt=order.salt,
        dtype=order.dtype,
        world_size=order.world_size,
        hash_seed=order.hash_seed,
    )
    if order.group_windows:
        return list(_grouped(order, request, dest_world))
    if dest_world == order.world_size:
        size_bytes = None if order.chunk_bytes is None else max(1, order.chunk_bytes // order.world_size)
        return [ChunkId(order.dialect, key, size_bytes) for key in DIALECTS[order.dialect].chunk_keys(request)]
    return list(_regrouped(order, request, dest_world))


def _check_count(order: TransferOrder, dest_world: int) -> None:
    chunks = len(order.token_ids or ()) // order.chunk_tokens
    count = chunks * max(order.world_size, dest_world) * len(order.group_windows or (None,)) + len(order.keys or ())
    if count > MAX_CHUNKS:
        raise KeysRefused(f"an order of {count} chunks, over all ranks and groups, is larger than {MAX_CHUNKS}")


def _grouped(order: TransferOrder, request: KeyRequest, dest_world: int) -> Iterator[ChunkId]:
    """Chunk by chunk, those of groups that need every chunk first; what a window has left behind is not moved."""
    if order.dialect != "lmcache-mp":
        raise KeysRefused(f"group_windows: dialect {order.dialect} has no object groups")
    if dest_world != order.world_size:
        raise KeysRefused("dest_world_size: chunks in object groups are not regrouped")
    windows = sorted(enumerate(order.group_windows or ()), key=lambda group: group[1] is not None)
    world = order.world_size
    keys = {group: DIALECTS[order.dialect].chunk_keys(replace(request, group=group)) for group, _ in windows}
    count = len(request.token_ids) // order.chunk_tokens
    for number in range(count):
        for group, window in windows:
            if window is None or number >= count - window:
                for key in keys[group][number * world : (number + 1) * world]:
                    yield ChunkId(order.dialect, key)


def _regrouped(order: TransferOrder, request: KeyRequest, dest_world: int) -> Iterator[ChunkId]:
    shape = order.shape
    if shape is None:
        raise KeysRefused("dest_world_size is not world_size: shape must say how the heads lie")
    dialect = DIALECTS[order.dialect]
    if shape.layout not in dialect.layouts:
        raise KeysRefused(f"shape.layout {shape.layout} is not regrouped in dialect {dialect.name}")
    try:
        lots = plan_lots(shape, order.chunk_tokens, order.world_size, dest_world)
    except LayoutRefused as error:
        raise KeysRefused(f"shape: {error}") from None
    read = dialect.chunk_keys(request)
    written = dialect.chunk_keys(replace(request, world_size=dest_world))
    for number in range(len(read) // order.world_size):
        old = read[number * order.world_size : (number + 1) * order.world_size]
        new = written[number * dest_world : (number + 1) * dest_world]
        for lot in lots:
            made = Made(
                tuple(old[rank] for rank in lot.source_ranks),
                tuple(new[rank] for rank in lot.dest_ranks),
                lot.made,
                lot.regrouping,
            )
            yield ChunkId(order.dialect, made.read[0], lot.regrouping.source_bytes, made)
