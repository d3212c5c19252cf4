"""Long user messages for demonstrations and tests, in the words that the demo model was trained on."""

import random

from backends.engines.reference.demo_model.corpus import journal, opening
from backends.engines.reference.demo_model.words import TOPICS


def _topics(seed: int) -> tuple[str, str]:
    first, second = random.Random(f"topics:{seed}").sample(TOPICS, 2)
    return first, second


def long_prompt(seed: int, words: int) -> str:
    """A user message: a journal of about ``words`` words, then a question about one topic.

    The same seed and length give the same message; another seed shares no paragraph with it. One word is about
    1.24 tokens of the demo model's tokenizer.
    """
    rng = random.Random(f"prompt:{seed}")
    topic, _ = _topics(seed)
    return f"{opening(rng)}\n\n{journal(rng, words)}\n\nTell me about the {topic}."


def follow_up(seed: int) -> str:
    """The user's next question in the conversation that `long_prompt` of the same seed opened."""
    return f"Thank you. Now tell me about the {_topics(seed)[1]}."
