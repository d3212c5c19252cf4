"""From a key to the few values that belong to it."""

from collections.abc import Collection
from typing import Generic, TypeVar

V = TypeVar("V", int, bytes, int | bytes)


class KeySets(Generic[V]):
    """Sets by key. Most hold one value and are kept without a set, as there may be millions of keys."""

    def __init__(self) -> None:
        self._values: dict[int, V | set[V]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._values

    def of(self, key: int) -> Collection[V]:
        """Return the values of ``key``; read them before the next change."""
        values = self._values.get(key)
        if values is None:
            return ()
        return values if isinstance(values, set) else (values,)

    def add(self, key: int, value: V) -> None:
        """Add a value to a key. Idempotent."""
        values = self._values.get(key)
        if values is None:
            self._values[key] = value
        elif isinstance(values, set):
            values.add(value)
        elif values != value:
            self._values[key] = {values, value}

    def discard(self, key: int, value: V) -> None:
        """Take a value from a key. Idempotent."""
        values = self._values.get(key)
        if isinstance(values, set):
            values.discard(value)
            if not values:
                del self._values[key]
        elif values == value:
            del self._values[key]

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
