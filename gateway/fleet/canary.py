"""One canary: a short prompt through P, its KV path and a decode instance, against P alone.

Greedy ids that differ mean that the two do not hold the same model, or that KV is spoilt on its way between them. The
same prompt under two salts shows whether an instance, or the store behind it, lets one tenant see what another cached.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from uuid import uuid4

from backends.base import KvPath
from backends.types import LegRequest, Sampling, TransferRequest
from gateway.fleet.pools import Instance, InstanceSpec
from gateway.text.model import ServedModel

ANSWER_TOKENS = 8
LEAST_PROMPT_TOKENS = 128
"""Some blocks of any engine's prefix cache."""
LEG_TIMEOUT_S = 60.0
PATTERN = "one two three four five six seven eight nine ten "
"""Said again and again it leaves a model in no doubt of what comes next, so that a rounding error changes nothing."""

_GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class CanaryPath:
    """The KV path between the regions of a pair, and how its store names and cuts KV."""

    path: KvPath
    dialect: str
    kv_name: str
    chunk_tokens: int


def make_prompt(model: ServedModel, chunk_tokens: int) -> list[int]:
    """Return ids that no engine has seen yet and that fill a chunk: no cache knows them, and KV of them must move."""
    text = f"Canary {uuid4().hex}. "
    while len(ids := model.encoder.encode_now(text)) <= max(chunk_tokens, LEAST_PROMPT_TOKENS):
        text += PATTERN * 8
    return list(ids)


async def answers_alike(
    prompt: Sequence[int], prefill: Instance, decode: Instance, crossing: CanaryPath | None
) -> bool:
    """Say whether a pair gives the ids that P gives alone. Raises BackendError or TimeoutError: nothing was learnt."""
    expected, _ = await _ask(prefill, prompt, ANSWER_TOKENS)
    if crossing is not None:
        await _move(crossing, prompt, prefill.spec, decode.spec)
    answer, _ = await _ask(decode, prompt, ANSWER_TOKENS)
    return answer == expected


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
    leg = LegRequest(f"canary-{uuid4().hex}", instance.spec.model, prompt, max_tokens, sampling=_GREEDY)
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


async def _move(crossing: CanaryPath, prompt: Sequence[int], prefill: InstanceSpec, decode: InstanceSpec) -> None:
    request = TransferRequest(
        f"canary-{uuid4().hex}",
        crossing.dialect,
        crossing.kv_name,
        prompt,
        crossing.chunk_tokens,
        served_model=decode.model,
        prefill=prefill.id,
        main=decode.id,
    )
    async with asyncio.timeout(LEG_TIMEOUT_S), aclosing(crossing.path.transfer(request)) as progress:
        async for _ in progress:
            pass
