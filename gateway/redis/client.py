"""How this process reaches Redis, and how names of tenants and models become parts of keys."""

from hashlib import blake2b

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 2.0


def connect(
    url: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, health_check_s: float = 0.0
) -> "redis.asyncio.Redis":
    """Make a client that neither retries nor limits times itself: its callers do both. Raises ValueError.

    ``health_check_s``: a connection that was silent for so long is tried before it is used; 0: never.
    """
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=connect_timeout_s,
        health_check_interval=health_check_s,
        retry=Retry(NoBackoff(), 0),
    )


def digest(name: str) -> str:
    """Names may hold anything; braces would move keys to other slots of a cluster."""
    return blake2b(name.encode(), digest_size=16).hexdigest()
