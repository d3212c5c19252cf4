"""What the API needs of the part that lets others answer: upstreams as they are, and external providers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import Headers

from backends.engines.external import ExternalUsage
from gateway.api.prepare import Caller, PreparedRequest
from gateway.errors import RawHeaders as HeaderLines
from gateway.http.body import JsonObject
from gateway.http.client import Client
from policies.rules import Rules


class AnswerBroken(Exception):
    """A passed answer broke off after bytes of it were sent, and nothing can be said in its stead."""


class Passthrough(Protocol):
    """Serves the models of upstreams."""

    def models(self) -> list[str]:
        """Names of the models whose every request is passed on."""
        ...

    def passes(self, model: object) -> bool:
        """Say whether every request for a model is passed on."""
        ...

    async def pass_object(self, path: str, value: JsonObject, headers: Headers, caller: Caller, client: Client) -> None:
        """Pass a parsed body on to its end. Raises GatewayError while nothing was sent, AnswerBroken after that."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """Who answers in place of the model's own engines, and why."""

    model: str
    reason: str


class OverflowAnswers(Protocol):
    """Lets external providers answer chats."""

    def choose(self, model: str, rules: Rules, *, refused: bool) -> Outside | None:
        """Say who answers in place of a model's engines; None: nobody. ``refused``: no engine could take it."""
        ...

    async def answer(
        self,
        outside: Outside,
        prepared: PreparedRequest,
        value: JsonObject,
        client: Client,
        headers: HeaderLines,
        note: Callable[[ExternalUsage | None, bool | None], None],
    ) -> None:
        """Answer from outside, to the end. ``headers`` go out with the answer; ``note`` is told what it took,
        and whether the tenant's ``slo`` was met.

        Raises GatewayError while nothing was sent.
        """
        ...
