"""From logits to tokens, in vLLM's order: logprobs of the raw logits, penalties and masks, then top-k, top-p, min-p."""

import hashlib
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from backends.engines.dialect import LOWEST_LOGPROB
from backends.engines.reference.sequence import Params, Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    """One new token; ``logprob`` and ``top`` (best first) only where the request asked for them."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws tokens. A seeded request's draw depends on its seed and position alone, not on batching or the engine."""

    def __init__(self) -> None:
        self._random = torch.Generator()
        self._random.seed()
        self._seeded = torch.Generator()

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, sequences: Items[Sequence]) -> list[Sampled]:
        """``logits``: float32 [sequences, vocabulary]."""
        if not sequences:
            return []
        best = logits.argmax(dim=-1).tolist()
        return [
            self._sample_one(row, token, sequence) for row, token, sequence in zip(logits, best, sequences, strict=True)
        ]

    def _sample_one(self, row: torch.Tensor, best: int, sequence: Sequence) -> Sampled:
        params = sequence.params
        changed = _adjust(row, sequence)
        if params.temperature == 0:
            token = best if changed is row else int(changed.argmax())
        else:
            token = self._draw(_filter(changed / params.temperature, params), sequence)
        return Sampled(token) if params.logprobs is None else _with_logprobs(row, token, params.logprobs)

    def _draw(self, logits: torch.Tensor, sequence: Sequence) -> int:
        generator = self._random
        if sequence.params.seed is not None:
            digest = hashlib.blake2b(f"{sequence.params.seed}:{len(sequence.tokens)}".encode(), digest_size=7)
            generator = self._seeded.manual_seed(int.from_bytes(digest.digest(), "big"))
        return int(torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=generator))


def _adjust(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Penalties, bias and masked stops; ``row`` itself when nothing applies."""
    params = sequence.params
    changed = row
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.tokens)))
        values = changed[seen]
        factor = params.repetition_penalty
        changed = changed.index_copy(0, seen, torch.where(values > 0, values / factor, values * factor))
    if params.presence_penalty or params.frequency_penalty:
        output = torch.tensor(sequence.tokens[sequence.prompt_tokens :], dtype=torch.long)
        counts = torch.bincount(output, minlength=len(row)).float()
        changed = changed - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias))
        changed = changed.index_add(0, tokens, torch.tensor(list(params.logit_bias.values())))
    stops = params.stop_token_ids | params.eos_token_ids
    if stops and sequence.output_tokens < params.min_tokens:
        changed = changed.index_fill(0, torch.tensor(sorted(stops)), -torch.inf)
    return changed


def _filter(logits: torch.Tensor, params: Params) -> torch.Tensor:
    """Keep the tokens that top-k, top-p and min-p allow; the best token always stays."""
    if 0 < params.top_k < len(logits):
        logits = logits.masked_fill(logits < torch.topk(logits, params.top_k).values[-1], -torch.inf)
    if params.top_p < 1.0:
        ordered, order = torch.sort(torch.softmax(logits, dim=-1), descending=True)
        before = torch.cumsum(ordered, dim=-1) - ordered
        logits = logits.index_fill(0, order[before >= params.top_p], -torch.inf)
    if params.min_p > 0.0:
        probabilities = torch.softmax(logits, dim=-1)
        logits = logits.masked_fill(probabilities < params.min_p * probabilities.max(), -torch.inf)
    return logits


def _with_logprobs(row: torch.Tensor, token: int, count: int) -> Sampled:
    logprobs = torch.log_softmax(row, dim=-1)
    top = torch.topk(logprobs, count)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return Sampled(
        token,
        max(float(logprobs[token]), LOWEST_LOGPROB),
        tuple((index, max(value, LOWEST_LOGPROB)) for index, value in pairs),
    )
