"""How a link names and cuts a model's KV: as settings say, and where they are silent as its engines were seen to.

Until something was seen the defaults hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backends.kv.bridge.keys import DTYPE_NAMES
from backends.types import HeadLayout, KvShape, StoreSide, TransferRequest
from gateway.fleet.kv_reading import LinkTerms, StoreReading

_DTYPES = {stored: dtype for dtype, stored in DTYPE_NAMES.items()}
"""What settings call the types that are part of keys."""


@dataclass(frozen=True, slots=True)
class KvTerms:
    """Of one link and model. ``dest_world_size`` None: as many ranks as in the sending region.

    ``layout`` None: as the dialect has it. ``pinned``: fields that settings give. ``learnt``: others, and of whom.
    """

    dialect: str = "lmcache-mp"
    chunk_tokens: int = 256
    hash_seed: int | None = None
    dtype: str = "bfloat16"
    world_size: int = 1
    dest_world_size: int | None = None
    has_groups: bool = False
    layout: HeadLayout | None = None
    pinned: frozenset[str] = frozenset()
    learnt: Mapping[str, str] = field(default_factory=dict, compare=False)

    def at(self, side: StoreSide, kv_name: str, shape: KvShape | None = None, groups: int = 1) -> LinkTerms:
        """What is taken for granted in one of the stores; ``groups``: those that may be kept apart."""
        key = "world_size" if side == "source" or self.dest_world_size is None else "dest_world_size"
        world_size: int = getattr(self, key)
        if shape is not None and shape.layout == "latent":
            world_size = 1
        return LinkTerms(
            self.dialect,
            kv_name,
            self.chunk_tokens,
            self.hash_seed,
            self.dtype,
            world_size,
            None if shape is None else shape.heads,
            groups if self.has_groups else 1,
            self.learnt if key == "world_size" else {**self.learnt, "world_size": self.learnt.get(key, "")},
        )

    def request(self, transfer_id: str, kv_name: str, token_ids: Sequence[int], **fields: Any) -> TransferRequest:
        """Ask for the KV of a prompt; ``fields``: what else ``TransferRequest`` has."""
        return TransferRequest(
            transfer_id,
            self.dialect,
            kv_name,
            token_ids,
            self.chunk_tokens,
            dtype=self.dtype,
            hash_seed=self.hash_seed,
            world_size=self.world_size,
            dest_world_size=self.dest_world_size,
            kv_layout=self.layout or ("split" if self.dialect == "lmcache" else "packed"),
            separate_groups=self.has_groups,
            **fields,
        )

    def full_tokens(self, prompt_tokens: int) -> int:
        """How many of a prompt's tokens are in whole chunks, which alone cross."""
        return prompt_tokens // self.chunk_tokens * self.chunk_tokens


@dataclass(slots=True)
class KvBook:
    """What one link was seen to need, by model; ``given``: what settings say, and defaults."""

    given: KvTerms = KvTerms()
    _readings: dict[tuple[str, StoreSide], dict[str, StoreReading]] = field(default_factory=dict)
    """The newest of each engine process, by its id, the oldest engine first."""
    _terms: dict[str, KvTerms] = field(default_factory=dict)

    def of(self, model: str) -> KvTerms:
        """What holds now."""
        return self._terms.get(model, self.given)

    def note(self, model: str, side: StoreSide, instance_id: str, reading: StoreReading | None) -> None:
        """An engine stores so; None: nothing was seen."""
        if reading is not None:
            self._readings.setdefault((model, side), {})[instance_id] = reading

    def forget(self, instance_id: str) -> None:
        """Another process is behind this id, or none: what holds goes on to hold until others are seen."""
        for readings in self._readings.values():
            readings.pop(instance_id, None)

    def settle(self, model: str) -> bool:
        """Let what was seen hold, where settings are silent; whether that is other than before.

        The engine that has been known longest is believed: others that differ from it contradict.
        """
        sides: tuple[StoreSide, StoreSide] = ("source", "dest")
        stored, wanted = (next(iter(self._readings.get((model, side), {}).items()), None) for side in sides)
        seen: dict[str, tuple[object, str]] = {}
        for one, ranks in ((wanted, "dest_world_size"), (stored, "world_size")):
            if one is not None:
                who, reading = one
                seen |= {name: (value, who) for name, value in _read(reading).items()}
                seen[ranks] = reading.world_size, who
        silent = {name: value for name, value in seen.items() if name not in self.given.pinned}
        fields: dict[str, Any] = {name: value for name, (value, _) in silent.items()}
        before, learnt = self.of(model), {name: who for name, (_, who) in silent.items()}
        terms = self._terms[model] = replace(self.given, **fields, learnt=learnt)
        return terms != before or bool(learnt) != bool(before.learnt)


def _read(reading: StoreReading) -> dict[str, object]:
    found: dict[str, object] = {"dialect": reading.dialect, "has_groups": reading.groups[-1] > 0}
    if reading.origin is not None:
        found |= {"chunk_tokens": reading.origin.chunk_tokens, "hash_seed": reading.origin.hash_seed}
    if reading.dtype in _DTYPES:
        found["dtype"] = _DTYPES[reading.dtype]
    return found
