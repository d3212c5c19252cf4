"""Prompt text to token ids, without tokenising again what was tokenised before.

A tokenizer splits a text at its added tokens first and treats what lies between them apart. So a text can be cut in
front of any added token that is matched literally, and the ids of the parts put together are the ids of the whole. A
conversation's earlier messages are such parts; their ids are kept, bounded by bytes, least recently used first out.
"""

import asyncio
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Protocol, TypeAlias

from tokenizers import Encoding, Tokenizer

PART_CHARACTERS = 256
"""Parts are no shorter than this, but for the last, which is then not kept."""
INLINE_CHARACTERS = 2000
"""Shorter texts are tokenised on the event loop: less time than the way to a thread and back."""
ENTRY_BYTES = 200
SAMPLED_CHARACTERS_PER_TOKEN = 16

Scope = str
Ids: TypeAlias = "array[int]"  # a generic only for the type checker before Python 3.12


class PromptStart(Protocol):
    """Knows the ids that a prompt begins with; both are called where the encoding runs."""

    def begin(self, text: str) -> "tuple[Ids, int] | None":
        """Return them, and where in the text they end, which is before an added token; None: nothing is known."""
        ...

    def made(self, prompt: Sequence[int]) -> None:
        """The prompt is complete."""
        ...


class PromptTooLong(Exception):
    """A text has more tokens than asked for, by far."""


class CannotCut(Exception):
    """The tokenizer makes more of a text than its parts' ids put together."""


class PartCache:
    """Ids of text parts by (scope, text); an entry counts its text, its ids and a fixed overhead. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[tuple[Scope, str], Ids] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def get(self, scope: Scope, part: str) -> "Ids | None":
        with self._lock:
            ids = self._entries.get((scope, part))
            if ids is not None:
                self._entries.move_to_end((scope, part))
            return ids

    def put(self, scope: Scope, part: str, ids: Ids) -> None:
        """Keep the ids, unless they alone are over the limit."""
        size = self._size(part, ids)
        if size > self._limit_bytes:
            return
        with self._lock:
            if (scope, part) in self._entries:
                return
            self._entries[scope, part] = ids
            self.used_bytes += size
            while self.used_bytes > self._limit_bytes:
                (_, oldest), dropped = self._entries.popitem(last=False)
                self.used_bytes -= self._size(oldest, dropped)

    @staticmethod
    def _size(part: str, ids: Ids) -> int:
        return len(part) * (1 if part.isascii() else 4) + len(ids) * ids.itemsize + ENTRY_BYTES


class PromptEncoder:
    """Encodes texts with one tokenizer, long ones in its own threads, where the tokenizer releases the GIL."""

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = 64 << 20, threads: int = 2) -> None:
        self._tokenizer = tokenizer
        self._cuts = find_cuts(tokenizer)
        self._wrapping = find_wrapping(tokenizer)
        self._cache = PartCache(cache_bytes)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")

    async def encode(
        self,
        make_text: Callable[[], str],
        size_hint: int,
        *,
        special: bool,
        scope: Scope,
        limit_tokens: int | None = None,
        start: PromptStart | None = None,
        cut: str | None = None,
    ) -> list[int]:
        """Return the ids of the text that ``make_text`` returns, which runs where the encoding runs.

        ``size_hint``: about how many characters. ``special``: with the ids that the tokenizer puts around a text (BOS).
        ``scope``: parts are shared only within it. Raises what ``make_text`` raises, and PromptTooLong for a text that
        is far over ``limit_tokens``, without encoding all of it; a text that is little over it is encoded.
        ``start`` is for texts without the ids around. ``cut``: see ``encode_now``.
        """

        def work() -> list[int]:
            text = make_text()
            if limit_tokens is not None:
                self._refuse_far_over(text, limit_tokens)
            if start is None:
                return self.encode_now(text, special=special, scope=scope, cut=cut)
            known = start.begin(text)
            prompt = self.encode_now(text if known is None else text[known[1] :], scope=scope, cut=cut)
            prompt = prompt if known is None else [*known[0], *prompt]
            start.made(prompt)
            return prompt

        if size_hint <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def encode_now(self, text: str, *, special: bool = False, scope: Scope = "", cut: str | None = None) -> list[int]:
        """Encode on this thread. ``cut`` stands in no result: what is before it and after it is tokenised apart."""
        if special and self._wrapping is None:
            if cut is not None and cut in text:
                raise CannotCut
            return self._tokenizer.encode(text, add_special_tokens=True).ids
        stretches = [text] if cut is None else text.split(cut)
        parts = [part for stretch in stretches for part in self._split(stretch)]
        found = [self._cache.get(scope, part) for part in parts]
        missing = [part for part, ids in zip(parts, found, strict=True) if ids is None]
        made = iter(self._encode_parts(missing))
        before, after = self._wrapping if special and self._wrapping is not None else ([], [])
        prompt = list(before)
        for part, ids in zip(parts, found, strict=True):
            if ids is None:
                new = next(made).ids
                prompt.extend(new)
                if len(part) >= PART_CHARACTERS:
                    self._cache.put(scope, part, array("I", new))
            else:
                prompt.extend(ids)
        prompt.extend(after)
        return prompt

    def may_cut_before(self, token: str) -> bool:
        """Say whether a text in front of which this token stands is tokenised apart from what comes before."""
        return self._cuts is not None and token in self._cuts[1]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode_parts(self, parts: list[str]) -> list[Encoding]:
        if sum(map(len, parts)) <= INLINE_CHARACTERS:
            # The batch call hands its work to other threads, which costs more than such a text.
            return [self._tokenizer.encode(part, add_special_tokens=False) for part in parts]
        return self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)

    def _refuse_far_over(self, text: str, limit_tokens: int) -> None:
        sample = SAMPLED_CHARACTERS_PER_TOKEN * limit_tokens
        if len(text) <= 2 * sample:
            return
        sampled = len(self._tokenizer.encode_batch_fast([text[:sample]], add_special_tokens=False)[0].ids)
        # The cut of the sample may make some more tokens than the whole text has there: hence the margin.
        if sampled > limit_tokens + limit_tokens // 4 + SAMPLED_CHARACTERS_PER_TOKEN:
            raise PromptTooLong

    def _split(self, text: str) -> list[str]:
        if self._cuts is None or len(text) <= PART_CHARACTERS:
            return [text]
        pattern, may_cut = self._cuts
        cuts = [0]
        for match in pattern.finditer(text):
            if match.start() - cuts[-1] >= PART_CHARACTERS and match[0] in may_cut:
                cuts.append(match.start())
        cuts.append(len(text))
        return [text[start:end] for start, end in pairwise(cuts)]


def find_cuts(tokenizer: Tokenizer) -> tuple[re.Pattern[str], frozenset[str]] | None:
    """Return a pattern of the added tokens that are matched literally, and those in front of which a text may be cut.

    None: this tokenizer's texts cannot be cut.
    """
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if token.content]
    if any(token.single_word for token in added):
        # Such a token looks at the letters around it, and so beyond a cut.
        return None
    literal = [token for token in added if not token.normalized]
    may_cut = frozenset(t.content for t in literal if not (t.lstrip or t.rstrip or t.content[0].isspace()))
    if not may_cut:
        return None
    # As the tokenizer does: of those that begin at a place, the longest.
    longest_first = sorted((token.content for token in literal), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))), may_cut


def find_wrapping(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids that the tokenizer puts before and after any text; None: that is not all that it does."""
    probe = "probe"
    bare = tokenizer.encode(probe, add_special_tokens=False).ids
    whole = tokenizer.encode(probe, add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return None
