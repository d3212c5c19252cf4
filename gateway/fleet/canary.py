"""One canary: a short prompt through P, its KV path and a decode instance, against P alone.

Greedy ids that differ mean that the two do not hold the same model, or that KV is spoilt on its way between them. Equal
ids prove nothing of KV that crossed and that the decode instance did not take: it has computed the prompt itself. The
same prompt under two salts shows whether an instance, or the store behind it, lets one tenant see what another cached.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

from backends.types import KvShape, LegChunk, LegRequest, Sampling, StoreSide
from gateway.fleet.kv_reading import LinkTerms
from gateway.fleet.kv_terms import KvTerms
from gateway.fleet.links import Link
from gateway.fleet.pools import Instance
from gateway.text.model import ServedModel

ANSWER_TOKENS = 8
EAGER_TOKENS = 4
"""Of these so many are given to the decode instance behind the prompt, as it would get RLD's."""
LEAST_PROMPT_TOKENS = 128
"""Some blocks of any engine's prefix cache."""
LEG_TIMEOUT_S = 30.0
PATTERN = "one two three four five six seven eight nine ten "
"""Said again and again it leaves a model in no doubt of what comes next, so that a rounding error changes nothing."""

_GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class CanaryPath:
    """The link between the regions of a pair, and the stores' name of a model.

    ``first_chunk_s``: how long after P's end the first chunk of its KV may take to come to its store. ``is_salted``:
    requests to the model may have salts.
    """

    link: Link
    model: str
    kv_name: str
    first_chunk_s: float
    kv_bytes_per_token: int
    is_salted: bool = False
    kv_shape: KvShape | None = None
    kv_groups: tuple[int | None, ...] = (None,)

    @property
    def kv(self) -> KvTerms:
        """How the link names and cuts the model's KV now."""
        return self.link.kv.of(self.model)

    def terms(self, side: StoreSide) -> LinkTerms:
        """What the link takes for granted of the KV in one of the stores."""
        return self.kv.at(side, self.kv_name, self.kv_shape, len(self.kv_groups))


class CanaryUnread(Exception):
    """KV crossed in vain: ``moved_tokens`` did, and the decode instance took ``cached_tokens`` from a cache."""

    def __init__(self, moved_tokens: int, cached_tokens: int) -> None:
        super().__init__(f"it took {cached_tokens} prompt tokens from a cache where KV of {moved_tokens} had crossed")
        self.moved_tokens = moved_tokens
        self.cached_tokens = cached_tokens


class CanaryUnseen(Exception):
    """P's KV never came to its store under the keys that were looked for."""


def make_prompt(model: ServedModel, least_tokens: int, wished_tokens: int = 0) -> list[int]:
    """Return more than ``least_tokens`` ids that no engine has seen: no cache knows them, and their KV must move.

    ``wished_tokens``: more than so many, as far as half of the model's context goes.
    """
    wanted = max(least_tokens, LEAST_PROMPT_TOKENS, min(wished_tokens, model.context.tokens // 2))
    text = f"Canary {uuid4().hex}. "
    while (missing := wanted - len(ids := model.encoder.encode_now(text))) >= 0:
        text += PATTERN * max(8, missing // 40)
    return list(ids)


def make_salt() -> str:
    """Return a salt that nothing was cached under."""
    return f"canary-{uuid4().hex}"


async def answers_alike(
    prompt: Sequence[int], prefill: Instance, decode: Instance, crossing: CanaryPath | None, salt: str | None = None
) -> bool:
    """Say whether a pair goes the way of an answer, an extend over tokens that others made, with the ids of P alone.

    Raises CanaryUnread where they are the same without the help of KV that had crossed, CanaryUnseen where none could
    cross, and BackendError or TimeoutError when nothing was learnt.
    """
    expected, _ = await ask(prefill, prompt, ANSWER_TOKENS, salt)
    if crossing is not None:
        await _move(crossing, prompt, prefill, decode, salt)
    eager = expected[:EAGER_TOKENS]
    answer, cached_tokens = await ask(decode, [*prompt, *eager], ANSWER_TOKENS - len(eager), salt)
    is_alike = eager + answer == expected
    if crossing is not None and cached_tokens is not None and is_alike:
        moved_tokens = _count_moved(prompt, crossing, decode)
        if cached_tokens < moved_tokens:
            raise CanaryUnread(moved_tokens, cached_tokens)
    return is_alike


def _count_moved(prompt: Sequence[int], crossing: CanaryPath, decode: Instance) -> int:
    """Tokens of the full chunks, in whole blocks of the engine."""
    if crossing.link.path.traits.lends:
        return 0
    block_tokens = (decode.capabilities.block_size_tokens if decode.capabilities else None) or 1
    return crossing.kv.full_tokens(len(prompt)) // block_tokens * block_tokens


async def find_leaks(prompt: Sequence[int], instances: Sequence[Instance]) -> dict[str, bool]:
    """Say of each instance, by id, whether it saw one salt's prompt cached under another; absent: it does not say.

    Raises BackendError or TimeoutError: nothing was learnt.
    """
    for instance in instances:
        await ask(instance, prompt, 1, "canary-a")
    found = {}
    for instance in instances:
        _, cached_tokens = await ask(instance, prompt, 1, make_salt())
        if cached_tokens is not None:
            found[instance.spec.id] = cached_tokens > 0
    return found


async def ask(
    instance: Instance, prompt: Sequence[int], max_tokens: int, salt: str | None = None
) -> tuple[list[int], int | None]:
    """Return the ids of a greedy leg, and how many prompt tokens the engine took from a cache."""
    leg = LegRequest(
        f"canary-{uuid4().hex}",
        instance.spec.model,
        prompt,
        max_tokens,
        sampling=_GREEDY,
        cache_salt=salt,
        data_parallel_rank=_rank_of(instance),
    )
    ids: list[int] = []
    cached_tokens = None

    def take(chunk: LegChunk) -> None:
        nonlocal ids, cached_tokens
        ids += chunk.token_ids
        if chunk.usage is not None:
            cached_tokens = chunk.usage.cached_tokens

    async with asyncio.timeout(LEG_TIMEOUT_S):
        with instance.occupied():
            await instance.engine.generate(leg, take)
    return ids, cached_tokens


def _rank_of(instance: Instance) -> int | None:
    """The rank that canaries go to, so that one finds what another left."""
    return 0 if instance.data_parallel_size > 1 else None


async def _move(
    crossing: CanaryPath, prompt: Sequence[int], prefill: Instance, decode: Instance, salt: str | None
) -> None:
    link = crossing.link
    request = crossing.kv.request(
        f"canary-{uuid4().hex}",
        crossing.kv_name,
        prompt,
        salt=salt,
        served_model=decode.spec.model,
        prefill=prefill.spec.id,
        main=decode.spec.id,
        prefill_rank=_rank_of(prefill),
        main_rank=_rank_of(decode),
        kv_shape=crossing.kv_shape,
        kv_groups=crossing.kv_groups,
        checks_size=False,  # what the decode instance makes of it shall be seen
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
        why = link.describe_unseen(crossing.model, crossing.kv_name, salt is not None, crossing.first_chunk_s)
        raise CanaryUnseen(why) from None
