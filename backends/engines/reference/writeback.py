"""Brings a sequence's KV into the store, range by range, without asking for what is there already."""

import logging
from collections.abc import Sequence
from typing import Protocol

logger = logging.getLogger(__name__)


class StoreFailed(Exception):
    """KV could not be put into the store."""


class Store(Protocol):
    """What the engine asks of a KV store. All methods block, for a bounded time."""

    @property
    def chunk_tokens(self) -> int:
        """KV is stored in chunks of this many tokens."""
        ...

    def present(self, tokens: Sequence[int], cache_salt: str | None) -> int:
        """How many tokens of the prefix the store holds, in full chunks; 0 when it cannot be asked."""
        ...

    def store(self, tokens: Sequence[int], cache_salt: str | None, start: int, blocks: Sequence[int]) -> None:
        """Put the full chunks of ``tokens`` from ``start`` on into the store. Raises StoreFailed."""
        ...


class Writeback:
    """One sequence's writes. Made anywhere, ``put`` runs on the store's thread."""

    def __init__(self, store: Store, prompt: Sequence[int], cache_salt: str | None) -> None:
        self._store = store
        self._prompt = list(prompt)
        self._cache_salt = cache_salt
        self._stored_tokens: int | None = None

    def put(self, tokens: Sequence[int], blocks: Sequence[int]) -> bool:
        """Make sure that the store has the full chunks of ``tokens``; False when it cannot."""
        end = len(tokens) // self._store.chunk_tokens * self._store.chunk_tokens
        if end == 0:
            return True
        if self._stored_tokens is None:
            self._stored_tokens = self._store.present(self._prompt, self._cache_salt)
        if end <= self._stored_tokens:
            return True
        try:
            self._store.store(tokens[:end], self._cache_salt, self._stored_tokens, blocks)
        except StoreFailed as error:
            logger.warning("storing KV failed: %s", error)
            return False
        self._stored_tokens = end
        return True
