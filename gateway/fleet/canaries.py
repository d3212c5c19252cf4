"""Keeps apart what does not belong together: sends canaries, and sorts the instances by what came of them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from backends.errors import BackendError
from gateway.errors import reason_of
from gateway.fleet.canary import (
    CanaryPath,
    CanaryUnread,
    CanaryUnseen,
    answers_alike,
    find_leaks,
    make_prompt,
    make_salt,
)
from gateway.fleet.kv_probe import read_pair
from gateway.fleet.kv_sizes import KvSizes
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.pools import Instance, Pools
from gateway.tasks import end_task
from gateway.telemetry.metrics import Metrics
from gateway.text.model import ServedModel
from policies.types import Role

log = logging.getLogger(__name__)

Pair = tuple[str, str]
"""Ids of a P and of a decode instance."""

MOST_PREFILLS = 3
"""Prefill instances that a decode instance is tried with before it is believed to differ from all."""
MOST_AT_ONCE = 4
"""Decode instances of a model that are checked beside each other."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class NoWay(Exception):
    """No KV can go from one region to the other at present."""


class _Round:
    """What came of one round: ``judged``: pairs of which something was learnt; ``slow``: those that took too long."""

    def __init__(self) -> None:
        self.judged: set[Pair] = set()
        self.slow: set[Pair] = set()

    def find_stuck(self) -> set[str]:
        """Return the instances whose canaries all took too long, though the other side's others came back."""
        fine = {id_ for pair in self.judged for id_ in pair}
        return {id_ for pair in self.slow for id_, other in (pair, pair[::-1]) if id_ not in fine and other in fine}


class CanaryWatch:
    """One round when engine processes are new, and one each ``interval_s``.

    ``find_crossing`` gives the KV path for a model between the regions of a P and a decode instance, None within one
    region. Raises NoWay. ``least_tokens`` tells what a model's canaries must be longer than for their KV to move and
    to be used.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        pools: Pools,
        find_crossing: Callable[[str, Instance, Instance], CanaryPath | None],
        least_tokens: Callable[[str], int],
        interval_s: float,
        metrics: Metrics,
        trust: KvTrust,
        sizes: KvSizes,
    ) -> None:
        self._models = models
        self._pools = pools
        self._find_crossing = find_crossing
        self._least_tokens = least_tokens
        self._interval_s = interval_s
        self._hold_s = 0.0
        self._metrics = metrics
        self._trust = trust
        self._sizes = sizes
        self._alike: dict[Pair, bool] = {}
        self._new: set[str] = set()
        self._news = asyncio.Event()
        self._round = 0
        self._retry_s = FIRST_RETRY_S
        self._task: asyncio.Task[None] | None = None

    def hold_new(self, most_s: float) -> None:
        """Keep engine processes that are new from now on apart until their first verdict, for a bounded time."""
        self._hold_s = most_s

    def notice(self, instance: Instance) -> None:
        """Another engine process answers for this instance: what was known of it is void."""
        id_ = instance.spec.id
        self._alike = {pair: alike for pair, alike in self._alike.items() if id_ not in pair}
        instance.fingerprint, instance.leaks_salts, instance.stuck = "", False, False
        instance.held_until_s = self._pools.clock() + self._hold_s
        self._new.add(id_)
        self._retry_s = FIRST_RETRY_S
        self._news.set()

    def recheck(self, regions: Iterable[str]) -> None:
        """Something between these regions has changed: check their instances soon."""
        around = set(regions)
        self._new |= {instance.spec.id for instance in self._pools.instances if instance.spec.region in around}
        self._retry_s = FIRST_RETRY_S
        self._news.set()

    async def start(self) -> None:
        """Send canaries in the background from here on."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop, and close the legs that run."""
        await end_task(self._task)

    def list_odd(self) -> list[str]:
        """Tell of instances that take no part in split answers for now, one line each."""
        now_s = self._pools.clock()
        lines = []
        for instance in self._pools.instances:
            name = f"{instance.spec.model}: {instance.spec.role} {instance.spec.id}"
            if instance.stuck:
                lines.append(f"{name} is left out: its canaries take too long, those of its peers do not")
            elif instance.is_apart(now_s):
                lines.append(f"{name} is new: its first canary is not back")
            elif instance.fingerprint:
                lines.append(f"{name} gives other tokens than its peers: it is not paired with them")
        return lines

    async def check(self, only: set[str] | None = None) -> None:
        """Do one round; with ``only``, over the pairs that these instances are part of."""
        self._round += 1
        async with asyncio.TaskGroup() as tasks:
            for model in self._models.values():
                tasks.create_task(self._check_model(model, only))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        all_due_s = loop.time() + self._interval_s
        while True:
            again_s = loop.time() + self._retry_s if self._new else all_due_s
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(again_s, all_due_s)):
                    await self._news.wait()
            new, self._new = self._new, set()
            self._news.clear()
            if loop.time() >= all_due_s:
                all_due_s = loop.time() + self._interval_s
                new = set()
            await self.check(new or None)
            if self._new and not self._news.is_set():
                self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    async def _check_model(self, model: ServedModel, only: set[str] | None) -> None:
        places, found = asyncio.Semaphore(MOST_AT_ONCE), _Round()

        async def check(decode: Instance, prefills: list[Instance]) -> None:
            async with places:
                await self._check_decode(model, decode, prefills, found)

        async with asyncio.TaskGroup() as tasks:
            for decode, prefills in self._find_pairs(model.name, only):
                tasks.create_task(check(decode, prefills))
        self._apply(model.name)
        self._release(model.name, only, found)

    def _release(self, model: str, only: set[str] | None, found: _Round) -> None:
        """Let go of those that have a verdict, tell of those that are stuck, and come back to the rest of them soon."""
        fine = {id_ for pair in found.judged for id_ in pair}
        stuck = found.find_stuck()
        for instance in self._pools.of_model(model):
            id_ = instance.spec.id
            if id_ in fine:
                instance.held_until_s, instance.stuck = 0.0, False
            elif id_ in stuck and not instance.stuck:
                log.error("%s is left out: its canaries take too long, those of its peers do not", id_)
                instance.stuck = True
            if instance.reachable and id_ not in fine and (id_ in (only or ()) or instance.stuck):
                self._new.add(id_)

    def _find_pairs(self, model: str, only: set[str] | None) -> Iterator[tuple[Instance, list[Instance]]]:
        """Give each decode instance that is to be checked, with the prefill instances to try, one after the other."""
        now_s = self._pools.clock()
        usable = [instance for instance in self._pools.of_model(model) if instance.usable(now_s)]
        prefills = [instance for instance in usable if instance.spec.role is Role.P]
        if not prefills:
            return
        turn = self._round % len(prefills)
        in_turn = prefills[turn:] + prefills[:turn]
        fresh = [instance for instance in prefills if only and instance.spec.id in only]
        seen_roles: set[Role] = set()
        for decode in usable:
            role = decode.spec.role
            if role is Role.P:
                continue
            if only is None or decode.spec.id in only:
                yield decode, in_turn
            elif fresh and role not in seen_roles:
                yield decode, fresh + [instance for instance in in_turn if instance not in fresh]
            seen_roles.add(role)

    async def _check_decode(
        self, model: ServedModel, decode: Instance, prefills: list[Instance], found: _Round
    ) -> None:
        """Try prefill instances until one is alike; try those again that were not."""
        was_different = [p for p in prefills[1:] if self._alike.get((p.spec.id, decode.spec.id)) is False]
        others = was_different + [p for p in prefills[1:] if p not in was_different]
        alike = await self._compare(model, prefills[0], decode, found)
        for prefill in others[: MOST_PREFILLS - 1]:
            if alike is not False and prefill not in was_different:
                break
            alike = await self._compare(model, prefill, decode, found)
        await self._check_salts(model, prefills[0], decode)

    async def _compare(self, model: ServedModel, prefill: Instance, decode: Instance, found: _Round) -> bool | None:
        """Say whether a pair is alike; None: nothing was learnt. A difference counts when it is seen twice."""
        pair = prefill.spec.id, decode.spec.id
        try:
            crossing = self._find_crossing(model.name, prefill, decode)
            if crossing is not None:
                crossing = await self._fit(model, prefill, decode, crossing)
            alike = await self._are_alike(model, prefill, decode, crossing, None)
            if alike and crossing is not None and crossing.is_salted:
                await self._are_alike(model, prefill, decode, crossing, make_salt())
        except (BackendError, TimeoutError, NoWay) as error:
            if isinstance(error, TimeoutError):
                found.slow.add(pair)
            self._metrics.canaries.labels("failed").inc()
            log.info("no canary of %s and %s: %s", *pair, reason_of(error))
            return None
        found.judged.add(pair)
        if alike is not None:
            self._alike[pair] = alike
        return alike

    async def _fit(
        self, model: ServedModel, prefill: Instance, decode: Instance, crossing: CanaryPath
    ) -> CanaryPath | None:
        """Leave out of the canary's way what the two engines' stores contradict; None: nothing shall cross."""
        read = await read_pair(partial(self._make_prompt, model), prefill, decode, crossing)
        route, wrong, unsalted = crossing.link.route, read.contradictions(), read.lost_salts()
        if read.prefill is not None and not crossing.kv.has_groups:
            token_bytes = read.prefill.bytes_of_token(read.terms.heads)
            if token_bytes is not None:
                self._sizes.note(model.name, crossing.kv_bytes_per_token, token_bytes)
        if wrong:
            self._metrics.canaries.labels("odd_keys").inc()
            self._trust.note_contradiction(route, model.name, "; ".join(wrong))
            return None
        if unsalted and crossing.is_salted:
            self._metrics.canaries.labels("odd_keys").inc()
            self._trust.note_contradiction(route, model.name, "; ".join(unsalted), salts_only=True)
            return replace(crossing, is_salted=False)
        return crossing

    async def _are_alike(
        self, model: ServedModel, prefill: Instance, decode: Instance, crossing: CanaryPath | None, salt: str | None
    ) -> bool | None:
        """Compare their tokens, and note what became of the KV; None: it did not cross."""
        route, is_salted = (prefill.spec.region, decode.spec.region), salt is not None
        try:
            alike = await answers_alike(self._make_prompt(model), prefill, decode, crossing, salt)
            alike = alike or await answers_alike(self._make_prompt(model), prefill, decode, crossing, salt)
        except CanaryUnseen as error:
            self._metrics.canaries.labels("unseen").inc()
            self._trust.note_unseen(route, model.name, str(error), at_once=True, is_salted=is_salted)
            return None
        except CanaryUnread as error:
            self._metrics.canaries.labels("unread").inc()
            self._trust.note_unread(
                route,
                model.name,
                decode.spec.id,
                error.moved_tokens,
                error.cached_tokens,
                at_once=True,
                is_salted=is_salted,
            )
            return True  # their tokens are alike; only the KV between them is not
        if crossing is not None and alike:
            self._trust.note_read(route, model.name, is_salted=is_salted)
            self._sizes.prove(model.name)
        self._metrics.canaries.labels("alike" if alike else "different").inc()
        return alike

    async def _check_salts(self, model: ServedModel, prefill: Instance, decode: Instance) -> None:
        try:
            leaks = await find_leaks(self._make_prompt(model), (prefill, decode))
        except (BackendError, TimeoutError):
            self._metrics.canaries.labels("failed").inc()
            return
        for instance in (prefill, decode):
            leak = leaks.get(instance.spec.id, instance.leaks_salts)
            if leak and not instance.leaks_salts:
                self._metrics.canaries.labels("leak").inc()
                log.error("%s mixes up cache salts: tenants with KV of their own keep away from it", instance.spec.id)
            instance.leaks_salts = leak

    def _make_prompt(self, model: ServedModel, wished_tokens: int = 0) -> list[int]:
        return make_prompt(model, self._least_tokens(model.name), wished_tokens)

    def _apply(self, model: str) -> None:
        instances = {instance.spec.id: instance for instance in self._pools.of_model(model)}
        alike = {pair: verdict for pair, verdict in self._alike.items() if set(pair) <= instances.keys()}
        for id_, fingerprint in sort_out(instances, alike).items():
            instance = instances[id_]
            if fingerprint != instance.fingerprint:
                if fingerprint:
                    log.error("%s gives other tokens than its peers: it is not paired with them", id_)
                else:
                    log.warning("%s gives the same tokens as its peers again", id_)
                instance.fingerprint = fingerprint


def sort_out(ids: Iterable[str], alike: Mapping[Pair, bool]) -> dict[str, str]:
    """Return a fingerprint for each id: equal for those that are alike, different for those that are not.

    The largest group (of equal ones, one with a P) has "", and so has whoever was not seen to differ from it.
    """
    groups = [{id_} for id_ in ids]
    for pair, is_alike in alike.items():
        if is_alike:
            joined = [group for group in groups if group & set(pair)]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    prefills = {prefill for prefill, _ in alike}
    groups.sort(key=lambda group: (-len(group), group.isdisjoint(prefills), min(group)))
    classes: list[set[str]] = []
    for group in groups:
        home = next((known for known in classes if not _differ(known, group, alike)), None)
        if home is None:
            classes.append(set(group))
        else:
            home |= group
    return {id_: "" if number == 0 else min(known) for number, known in enumerate(classes) for id_ in known}


def _differ(one: set[str], other: set[str], alike: Mapping[Pair, bool]) -> bool:
    return any(
        not is_alike and ((first in one and second in other) or (first in other and second in one))
        for (first, second), is_alike in alike.items()
    )
