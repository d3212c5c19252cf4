"""The words that the demo model's text is built from.

A sentence template names a kind in braces; `fill` puts a word of that kind there.
"""

import random
import re
from collections.abc import Iterator, Mapping

PLACES = ("harbour", "mill", "forest", "market", "lighthouse", "garden", "bridge", "castle")
ANIMALS = ("fox", "owl", "horse", "heron", "otter", "goat", "dog", "bear")
THINGS = ("bread", "clock", "boat", "honey", "kite", "violin", "lantern", "snow")
TOPICS = PLACES + ANIMALS + THINGS

WORDS: Mapping[str, tuple[str, ...]] = {
    "name": tuple(
        "Anna Boris Clara David Elena Felix Greta Henry Ida Jonas Karin Leo Maria Nils Olga Peter Rosa Simon "
        "Tilda Victor Wanda Yusuf Zora Amir Bella Carlos Daria Emil Fatima Gustav".split()
    ),
    "village": tuple(
        "Alder Birch Cedar Dover Elm Fern Holly Ivy Juniper Linden Maple Oakham Pine Rowan Sorrel".split()
    ),
    "colour": tuple("red blue green yellow white black brown grey golden silver beige purple pink".split()),
    "quality": tuple(
        "quiet modern small bright gentle strong narrow wide warm cold clean curious patient heavy light round tall "
        "soft smooth simple famous hidden lonely cheerful careful clever lucky noisy proud plain".split()
    ),
    "feeling": tuple("happy tired hungry calm proud surprised thankful sleepy brave excited worried glad".split()),
    "food": tuple(
        "apples pears plums cherries carrots onions potatoes beans mushrooms cheese butter eggs nuts rice soup "
        "cake biscuits fish grapes berries".split()
    ),
    "drink": tuple("tea milk water coffee cocoa juice lemonade cider".split()),
    "container": tuple("baskets boxes bags barrels jars buckets bowls crates".split()),
    "tool": tuple("hammer rope ladder needle shovel brush knife wheel saw compass map candle net key bell".split()),
    "material": tuple("wood stone steel glass clay wool paper copper straw leather silk sand".split()),
    "number": tuple(
        "two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty sixty".split()
    ),
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "month": tuple("January February March April May June July August September October November December".split()),
    "season": ("spring", "summer", "autumn", "winter"),
    "weather": tuple("sunny cloudy windy rainy foggy stormy frosty mild dry misty".split()),
    "tree": tuple("oak beech willow poplar chestnut walnut hazel spruce larch".split()),
    "flower": tuple("roses daisies tulips poppies violets lilies bluebells sunflowers".split()),
    "bird": tuple("swallows sparrows gulls crows finches storks robins pigeons geese".split()),
    "job": tuple(
        "baker teacher sailor farmer doctor painter carpenter miller tailor gardener musician fisherman "
        "shepherd blacksmith librarian".split()
    ),
    "room": tuple("kitchen cellar attic hall workshop library stable school barn bakery".split()),
    "sound": tuple("song whistle bell drum laugh whisper story echo melody knock".split()),
    "do": tuple(
        "sing read paint dance swim cook dig climb fish sew write draw whistle plant bake knit run listen".split()
    ),
    "past": tuple("walked rode hurried sailed returned travelled wandered climbed marched followed".split()),
    "made": tuple("built painted repaired cleaned measured carried sold bought found borrowed".split()),
    "object": tuple(
        "table chair window door roof wall letter book coat hat blanket mirror ring coin drum cart sledge fence "
        "bench stove bottle picture".split()
    ),
    "direction": ("north", "south", "east", "west"),
    "land": tuple("hill river valley field meadow road lake shore path island mountain stream".split()),
    "thing": TOPICS,
}

_SLOT = re.compile(r"\{(\w+)\}")


class Decks:
    """Deals words of each kind in random order; a word comes back only after all others of its kind."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._decks: dict[str, Iterator[str]] = {}

    def deal(self, kind: str) -> str:
        word = next(self._decks.get(kind, iter(())), None)
        if word is None:
            words = list(WORDS[kind])
            self._rng.shuffle(words)
            self._decks[kind] = iter(words)
            word = next(self._decks[kind])
        return word


def fill(template: str, decks: Decks, fixed: Mapping[str, str]) -> str:
    """Replace each ``{kind}``: by the fixed word of that name, else by one that the decks deal."""
    return _SLOT.sub(lambda slot: fixed.get(slot[1]) or decks.deal(slot[1]), template)
