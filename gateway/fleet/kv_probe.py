"""Learns from the stores of two regions how P and MD name and size their KV, and whether a link moves it rightly.

Each of the two gets a prompt of its own under a salt of its own, and the store of its region is looked through for the
keys that came of it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import ShowsKeys
from backends.errors import BackendError
from backends.kv.bridge.key_names import first_digests, salt_markers
from backends.kv.bridge.reshard import LayoutRefused, plan_lots
from backends.types import FoundKey, KvShape, StoreSide
from gateway.errors import reason_of
from gateway.fleet.canary import CanaryPath, ask, make_salt
from gateway.fleet.kv_reading import (
    LinkTerms,
    StoreReading,
    find_contradictions,
    find_differences,
    likely_sizes,
    read_store,
    seeds_of,
)
from gateway.fleet.kv_terms import KvTerms
from gateway.fleet.pools import Instance

log = logging.getLogger(__name__)

LOOK_S = 3.0
"""How long after its answer an engine may take to have its KV in the store."""
FIRST_PAUSE_S = 0.05
LONG_PROMPT_TOKENS = 4096
"""Chunks of up to so many tokens are found, where settings do not say how many they have."""

MakePrompt = Callable[[int], list[int]]
"""Gives ids that no engine has seen, at least so many and enough to be moved."""


@dataclass(frozen=True, slots=True)
class PairReading:
    """What was read of P and of MD; None: nothing, as it stores none there, or as nobody could look."""

    prefill_id: str
    main_id: str
    terms: LinkTerms
    main_terms: LinkTerms
    prefill: StoreReading | None = None
    main: StoreReading | None = None
    uncut: str | None = None
    """Why KV of P's ranks cannot be made KV of MD's."""
    failure: str | None = None

    def contradictions(self) -> list[str]:
        """Say what keeps KV from crossing, or from being used where it crossed."""
        found = []
        if self.prefill is not None:
            found += find_contradictions(self.prefill_id, self.prefill, self.terms)
        if self.main is not None:
            found += find_contradictions(self.main_id, self.main, self.main_terms)
        if self.prefill is not None and self.main is not None:
            found += find_differences(self.prefill_id, self.prefill, self.main_id, self.main, self.terms.heads)
        return found if self.uncut is None else [*found, self.uncut]

    def lost_salts(self) -> list[str]:
        """Say who leaves salts out of its keys."""
        both = ((self.prefill_id, self.prefill), (self.main_id, self.main))
        careless = [who for who, seen in both if seen is not None and not seen.is_salted]
        return [f"{who} leaves the cache salt out of its keys" for who in careless]


async def read_pair(make_prompt: MakePrompt, prefill: Instance, main: Instance, crossing: CanaryPath) -> PairReading:
    """Read both sides of a link, and let it hold where settings are silent.

    Raises BackendError or TimeoutError of the engines.
    """
    link, model = crossing.link, crossing.model
    path, ids = link.path, (prefill.spec.id, main.spec.id)
    if not isinstance(path, ShowsKeys):
        failure = "its path does not show what is in the stores"
        return PairReading(*ids, crossing.terms("source"), crossing.terms("dest"), failure=failure)
    is_open = "chunk_tokens" not in crossing.kv.pinned
    try:
        stored, wanted = await asyncio.gather(
            _read_side(path, "source", prefill, make_prompt, crossing.terms("source"), is_open),
            _read_side(path, "dest", main, make_prompt, crossing.terms("dest"), is_open),
        )
    except _CannotLook as error:
        log.info("%s: %s", link.name, error)
        return PairReading(*ids, crossing.terms("source"), crossing.terms("dest"), failure=str(error))
    is_news = link.learn(model, {"source": (ids[0], stored), "dest": (ids[1], wanted)})
    source, dest = crossing.terms("source"), crossing.terms("dest")
    if is_news:
        log.info("%s: KV of %s: %s", link.name, model, source.describe())
    return PairReading(*ids, source, dest, stored, wanted, find_uncut(crossing.kv, crossing.kv_shape))


def find_uncut(kv: KvTerms, shape: KvShape | None) -> str | None:
    """Say why a link cannot make KV of the receiving engines' ranks of what the sending ones store; None: it can."""
    ranks = kv.dest_world_size or kv.world_size
    if ranks == kv.world_size or (shape is not None and shape.layout == "latent"):
        return None
    why = "its layout does not follow from config.json" if shape is None else None
    if kv.has_groups:
        why = "chunks in object groups are not regrouped"
    elif shape is not None:
        try:
            plan_lots(shape, kv.chunk_tokens, kv.world_size, ranks)
        except LayoutRefused as error:
            why = str(error)
    return None if why is None else f"KV of {kv.world_size} ranks cannot be regrouped for {ranks}: {why}"


class _CannotLook(Exception):
    """The stores could not be looked through."""


async def _read_side(
    path: ShowsKeys, side: StoreSide, instance: Instance, make_prompt: MakePrompt, terms: LinkTerms, is_open: bool
) -> StoreReading | None:
    """Read one store; where the size of chunks is open, again with a long prompt if a short one leaves nothing."""
    prompt = make_prompt(0)
    reading = await _read_prompt(path, side, instance, prompt, terms)
    if reading is None and is_open and len(longer := make_prompt(LONG_PROMPT_TOKENS)) > len(prompt):
        reading = await _read_prompt(path, side, instance, longer, terms)
    return reading


async def _read_prompt(
    path: ShowsKeys, side: StoreSide, instance: Instance, prompt: list[int], terms: LinkTerms
) -> StoreReading | None:
    salt = make_salt()
    await ask(instance, prompt, 1, salt)
    try:
        found = await _find_settled(path, side, salt_markers(salt))
        if not found:  # they may be there, but without the salt
            digests = first_digests(prompt, likely_sizes(terms), seeds_of(terms))
            found = await path.find_keys(side, list(digests))
    except BackendError as error:
        raise _CannotLook(reason_of(error)) from None
    return await asyncio.to_thread(read_store, found, prompt, terms)  # trying seeds takes tenths of a second


async def _find_settled(path: ShowsKeys, side: StoreSide, markers: Sequence[str]) -> list[FoundKey]:
    """Look until there are keys and no more are added, for a bounded time."""
    found: list[FoundKey] = []
    pause_s = FIRST_PAUSE_S
    try:
        async with asyncio.timeout(LOOK_S):
            while True:
                before, found = found, await path.find_keys(side, markers)
                if found and len(found) == len(before):
                    break
                await asyncio.sleep(pause_s)
                pause_s *= 2
    except TimeoutError:
        pass
    return found
