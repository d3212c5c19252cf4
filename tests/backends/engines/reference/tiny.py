"""Tiny random-weight models with their own tokenizer, made in a second."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

VOCAB_TOKENS = 320
EOS = "<|end|>"


def make_tokenizer(directory: Path) -> int:
    """A byte-level BPE tokenizer; the id of its EOS token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and then rests in the sun"], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    eos = tokenizer.token_to_id(EOS)
    assert eos is not None
    return int(eos)


def make_model(directory: Path, family: str, seed: int = 7, context_tokens: int = 2048) -> Path:
    """Write a model directory of the ``llama`` or ``qwen3`` family."""
    directory.mkdir(parents=True, exist_ok=True)
    eos = make_tokenizer(directory)
    config_class = {"llama": LlamaConfig, "qwen3": Qwen3Config}[family]
    config = config_class(
        vocab_size=VOCAB_TOKENS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=eos,
        eos_token_id=eos,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    return directory
