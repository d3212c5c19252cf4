"""OpenAI's requests and answers as they cross the wire.

Requests declare only the fields that the gateway itself reads; what else a client sends is kept apart and goes to the
engine. Answers leave out what is UNSET and spell the rest, null included.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType


class StreamOptions(Struct):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(Struct, kw_only=True):
    """What chat and completions have in common; null means "not given"."""

    model: str
    prompt_cache_key: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    bad_words: list[str] | None = None


class ChatFields(GenerationFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | Literal[0, 1] | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None


class CompletionFields(GenerationFields, kw_only=True):
    """``POST /v1/completions``; ``prompt`` is text, texts, ids or lists of ids."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class PromptTokensDetails(Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class UsageBody(Struct):
    """Token counts of the whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(Struct):
    """One alternative of a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    """One position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log-probabilities of a chat answer or chunk."""

    content: list[ChatLogprob]


class CompletionLogprobs(Struct):
    """Log-probabilities of a completion or chunk; ``text_offset`` counts characters from the choice's start."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TokenOrigin(Struct):
    """Who made a chunk's tokens, for traced requests. ``tokens`` is left out of stream chunks."""

    role: str
    instance: str
    position: int
    tokens: int | UnsetType = UNSET


class CalledFunction(Struct):
    """A tool call's function, or more of its arguments in a chunk."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(Struct):
    """A tool call. In chunks ``index`` says which call it is, and only its first has ``id`` and ``type``."""

    function: CalledFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatDelta(Struct):
    """What a chat chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """One choice's part of a chat chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatMessage(Struct):
    """A whole chat answer's message."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One choice of a whole chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChoice(Struct):
    """One choice of a completion, whole or chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class AnswerBody(Struct):
    """A whole answer or one chunk of a stream; ``object`` says which."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice] | list[ChatChoice] | list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    pdd: TokenOrigin | list[TokenOrigin] | UnsetType = UNSET


class ModelCard(Struct):
    """One entry of ``/v1/models``."""

    id: str
    created: int
    max_model_len: int | UnsetType = UNSET
    object: str = "model"
    owned_by: str = "pdd-gateway"


class ModelList(Struct):
    """``/v1/models``."""

    data: list[ModelCard]
    object: str = "list"


encode_json = msgspec.json.Encoder().encode
"""Return JSON bytes."""
