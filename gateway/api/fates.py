"""What becomes of each field of vLLM's requests: the tables that README shows and a test holds."""

from collections.abc import Mapping
from typing import Literal

Fate = Literal["obeyed", "engine", "refused", "operator", "ignored"]
MEANINGS: dict[Fate, str] = {
    "obeyed": "by the gateway",
    "engine": "by the engine, which gets it as it is",
    "refused": "a 400 that names it, unless its value asks for nothing",
    "operator": "not for clients: a 400, or left out, by the tenant's rule `client_fields`",
    "ignored": "without effect, as in vLLM",
}

FATES: dict[str, Fate] = {
    **dict.fromkeys(
        (
            *("add_generation_prompt", "add_special_tokens", "bad_words", "chat_template_kwargs"),
            *("continue_final_message", "documents", "echo", "frequency_penalty", "ignore_eos", "include_reasoning"),
            *("include_stop_str_in_output", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens"),
            *("messages", "min_p", "min_tokens", "model", "n", "parallel_tool_calls", "presence_penalty", "prompt"),
            *("reasoning_effort", "repetition_penalty", "return_token_ids", "seed", "skip_special_tokens"),
            *("spaces_between_special_tokens", "stop", "stop_token_ids", "stream", "stream_options", "temperature"),
            *("tool_choice", "tools", "top_k", "top_logprobs", "top_p", "truncate_prompt_tokens"),
        ),
        "obeyed",
    ),
    **dict.fromkeys(
        (
            *("allowed_token_ids", "response_format", "session_id", "structured_outputs", "thinking_token_budget"),
            "watermarking",
        ),
        "engine",
    ),
    **dict.fromkeys(
        (
            *("logprob_token_ids", "prompt_embeds", "prompt_logprobs", "repetition_detection", "return_prompt_text"),
            *("return_tokens_as_token_ids", "routed_experts_prompt_start", "stream_interval", "suffix"),
            *("truncation_side", "use_beam_search"),
        ),
        "refused",
    ),
    **dict.fromkeys(
        (
            *("cache_salt", "chat_template", "ec_transfer_params", "kv_transfer_params", "media_io_kwargs"),
            *("mm_processor_kwargs", "priority", "request_id", "vllm_xargs"),
        ),
        "operator",
    ),
    **dict.fromkeys(("length_penalty", "mm_payload", "return_mm_kwargs", "return_token_offsets", "user"), "ignored"),
}
"""By field; ``echo`` is of completions alone, and refused for chats."""

OPERATORS = ("cache_salt", "ec_transfer_params", "kv_transfer_params", "vllm_xargs")
UNREAD = ("mm_payload", "return_mm_kwargs")

MESSAGES_FATES: dict[str, Fate] = {
    **dict.fromkeys(
        (
            *("chat_template_kwargs", "max_tokens", "messages", "metadata", "model", "output_config", "stop_sequences"),
            *("stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"),
        ),
        "obeyed",
    ),
    "watermarking": "engine",
    **dict.fromkeys(OPERATORS, "operator"),
    **dict.fromkeys(UNREAD, "ignored"),
}
"""Of ``/v1/messages``; of ``metadata`` the ``user_id``."""

RESPONSES_FATES: dict[str, Fate] = {
    **dict.fromkeys(
        (
            *("chat_template_kwargs", "frequency_penalty", "ignore_eos", "include", "include_reasoning"),
            *("include_stop_str_in_output", "input", "instructions", "logit_bias", "max_output_tokens", "metadata"),
            *("min_p", "model", "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key"),
            *("reasoning", "repetition_penalty", "seed", "skip_special_tokens", "stop", "stop_token_ids", "store"),
            *("stream", "temperature", "text", "tool_choice", "tools", "top_k", "top_p", "truncation"),
        ),
        "obeyed",
    ),
    **dict.fromkeys(("session_id", "structured_outputs", "watermarking"), "engine"),
    **dict.fromkeys(
        (
            *("background", "enable_response_messages", "max_tool_calls", "previous_input_messages", "prompt"),
            "top_logprobs",
        ),
        "refused",
    ),
    **dict.fromkeys((*OPERATORS, "media_io_kwargs", "mm_processor_kwargs", "priority", "request_id"), "operator"),
    **dict.fromkeys((*UNREAD, "service_tier", "user"), "ignored"),
}
"""Of ``/v1/responses``. ``previous_response_id`` is refused where none is kept; so are log-probabilities to include."""

FATES_BY_API: Mapping[str, Mapping[str, Fate]] = {
    "chat completions, completions": FATES,
    "messages": MESSAGES_FATES,
    "responses": RESPONSES_FATES,
}
