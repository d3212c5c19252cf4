"""Fields of a request that are not a client's to set: they steer engines, name hosts, or cross tenants.

One table for every endpoint, those that pass requests on included. A tenant's rules say whether such a field is an
error or is left out; it never reaches an engine.
"""

from collections.abc import Iterable

from gateway.errors import bad_field
from gateway.http.body import JsonObject
from policies.tenant_rules import ClientFieldRules

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


def is_internal(name: str) -> bool:
    """Say whether a field is not for clients, in any spelling that somebody could take for it."""
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
    find_internal((name for name, entry in value.items() if entry is not None), rules)
    return {name: entry for name, entry in value.items() if not is_internal(name)}
