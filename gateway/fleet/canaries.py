"""Keeps apart what does not belong together: sends canaries, and sorts the instances by what came of them.

A canary is a short prompt through P, its KV path and a decode instance, against P alone. Greedy ids that differ mean
that the two do not hold the same model, or that KV is spoilt on its way between them. Equal ids prove nothing of KV
that crossed and that the decode instance did not take: it has computed the prompt itself. The same prompt under two
salts shows whether an instance, or the store behind it, lets one tenant see what another cached.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from backends.errors import BackendError
from backends.types import KvShape, LegRequest, Sampling, TransferRequest
from gateway.errors import reason_of
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.links import Link
from gateway.fleet.pools import Instance, Pools
from gateway.tasks import end_task
from gateway.telemetry.metrics import Metrics
from gateway.text.model import ServedModel
from policies.types import Role

ANSWER_TOKENS = 8


LEAST_PROMPT_TOKENS = 128
"""Some blocks of any engine's prefix cache."""


LEG_TIMEOUT_S = 60.0

PATTERN = "one two three four five six seven eight nine ten "
"""Said again and again it leaves a model in no doubt of what comes next, so that a rounding error changes nothing."""


_GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class CanaryPath:
    """The link between the regions of a pair, and the stores' name of the model.

    ``first_chunk_s``: how long after P's end the first chunk of its KV may take to come to its store.
    """

    link: Link
    kv_name: str
    first_chunk_s: float
    kv_shape: KvShape | None = None
    kv_groups: tuple[int | None, ...] = (None,)


class CanaryUnread(Exception):
    """KV crossed in vain: ``moved_tokens`` did, and the decode instance took ``cached_tokens`` from a cache."""

    def __init__(self, moved_tokens: int, cached_tokens: int) -> None:
        super().__init__(f"it took {cached_tokens} prompt tokens from a cache where KV of {moved_tokens} had crossed")
        self.moved_tokens = moved_tokens
        self.cached_tokens = cached_tokens


class CanaryUnseen(Exception):
    """P's KV never came to its store under the keys that were looked for."""


def make_prompt(model: ServedModel, least_tokens: int) -> list[int]:
    """Return more than ``least_tokens`` ids that no engine has seen: no cache knows them, and their KV must move."""
    text = f"Canary {uuid4().hex}. "
    while len(ids := model.encoder.encode_now(text)) <= max(least_tokens, LEAST_PROMPT_TOKENS):
        text += PATTERN * 8
    return list(ids)


async def answers_alike(
    prompt: Sequence[int], prefill: Instance, decode: Instance, crossing: CanaryPath | None
) -> bool:
    """Say whether a pair gives the ids that P gives alone.

    Raises CanaryUnread where they are the same without the help of KV that had crossed, CanaryUnseen where none could
    cross, and BackendError or TimeoutError when nothing was learnt.
    """
    expected, _ = await _ask(prefill, prompt, ANSWER_TOKENS)
    if crossing is not None:
        await _move(crossing, prompt, prefill, decode)
    answer, cached_tokens = await _ask(decode, prompt, ANSWER_TOKENS)
    if crossing is not None and cached_tokens is not None and answer == expected:
        moved_tokens = _count_moved(prompt, crossing.link, decode)
        if cached_tokens < moved_tokens:
            raise CanaryUnread(moved_tokens, cached_tokens)
    return answer == expected


def _count_moved(prompt: Sequence[int], link: Link, decode: Instance) -> int:
    """Tokens of the full chunks, in whole blocks of the engine. It computes a prompt's last token in any case."""
    if link.path.traits.lends:
        return 0
    block_tokens = (decode.capabilities.block_size_tokens if decode.capabilities else None) or 1
    chunked = len(prompt) // link.chunk_tokens * link.chunk_tokens
    return min(chunked, len(prompt) - 1) // block_tokens * block_tokens


async def find_leaks(prompt: Sequence[int], instances: Sequence[Instance]) -> dict[str, bool]:
    """Say of each instance, by id, whether it saw one salt's prompt cached under another; absent: it does not say.

    Raises BackendError or TimeoutError: nothing was learnt.
    """
    for instance in instances:
        await _ask(instance, prompt, 1, salt="canary-a")
    found = {}
    for instance in instances:
        _, cached_tokens = await _ask(instance, prompt, 1, salt=f"canary-{uuid4().hex}")
        if cached_tokens is not None:
            found[instance.spec.id] = cached_tokens > 0
    return found


async def _ask(
    instance: Instance, prompt: Sequence[int], max_tokens: int, salt: str | None = None
) -> tuple[list[int], int | None]:
    """Return the ids of a greedy leg, and how many prompt tokens the engine took from a cache."""
    leg = LegRequest(
        f"canary-{uuid4().hex}",
        instance.spec.model,
        prompt,
        max_tokens,
        sampling=_GREEDY,
        data_parallel_rank=_rank_of(instance),
    )
    ids: list[int] = []
    cached_tokens = None
    async with asyncio.timeout(LEG_TIMEOUT_S):
        with instance.occupied():
            async with aclosing(instance.engine.generate(replace(leg, cache_salt=salt))) as stream:
                async for chunk in stream:
                    ids += chunk.token_ids
                    if chunk.usage is not None:
                        cached_tokens = chunk.usage.cached_tokens
    return ids, cached_tokens


def _rank_of(instance: Instance) -> int | None:
    """The rank that canaries go to, so that one finds what another left."""
    return 0 if instance.data_parallel_size > 1 else None


async def _move(crossing: CanaryPath, prompt: Sequence[int], prefill: Instance, decode: Instance) -> None:
    link = crossing.link
    request = TransferRequest(
        f"canary-{uuid4().hex}",
        link.dialect,
        crossing.kv_name,
        prompt,
        link.chunk_tokens,
        served_model=decode.spec.model,
        prefill=prefill.spec.id,
        main=decode.spec.id,
        prefill_rank=_rank_of(prefill),
        main_rank=_rank_of(decode),
        kv_shape=crossing.kv_shape,
        kv_groups=crossing.kv_groups,
    )
    first_chunk = asyncio.timeout(crossing.first_chunk_s)
    try:
        async with asyncio.timeout(LEG_TIMEOUT_S), first_chunk, aclosing(link.path.transfer(request)) as stream:
            async for progress in stream:
                if progress.first_seen:
                    first_chunk.reschedule(None)
    except TimeoutError:
        if not first_chunk.expired() or not link.view().up:
            raise
        raise CanaryUnseen(link.describe_unseen(crossing.kv_name, False, crossing.first_chunk_s)) from None


log = logging.getLogger(__name__)

Pair = tuple[str, str]
"""Ids of a P and of a decode instance."""

MOST_PREFILLS = 3
"""Prefill instances that a decode instance is tried with before it is believed to differ from all."""


class NoWay(Exception):
    """No KV can go from one region to the other at present."""


class CanaryWatch:
    """One round when engine processes are new, and one each ``interval_s``; one canary at a time.

    ``find_crossing`` gives the KV path for a model between the regions of a P and a decode instance, None within one
    region. Raises NoWay. ``least_tokens`` tells what canaries must be longer than for their KV to move and to be used.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        pools: Pools,
        find_crossing: Callable[[str, Instance, Instance], CanaryPath | None],
        least_tokens: Callable[[], int],
        interval_s: float,
        metrics: Metrics,
        trust: KvTrust,
    ) -> None:
        self._models = models
        self._pools = pools
        self._find_crossing = find_crossing
        self._least_tokens = least_tokens
        self._interval_s = interval_s
        self._metrics = metrics
        self._trust = trust
        self._alike: dict[Pair, bool] = {}
        self._new: set[str] = set()
        self._news = asyncio.Event()
        self._round = 0
        self._task: asyncio.Task[None] | None = None

    def notice(self, instance: Instance) -> None:
        """Another engine process answers for this instance: what was known of it is void."""
        id_ = instance.spec.id
        self._alike = {pair: alike for pair, alike in self._alike.items() if id_ not in pair}
        instance.fingerprint, instance.leaks_salts = "", False
        self._new.add(id_)
        self._news.set()

    async def start(self) -> None:
        """Send canaries in the background from here on."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop, and close the legs that run."""
        await end_task(self._task)

    async def check(self, only: set[str] | None = None) -> None:
        """Do one round; with ``only``, over the pairs that these instances are part of."""
        self._round += 1
        for name, model in self._models.items():
            for decode, prefills in self._find_pairs(name, only):
                await self._check_decode(model, decode, prefills)
            self._apply(name)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._news.wait()
            new, self._new = self._new, set()
            self._news.clear()
            await self.check(new or None)

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

    async def _check_decode(self, model: ServedModel, decode: Instance, prefills: list[Instance]) -> None:
        """Try prefill instances until one is alike; try those again that were not."""
        was_different = [p for p in prefills[1:] if self._alike.get((p.spec.id, decode.spec.id)) is False]
        others = was_different + [p for p in prefills[1:] if p not in was_different]
        found = await self._compare(model, prefills[0], decode)
        for prefill in others[: MOST_PREFILLS - 1]:
            if found is not False and prefill not in was_different:
                break
            found = await self._compare(model, prefill, decode)
        await self._check_salts(model, prefills[0], decode)

    async def _compare(self, model: ServedModel, prefill: Instance, decode: Instance) -> bool | None:
        """Say whether a pair is alike; None: nothing was learnt. A difference counts when it is seen twice."""
        route = prefill.spec.region, decode.spec.region
        try:
            crossing = self._find_crossing(model.name, prefill, decode)
            alike = await answers_alike(self._make_prompt(model), prefill, decode, crossing)
            alike = alike or await answers_alike(self._make_prompt(model), prefill, decode, crossing)
        except (BackendError, TimeoutError, NoWay) as error:
            self._metrics.canaries.labels("failed").inc()
            log.info("no canary of %s and %s: %s", prefill.spec.id, decode.spec.id, reason_of(error))
            return None
        except CanaryUnseen as error:
            self._metrics.canaries.labels("unseen").inc()
            self._trust.note_unseen(route, model.name, str(error), at_once=True)
            return None
        except CanaryUnread as error:
            self._metrics.canaries.labels("unread").inc()
            self._trust.note_unread(
                route, model.name, decode.spec.id, error.moved_tokens, error.cached_tokens, at_once=True
            )
            self._alike[prefill.spec.id, decode.spec.id] = True  # their tokens are; only the KV between them is not
            return True
        if crossing is not None and alike:
            self._trust.note_read(route, model.name)
        self._metrics.canaries.labels("alike" if alike else "different").inc()
        self._alike[prefill.spec.id, decode.spec.id] = alike
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

    def _make_prompt(self, model: ServedModel) -> list[int]:
        return make_prompt(model, self._least_tokens())

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
