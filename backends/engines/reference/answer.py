"""Builds the JSON of an answer, streamed or whole, as vLLM spells it."""

from collections.abc import Sequence
from typing import Any

from backends.engines.reference.generation import Output
from backends.engines.reference.sequence import Sequence as TokenSequence
from backends.engines.reference.text import Text
from backends.engines.reference.wire import CompletionRequest


class AnswerWriter:
    """Turns the outputs of one generation into response objects."""

    def __init__(
        self, request: CompletionRequest, sequence: TokenSequence, text: Text, model: str, created_s: int
    ) -> None:
        self._request = request
        self._sequence = sequence
        self._text = text
        self._decoder = text.stream()
        self._head: dict[str, Any] = {
            "id": sequence.id,
            "object": "text_completion",
            "created": created_s,
            "model": model,
        }
        options = request.stream_options
        self._counts_up = options is not None and options.include_usage and options.continuous_usage_stats
        self._told_tokens = 0
        self._offset = 0
        self._told_prompt = False

    def chunk(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """One streamed chunk with one or more tokens."""
        self._told_tokens += len(outputs)
        usage = self._count(self._told_tokens) if self._counts_up else None
        return {**self._head, "choices": [self._choice(outputs)], "usage": usage}

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {**self._head, "choices": [self._choice(outputs)], "usage": self._usage()}

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, where the request wants usage."""
        return {**self._head, "choices": [], "usage": self._usage()}

    def _choice(self, outputs: Sequence[Output]) -> dict[str, Any]:
        ids = [output.token.token_id for output in outputs]
        choice: dict[str, Any] = {
            "index": 0,
            "text": self._decoder.push(ids),
            "logprobs": self._logprobs(outputs) if self._request.logprobs is not None else None,
            "finish_reason": outputs[-1].finish_reason,
            "stop_reason": outputs[-1].stop_reason,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = ids
            if not self._told_prompt:
                choice["prompt_token_ids"] = self._sequence.tokens[: self._sequence.prompt_tokens]
                self._told_prompt = True
        return choice

    def _logprobs(self, outputs: Sequence[Output]) -> dict[str, Any]:
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for output in outputs:
            token = output.token
            name = self._name(token.token_id)
            top = {} if token.logprob is None else {name: token.logprob}
            tops.append(top | {self._name(other): value for other, value in token.top})
            tokens.append(name)
            values.append(token.logprob)
            offsets.append(self._offset)
            self._offset += len(name)
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._request.return_tokens_as_token_ids else self._text.spell(token_id)

    def _usage(self) -> dict[str, Any]:
        details = {"cached_tokens": self._sequence.cached_tokens or 0}
        return {**self._count(self._sequence.output_tokens), "prompt_tokens_details": details}

    def _count(self, output_tokens: int) -> dict[str, Any]:
        prompt_tokens = self._sequence.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }
