"""The server's side of a connection."""

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TRANSPORT = "transport"


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol (``uvicorn.Config(http=EdgeProtocol)``) that lets an endpoint cut its connection."""

    def on_message_begin(self) -> None:
        """Put the connection's transport into the request's state."""
        super().on_message_begin()
        self.scope["state"][TRANSPORT] = self.transport


def cut_connection(scope: Scope) -> None:
    """Drop the connection with what its client did not read; closing it would wait for that client."""
    transport = scope.get("state", {}).get(TRANSPORT)
    if transport is not None:
        transport.abort()
