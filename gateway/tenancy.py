"""Who may ask, for how much, and when: keys, salts, limits, the queue and the counts of use of one gateway process."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from gateway.api.endpoint import Access
from gateway.auth.failures import Failures
from gateway.auth.identify import Identify, KeyCheck, identify_anyone
from gateway.auth.secrets import Salts, derive, find_adapters, find_secret
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, TenantBook
from gateway.config.live import LiveDocuments
from gateway.config.settings import AuthSettings, Settings
from gateway.index.shared import RedisIndex
from gateway.limits.admission import AdmissionControl
from gateway.limits.bodies import Bodies
from gateway.limits.overload import LoadGuard
from gateway.limits.queues import AdmissionQueues
from gateway.limits.rate_limiter import RateLimiter
from gateway.limits.usage import UsageMeter, Use
from gateway.redis.client import SharedRedis
from gateway.telemetry.metrics import Metrics
from policies.rules import Rules

log = logging.getLogger(__name__)

INDEX_NAME_DIGITS = 8


class Tenancy:
    """What the API asks before a request runs, as ``access``, and what is told of it afterwards, as ``usage``.

    ``processes``: gateway processes that live.
    ``places``: answers that all MD instances of a model batch. ``load``: what the process can carry.
    Raises BadSettings.
    """

    def __init__(
        self,
        settings: Settings,
        redis: SharedRedis,
        live: LiveDocuments,
        metrics: Metrics,
        rules_of: Callable[[str, str], Rules],
        processes: Callable[[], int],
        places: Callable[[str], int],
        load: LoadGuard,
    ) -> None:
        self._stack = AsyncExitStack()
        self._live = live
        self._metrics = metrics
        secret = find_secret(settings.auth)
        self.book = TenantBook(secret) if secret is not None else None
        if self.book is not None:
            live.follow(self.book.apply, TENANT_KIND, KEY_KIND)
        asked = settings.admission
        self.limits = RateLimiter(redis, processes)
        self.queues = AdmissionQueues(
            places if asked.max_running is None else lambda _: asked.max_running, asked.max_waiting, asked.deadline_s
        )
        self.usage = UsageMeter(redis, metrics.registry)
        self.access = Access(
            identify=self._make_identify(settings.auth),
            rules_of=rules_of,
            salts=Salts(secret, find_adapters(settings.models)),
            admission=AdmissionControl(
                self.limits,
                self.queues,
                self.usage,
                metrics,
                bodies=Bodies(settings.limits.max_bodies_bytes),
                load=load,
            ),
            shows_plans=self.book is None,
        )

    async def start(self) -> None:
        """Share limits and counts from here on."""
        await self.limits.start()
        self._stack.push_async_callback(self.limits.aclose)
        await self.usage.start()
        self._stack.push_async_callback(self.usage.aclose)

    async def aclose(self) -> None:
        """Tell Redis what is left to tell, and end."""
        await self._stack.aclose()

    def note_use(self, tenant: str, model: str, use: Use) -> None:
        """Count what an answer used, and charge what is limited of it."""
        self.usage.note(tenant, model, use)
        if use.wan_bytes:
            self.limits.charge_wan(tenant, use.wan_bytes)

    def find_missing(self) -> list[str]:
        """What keeps every request out."""
        if self.book is None or self.book.known:
            return []
        return [f"keys: {self._live.find_unread(KEY_KIND)}"]

    def show_metrics(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.shared.limits_local.set(self.limits.is_local)
        self._metrics.waiting.set(self.queues.waiting)
        self._metrics.most_carried.set(self.access.admission.load.most)

    def _make_identify(self, auth: AuthSettings) -> Identify:
        return identify_anyone if self.book is None else KeyCheck(self.book, Failures(auth.failures_per_min))


def open_index(settings: Settings, redis: SharedRedis, *, follows_engines: bool = True) -> RedisIndex:
    """Return the shared index. Raises BadSettings."""
    prefix, key = name_index(find_secret(settings.auth))
    return RedisIndex(redis, prefix=prefix, key=key, follows_engines=follows_engines)


def name_index(secret: bytes | None) -> tuple[str, bytes]:
    """Return where the shared index is, and what keys its block names, so that Redis tells nothing of prompts.

    Another secret makes another index; without one, whoever reads Redis can find out whether it holds a prompt.
    """
    if secret is None:
        return "pdd", b""
    return f"pdd:{derive(secret, 'index-name')[:INDEX_NAME_DIGITS]}", bytes.fromhex(derive(secret, "index"))
