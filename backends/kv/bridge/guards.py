"""The ``metadata`` string that LMCache inside an engine writes beside each chunk, and that makes the chunk exist.

Layout, in native ints: size, memory format, then for each group its dtype and four dimensions, padded with zeros.
"""

import math
import struct
from collections.abc import Sequence

from backends.kv.bridge.reshard import LayoutRefused, Regrouping

_DTYPE_WIDTHS_BYTES = {1: 2, 2: 2, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 1}
_HEAD = struct.Struct("<2i")
_GROUP = struct.Struct("<5i")
_PLAIN_FORMATS = frozenset({1, 2, 3})
_SPLIT = 1
_FORMATS = ("UNDEFINED", "KV_2LTD", "KV_T2D", "KV_2TD", "BINARY", "BINARY_BUFFER", "KV_MLA_FMT", "EC_TD", "HS_TD")
"""LMCache's names of its memory formats, by number."""


def guarded_size_bytes(metadata: bytes) -> int:
    """Size of the KV bytes that ``metadata`` announces. Raises ValueError when it contradicts itself."""
    size, memory_format, groups = _read(metadata)
    if size <= 0:
        raise ValueError(f"chunk metadata announces {size} bytes")
    if memory_format in _PLAIN_FORMATS:
        shaped = sum(_DTYPE_WIDTHS_BYTES.get(dtype, 0) * math.prod(filter(None, shape)) for dtype, *shape in groups)
        if shaped != size:
            raise ValueError(f"chunk metadata announces {size} bytes for a tensor of {shaped}")
    return int(size)


def regrouped_guard(metadatas: Sequence[bytes], regrouping: Regrouping) -> bytes:
    """Metadata of a shard that was made of those with ``metadatas``. Raises LayoutRefused, or ValueError as above."""
    metadata = metadatas[0]
    if any(other != metadata for other in metadatas):
        raise LayoutRefused("the shards of one chunk have different metadata")
    size, memory_format, groups = _read(metadata)
    if memory_format != _SPLIT:
        name = _FORMATS[memory_format] if 0 <= memory_format < len(_FORMATS) else str(memory_format)
        raise LayoutRefused(f"chunks of memory format {name} cannot be regrouped, only KV_2LTD")
    if len(groups) != 1:
        raise LayoutRefused(f"chunks of {len(groups)} groups of layers cannot be regrouped")
    dtype, planes, layers, tokens, hidden = groups[0]
    rows, width = planes * layers * tokens, hidden * _DTYPE_WIDTHS_BYTES.get(dtype, 0)
    if (rows, width) != (regrouping.rows, regrouping.source_heads * regrouping.cell_bytes):
        raise LayoutRefused(
            f"the shard has {rows} rows of {width} bytes, where the KV's shape makes {regrouping.rows} of "
            f"{regrouping.source_heads * regrouping.cell_bytes}"
        )
    heads, of = regrouping.dest_heads, regrouping.source_heads
    made = (dtype, planes, layers, tokens, hidden * heads // of)
    return _HEAD.pack(size * heads // of, memory_format) + _GROUP.pack(*made)


def _read(metadata: bytes) -> tuple[int, int, list[tuple[int, ...]]]:
    body = len(metadata) - _HEAD.size
    if body < _GROUP.size or body % _GROUP.size:
        raise ValueError(f"chunk metadata has {len(metadata)} bytes")
    size, memory_format = _HEAD.unpack_from(metadata)
    return size, memory_format, list(_GROUP.iter_unpack(metadata[_HEAD.size :]))
