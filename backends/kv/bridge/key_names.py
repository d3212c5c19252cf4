"""Reads keys of LMCache stores back: what their dialects (see ``keys``) put into names."""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from backends.kv.bridge.keys import DIALECTS, KeyRequest

COMMON_SEEDS: tuple[int | None, ...] = (None, 0, 1, 42)
"""What keys of dialect lmcache may well be chained from; None: no vLLM."""
COMMON_CHUNKS = tuple(2**power for power in range(4, 14))

_SERVER = re.compile(
    r"(?P<model>[^@]+)@(?P<rank>[0-9a-f]{8})@(?P<group>[0-9a-f]{1,4})@(?P<digest>[0-9a-f]{64})(@(?P<salt>.+))?"
)
_IN_PROCESS = re.compile(
    r"(?P<model>[^@]+)@(?P<world>\d{1,4})@(?P<rank>\d{1,4})@(?P<digest>-?[0-9a-f]{1,16})@(?P<dtype>[a-z0-9_]+?)"
    r"(@salt%(?P<salt>[^@]+?))?(@[^@]+?)*?(?P<part>kv_bytes|metadata)"
)


@dataclass(frozen=True, slots=True)
class KeyName:
    """What a key says. ``dtype`` None: its dialect leaves that out. ``is_value`` False: it guards the KV beside it."""

    dialect: str
    model: str
    world_size: int
    rank: int
    group: int
    digest: str
    dtype: str | None
    salt: str | None
    is_value: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """What the hash of a prompt's first chunk was made with."""

    dialect: str
    chunk_tokens: int
    hash_seed: int | None


def read_key(key: str) -> KeyName | None:
    """Read one key; None: it is in no dialect that is known."""
    found = _SERVER.fullmatch(key)
    if found is not None:
        packed = int(found["rank"], 16)
        world, rank = packed >> 24, packed >> 16 & 0xFF
        return KeyName(
            "lmcache-mp", found["model"], world, rank, int(found["group"], 16), found["digest"], None, found["salt"]
        )
    found = _IN_PROCESS.fullmatch(key)
    if found is None:
        return None
    return KeyName(
        "lmcache",
        found["model"],
        int(found["world"]),
        int(found["rank"]),
        0,
        found["digest"],
        found["dtype"],
        found["salt"],
        found["part"] == "kv_bytes",
    )


def salt_markers(salt: str) -> list[str]:
    """What keys under a salt have in their names, dialect by dialect."""
    return [salt, hashlib.sha256(salt.encode()).hexdigest()[:32]]


def first_digests(
    token_ids: Sequence[int], chunk_sizes: Collection[int], seeds: Collection[int | None]
) -> dict[str, Origin]:
    """Hashes that the first chunk of a prompt may have, and what each is made with."""
    return {_spell_first(token_ids, origin): origin for origin in _origins(len(token_ids), chunk_sizes, seeds)}


def _origins(tokens: int, chunk_sizes: Collection[int], seeds: Collection[int | None]) -> Iterator[Origin]:
    for size in sorted(set(chunk_sizes)):
        if size <= tokens:
            yield Origin("lmcache-mp", size, None)
            yield from (Origin("lmcache", size, seed) for seed in seeds)


def _spell_first(token_ids: Sequence[int], origin: Origin) -> str:
    size = origin.chunk_tokens
    request = KeyRequest("m", token_ids[:size], size, hash_seed=origin.hash_seed)
    return DIALECTS[origin.dialect].chunk_keys(request)[0].split("@")[3]
