"""``POST /v1/completions``: prompts in any of their spellings to a prepared request."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.api.fields import MOST_LOGPROBS, read_fields
from gateway.api.models import Models
from gateway.api.prepare import (
    MOST_CHOICES,
    Caller,
    PreparedRequest,
    Prompted,
    encode_prompt,
    over_context,
    prepare_request,
    read_by_engine,
)
from gateway.api.wire import CompletionFields
from gateway.errors import bad_field
from gateway.http.body import JsonObject
from gateway.text.model import ServedModel
from policies.where import Where

DEFAULT_MAX_TOKENS = 16
"""OpenAI's and vLLM's limit for completions that name none."""
INLINE_IDS = 50_000
"""Prompts of more ids are checked beside the event loop."""
STEP_IDS = 1 << 15
Prompt = str | list[int]


async def prepare_completion(value: JsonObject, size_bytes: int, models: Models, caller: Caller) -> PreparedRequest:
    """Tokenise the prompts. ``size_bytes``: of the body. Raises GatewayError."""
    fields, rest = read_fields(value, CompletionFields)
    model = models.find(fields.model, caller.rules.models)
    check_options(fields)
    prompts = split_prompts(fields.prompt)
    if len(prompts) > MOST_CHOICES:
        raise bad_field("prompt", f"A request may hold at most {MOST_CHOICES} prompts.")
    ids = []
    for rank, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            special = fields.add_special_tokens is not False
            if model.encodes or models.readings is None:
                guard = model.control.guard(caller.rules.prompts.special_tokens)
                text = partial(str if guard is None else guard, prompt)
                ids.append(await encode_prompt(text, len(prompt), fields, model, "prompt", special, caller))
            else:
                read_by_engine(prompt, model, caller, "prompt")
                allows = Where.of(caller.rules).allows
                ids.append(list(await models.readings.ask_text(model.name, prompt, special, allows)))
        else:
            path = "prompt" if len(prompts) == 1 else f"prompt[{rank}]"
            if len(prompt) >= model.context_tokens:
                # Before its ids are looked at: they may be very many.
                if fields.truncate_prompt_tokens is None:
                    raise over_context(path, model, len(prompt))
                prompt = prompt[-model.context_tokens :]
            if len(prompt) > INLINE_IDS:
                await asyncio.to_thread(check_ids, prompt, path, model)
            else:
                check_ids(prompt, path, model)
            ids.append(prompt)
    prompted = Prompted(
        id_prefix="cmpl",
        prompts=tuple(ids),
        prompt_field="prompt",
        limit_field="max_tokens",
        max_tokens=fields.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=fields.logprobs,
        echoes=tuple(spell(prompt, model) for prompt in prompts) if fields.echo else (),
    )
    return prepare_request(fields, rest, prompted, model, caller)


def check_options(fields: CompletionFields) -> None:
    """Refuse what cannot be given."""
    if fields.logprobs is not None and not 0 <= fields.logprobs <= MOST_LOGPROBS:
        raise bad_field("logprobs", f"logprobs must be from 0 to {MOST_LOGPROBS}.", "invalid_value")
    if fields.suffix:
        raise bad_field("suffix", "suffix is not supported.", "unsupported_field")
    if fields.echo and fields.logprobs is not None:
        raise bad_field("echo", "echo with logprobs is not supported.", "unsupported_field")


def split_prompts(prompt: str | list[Any]) -> Sequence[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_field("prompt", "prompt must not be empty.", "invalid_value")
    if all(isinstance(entry, str | list) for entry in prompt):
        return prompt
    return [prompt]


def check_ids(ids: Sequence[Any], path: str, model: ServedModel) -> None:
    """Check a prompt of token ids."""
    if not ids:
        raise bad_field(path, "A prompt must not be empty.", "invalid_value")
    # In steps: while one of them runs no other thread does, and so nobody else's request.
    steps = [ids[at : at + STEP_IDS] for at in range(0, len(ids), STEP_IDS)]
    if any(set(map(type, step)) != {int} for step in steps):
        raise bad_field(path, "A prompt is text or a list of token ids.", "invalid_type")
    if any(min(step) < 0 or max(step) >= model.vocabulary.size for step in steps):
        raise bad_field(path, f"Token ids go from 0 to {model.vocabulary.size - 1}.", "invalid_value")


def spell(prompt: Prompt, model: ServedModel) -> str:
    """Return a prompt's text."""
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt, skip_special_tokens=False)
