"""The two shapes of an answer, chat and completions, each as a stream of chunks and as a whole."""

from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET

from backends.types import TokenLogprob
from gateway.api.choice import Addition, Ending
from gateway.api.job import Job
from gateway.api.logprobs import spell_chat, spell_completion
from gateway.api.wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatMessage,
    CompletionChoice,
    Delta,
    Origin,
)


@dataclass(slots=True)
class Gathered:
    """All that was added to one choice of an answer that is not streamed."""

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)


class Form(Protocol):
    """Builds the choices of one endpoint's answers."""

    chunk_object: str
    whole_object: str

    def open(self, job: Job, index: int) -> ChatChunkChoice | CompletionChoice | None:
        """Return a choice's first chunk, which holds nothing that was generated."""
        ...

    def add(self, job: Job, index: int, addition: Addition) -> ChatChunkChoice | CompletionChoice:
        """Return the chunk of one event."""
        ...

    def end(self, job: Job, index: int, ending: Ending) -> ChatChunkChoice | CompletionChoice:
        """Return a choice's last chunk."""
        ...

    def whole(self, job: Job, index: int, gathered: Gathered, ending: Ending) -> ChatChoice | CompletionChoice:
        """Return a choice that is not streamed."""
        ...


class ChatForm:
    """``/v1/chat/completions``."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def open(self, job: Job, index: int) -> ChatChunkChoice:
        """Return the role."""
        return ChatChunkChoice(index, Delta(role="assistant", content=""))

    def add(self, job: Job, index: int, addition: Addition) -> ChatChunkChoice:
        """Return the text as content."""
        choice = ChatChunkChoice(index, Delta(content=addition.text))
        if job.logprobs is not None and addition.logprobs is not None:
            choice.logprobs = spell_chat(addition.logprobs, job.logprobs, job.model.vocabulary)
        if job.return_token_ids:
            choice.token_ids = addition.ids
        return choice

    def end(self, job: Job, index: int, ending: Ending) -> ChatChunkChoice:
        """Return the finish reason, with the last text where some was held back."""
        delta = Delta(content=ending.text) if ending.text else Delta()
        return ChatChunkChoice(index, delta, finish_reason=ending.reason, stop_reason=ending.stop_reason)

    def whole(self, job: Job, index: int, gathered: Gathered, ending: Ending) -> ChatChoice:
        """Return the message."""
        logprobs = None
        if job.logprobs is not None and gathered.logprobs:
            logprobs = spell_chat(gathered.logprobs, job.logprobs, job.model.vocabulary)
        message = ChatMessage("assistant", "".join(gathered.texts) + ending.text)
        ids = tuple(gathered.ids) if job.return_token_ids else UNSET
        return ChatChoice(index, message, logprobs, ending.reason, ending.stop_reason, ids)


class CompletionForm:
    """``/v1/completions``."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def open(self, job: Job, index: int) -> CompletionChoice | None:
        """Return the prompt where the client asked to hear it back, and its ids likewise."""
        if not job.echoes and not job.return_token_ids:
            return None
        choice = CompletionChoice(index, job.echoes[index // job.n] if job.echoes else "")
        if job.return_token_ids:
            choice.prompt_token_ids = list(job.prompts[index // job.n])
        return choice

    def add(self, job: Job, index: int, addition: Addition) -> CompletionChoice:
        """Return the text."""
        choice = CompletionChoice(index, addition.text)
        if job.logprobs is not None and addition.logprobs is not None:
            choice.logprobs = spell_completion(addition.logprobs, addition.offsets, job.logprobs, job.model.vocabulary)
        if job.return_token_ids:
            choice.token_ids = addition.ids
        return choice

    def end(self, job: Job, index: int, ending: Ending) -> CompletionChoice:
        """Return the finish reason, with the last text where some was held back."""
        return CompletionChoice(index, ending.text, finish_reason=ending.reason, stop_reason=ending.stop_reason)

    def whole(self, job: Job, index: int, gathered: Gathered, ending: Ending) -> CompletionChoice:
        """Return the text, after the prompt's where the client asked to hear it back."""
        echo = job.echoes[index // job.n] if job.echoes else ""
        choice = CompletionChoice(index, echo + "".join(gathered.texts) + ending.text)
        choice.finish_reason = ending.reason
        choice.stop_reason = ending.stop_reason
        if job.logprobs is not None and gathered.logprobs:
            choice.logprobs = spell_completion(gathered.logprobs, gathered.offsets, job.logprobs, job.model.vocabulary)
        if job.return_token_ids:
            choice.prompt_token_ids = list(job.prompts[index // job.n])
            choice.token_ids = tuple(gathered.ids)
        return choice
