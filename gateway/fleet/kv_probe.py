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
from backends.types import FoundKey, StoreSide
from gateway.errors import reason_of
from gateway.fleet.canary import CanaryPath, ask, make_salt
from gateway.fleet.kv_reading import (
    LinkTerms,
    StoreReading,
    chunk_sizes_of,
    find_contradictions,
    find_differences,
    read_store,
    seeds_of,
)
from gateway.fleet.pools import Instance

log = logging.getLogger(__name__)

LOOK_S = 3.0
"""How long after its answer an engine may take to have its KV in the store."""
FIRST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class PairReading:
    """What was read of P and of MD; None: nothing, as it stores none there, or as nobody could look."""

    prefill_id: str
    main_id: str
    terms: LinkTerms
    main_terms: LinkTerms
    prefill: StoreReading | None = None
    main: StoreReading | None = None
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
        return found

    def lost_salts(self) -> list[str]:
        """Say who leaves salts out of its keys."""
        both = ((self.prefill_id, self.prefill), (self.main_id, self.main))
        careless = [who for who, seen in both if seen is not None and not seen.is_salted]
        return [f"{who} leaves the cache salt out of its keys" for who in careless]


async def read_pair(
    make_prompt: Callable[[], list[int]], prefill: Instance, main: Instance, crossing: CanaryPath
) -> PairReading:
    """Read both sides of a link. Raises BackendError or TimeoutError of the engines."""
    path, terms, main_terms = crossing.link.path, crossing.terms("source"), crossing.terms("dest")
    known = (prefill.spec.id, main.spec.id, terms, main_terms)
    if not isinstance(path, ShowsKeys):
        return PairReading(*known, failure="its path does not show what is in the stores")
    try:
        stored, wanted = await asyncio.gather(
            _read_side(path, "source", prefill, make_prompt(), terms),
            _read_side(path, "dest", main, make_prompt(), main_terms),
        )
    except _CannotLook as error:
        log.info("%s->%s: %s", crossing.link.source, crossing.link.dest, error)
        return PairReading(*known, failure=str(error))
    return PairReading(*known, stored, wanted)


class _CannotLook(Exception):
    """The stores could not be looked through."""


async def _read_side(
    path: ShowsKeys, side: StoreSide, instance: Instance, prompt: list[int], terms: LinkTerms
) -> StoreReading | None:
    salt = make_salt()
    await ask(instance, prompt, 1, salt)
    try:
        found = await _find_settled(path, side, salt_markers(salt))
        if not found:  # they may be there, but without the salt
            digests = first_digests(prompt, chunk_sizes_of(terms), seeds_of(terms))
            found = await path.find_keys(side, list(digests))
    except BackendError as error:
        raise _CannotLook(reason_of(error)) from None
    return read_store(found, prompt, terms)


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
