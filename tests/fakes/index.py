"""A prefix index that knows what the test tells it."""

from collections.abc import Sequence

from gateway.index.types import CacheHit, CacheSpec, IndexStats


class KnownIndex:
    """Implements ``PrefixIndex``. ``hits``: cached tokens by instance id, absent: unknown; ``ranks``: by rank."""

    def __init__(self, hits: dict[str, int] | None = None) -> None:
        self.hits = hits or {}
        self.ranks: dict[str, tuple[int, ...]] = {}
        self.routed: list[tuple[str, int]] = []
        self.routed_ranks: set[tuple[str, int]] = set()

    async def start(self) -> None:
        """Nothing to follow."""

    def add_instance(self, spec: CacheSpec) -> None:
        """Nothing to track."""

    def remove_instance(self, instance_id: str) -> None:
        """Forget an instance's hits."""
        self.hits.pop(instance_id, None)

    async def name_ahead(self, model: str, token_ids: Sequence[int], salt: str | None = None) -> None:
        """Nothing takes long."""

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """Say what the test has set."""
        return {
            id_: CacheHit(tokens=tokens, at_least_tokens=tokens, predicted=False, ranks=self.ranks.get(id_, ()))
            for id_, tokens in self.hits.items()
        }

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        rank: int = 0,
    ) -> None:
        """Remember it for the test."""
        self.routed.append((instance_id, len(token_ids)))
        self.routed_ranks.add((instance_id, rank))

    def stats(self) -> IndexStats:
        """Nothing to count."""
        return IndexStats(instances={}, counters={}, redis_up=True)

    async def aclose(self) -> None:
        """Nothing to stop."""
