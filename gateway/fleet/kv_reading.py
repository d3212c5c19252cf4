"""What the names and sizes of a store's keys tell of the engine that wrote them, and where that contradicts a link."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.kv.bridge.key_names import COMMON_CHUNKS, COMMON_SEEDS, KeyName, Origin, first_digests, read_key
from backends.kv.bridge.keys import DTYPE_NAMES
from backends.types import FoundKey

ALL_CHUNKS = range(16, 1025, 16)
"""Chunk sizes that are recognised beside the common ones: whole blocks of engines."""
SMALL_SEEDS = range(256)
"""Hash seeds that are tried where none of the common ones fits."""
SIZE_TOLERANCE = 0.01
"""How far two figures of bytes may be apart and still mean the same."""


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What a link takes for granted of the KV that it moves for one model, in one of its stores.

    ``heads``: KV heads over all ranks, None: not known. ``groups``: object groups of layers. ``learnt``: fields that
    settings do not give, and of which engine each was learnt.
    """

    dialect: str
    model: str
    chunk_tokens: int
    hash_seed: int | None
    dtype: str
    world_size: int
    heads: int | None = None
    groups: int = 1
    learnt: Mapping[str, str] = field(default_factory=dict)

    def who_says(self, name: str) -> str:
        """Whose word a field is."""
        return self.learnt.get(name) or "the link"

    def describe(self) -> str:
        """Tell it in one line."""
        seed = f", hash seed {_spell_seed(self.hash_seed)}" if self.dialect == "lmcache" else ""
        dtype = f", dtype {DTYPE_NAMES.get(self.dtype, self.dtype)}" if self.dialect == "lmcache" else ""
        teachers = dict.fromkeys(filter(None, self.learnt.values()))
        return (
            f"dialect {self.dialect}{seed}, model name {self.model}, chunks of {self.chunk_tokens} tokens{dtype}, "
            f"world size {self.world_size}, {self.groups} object group{'s' if self.groups > 1 else ''}"
            f"{', learnt of ' + ' and '.join(teachers) if teachers else ''}"
        )

    def token_bytes(self, chunk_bytes: int) -> float:
        """KV of one token over all ranks, each head once, where one rank's chunk has so many bytes."""
        ranks = self.world_size if self.heads is None else min(self.world_size, self.heads)
        return chunk_bytes * ranks / self.chunk_tokens


@dataclass(frozen=True, slots=True)
class StoreReading:
    """How an engine names and sizes its KV. ``origin`` None: its hashes are made of something that is not known.

    ``dtype`` None: the keys do not say. ``chunk_bytes``: of a chunk, over all ranks and groups.
    """

    dialect: str
    model: str
    origin: Origin | None
    world_size: int
    ranks: tuple[int, ...]
    groups: tuple[int, ...]
    dtype: str | None
    chunk_bytes: int
    is_salted: bool

    def bytes_of_token(self, heads: int | None = None) -> float | None:
        """KV of one token; None: the size of a chunk in tokens is not known.

        More ranks than heads have copies of heads, which count once where ``heads`` is known.
        """
        if self.origin is None:
            return None
        copies = 1.0 if heads is None else max(1.0, len(self.ranks) / heads)
        return self.chunk_bytes / copies / self.origin.chunk_tokens

    def describe(self) -> str:
        """Tell it in one line."""
        origin = self.origin
        chunks = "chunks of an unknown number of" if origin is None else f"chunks of {origin.chunk_tokens}"
        seed = ""
        if self.dialect == "lmcache":
            seed = ", hash seed unknown" if origin is None else f", hash seed {_spell_seed(origin.hash_seed)}"
        dtype = "" if self.dtype is None else f", dtype {self.dtype}"
        each = self.bytes_of_token()
        size = f"{self.chunk_bytes} bytes a chunk" + ("" if each is None else f" ({each:g} a token)")
        return (
            f"dialect {self.dialect}{seed}, model name {self.model}, {chunks} tokens{dtype}, {size}, "
            f"world size {self.world_size} (ranks {_spell(self.ranks)}), object groups {_spell(self.groups)}, "
            f"{'with' if self.is_salted else 'without'} the salt"
        )


def likely_sizes(terms: LinkTerms) -> tuple[int, ...]:
    """Chunk sizes that are looked for where each one costs."""
    return (*COMMON_CHUNKS, terms.chunk_tokens)


def seeds_of(terms: LinkTerms) -> tuple[int | None, ...]:
    """Hash seeds that are looked for."""
    return (*COMMON_SEEDS, terms.hash_seed)


def read_store(found: Sequence[FoundKey], prompt: Sequence[int], terms: LinkTerms) -> StoreReading | None:
    """Read what keys a prompt left in a store; None: none that can be read."""
    writers: dict[tuple[object, ...], list[tuple[KeyName, int]]] = defaultdict(list)
    for one in found:
        name = read_key(one.key)
        if name is not None and name.is_value:
            writer = (name.dialect, name.model, name.world_size, name.dtype, name.salt)
            writers[writer].append((name, one.size_bytes))
    if not writers:
        return None
    keys = max(writers.values(), key=len)
    origins = first_digests(prompt, (*ALL_CHUNKS, *likely_sizes(terms)), seeds_of(terms))
    if keys[0][0].dialect == "lmcache" and not any(name.digest in origins for name, _ in keys):
        origins = first_digests(prompt, likely_sizes(terms), SMALL_SEEDS)
    known = [name.digest for name, _ in keys if name.digest in origins]
    digest = known[0] if known else keys[0][0].digest
    chunk = [(name, size) for name, size in keys if name.digest == digest]
    first = chunk[0][0]
    return StoreReading(
        dialect=first.dialect,
        model=first.model,
        origin=origins.get(digest),
        world_size=first.world_size,
        ranks=tuple(sorted({name.rank for name, _ in chunk})),
        groups=tuple(sorted({name.group for name, _ in keys})),
        dtype=first.dtype,
        chunk_bytes=sum(size for _, size in chunk),
        is_salted=first.salt is not None,
    )


def find_contradictions(who: str, seen: StoreReading, terms: LinkTerms) -> list[str]:
    """Say where an engine's keys are not those that the link looks for; the salt is left out."""
    found = []
    if seen.dialect != terms.dialect:
        found.append(f"{who} spells its keys in dialect {seen.dialect}, {terms.who_says('dialect')} in {terms.dialect}")
    if seen.model != terms.model:
        found.append(f"{who} stores under the model name {seen.model}, the link moves {terms.model} (kv_name)")
    if seen.origin is not None and seen.origin.chunk_tokens != terms.chunk_tokens:
        found.append(
            f"{who} stores chunks of {seen.origin.chunk_tokens} tokens, {terms.who_says('chunk_tokens')} says "
            f"{terms.chunk_tokens} (chunk size)"
        )
    if seen.dialect == terms.dialect == "lmcache":
        found += _contradict_hashes(who, seen, terms)
    if seen.origin is None and seen.dialect == "lmcache-mp":
        found.append(f"{who} makes its hashes in a way that is not known, so its chunk size is not, either")
    if seen.world_size != terms.world_size:
        says = f"{terms.who_says('world_size')} says {terms.world_size}"
        found.append(f"{who} stores KV of {seen.world_size} ranks, {says} (world_size)")
    elif len(seen.ranks) != seen.world_size:
        found.append(f"{who} stores ranks {_spell(seen.ranks)} of {seen.world_size} only")
    if seen.groups[-1] >= terms.groups:
        found.append(
            f"{who} stores object groups {_spell(seen.groups)}, the link moves {terms.groups} (separate_object_groups)"
        )
    return found


def _contradict_hashes(who: str, seen: StoreReading, terms: LinkTerms) -> list[str]:
    found = []
    said = DTYPE_NAMES.get(terms.dtype, terms.dtype)
    if seen.dtype != said:
        found.append(f"{who} stores KV of dtype {seen.dtype}, {terms.who_says('dtype')} says {said}")
    if seen.origin is None:
        found.append(
            f"{who} chains its hashes from a seed that is not known, {terms.who_says('hash_seed')} says "
            f"{_spell_seed(terms.hash_seed)} (PYTHONHASHSEED must be set, and the same for all)"
        )
    elif seen.origin.hash_seed != terms.hash_seed:
        found.append(
            f"{who} chains its hashes from seed {_spell_seed(seen.origin.hash_seed)}, {terms.who_says('hash_seed')} "
            f"says {_spell_seed(terms.hash_seed)} (hash_seed)"
        )
    return found


def find_differences(
    prefill: str, stored: StoreReading, main: str, wanted: StoreReading, heads: int | None
) -> list[str]:
    """Say where KV of P is none for MD although both may have equal keys."""
    one, other = stored.bytes_of_token(heads), wanted.bytes_of_token(heads)
    if one is None or other is None or is_same_size(one, other):
        return []
    why = "their dtype (bf16 and fp8?), layers or ranks are not the same"
    return [f"{prefill} stores {one:g} bytes of KV a token, {main} {other:g}: {why}"]


def is_same_size(one: float, other: float) -> bool:
    """Whether two figures of bytes mean the same."""
    return abs(one - other) <= SIZE_TOLERANCE * max(one, other)


def _spell_seed(seed: int | None) -> str:
    return "no_vllm" if seed is None else str(seed)


def _spell(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
