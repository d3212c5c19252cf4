from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engines.reference.attention import MIN_RUN_TOKENS, PagedBatch, Span, find_runs, paged_attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 8, 4


@given(blocks=st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True), data=st.data())
def test_runs_cover_every_token_once(blocks: list[int], data: st.DataObject) -> None:
    """Long runs and scattered slots together are the slots of the tokens, in any layout."""
    tokens = data.draw(st.integers(0, len(blocks) * BLOCK))
    runs, scattered = find_runs(blocks, tokens, BLOCK)
    covered = sorted([slot for start, end in runs for slot in range(start, end)] + scattered)
    assert covered == sorted(blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(tokens))
    if len(runs) > 1 or scattered:
        assert all(end - start >= MIN_RUN_TOKENS for start, end in runs)


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last rows over all keys, in float64."""
    groups = HEADS // KV_HEADS
    q, k, v = query.double(), key.double().repeat_interleave(groups, 0), value.double().repeat_interleave(groups, 0)
    scores = q @ k.transpose(1, 2) / HEAD_DIM**0.5
    new, total = q.shape[1], k.shape[1]
    scores.masked_fill_(~torch.ones(new, total, dtype=torch.bool).tril(total - new), -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_each_sequence_sees_its_own_tokens_only(dtype: torch.dtype, lengths: list[tuple[int, int]], seed: int) -> None:
    """Batched paged attention equals plain causal attention of each sequence, wherever its blocks lie."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    blocks_each = [-(-(history + new) // BLOCK) for history, new in lengths]
    order = torch.randperm(sum(blocks_each) + 5, generator=generator).tolist()
    if seed % 2:
        order.sort()
    kv = random(1, 2, KV_HEADS, len(order) * BLOCK, HEAD_DIM)
    total = sum(new for _, new in lengths)
    query, key, value = random(1, HEADS, total, HEAD_DIM), random(1, KV_HEADS, total, HEAD_DIM), None
    value = random(1, KV_HEADS, total, HEAD_DIM)
    spans, slots, wanted, row = [], [], [], 0
    for (history, new), count in zip(lengths, blocks_each, strict=True):
        blocks, order = order[:count], order[count:]
        own = [blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(history + new)]
        runs, scattered = find_runs(blocks, history + 1 if new == 1 else history, BLOCK)
        spans.append(Span(row, new, tuple(runs), torch.tensor(scattered) if scattered else None))
        slots += own[history:]
        rows = slice(row, row + new)
        past = kv[0, :, :, torch.tensor(own[:history], dtype=torch.long)]
        keys, values = torch.cat([past[0], key[0, :, rows]], 1), torch.cat([past[1], value[0, :, rows]], 1)
        wanted.append(reference(query[0, :, rows], keys, values))
        row += new
    module = SimpleNamespace(layer_idx=0)
    batch = PagedBatch(kv, torch.tensor(slots), tuple(spans))
    with torch.inference_mode():
        got, _ = paged_attention(module, query, key, value, None, paged=batch, scaling=HEAD_DIM**-0.5)  # type: ignore[arg-type]
    tolerance = 1e-5 if dtype is torch.float32 else 0.03
    torch.testing.assert_close(got[0].double(), torch.cat(wanted), rtol=tolerance, atol=tolerance)
    assert torch.equal(kv[0, 0][:, slots], key[0])
