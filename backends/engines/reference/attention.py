"""Attention over the paged KV pool, plugged into transformers under the name ``IMPLEMENTATION``.

All scheduled tokens of all sequences run through the model as one row, ``[1, tokens]``. Here each sequence's queries
meet its own keys, in parts: the runs of adjacent blocks that hold its history (read in place, no mask), and its new
tokens among themselves (causal). The parts are joined by their log-sum-exp, which is exact up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

IMPLEMENTATION = "pdd_paged"
MIN_RUN_TOKENS = 128
"""Runs shorter than this are copied into one: a kernel call costs more than copying so few keys."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: rows ``row`` to ``row + tokens``, and where its visible history lies.

    ``runs`` are slot ranges read in place; ``scattered`` the remaining slots. For a single token the history includes
    the token itself, so that decoding needs no causal part.
    """

    row: int
    tokens: int
    runs: tuple[tuple[int, int], ...]
    scattered: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What attention needs to know of one step. ``kv``: [layers, 2, kv_heads, slots, head_dim]; ``slots``: [tokens]."""

    kv: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]


def find_runs(blocks: Sequence[int], tokens: int, block_size: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Slots of a sequence's first ``tokens`` tokens: long runs as (start, end), short ones slot by slot."""
    runs: list[tuple[int, int]] = []
    start = previous = None
    full, rest = divmod(tokens, block_size)
    for block in blocks[:full]:
        if previous is None or block != previous + 1:
            if start is not None and previous is not None:
                runs.append((start * block_size, (previous + 1) * block_size))
            start = block
        previous = block
    if start is not None and previous is not None:
        runs.append((start * block_size, (previous + 1) * block_size))
    if rest:
        first = blocks[full] * block_size
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + rest)
        else:
            runs.append((first, first + rest))
    if len(runs) == 1:
        return runs, []
    long = [run for run in runs if run[1] - run[0] >= MIN_RUN_TOKENS]
    short = [slot for run in runs if run[1] - run[0] < MIN_RUN_TOKENS for slot in range(*run)]
    return long, short


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: PagedBatch,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values, then attend.

    ``query``: [1, heads, tokens, head_dim]; ``key`` and ``value``: [1, kv_heads, tokens, head_dim];
    result: [1, tokens, heads, head_dim].
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = paged.kv[layer, 0], paged.kv[layer, 1]
    keys.index_copy_(1, paged.slots, key[0])
    values.index_copy_(1, paged.slots, value[0])
    result = torch.empty_like(query)
    for span in paged.spans:
        rows = slice(span.row, span.row + span.tokens)
        result[:, :, rows] = _attend(query[:, :, rows], key[:, :, rows], value[:, :, rows], keys, values, span, scaling)
    return result.transpose(1, 2), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: Span,
    scaling: float | None,
) -> torch.Tensor:
    _, heads, tokens, head_dim = query.shape
    kv_heads = keys.shape[0]
    # The query heads of one KV head are laid end to end, so that history is read once and never repeated.
    folded = query.reshape(1, kv_heads, heads // kv_heads * tokens, head_dim)
    parts = [_flash(folded, keys[None, :, a:b], values[None, :, a:b], scale=scaling) for a, b in span.runs]
    if span.scattered is not None:
        parts.append(
            _flash(
                folded,
                keys.index_select(1, span.scattered)[None],
                values.index_select(1, span.scattered)[None],
                scale=scaling,
            )
        )
    if tokens > 1:
        groups = heads // kv_heads
        own, weight = _flash(
            query,
            key.repeat_interleave(groups, dim=1),
            value.repeat_interleave(groups, dim=1),
            0.0,
            True,
            scale=scaling,
        )
        parts.append((own.reshape(folded.shape), weight.reshape(folded.shape[:-1])))
    if len(parts) == 1:
        return parts[0][0].reshape(query.shape)
    weights = torch.softmax(torch.stack([weight for _, weight in parts]), dim=0)
    joined = sum((out.float() * share[..., None] for (out, _), share in zip(parts, weights, strict=True)), start=0.0)
    return torch.as_tensor(joined).to(query.dtype).reshape(query.shape)
