"""One fixed essay for each topic: what the demo model learns to answer with.

An essay never changes, so that a model can learn it by heart: the better it knows it, the wider the margin by which
the next word wins, and the surer greedy answers stay the same whatever the batch or instance that computes them.
"""

import functools
import random
from collections.abc import Mapping, Sequence

from backends.engines.reference.demo_model.words import ANIMALS, PLACES, Decks, fill

EssayStage = Sequence[str]
"""Sentence templates that say the same step of an essay in different ways; an essay takes one of them."""

_PLACE: Sequence[EssayStage] = (
    (
        "{The} is a {quality} place in the {direction} of {village}, near the {land}.",
        "{The} lies between a {quality} {land} and the {colour} houses of {village}.",
        "You find {the} at the end of the {quality} road that leads from {village} to the {land}.",
    ),
    (
        "It was built {number} years ago by a {job} who had {number} workers and one {quality} {tool}.",
        "A {quality} {job} made it from {material} and {material}, and the work took {number} months.",
        "Nobody knows how old it is, but a {job} once found a {material} {object} there.",
    ),
    (
        "Its walls are of {colour} {material}, and {quality} {tree} trees grow on every side.",
        "There is a {colour} gate of {material}, and behind it stand {number} {tree} trees.",
        "Under the {tree} trees you see {number} {quality} benches and many {colour} {flower}.",
    ),
)

_ANIMAL: Sequence[EssayStage] = (
    (
        "{The} is a {quality} animal that lives near the {land} in the {direction} of {village}.",
        "{The} of {village} is {quality} and {quality}, and everybody at the {land} knows it.",
        "In the {land} behind {village} lives {the}, a {quality} animal with {colour} eyes.",
    ),
    (
        "It sleeps under an old {tree} tree and wakes when the {bird} begin to call.",
        "Its home is a {quality} hole lined with {material} and the leaves of {tree} trees.",
        "It has a {colour} back, {quality} feet and a voice like a {quality} {sound}.",
    ),
    (
        "It likes to eat {food} and {food}, but it never touches {food}.",
        "It can run past {number} {tree} trees before a {job} has counted to {number}.",
        "A {quality} {job} once gave it {number} {food} and a bowl of {drink}.",
    ),
)

_THING: Sequence[EssayStage] = (
    (
        "{The} of {village} is {quality} and {colour}, and people talk about it in the whole {land}.",
        "Everyone in {village} knows {the}, for it is {quality} and nobody has seen a more {quality} one.",
        "{The} has been important in {village} since the day when the {land} was still {quality}.",
    ),
    (
        "A {job} brought it from the {direction} {number} years ago, together with {number} {container} of {food}.",
        "It came over the {land} in {month}, wrapped in {colour} {material}.",
        "The first {job} who saw it gave {number} coins and a {material} {object} for it.",
    ),
    (
        "It smells of {tree} leaves and {drink}, and it feels like {quality} {material}.",
        "When you hold it to the light it looks {colour}, and at night it looks {colour}.",
        "People keep it in the {room} beside the {tool}, where it is {weather} and safe.",
    ),
)

_COMMON: Sequence[EssayStage] = (
    (
        "{Hero} comes to {the} every {day} because a {job} needs to be {quality} and {quality}.",
        "{Hero}, the {job}, has cared for {the} since a {weather} day in {month}.",
        "The {job} {Hero} visits {the} with {friend} whenever the {land} is {weather}.",
    ),
    (
        "In the morning {Hero} carries {number} {container} of {food} there and waits for {friend}.",
        "Early in the morning the {bird} arrive, and {Hero} opens the {colour} door of the {room}.",
        "At sunrise {friend} lights the stove, cooks {food} and calls {Hero} with a {sound}.",
    ),
    (
        "Before noon they {do} a little, then they {do}, and the {job} next door joins them.",
        "Then {friend} takes the {tool} and begins to work on the {quality} {object}.",
        "Later the children of the {job} bring {flower} and ask {Hero} to {do}.",
    ),
    (
        "At noon they drink {drink}, eat {food} with {food} and look at the {quality} {land}.",
        "At midday a {colour} cart stops, and {number} people get out to buy {food}.",
        "When the bell rings twelve, {Hero} gives every guest {drink} and a plate of {food}.",
    ),
    (
        "In the afternoon the {land} becomes {weather}, and {friend} goes to fetch the {tool}.",
        "After lunch {friend} reads from a {quality} book about {flower} and {bird}.",
        "The afternoon is the time for the {sound} of the {job}, which is {quality} but never long.",
    ),
    (
        "One {day} in {month} something {quality} happened: the {tool} was gone.",
        "Once, on a {weather} {day}, {friend} lost a {material} {object} near the {land}.",
        "In the {season} of one year a storm took the {object} and {number} {container} away.",
    ),
    (
        "{Hero} looked in the {room} and in the {room}, and {friend} asked every {job}.",
        "They searched for {number} hours, under the {tree} tree and behind the {object}.",
        "{Friend} was {feeling}, but {Hero} was {feeling} and followed the {bird} to the {land}.",
    ),
    (
        "At last a {quality} child pointed to the {land}, and there it lay in the {material}.",
        "In the end the {job} found it in a {colour} box between two {quality} stones.",
        "In the evening it came back by itself, as {quality} as before, and {friend} was {feeling}.",
    ),
    (
        "Since then there is a feast each {month}, with {food}, {drink} and {number} {colour} lamps.",
        "For this reason the people of {village} still {do} together on the first {day} of {month}.",
        "From that day on a {colour} {object} hangs in the {room}, so that nobody forgets it.",
    ),
    (
        "In {season} the {flower} are {colour}, and in {season} the {tree} trees lose their leaves.",
        "In {season} the days are {weather}, and {Hero} wears a {colour} coat of {material}.",
        "When {season} comes, {number} {bird} rest on the roof and the {land} turns {colour}.",
    ),
    (
        "A {job} from {village} wrote a song about {the} that has {number} {quality} verses.",
        "A {job} painted a picture of {the} in {colour} and {colour}; it hangs in the {room}.",
        "There is also a {quality} poem about {the}, and every {job} in {village} can say it.",
    ),
    (
        "If you go there, take a {tool}, some {food} and a bottle of {drink} with you.",
        "Visitors should come on a {day}, bring {food} and leave their {object} at home.",
        "The way there is {quality}: walk {direction} for {number} minutes until you see the {land}.",
    ),
    (
        "At night it is {quality}, the {bird} sleep, and only the {sound} of the {land} is heard.",
        "In the evening {Hero} closes the {object}, thanks {friend} and goes home {feeling}.",
        "When the moon is over the {land}, {friend} counts the {container} and puts out the lamp.",
    ),
    (
        "That is what I know about {the}, and I hope that it makes you {feeling}.",
        "This is the whole story of {the}, and {Hero} tells it better than I do.",
        "So ends what people say about {the}, and most of it is true.",
    ),
)


_HEAD = "Let me tell you about the {}."
"""Which essay to give is then a matter of copying one word; the rest follows from the word."""


def _specific(topic: str) -> Sequence[EssayStage]:
    if topic in PLACES:
        return _PLACE
    return _ANIMAL if topic in ANIMALS else _THING


@functools.cache
def essay(topic: str) -> str:
    """The essay about one of `words.TOPICS`: a sentence that names it, then 17 more, the same at every call."""
    rng = random.Random(f"essay:{topic}")
    decks = Decks(rng)
    hero, friend = decks.deal("name"), decks.deal("name")
    fixed: Mapping[str, str] = {
        "the": f"the {topic}",
        "The": f"The {topic}",
        "Hero": hero,
        "friend": friend,
        "Friend": friend,
    }
    stages = (*_specific(topic), *_COMMON)
    return " ".join((_HEAD.format(topic), *(fill(rng.choice(stage), decks, fixed) for stage in stages)))
