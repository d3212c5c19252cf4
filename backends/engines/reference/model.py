"""Runs a Hugging Face causal model over a paged KV pool, one step at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from backends.engines.reference.attention import IMPLEMENTATION, PagedBatch, Span, find_runs, paged_attention
from backends.engines.reference.scheduler import Work

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

AttentionInterface.register(IMPLEMENTATION, paged_attention)


class UnsupportedModel(Exception):
    """The directory does not hold a model that this engine can run."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the rest of the engine needs to know of the model."""

    layers: int
    kv_heads: int
    head_dim: int
    vocab_tokens: int
    context_tokens: int
    eos_token_ids: frozenset[int]
    dtype: torch.dtype

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


def read_shape(directory: Path, dtype: str) -> ModelShape:
    """Read a model's configuration. Raises UnsupportedModel."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{directory}: no usable config.json ({error})") from error
    if config.model_type not in ("llama", "qwen2", "qwen3", "mistral"):
        raise UnsupportedModel(f"{directory}: model type {config.model_type!r} is not supported")
    heads = config.num_attention_heads
    context = config.max_position_embeddings
    window = getattr(config, "sliding_window", None)
    if window:
        # Attention here sees all of the history, which is the same thing up to the window's length.
        context = min(context, window)
    return ModelShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_tokens=config.vocab_size,
        context_tokens=context,
        eos_token_ids=_eos_ids(directory, config),
        dtype=DTYPES[dtype],
    )


def _eos_ids(directory: Path, config: PreTrainedConfig) -> frozenset[int]:
    """EOS ids as generation uses them: generation_config.json wins over config.json."""
    value = config.eos_token_id
    if (directory / "generation_config.json").is_file():
        value = GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id or value
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset({value})


class ModelRunner:
    """The model and its KV pool.

    ``forward`` is called from one thread at a time; reads and writes of blocks that no step touches may run beside it.
    """

    def __init__(self, directory: Path, shape: ModelShape, blocks: int, block_size_tokens: int) -> None:
        self.shape = shape
        self.block_size_tokens = block_size_tokens
        self._model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=shape.dtype, attn_implementation=IMPLEMENTATION, local_files_only=True
        ).eval()
        self._kv = torch.zeros(
            shape.layers, 2, shape.kv_heads, blocks * block_size_tokens, shape.head_dim, dtype=shape.dtype
        )

    @torch.inference_mode()
    def forward(self, work: Sequence[Work]) -> torch.Tensor:
        """Compute the KV of all tokens of ``work``; float32 logits [items that sample, vocabulary], in order."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        rows: list[int] = []
        for item in work:
            spans.append(self._span(item, len(ids)))
            end = item.start + item.tokens
            ids.extend(item.sequence.tokens[item.start : end])
            positions.extend(range(item.start, end))
            slots.extend(self.slots(item.sequence.blocks, item.start, end))
            if item.samples:
                rows.append(len(ids) - 1)
        batch = PagedBatch(self._kv, torch.tensor(slots), tuple(spans))
        output = self._model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, dtype=torch.long),
            paged=batch,
        )
        return output.logits[0].float()

    def slots(self, blocks: Sequence[int], start: int, end: int) -> list[int]:
        """Pool slots of tokens ``start`` to ``end`` of a sequence that holds ``blocks``."""
        size = self.block_size_tokens
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    @torch.inference_mode()
    def read_kv(self, slots: Sequence[int]) -> torch.Tensor:
        """Copy KV out of the pool: [2, layers, tokens, kv_heads * head_dim]."""
        picked = self._kv.index_select(3, torch.tensor(slots))
        return picked.permute(1, 0, 3, 2, 4).reshape(2, self.shape.layers, len(slots), -1)

    @torch.inference_mode()
    def write_kv(self, slots: Sequence[int], values: torch.Tensor, first_head: int = 0) -> None:
        """Copy KV of the form that ``read_kv`` gives into the pool, of all heads or of some from ``first_head`` on."""
        split = values.view(2, self.shape.layers, len(slots), -1, self.shape.head_dim)
        heads = self._kv[:, :, first_head : first_head + split.shape[3]]
        heads.index_copy_(3, torch.tensor(slots), split.permute(1, 0, 3, 2, 4))

    def _span(self, item: Work, row: int) -> Span:
        history = item.start + 1 if item.tokens == 1 else item.start
        runs, scattered = find_runs(item.sequence.blocks, history, self.block_size_tokens)
        return Span(row, item.tokens, tuple(runs), torch.tensor(scattered) if scattered else None)
