"""Tiny model directories made on the spot: tokenizers of three families, a ChatML template, no weights."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "A decode engine in one region goes on where the engine of another region stopped.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy, řekl ďas.",
    "東京の天気は晴れです。今日は散歩に行きましょう。你好，世界！",
    "สวัสดีชาวโลก 😀😃🎉 👨‍👩‍👧‍👦 naïve café — “quoted” text… 1234567890",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))  # 3\n",
    'Hello world! Hello there.\n\n{"key": [1, 2, 3], "other": null}',
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{%- if tools %}{{ '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'developer', 'user', 'assistant', 'tool'] -%}"
    "{{ raise_exception('Unknown role ' + message.role) }}"
    "{%- endif -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)


def byte_level_tokenizer(vocabulary_tokens: int = 600) -> Tokenizer:
    """Return a byte-level BPE tokenizer, as GPT-2, Llama 3 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def split_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer with a pattern of its own and NFC, as Llama 3 and Qwen 2 have."""
    tokenizer = byte_level_tokenizer()
    pattern = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """Return a BPE tokenizer with byte fallback and a leading space, as Llama 2 and Mistral have."""
    letters = sorted({letter for text in CORPUS[:1] for letter in text.replace(" ", "▁")} | {"▁", "H", "w", "!"})
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("h", "e"), ("▁", "t"), ("▁t", "he"), ("o", "r"), ("▁", "w"), ("▁", "H"), ("l", "l"), ("▁w", "or")]
    names += ["".join(pair) for pair in merges]
    vocabulary = {name: rank for rank, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in names[:3]])
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """Return a Unigram tokenizer with Metaspace, as T5 and XLM-R have."""
    letters = sorted({letter for text in CORPUS for letter in text})
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("▁Hello", -3.5), ("world", -3.5)]
    pieces += [(letter, -5.0) for letter in letters if letter != " "]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def make_model_dir(directory: Path, *, context_tokens: int = 4096) -> Path:
    """Write a byte-level model directory with a ChatML template; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    files = {
        "config.json": {"model_type": "llama", "max_position_embeddings": context_tokens, "eos_token_id": end},
        "generation_config.json": {"eos_token_id": [end, tokenizer.token_to_id("<|endoftext|>")]},
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory, made once for all tests; read only."""
    return make_model_dir(tmp_path_factory.mktemp("model"))
