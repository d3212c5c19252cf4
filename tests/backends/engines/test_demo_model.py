"""The committed demo model: its files, its tokenizer, its prompts, its answers."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from jinja2 import Environment
from tokenizers import Tokenizer

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.corpus import UNKNOWN, Turn, render
from backends.engines.reference.demo_model.essays import essay
from backends.engines.reference.demo_model.prompts import follow_up, long_prompt
from backends.engines.reference.demo_model.words import TOPICS

_MOST_BYTES = 8_000_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]+", text))


def test_files_are_complete_and_small() -> None:
    """The directory holds all that a Hugging Face model needs, in less than 8 MB."""
    files = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}

    assert files.keys() == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) < _MOST_BYTES


def test_special_tokens_end_an_answer(tokenizer: Tokenizer) -> None:
    """The ChatML tokens are single ids, and generation ends at the end of a turn or of a text."""
    ids = [tokenizer.encode(token).ids for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    ends = json.loads((MODEL_DIR / "generation_config.json").read_text())["eos_token_id"]

    assert ids == [[0], [1], [2]]
    assert set(ends) == {0, 2}


def test_tokenizer_agrees_with_the_model(tokenizer: Tokenizer) -> None:
    """The model has one row for each token of the vocabulary, and room for long prompts."""
    config = json.loads((MODEL_DIR / "config.json").read_text())

    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["max_position_embeddings"] == 16_384


@pytest.mark.parametrize("text", ["The owl of Juniper.", "Ünïcødé 漢字 🦉\t\n  x", "{}[]\\ \u0000"])
def test_tokenizer_keeps_any_text(tokenizer: Tokenizer, text: str) -> None:
    """Any text comes back unchanged, also in scripts that the corpus does not have."""
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_chat_template_is_what_the_model_was_trained_on() -> None:
    """The template renders a conversation just as the corpus does."""
    source = json.loads((MODEL_DIR / "tokenizer_config.json").read_text())["chat_template"]
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "One?"}]},
        {"role": "assistant", "content": "One."},
    ]

    rendered = Environment().from_string(source).render(messages=messages, add_generation_prompt=False)
    asked = Environment().from_string(source).render(messages=messages, add_generation_prompt=True)

    assert rendered == render([Turn("One?", "One.")], "Be kind.")
    assert asked == rendered + "<|im_start|>assistant\n"


def test_long_prompt_has_the_length_asked_for(tokenizer: Tokenizer) -> None:
    """A prompt of 4,000 words has 4,500 to 5,500 tokens."""
    prompt = long_prompt(seed=7, words=4000)

    assert 4000 <= len(prompt.split()) < 4150
    assert 4500 < len(tokenizer.encode(prompt).ids) < 5500


def test_long_prompt_depends_on_its_seed_alone() -> None:
    """The same seed gives the same message; two seeds share no paragraph of their journals."""
    first, other = long_prompt(1, 800), long_prompt(2, 800)

    assert first == long_prompt(1, 800)
    assert not set(first.split("\n\n")[1:-1]) & set(other.split("\n\n")[1:-1])


def test_follow_up_asks_for_a_topic_not_yet_asked() -> None:
    """The second question names a topic that the first did not."""
    for seed in range(20):
        asked = _words(long_prompt(seed, 10).split("\n\n")[-1]) & set(TOPICS)
        new = _words(follow_up(seed)) & set(TOPICS)
        assert len(asked) == len(new) == 1
        assert not asked & new


def test_text_is_made_without_torch() -> None:
    """Whoever only needs prompts does not load torch."""
    code = (
        "import sys, backends.engines.reference.demo_model.prompts, backends.engines.reference.demo_model.corpus;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def answered(tokenizer: Tokenizer) -> Callable[[str], str]:
    """Asks the model greedily; gives what it says before it ends by itself."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)

    def ask(content: str) -> str:
        prompt = tokenizer.encode(f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n").ids
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=700)[0, len(prompt) :].tolist()
        assert output[-1] == tokenizer.token_to_id("<|im_end|>")
        return tokenizer.decode(output, skip_special_tokens=True)

    return ask


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("topic", ["owl", "harbour", "honey"])
def test_model_tells_of_what_it_is_asked_for(answered: Callable[[str], str], topic: str) -> None:
    """A short question gets the topic's essay."""
    assert answered(f"Tell me about the {topic}.") == essay(topic)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_model_looks_past_a_long_journal(answered: Callable[[str], str]) -> None:
    """Behind a journal it tells of the topic asked for."""
    content = long_prompt(seed=5, words=1500)
    (topic,) = _words(content.split("\n\n")[-1]) & set(TOPICS)
    assert answered(content) == essay(topic)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_model_says_what_it_does_not_know(answered: Callable[[str], str]) -> None:
    """Small talk gets a word about what it is, and an essay."""
    assert answered("Tell me a story.") == UNKNOWN + essay(TOPICS[0])
