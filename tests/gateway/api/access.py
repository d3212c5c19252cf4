"""An open API: everybody is one tenant without limits."""

from prometheus_client import CollectorRegistry

from gateway.api.endpoint import Access
from gateway.auth.identify import Identify, identify_anyone
from gateway.auth.secrets import Salts
from gateway.limits.admission import AdmissionControl
from gateway.limits.queues import AdmissionQueues
from gateway.limits.rate_limiter import RateLimiter
from gateway.limits.usage import UsageMeter
from gateway.telemetry.metrics import Metrics
from policies.rules import Rules
from tests.valkey import make_away


def make_access(
    identify: Identify = identify_anyone,
    rules: Rules | None = None,
    secret: bytes | None = None,
    queues: AdmissionQueues | None = None,
    registry: CollectorRegistry | None = None,
) -> Access:
    """Return what the API asks, without a Redis. All tenants have the same rules; use is counted in ``registry``."""
    used = rules or Rules()
    metrics, away = Metrics(), make_away()
    unbounded = AdmissionQueues(lambda model: None, 0, 1.0)
    gate = AdmissionControl(
        RateLimiter(away, lambda: 1), queues or unbounded, UsageMeter(away, registry or CollectorRegistry()), metrics
    )
    return Access(identify, lambda tenant, key: used, Salts(secret), gate, shows_plans=identify is identify_anyone)
