"""Names of a prompt's KV chunks in an LMCache store, computed from token ids alone.

Two dialects, both of LMCache 0.5.6:

``lmcache``     LMCache inside the engine. A chunk is two strings: ``<key>kv_bytes``, and ``<key>metadata``, which is
                written last and makes the chunk exist. Hashes are chained from vLLM's NONE_HASH, which follows from its
                PYTHONHASHSEED and is random without one; LMCache without vLLM chains from 0.
``lmcache-mp``  LMCache as a server of its own. A chunk is one string.

Only full chunks have keys. Each chunk's hash covers all tokens before it.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from blake3 import blake3

from backends.kv.bridge.python_hash import hash_text

DTYPE_NAMES = {
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float64": "double",
    "uint8": "uint8",
    "fp8_e4m3fn": "fp8_e4m3fn",
}
_MP_SALT_FORBIDDEN = frozenset("@/\\\0")
_MP_SALT_LIMIT_CHARS = 128
_TOKEN_ID_LIMIT = 1 << 32


class KeysRefused(ValueError):
    """The request cannot be spelled in its dialect; the message names the field."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """Everything that a chunk's key depends on. ``world_size``: tensor-parallel ranks, each with keys of its own.
    ``group``: the object group of an LMCache server that keeps groups of layers apart.

    ``hash_seed``: PYTHONHASHSEED of the vLLM processes that LMCache runs in; None: there is no vLLM around it.
    """

    model: str
    token_ids: Sequence[int]
    chunk_tokens: int
    salt: str | None = None
    dtype: str = "float32"
    world_size: int = 1
    hash_seed: int | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class KeyDialect:
    """How a store spells chunks. ``guard_suffix`` names the string that makes a chunk exist, where there is one.

    ``layouts``: those of ``KvShape`` that its chunks may have and that are regrouped.
    """

    name: str
    spell: Callable[[KeyRequest], Iterator[str]]
    layouts: frozenset[str]
    value_suffix: str = ""
    guard_suffix: str | None = None

    def chunk_keys(self, request: KeyRequest) -> list[str]:
        """Keys of the prompt's full chunks, in the prompt's order. Raises KeysRefused."""
        _check(request)
        return list(self.spell(request))

    def value_key(self, key: str) -> bytes:
        """Store key of the chunk's KV bytes."""
        return (key + self.value_suffix).encode()

    def guard_key(self, key: str) -> bytes | None:
        """Store key of the string that makes the chunk exist; None where the value itself does."""
        return None if self.guard_suffix is None else (key + self.guard_suffix).encode()


def _check(request: KeyRequest) -> None:
    if request.chunk_tokens < 1:
        raise KeysRefused("chunk_tokens must be at least 1")
    if not 1 <= request.world_size <= 255:
        raise KeysRefused("world_size must be from 1 to 255")
    if not request.model or "@" in request.model:
        raise KeysRefused("model must be non-empty and hold no '@'")
    if request.token_ids and not (0 <= min(request.token_ids) and max(request.token_ids) < _TOKEN_ID_LIMIT):
        raise KeysRefused("token_ids must be unsigned 32-bit integers")


def _full_chunks(request: KeyRequest) -> Iterator[tuple[int, ...]]:
    step = request.chunk_tokens
    for start in range(0, len(request.token_ids) - step + 1, step):
        yield tuple(request.token_ids[start : start + step])


def _spell_in_process(request: KeyRequest) -> Iterator[str]:
    """CPython's own tuple hash, chained: ints and tuples of them hash alike in every 64-bit process."""
    dtype = DTYPE_NAMES.get(request.dtype)
    if dtype is None:
        raise KeysRefused(f"dtype must be one of {', '.join(DTYPE_NAMES)}")
    tag = f"@salt%{hashlib.sha256(request.salt.encode()).hexdigest()[:32]}" if request.salt else ""
    # vLLM's init_none_hash: the hash of the seed as the environment spells it.
    chained = 0 if request.hash_seed is None else hash_text(str(request.hash_seed), request.hash_seed)
    for chunk in _full_chunks(request):
        chained = hash((chained, chunk, ()))
        for rank in range(request.world_size):
            yield f"{request.model}@{request.world_size}@{rank}@{chained:x}@{dtype}{tag}"


def _spell_server(request: KeyRequest) -> Iterator[str]:
    """BLAKE3 over the previous digest and the chunk as big-endian 32-bit ints; one node holds all ranks."""
    salt = request.salt or ""
    if len(salt) > _MP_SALT_LIMIT_CHARS or _MP_SALT_FORBIDDEN.intersection(salt):
        raise KeysRefused(f"salt must have at most {_MP_SALT_LIMIT_CHARS} characters, none of them @ / \\ or NUL")
    tag = f"@{salt}" if salt else ""
    world = request.world_size
    packed = struct.Struct(f">{request.chunk_tokens}I")
    chained = blake3(bytes(8) + bytes(4)).digest()
    for chunk in _full_chunks(request):
        chained = blake3(chained + packed.pack(*chunk)).digest()
        for rank in range(world):
            kv_rank = world << 24 | rank << 16 | world << 8 | rank
            yield f"{request.model}@{kv_rank:08x}@{request.group:x}@{chained.hex()}{tag}"


DIALECTS: Mapping[str, KeyDialect] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (
            KeyDialect(
                "lmcache",
                _spell_in_process,
                frozenset({"split"}),
                value_suffix="kv_bytes",
                guard_suffix="metadata",
            ),
            KeyDialect("lmcache-mp", _spell_server, frozenset({"packed", "split"})),
        )
    }
)
