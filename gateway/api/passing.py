"""What the API needs of the part that passes requests on as they are."""

from typing import Protocol

from starlette.datastructures import Headers

from gateway.api.body import JsonObject
from gateway.api.client import Client
from gateway.api.job import Caller


class AnswerBroken(Exception):
    """A passed answer broke off after bytes of it were sent, and nothing can be said in its stead."""


class Passing(Protocol):
    """Serves the models of upstreams."""

    def models(self) -> list[str]:
        """Names of the models whose every request is passed on."""
        ...

    def passes(self, model: object) -> bool:
        """Say whether every request for a model is passed on."""
        ...

    async def pass_object(self, path: str, value: JsonObject, headers: Headers, caller: Caller, client: Client) -> None:
        """Pass a parsed body on to its end. Raises ApiError while nothing was sent, AnswerBroken after that."""
        ...
