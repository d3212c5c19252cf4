"""Who may ask, for how much, and when: keys, salts, limits, the queue and the counts of use of one gateway process."""

import ipaddress
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from gateway.api.exchange import Access
from gateway.auth.identify import Identify, KeyCheck, identify_anyone
from gateway.auth.salts import Salts
from gateway.auth.secrets import BadSecret, derive, read_secret
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, TenantBook
from gateway.config.fleet_settings import BadSettings
from gateway.config.live import LiveDocuments
from gateway.config.settings import AuthSettings, Settings
from gateway.index.shared import RedisIndex
from gateway.limits.admission import AdmissionControl
from gateway.limits.failures import Failures
from gateway.limits.queues import AdmissionQueues
from gateway.limits.rate_limiter import RateLimiter
from gateway.limits.usage import UsageMeter
from gateway.telemetry.metrics import Metrics
from policies.rules import Rules

log = logging.getLogger(__name__)

INDEX_NAME_DIGITS = 8


class Tenancy:
    """What the API asks before a request runs, as ``access``, and what is told of it afterwards, as ``usage``.

    ``live`` None: there are no documents, so no keys can be known. ``processes``: gateway processes that live.
    ``places``: answers that all MD instances of a model batch. Raises BadSettings.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str | None,
        live: LiveDocuments | None,
        metrics: Metrics,
        rules_of: Callable[[str, str], Rules],
        processes: Callable[[], int],
        places: Callable[[str], int],
    ) -> None:
        self._stack = AsyncExitStack()
        self._live = live
        self._metrics = metrics
        secret = find_secret(settings.auth)
        self.book = TenantBook(secret) if secret is not None else None
        if self.book is not None and live is not None:
            live.follow(self.book.apply, TENANT_KIND, KEY_KIND)
        asked = settings.admission
        self.limits = RateLimiter(redis_url, processes)
        self.queues = AdmissionQueues(
            lambda model: asked.max_running or places(model) or None, asked.max_waiting, asked.deadline_s
        )
        self.usage = UsageMeter(redis_url, metrics.registry)
        self.access = Access(
            identify=self._make_identify(settings.auth),
            rules_of=rules_of,
            salts=Salts(secret),
            gate=AdmissionControl(self.limits, self.queues, self.usage, metrics),
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

    def find_missing(self) -> list[str]:
        """What keeps every request out."""
        if self.book is None or self.book.known:
            return []
        why = self._live.find_unread(KEY_KIND) if self._live is not None else "there is no Redis to read them from"
        return [f"keys: {why}"]

    def show_metrics(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.shared.limits_local.set(self.limits.is_local)
        self._metrics.waiting.set(self.queues.waiting)

    def _make_identify(self, auth: AuthSettings) -> Identify:
        return identify_anyone if self.book is None else KeyCheck(self.book, Failures(auth.failures_per_min))


def find_secret(auth: AuthSettings) -> bytes | None:
    """Read the secret that the settings name; None: they name none. Raises BadSettings."""
    try:
        return read_secret(auth.secret_env, auth.secret_file)
    except BadSecret as error:
        key = "auth.secret_env" if auth.secret_env is not None else "auth.secret_file"
        raise BadSettings(f"{key}: {error}") from None


def open_index(settings: Settings, redis_url: str, *, follows_engines: bool = True) -> RedisIndex:
    """Return the shared index. Raises BadSettings."""
    prefix, key = name_index(find_secret(settings.auth))
    return RedisIndex(redis_url, prefix=prefix, key=key, follows_engines=follows_engines)


def name_index(secret: bytes | None) -> tuple[str, bytes]:
    """Return where the shared index is, and what keys its block names, so that Redis tells nothing of prompts.

    Another secret makes another index; without one, whoever reads Redis can find out whether it holds a prompt.
    """
    if secret is None:
        return "pdd", b""
    return f"pdd:{derive(secret, 'index-name')[:INDEX_NAME_DIGITS]}", bytes.fromhex(derive(secret, "index"))


def check_exposure(settings: Settings, host: str) -> None:
    """Refuse to be open to others than this machine unless that is said, and warn of it. Raises BadSettings."""
    if settings.auth.asks_for_keys:
        return
    if settings.trusted_proxies and not settings.auth.open:
        raise BadSettings(
            "auth.secret_env: not set, and trusted_proxies hand on the requests of others; or say auth.open: true"
        )
    if not (settings.auth.open or is_loopback(host)):
        raise BadSettings(
            f"auth.secret_env: not set, so no keys are asked for, and {host} can be reached from elsewhere; set it (or "
            "auth.secret_file), listen on 127.0.0.1, or say auth.open: true"
        )
    log.warning("NO API KEYS ARE ASKED FOR: whoever reaches %s may use this gateway (see auth.secret_env)", host)


def is_loopback(host: str) -> bool:
    """Say whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
