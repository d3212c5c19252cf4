"""What every index does in its own process: name the blocks of a prompt and look them up in the mirror."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from backends.kv.hashing import chain_seed, hash_blocks
from gateway.index.mirror import Mirror
from gateway.index.types import CacheHit, CacheSpec, IndexStats

_SEEDS_KEPT = 4096


class LocalIndex:
    """The part of a ``PrefixIndex`` that needs no I/O.

    ``key``: secret of the deployment that block names depend on, at most 64 bytes, the same in all processes.
    ``predicted_ttl_s``: how long an entry made by ``note_routed`` stands. ``now`` counts seconds and never goes back.
    ``on_change`` is called after each change of what is held.
    """

    def __init__(
        self, key: bytes, predicted_ttl_s: float, now: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self._mirror = Mirror(now, on_change)
        self._counters: Counter[str] = Counter()
        self._predicted_ttl_s = predicted_ttl_s
        self._now = now
        self._seed = lru_cache(_SEEDS_KEPT)(lambda model, lora, salt: chain_seed(model, lora, salt, key))

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """See ``PrefixIndex.lookup``."""
        self._counters["lookups"] += 1
        return self._mirror.hits(model, hash_blocks(token_ids, self._seed(model, lora, salt)), len(token_ids))

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
    ) -> None:
        """See ``PrefixIndex.note_routed``."""
        holding = self._mirror.get(instance_id)
        if holding is not None and holding.predicted is not None:
            block_keys = hash_blocks(token_ids, self._seed(model, lora, salt))
            self._mirror.predict(instance_id, block_keys, self._now() + self._predicted_ttl_s)
            self._share_note(holding.spec, block_keys)

    def _share_note(self, spec: CacheSpec, block_keys: Sequence[int]) -> None:
        """Tell other processes, if there are any, of predicted blocks."""

    def _seeds_of(self, model: str) -> Callable[[str | None, str | None], bytes]:
        """Return the function from LoRA adapter and salt to the seed of ``model``'s chains."""
        return lambda lora, salt: self._seed(model, lora, salt)

    def _stats(self, redis_up: bool) -> IndexStats:
        return IndexStats(self._mirror.stats(), dict(self._counters), redis_up)
