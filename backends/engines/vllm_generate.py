"""vLLM's ``/inference/v1/generate``: token ids in, token ids out, and no text made on the way.

It starts from vLLM's own defaults, ``/v1/completions`` from those of the model's generation_config.json. So
only legs whose sampling leaves nothing to a default may take it; any other would be sampled differently there.
Its events are those of ``backends.engines.vllm_completions`` but for the logprobs.
"""

from typing import Any

import orjson

from backends.engines.vllm_completions import STREAM_OPTIONS, encode_sampling
from backends.types import LegRequest, Sampling

GENERATE_PATH = "/inference/v1/generate"


def leaves_no_default(sampling: Sampling) -> bool:
    """Say whether a model's own defaults would change nothing, and no field is one that only completions know."""
    if sampling.repetition_penalty is None or sampling.extra or sampling.logit_bias:
        return False
    if sampling.temperature == 0:
        return True
    return None not in (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)


def encode_generate(leg: LegRequest) -> bytes:
    """Build the body; what was not given stays absent."""
    sampling = encode_sampling(leg.sampling)
    sampling.pop("return_tokens_as_token_ids", None)
    if leg.max_tokens is not None:
        sampling["max_tokens"] = leg.max_tokens
    if leg.min_tokens:
        sampling["min_tokens"] = leg.min_tokens
    body: dict[str, Any] = {
        "request_id": leg.request_id,
        "model": leg.model,
        "token_ids": leg.prompt if isinstance(leg.prompt, list | tuple) else list(leg.prompt),
        "sampling_params": sampling,
        "stream": True,
        "stream_options": STREAM_OPTIONS,
    }
    if leg.cache_salt is not None:
        body["cache_salt"] = leg.cache_salt
    if leg.priority is not None:
        body["priority"] = leg.priority
    return orjson.dumps(body)
