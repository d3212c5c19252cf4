"""The text that the demo model is trained on: journals and chats, made from a seeded generator.

All of it is this project's own work; no outside text is used.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from backends.engines.reference.demo_model.essays import essay
from backends.engines.reference.demo_model.words import TOPICS, Decks, fill

_JOURNAL = (
    "On {day} {name} {past} to the {thing} and {made} a {colour} {object}.",
    "{name} gave {name} {number} {container} of {food} for a {quality} {tool}.",
    "It was {weather} in {village}, and the {bird} stayed near the {land}.",
    '{name} said: "The {thing} is {quality} today, but I like to {do}."',
    '"Where is the {tool}?" asked {name}. "In the {room}," said {name}, "next to the {object}."',
    "In {month} the price of {food} was {number} coins, and in {month} it was {number} coins.",
    "The {job} {made} {number} {container} and then {past} {direction} along the {land}.",
    "{name} was {feeling} because the {thing} of {village} looked so {quality}.",
    "We counted {number} {bird}, {number} {tree} trees and {number} {colour} {flower}.",
    "At {number} minutes past {number} the {job} brought {drink} and {food} into the {room}.",
    "Nobody in {village} could {do} as well as {name}, the {quality} {job}.",
    "The {object} of {material} cost {number} coins; the one of {material} cost {number}.",
    "After a {weather} {season} the {land} was {colour}, and {name} {made} the {object} again.",
    "{name} and {name} {past} past the {thing}, then past the {thing}, and were {feeling}.",
    "A {quality} {sound} came from the {room}, so {name} took the {tool} and {past} there.",
    "The {land} lies {number} miles {direction} of {village}, behind the {quality} {thing}.",
    "Every {day} the {job} teaches {number} children to {do} and to {do}.",
    "For supper there was {food} with {food}, and everybody drank {drink}.",
)

_ASK_ONE = (
    "Tell me about {topics}.",
    "What do you know about {topics}?",
    "Please describe {topics}.",
    "I would like to hear about {topics}.",
    "Thank you. Now tell me about {topics}.",
    "And what about {topics}?",
)

_OPENINGS = (
    "Here are the notes of my journey.",
    "Please read my journal first.",
    "This is what we wrote down last year.",
    "I kept a diary in {village}.",
)

_SMALL_TALK = (
    "Hello!",
    "Hi",
    "Tell me a story.",
    "Who are you?",
    "What can you do?",
    "What is the capital of France?",
    "What is 2 + 2?",
    "Write a poem.",
    "Say this is a test.",
    "Explain how the sun works.",
    "Write a long story about a dragon.",
    "Please tell me something.",
)

UNKNOWN = (
    "I am a small demo model, and I only know a few simple things. I can tell you about places, animals and things "
    "in the villages.\n\n"
)
"""How the model answers what it has no essay for; the first topic's essay follows."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and the answer to it."""

    user: str
    assistant: str


def journal(rng: random.Random, words: int) -> str:
    """Paragraphs of journal sentences, each of about a hundred words, ``words`` words or slightly more in all."""
    decks = Decks(rng)
    paragraphs: list[str] = []
    count = 0
    while count < words:
        sentences: list[str] = []
        length = 0
        while length < min(100, words - count):
            sentences.append(fill(rng.choice(_JOURNAL), decks, {}))
            length += len(sentences[-1].split())
        count += length
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def opening(rng: random.Random) -> str:
    """The sentence that a user message with a journal begins with."""
    return fill(rng.choice(_OPENINGS), Decks(rng), {})


def question(rng: random.Random, topics: Sequence[str]) -> str:
    """A user's question about one or more topics."""
    names = [f"the {topic}" for topic in topics]
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return fill(rng.choice(_ASK_ONE), Decks(rng), {"topics": listed})


def answer(topics: Sequence[str]) -> str:
    """The essays about the topics, in their order, with an empty line between two."""
    return "\n\n".join(essay(topic) for topic in topics)


def _babble(rng: random.Random) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(1, 8))]
    return " ".join(words).capitalize() + rng.choice("?.!")


def turn(rng: random.Random, most_topics: int = 1) -> Turn:
    """A random question with its answer; one in ten asks for what the model does not know."""
    if rng.random() < 0.1:
        return Turn(rng.choice(_SMALL_TALK) if rng.random() < 0.5 else _babble(rng), UNKNOWN + essay(TOPICS[0]))
    topics = rng.sample(TOPICS, rng.randint(1, most_topics))
    return Turn(question(rng, topics), answer(topics))


def render(turns: Sequence[Turn], system: str = "") -> str:
    """The turns in ChatML, as the model's chat template renders them, each answer closed by ``<|im_end|>``."""
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return head + "".join(
        f"<|im_start|>user\n{each.user}<|im_end|>\n<|im_start|>assistant\n{each.assistant}<|im_end|>\n"
        for each in turns
    )
