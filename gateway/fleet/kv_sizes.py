"""How many bytes a token of KV has, by model: as settings or config.json say, until engines use KV of another size.

A size that is seen on a link is believed once an engine has taken KV of that size from its cache.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from gateway.fleet.kv_reading import is_same_size

log = logging.getLogger(__name__)

ALARM_RATIO = 2.0
"""Plans made with a figure that is so far off are none."""
CAUSE = "wrong kv_bytes_per_token or kv_dtype of the model, or world_size of the link, or engines of another dtype"


@dataclass(slots=True)
class _Seen:
    """``newest``: what chunks in P's store have. ``proven``: what an engine has used. ``told``: what was logged."""

    given: int
    newest: float = 0.0
    proven: float = 0.0
    told: float = 0.0


class KvSizes:
    """What is known of the models' sizes in this process."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def of(self, model: str, given: int) -> int:
        """Bytes that plans count for a token."""
        seen = self._seen.get(model)
        return given if seen is None or not seen.proven else round(seen.proven)

    def note(self, model: str, given: int, token_bytes: float) -> bool:
        """Chunks in P's store have so many bytes a token; say whether they are as expected."""
        seen = self._seen.setdefault(model, _Seen(given))
        seen.given, seen.newest = given, token_bytes
        expected = seen.proven or given
        is_right = is_same_size(token_bytes, expected)
        if not is_right and not is_same_size(token_bytes, seen.told):
            seen.told = token_bytes
            log.warning("%s: %s", model, describe_size(token_bytes, expected))
        return is_right

    def prove(self, model: str) -> None:
        """An engine has used KV of the size that was seen last."""
        seen = self._seen.get(model)
        if seen is None or not seen.newest:
            return
        if not is_same_size(seen.newest, seen.proven or seen.given):
            log.warning("%s: engines use KV of %g bytes a token, so plans count with that", model, seen.newest)
        seen.proven = seen.newest

    def list_odd(self, models: Collection[str]) -> list[str]:
        """Tell of models whose figure is far off, one line each."""
        return [
            f"{model}: {describe_size(seen.newest, seen.given)}"
            for model, seen in sorted(self._seen.items())
            if model in models and max(seen.newest, seen.given) >= ALARM_RATIO * min(seen.newest, seen.given)
        ]


def describe_size(token_bytes: float, expected: float) -> str:
    """Say what is there and what should be."""
    return f"{token_bytes:g} bytes of KV a token are stored where {expected:g} were expected: {CAUSE}"
