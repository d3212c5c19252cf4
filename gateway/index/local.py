"""What every index does in its own process: name the blocks of a prompt and look them up in the mirror."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from backends.hashing import chain_seed, hash_blocks
from gateway.index.mirror import Mirror
from gateway.index.types import Hit, IndexStats

_SEEDS_KEPT = 4096


class LocalIndex:
    """A mirror with the deployment's way to name blocks; ``key`` is its secret, the same in all processes."""

    def __init__(self, mirror: Mirror, key: bytes) -> None:
        self.mirror = mirror
        self.counters: Counter[str] = Counter()
        self._seed = lru_cache(_SEEDS_KEPT)(lambda model, lora, salt: chain_seed(model, lora, salt, key))

    def seeds_of(self, model: str) -> Callable[[str | None, str | None], bytes]:
        """Return the function from LoRA adapter and salt to the seed of ``model``'s chains."""
        return lambda lora, salt: self._seed(model, lora, salt)

    def keys(self, model: str, token_ids: Sequence[int], salt: str | None, lora: str | None) -> list[int]:
        """Return the keys of the prompt's full blocks."""
        return hash_blocks(token_ids, self._seed(model, lora, salt))

    def lookup(self, model: str, token_ids: Sequence[int], salt: str | None, lora: str | None) -> dict[str, Hit]:
        """See ``PrefixIndex.lookup``."""
        self.counters["lookups"] += 1
        return self.mirror.hits(model, self.keys(model, token_ids, salt, lora), len(token_ids))

    def stats(self, redis_up: bool | None) -> IndexStats:
        """See ``PrefixIndex.stats``."""
        counters: Mapping[str, int] = dict(self.counters)
        return IndexStats(self.mirror.stats(), counters, redis_up)
