"""The checks on a request's fields: those that hold for chat and completions alike, and fields that are not a client's.

Fields that steer engines, name hosts or cross tenants stand in one table for every endpoint, those that pass requests
on included. A tenant's rules say whether such a field is an error or is left out; it never reaches an engine.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import orjson

from gateway.api.wire import ChatFields, CompletionFields, GenerationFields, StreamOptions
from gateway.errors import GatewayError, bad_field
from gateway.http.body import JsonObject
from policies.tenant_rules import ClientFieldRules

Fields = TypeVar("Fields", bound=GenerationFields)

BOOKKEEPING_FIELDS = frozenset(
    {
        "length_penalty",
        "metadata",
        "mm_payload",
        "modalities",
        "prediction",
        "prompt_cache_retention",
        "return_mm_kwargs",
        "return_token_offsets",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields that OpenAI's clients send and no engine needs, and those that vLLM ignores itself."""

OWN_FIELDS = BOOKKEEPING_FIELDS.union(ChatFields.__struct_fields__, CompletionFields.__struct_fields__)
"""Fields that never go to an engine as they are, also where the other endpoint reads them."""

PROMPT_FIELDS = frozenset({"messages", "prompt", "tools", "documents", "chat_template_kwargs"})
"""Fields that become the prompt, and go to no engine."""

UNSUPPORTED_FIELDS = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "logprob_token_ids",
        "prompt_embeds",
        "repetition_detection",
        "return_prompt_text",
        "return_tokens_as_token_ids",
        "routed_experts_prompt_start",
        "stream_interval",
        "truncation_side",
        "web_search_options",
    }
)
"""Fields whose effect the gateway cannot give; an error is better than an answer without it."""
ASKS_NOTHING: tuple[object, ...] = (None, False, [], {}, "none")
"""Values with which such a field asks for nothing."""
ASKS_FOR_THE_USUAL: Mapping[str, object] = {"stream_interval": 1, "truncation_side": "left"}
"""Values of some with which they ask for what is done in any case."""

UNTOLD_FIELDS = frozenset({"logprobs", "n", "return_token_ids", "top_logprobs"})
"""Fields of chats whose effect shows in chats alone."""

STRUCTURED_FIELDS = frozenset(
    {
        "ebnf",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "regex",
        "response_format",
        "structural_tag",
        "structured_outputs",
    }
)
"""Constraints that an engine enforces with a grammar."""

THINKING_BUDGET_FIELDS = frozenset({"max_thinking_tokens", "thinking_budget", "thinking_token_budget"})
"""Bounds that an engine counts over its own output."""

STATELESS_FIELDS = frozenset(
    {
        "allowed_token_ids",
        "detokenize",
        "early_stopping",
        "include_reasoning",
        "length_penalty",
        "separate_reasoning",
        "stream_reasoning",
        "top_a",
        "typical_p",
    }
)
"""Fields that engines get as they are and that no engine remembers anything for from one token to the next.

What stands neither here nor among those with a reason of their own is not known, so its answers are not split.
"""

LEAST_INT64, MOST_INT64 = -(1 << 63), (1 << 63) - 1
MOST_LOGPROBS = 20
MOST_STOP_STRINGS, MOST_STOP_CHARACTERS = 64, 8192
MOST_BAD_WORDS, MOST_BAD_WORD_CHARACTERS = 1024, 16384


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number; ``above``: the lower one is exclusive."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.above else 'at least'} {self.low:g} and at most {self.high:g}"


RANGES: Mapping[str, Range] = {
    "max_tokens": Range(1, MOST_INT64),
    "max_completion_tokens": Range(1, MOST_INT64),
    "min_tokens": Range(0, MOST_INT64),
    "n": Range(1, 128),
    "best_of": Range(1, 128),
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above=True),
    "top_k": Range(-1, MOST_INT64),
    "min_p": Range(0, 1),
    "seed": Range(LEAST_INT64, MOST_INT64),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 100, above=True),
    "top_logprobs": Range(0, MOST_LOGPROBS),
    "truncate_prompt_tokens": Range(-1, MOST_INT64),
}


def unsupported(name: str) -> GatewayError:
    return bad_field(name, f"The field {name!r} is not supported.", "unsupported_field")


def read_fields(value: JsonObject, kind: type[Fields]) -> tuple[Fields, JsonObject]:
    """Return the fields that the gateway reads, checked, and the rest, which the engine gets as it is."""
    for name in UNSUPPORTED_FIELDS & value.keys():
        if value[name] not in ASKS_NOTHING and value[name] != ASKS_FOR_THE_USUAL.get(name):
            raise unsupported(name)
    if kind is ChatFields and value.get("echo"):
        raise unsupported("echo")
    try:
        # Not strict: engines take "0.7" and 12.0 for numbers, and "true" for true.
        fields = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise name_field(error) from error
    check_ranges(fields)
    check_sequences(fields)
    check_texts(fields)
    own = OWN_FIELDS | UNSUPPORTED_FIELDS
    rest = {name: entry for name, entry in value.items() if name not in own and entry is not None}
    return fields, rest


def refuse_untold(value: JsonObject) -> None:
    """Refuse fields of chats that ask for what the other APIs' answers have no place for. Raises GatewayError."""
    for name in UNTOLD_FIELDS & value.keys():
        if value[name] not in ASKS_NOTHING and (name, value[name]) != ("n", 1):
            raise unsupported(name)


def check_beside(value: JsonObject, size_bytes: int, most_bytes: int) -> None:
    """Refuse a body with much beside its prompt: each leg of each choice carries that. Raises GatewayError.

    ``size_bytes``: of the whole body.
    """
    if size_bytes <= most_bytes:
        return
    beside = {name: entry for name, entry in value.items() if name not in PROMPT_FIELDS | BOOKKEEPING_FIELDS}
    if len(orjson.dumps(beside)) > most_bytes:
        name = max(beside, key=lambda name: len(orjson.dumps(beside[name])))[:SHOWN_NAME_CHARACTERS]
        message = f"What travels beside the prompt may have {most_bytes} bytes; the most of it is in {name!r}."
        raise bad_field(name, message, "too_much_beside")


def name_field(error: msgspec.ValidationError) -> GatewayError:
    """Return the client's error for a field of the wrong type or a missing one."""
    text = str(error)
    if (missing := re.search(r"missing required field `(\w+)`", text)) is not None:
        return bad_field(missing[1], f"The field {missing[1]!r} is required.", "missing_field")
    where = re.search(r" - at `(?:key in )?\$?\.?(.*)`$", text)
    param = where[1].replace("[...]", "") if where is not None else None
    return bad_field(param, f"{param or 'The body'}: {text.partition(' - at ')[0].lower()}.", "invalid_type")


def check_ranges(fields: GenerationFields) -> None:
    for name, allowed in RANGES.items():
        value = getattr(fields, name, None)
        if value is not None and not allowed.holds(value):
            raise bad_field(name, f"{name} must be {allowed}, and not {value:g}.", "invalid_value")
    if fields.truncate_prompt_tokens == 0:
        raise bad_field("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0.", "invalid_value")
    for name, bias in (fields.logit_bias or {}).items():
        if not name.isdecimal() or not -100 <= bias <= 100:
            raise bad_field("logit_bias", "logit_bias maps token ids to numbers from -100 to 100.", "invalid_value")
    if any(token_id < 0 for token_id in fields.stop_token_ids or ()):
        raise bad_field("stop_token_ids", "stop_token_ids are not negative.", "invalid_value")


def check_sequences(fields: GenerationFields) -> None:
    """Refuse what needs several sequences at once in one engine, and options that contradict each other."""
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        raise bad_field("best_of", "best_of other than n is not supported.", "unsupported_field")
    if fields.use_beam_search:
        raise bad_field("use_beam_search", "Beam search is not supported.", "unsupported_field")
    if fields.prompt_logprobs is not None:
        raise bad_field("prompt_logprobs", "prompt_logprobs is not supported.", "unsupported_field")
    if fields.stream_options not in (None, StreamOptions()) and not fields.stream:
        raise bad_field("stream_options", "stream_options is only allowed when stream is true.")


def check_texts(fields: GenerationFields) -> None:
    """Check the stop strings and the forbidden words."""
    stop = stop_strings(fields)
    if any(not text for text in stop):
        raise bad_field("stop", "A stop string must not be empty.", "invalid_value")
    limits = (
        ("stop", stop, MOST_STOP_STRINGS, MOST_STOP_CHARACTERS),
        ("bad_words", fields.bad_words or (), MOST_BAD_WORDS, MOST_BAD_WORD_CHARACTERS),
    )
    for name, texts, most, characters in limits:
        if len(texts) > most or sum(map(len, texts)) > characters:
            message = f"{name} may hold at most {most} texts and {characters} characters."
            raise bad_field(name, message, "invalid_value")


def stop_strings(fields: GenerationFields) -> tuple[str, ...]:
    """Return the stop strings in either of their spellings."""
    if fields.stop is None:
        return ()
    return (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)


def is_structured(rest: Mapping[str, Any]) -> bool:
    """Say whether the engine is asked to keep to a grammar."""
    asked = [rest[name] for name in STRUCTURED_FIELDS & rest.keys()]
    return any(not (isinstance(value, Mapping) and value.get("type") == "text") for value in asked)


SHOWN_NAME_CHARACTERS = 100

WHERE_KV_IS = frozenset({"kv_transfer_params", "ec_transfer_params", "extra_key", "cache_salt", "session_params"})
WHO_SERVES = frozenset(
    {
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "base_url",
        "custom_llm_provider",
        "data_parallel_rank",
        "deployment_id",
        "extra_headers",
        "extra_query",
        "fallbacks",
        "headers",
        "mock_response",
        "model_list",
        "proxy",
        "ssl_verify",
        "tenant",
        "tenant_id",
    }
)
HOW_IT_RUNS = frozenset(
    {
        "chat_template",
        "custom_logit_processor",
        "custom_params",
        "external_trace_header",
        "extra_args",
        "extra_body",
        "log_metrics",
        "logits_processors",
        "lora_path",
        "lora_request",
        "no_logs",
        "priority",
        "request_id",
        "return_hidden_states",
        "rid",
        "vllm_xargs",
    }
)
WHAT_IS_READ = frozenset(
    {
        "input_embeds",
        "media_io_kwargs",
        "mm_hashes",
        "mm_processor_kwargs",
        "multi_modal_data",
        "multi_modal_uuids",
    }
)
INTERNAL_FIELDS = WHERE_KV_IS | WHO_SERVES | HOW_IT_RUNS | WHAT_IS_READ
INTERNAL_PREFIXES = (
    "aws_",
    "azure_",
    "bootstrap_",
    "disagg_",
    "kv_transfer_",
    "litellm_",
    "pdd_",
    "remote_",
    "routed_dp_",
    "vertex_",
    "x_",
)


CLIENTS_FIELDS = frozenset({*ChatFields.__struct_fields__, *CompletionFields.__struct_fields__})
"""Fields that the gateway reads of every request, so that none needs a closer look."""


def is_internal(name: str) -> bool:
    """Say whether a field is not for clients, in any spelling that somebody could take for it."""
    if name in CLIENTS_FIELDS:
        return False
    plain = name.lower().replace("-", "_").strip()
    return plain in INTERNAL_FIELDS or plain.startswith(INTERNAL_PREFIXES)


def find_internal(names: Iterable[str], rules: ClientFieldRules) -> set[str]:
    """Return the names that are to be left out. Raises GatewayError where the rules refuse them."""
    found = {name for name in names if is_internal(name)}
    if found and rules.internal == "refuse":
        name = min(found)[:SHOWN_NAME_CHARACTERS]
        raise bad_field(name, f"The field {name!r} cannot be set by clients.", "internal_field")
    return found


def without_internal(value: JsonObject, rules: ClientFieldRules) -> JsonObject:
    """Return a body without what clients may not set. Null says nothing. Raises GatewayError."""
    found = set(filter(is_internal, value))
    if not found:
        return value
    find_internal([name for name in found if value[name] is not None], rules)
    return {name: entry for name, entry in value.items() if name not in found}
