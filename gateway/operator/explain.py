"""What the gateway would do with a request, and why; nothing is sent to any engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from gateway.api.chat import prepare_chat
from gateway.api.completions import prepare_completion
from gateway.api.fields import without_internal
from gateway.api.models import Models
from gateway.api.prepare import PreparedRequest
from gateway.auth.tenants import TenantBook
from gateway.errors import GatewayError
from gateway.fleet.learning import Learning
from gateway.http.body import JsonObject
from gateway.relay.router import Router
from gateway.tenancy import Tenancy
from gateway.text.model import ServedModel
from policies.explain import explain_decision
from policies.rules import Rules
from policies.singular import UNUSED_BUDGET
from policies.types import Alignment, SingularUse

TENANT = "default"


class Unspent(Learning):
    """What ``learning`` has learnt, with all the room there is in the singular budget.

    A process that has served nothing has no budget of its own; without this no request would ever be singular.
    """

    def __init__(self, learning: Learning) -> None:
        super().__init__(learning.clock)
        self._learning = learning

    def alignment(self, model: str) -> Alignment:
        """See ``Learning.alignment``."""
        return self._learning.alignment(model)

    def singular(self, model: str) -> SingularUse:
        """See ``Learning.singular``."""
        return replace(UNUSED_BUDGET, at_s=self.clock())

    def expected_output(
        self, model: str, tenant: str, max_tokens: int | None, hint_tokens: int | None, rules: Rules
    ) -> int | None:
        """See ``Learning.expected_output``."""
        return self._learning.expected_output(model, tenant, max_tokens, hint_tokens, rules)


@dataclass(frozen=True, slots=True)
class Explainer:
    """Decides requests as ``router`` would, for tenants of ``tenancy``, and starts none."""

    served: Mapping[str, ServedModel]
    tenancy: Tenancy
    router: Router

    async def explain(self, value: JsonObject, size_bytes: int, tenant: str = TENANT) -> dict[str, Any]:
        """Decide a tenant's request as the gateway would, see ``explain_decision``. Raises GatewayError."""
        job = await self.prepare(value, size_bytes, tenant)
        router = replace(self.router, learning=Unspent(self.router.learning))
        request = job.requests[0]
        rules = request.rules or router.rulebook.of(request.tenant)
        return explain_decision(router.decide(request, rules))

    async def prepare(self, value: JsonObject, size_bytes: int, tenant: str) -> PreparedRequest:
        """Make a tenant's parsed body ready as the API does; its fields tell which endpoint it is for.

        Raises GatewayError.
        """
        check_tenant(self.tenancy.book, tenant)
        models = Models(self.served, created=0)
        access, session = self.tenancy.access, value.get("prompt_cache_key")
        rules = access.rules_of(tenant, session if isinstance(session, str) else "")
        caller = access.make_caller(Headers(), tenant, rules)
        value = without_internal(value, rules.client_fields)
        if "messages" in value:
            return await prepare_chat(value, size_bytes, models, caller)
        if "prompt" in value:
            return await prepare_completion(value, size_bytes, models, caller)
        raise GatewayError(400, "the request has neither messages nor a prompt")


def check_tenant(book: TenantBook | None, tenant: str) -> None:
    """Refuse a tenant of whom no request could come. Raises GatewayError."""
    if tenant == TENANT:
        return
    if book is None:
        raise GatewayError(400, f"tenant {tenant}: no keys are asked for (see auth), so all requests are {TENANT}'s")
    if tenant not in book.tenants:
        raise GatewayError(404, f"tenant {tenant} does not exist")
