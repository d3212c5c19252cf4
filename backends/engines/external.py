"""Seam: chats that a provider outside answers, in OpenAI's own objects.

Nothing here is made of token ids: a provider is asked with messages and answers with text.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ExternalModel:
    """A provider's model, from the configuration. ``api_key`` None: the provider's own environment variable."""

    model: str
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    """What an answer took, in tokens and US dollars. ``cost_usd`` None: nobody knows the model's price."""

    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class ExternalChunk:
    """A piece of an answer: choices as in a chunk of a stream (``delta``) or as in a whole answer (``message``)."""

    choices: tuple[Mapping[str, Any], ...] = ()
    usage: ExternalUsage | None = None


class Provider(Protocol):
    """Asks providers."""

    def chat(
        self, model: ExternalModel, fields: Mapping[str, Any], *, stream: bool
    ) -> AsyncGenerator[ExternalChunk, None]:
        """Answer a chat request of OpenAI's fields; not streamed it is one chunk. Usage comes with the last.

        ``aclose()`` closes the connection. Raises the errors of ``backends.errors``.
        """
        ...
