"""The demo model's byte-level BPE tokenizer and its ChatML template."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backends.engines.reference.demo_model.corpus import Turn, journal, render, turn

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY_TOKENS = 1536
CONTEXT_TOKENS = 16_384

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}{{- part['text'] }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def _sample(seed: int) -> Iterator[str]:
    """Journals and chats that show every word to the tokenizer's trainer."""
    rng = random.Random(f"tokenizer:{seed}")
    for _ in range(300):
        yield journal(rng, 300)
        asked = turn(rng, most_topics=2)
        yield render([Turn(asked.user, asked.assistant)]).replace(IM_START, "").replace(IM_END, "")


def train_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer that knows the corpus' words and falls back to single bytes; ids 0 to 2 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into the directory ``out``."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
