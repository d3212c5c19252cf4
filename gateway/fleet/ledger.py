"""The ledger of all gateway processes, in Redis: hit rates by model, answer lengths by model and tenant.

Redis holds one state of each, to which every process adds what is new to it about once a second, and which it reads in
the same step. So a process that dies takes nothing with it, and one that starts finds what the others have learnt. Time
is Redis's own: nothing depends on the processes' clocks. Should Redis lose a state, the next process puts the whole
back. When an answer of Redis is lost, some requests may count twice; that moves rates and quantiles by next to nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec

from gateway.fleet.learning import Learning, News
from gateway.redis.client import AWAY, SharedRedis, digest
from gateway.tasks import end_task, run_every
from policies.output_length import Lengths
from policies.types import Alignment

_KEPT_MS = 86_400_000
"""A state that nobody asks for is forgotten after this time."""
_MOST_TENANTS_AT_ONCE = 256
_MISSED_EXCHANGES = 5
_DECODER = msgspec.msgpack.Decoder(list[float])


class Ledger:
    """Exchanges what ``learning`` learns with the other processes through ``redis``; keys are under ``prefix``.

    Decisions never wait for it: they read ``learning``, which goes on alone while Redis is away. ``on_exchange`` is
    called after each try. ``peers``: other processes that live, as of the last success.
    """

    def __init__(
        self,
        redis: SharedRedis,
        learning: Learning,
        models: Iterable[str],
        prefix: str = "pdd",
        *,
        interval_s: float = 1.0,
        timeout_s: float = 2.0,
        on_exchange: Callable[[], None] = lambda: None,
    ) -> None:
        self._learning = learning
        self._models = list(models)
        self._prefix = f"{prefix}:ledger"
        self._interval_s = interval_s
        self._on_exchange = on_exchange
        self._token = uuid4().hex
        self._task: asyncio.Task[None] | None = None
        self._dead_ms = int(_MISSED_EXCHANGES * (interval_s + timeout_s) * 1000)
        self._redis = redis.client("ledger", timeout_s)
        self.peers = 0

    @property
    def up(self) -> bool:
        """Whether the last exchange succeeded."""
        return self._redis.up

    async def start(self) -> None:
        """Exchange in the background from here on."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Share what is left, if Redis answers, and end."""
        await end_task(self._task)
        if self.up and await self.exchange():
            with suppress(*AWAY):
                async with self._redis.limit():
                    await self._redis.commands.zrem(f"{self._prefix}:processes", self._token)

    async def exchange(self) -> bool:
        """Share and read now; False when Redis does not take part, which loses nothing."""
        news, is_shared = self._learning.take_news(_MOST_TENANTS_AT_ONCE), False
        try:
            async with self._redis.step():
                replies = await self._send(news)
            is_shared = True
        except AWAY:
            pass
        finally:
            if not is_shared:
                self._learning.put_back(news)
        if is_shared:
            self._take(news, replies)
        self._on_exchange()
        return is_shared

    async def _run(self) -> None:
        await self.exchange()
        await run_every(self._interval_s, self.exchange)

    async def _send(self, news: News) -> list[Any]:
        learning, add, beat = self._learning, self._redis.script("ledger_add"), self._redis.script("ledger_beat")
        async with self._redis.commands.pipeline(transaction=False) as pipeline:
            await beat([f"{self._prefix}:processes"], [self._token, self._dead_ms], client=pipeline)
            for model in self._models:
                new, seen = news.hits.get(model, Alignment()), learning.alignment(model)
                states = [_pack_hits(learning.faded_hits(model, hits)) for hits in (new, seen)]
                fading = [1.0, learning.alignment_window_s(model), _KEPT_MS]
                await add([self._key("hits", model)], [*states, *fading], client=pipeline)
            for (model, tenant), lengths in news.lengths.items():
                states = [_pack_lengths(counts) for counts in (lengths.counts, learning.lengths(model, tenant))]
                fading = [lengths.keep, 0, _KEPT_MS]
                await add([self._key("lengths", model, tenant)], [*states, *fading], client=pipeline)
            return await pipeline.execute()

    def _take(self, news: News, replies: Sequence[Any]) -> None:
        """Give what came back to ``learning``; the replies are in the order of ``_send``."""
        living, *states = replies
        self.peers = living - 1
        decoded = [_DECODER.decode(state) for state in states]
        now_s = self._learning.clock()
        for model, (_, prompt, prefill_hit, main_hit) in zip(self._models, decoded, strict=False):
            self._learning.learn_hits(model, Alignment(prompt, prefill_hit, main_hit, now_s))
        for key, (samples, *counts) in zip(news.lengths, decoded[len(self._models) :], strict=True):
            self._learning.learn_lengths(key, Lengths(tuple(counts), int(samples)))

    def _key(self, kind: str, model: str, tenant: str | None = None) -> str:
        key = f"{self._prefix}:{{{digest(model)}}}:{kind}"
        return key if tenant is None else f"{key}:{digest(tenant)}"


def _pack_hits(seen: Alignment) -> bytes:
    return msgspec.msgpack.encode([0, seen.prompt_tokens, seen.prefill_hit_tokens, seen.main_hit_tokens])


def _pack_lengths(lengths: Lengths) -> bytes:
    return msgspec.msgpack.encode([lengths.samples, *lengths.counts])
