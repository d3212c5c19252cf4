"""``Provider`` over LiteLLM, which is imported when it is first wanted: an import takes seconds and much memory.

LiteLLM's own calls home are off: its price list is the one in the package, and it keeps and logs nothing of ours.
"""

import importlib
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from backends.engines.external import ExternalChunk, ExternalModel, ExternalUsage
from backends.errors import BackendError, EngineBroken, EngineFailed, EngineRejected, EngineTimeout, EngineUnavailable

CHAT_FIELDS = frozenset(
    {
        "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "presence_penalty",
        "frequency_penalty", "logit_bias", "seed", "tools", "tool_choice", "parallel_tool_calls", "response_format",
        "logprobs", "top_logprobs", "reasoning_effort",
    }
)  # fmt: skip
"""Fields of a request that a provider is told; where it does not know one, LiteLLM leaves it out."""

PRICE_LIST = "LITELLM_LOCAL_MODEL_COST_MAP"
LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
MAX_RETRY_AFTER_S = 3600.0


class LiteLlm:
    """See ``backends.engines.external.Provider``. Make it with ``load_litellm``."""

    def __init__(self, litellm: Any, openai: Any) -> None:
        self._litellm = litellm
        self._openai = openai

    async def chat(
        self, model: ExternalModel, fields: Mapping[str, Any], *, stream: bool
    ) -> AsyncGenerator[ExternalChunk, None]:
        """See ``Provider.chat``."""
        asked = {name: value for name, value in fields.items() if name in CHAT_FIELDS and value is not None}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            answer = await self._litellm.acompletion(
                model=model.model,
                api_base=model.api_base,
                api_key=model.api_key,
                timeout=model.timeout_s,
                drop_params=True,
                num_retries=0,
                max_retries=0,
                **asked,
            )
            if not stream:
                yield self._read(answer, model)
                return
            try:
                async for piece in answer:
                    yield self._read(piece, model)
            finally:
                await answer.aclose()
        except self._openai.OpenAIError as error:
            raise self._judge(error) from None

    def _read(self, answer: Any, model: ExternalModel) -> ExternalChunk:
        value = answer.model_dump(exclude_none=True)
        usage = value.get("usage")
        return ExternalChunk(tuple(value.get("choices") or ()), self._count(usage, model) if usage else None)

    def _count(self, usage: Mapping[str, Any], model: ExternalModel) -> ExternalUsage:
        prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        try:
            prices = self._litellm.cost_per_token(model=model.model, prompt_tokens=prompt, completion_tokens=completion)
        except (ValueError, self._litellm.exceptions.ModelNotMappedError, self._openai.OpenAIError):
            return ExternalUsage(prompt, completion, None)
        return ExternalUsage(prompt, completion, sum(prices))

    def _judge(self, error: Any) -> BackendError:
        # Messages may quote the prompt, so none gets into an exception's text.
        if isinstance(error, self._openai.APITimeoutError):
            return EngineTimeout("the provider did not answer in time")
        status = getattr(error, "status_code", None)
        if status in (429, 503):
            return EngineUnavailable(f"the provider answered {status}", _retry_after_s(error))
        if status in (401, 403):
            return EngineFailed("the provider does not take the configured API key")
        if isinstance(status, int) and 400 <= status < 500:
            return EngineRejected(status, str(getattr(error, "message", "")) or f"The provider answered {status}.")
        if isinstance(error, self._openai.APIConnectionError):
            return EngineUnavailable("no connection to the provider")
        return EngineBroken("the provider failed")


def load_litellm() -> LiteLlm:
    """Import LiteLLM, which takes seconds. Raises ImportError where it is not installed."""
    os.environ.setdefault(PRICE_LIST, "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Its first call imports the rest, which would hold up the event loop.
    litellm.completion(model="openai/warm-up", messages=[{"role": "user", "content": ""}], mock_response="")
    return LiteLlm(litellm, importlib.import_module("openai"))


def _retry_after_s(error: Any) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", {})
    value = headers.get("retry-after", "")
    return min(float(value), MAX_RETRY_AFTER_S) if value.isascii() and value.isdigit() else None
