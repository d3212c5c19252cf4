"""Tokenising with prefix reuse gives the ids of tokenising whole."""

import asyncio
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from gateway.text.tokenise import ENTRY_BYTES, PartCache, PromptEncoder, PromptTooLong, find_cuts
from tests.gateway.model_dir import (
    CORPUS,
    SPECIAL,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    metaspace_tokenizer,
    split_tokenizer,
)


def stripping_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with added tokens that take the spaces around them, and overlapping ones."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool>", rstrip=True, normalized=False), AddedToken("<tool>x", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<|im_start|>user")])
    return tokenizer


TOKENIZERS = {
    "byte_level": byte_level_tokenizer(),
    "byte_fallback": byte_fallback_tokenizer(),
    "metaspace": metaspace_tokenizer(),
    "split": split_tokenizer(),
    "stripping": stripping_tokenizer(),
}
MARKS = [*SPECIAL, "<s>", "</s>", "<tool>", "<tool>x", "<mask>", "<|im_start|>user", "<|im_", " ", "\n", "  \n ", "x"]
texts = st.lists(
    st.one_of(st.sampled_from(MARKS), st.sampled_from([text * 5 for text in CORPUS]), st.text(max_size=20)), max_size=14
).map("".join)


@pytest.mark.parametrize("family", TOKENIZERS)
def test_ids_equal_uncached_ids(family: str) -> None:
    """For any text, first seen or seen in parts, the ids are those of the tokenizer on the whole text."""
    tokenizer = TOKENIZERS[family]
    encoder = PromptEncoder(tokenizer, cache_bytes=20_000)

    @given(texts, texts)
    def check(first: str, more: str) -> None:
        for text in (first, first + more, first + more):
            assert encoder.encode_now(text) == tokenizer.encode(text, add_special_tokens=False).ids

    check()
    encoder.close()


def test_special_ids_around_a_text() -> None:
    """On request the ids that the tokenizer puts around any text are added, once."""
    tokenizer = byte_fallback_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    encoder = PromptEncoder(tokenizer)
    for text in ("Hello", "", "<s>the" * 200):
        assert encoder.encode_now(text, special=True) == tokenizer.encode(text, add_special_tokens=True).ids
        assert encoder.encode_now(text) == tokenizer.encode(text, add_special_tokens=False).ids
    encoder.close()


def test_scopes_share_nothing() -> None:
    """A part kept for one scope is not looked up for another."""
    cache = PartCache(10_000)
    encoder = PromptEncoder(byte_level_tokenizer())
    assert encoder.encode_now("<|im_end|>" * 200, scope="a") == encoder.encode_now("<|im_end|>" * 200, scope="b")
    assert cache.get("b", "anything") is None
    encoder.close()


def test_cache_is_bounded_by_bytes() -> None:
    """The least recently used parts go first, and a part over the bound is not kept at all."""
    ids = array("I", [1] * 10)
    entry = 10 + 40 + ENTRY_BYTES
    cache = PartCache(3 * entry)
    for name in ("a" * 10, "b" * 10, "c" * 10):
        cache.put("", name, ids)
    assert cache.get("", "a" * 10) == ids
    cache.put("", "d" * 10, ids)
    assert cache.get("", "b" * 10) is None
    assert cache.get("", "a" * 10) == ids
    assert cache.used_bytes == 3 * entry
    cache.put("", "e" * 5000, ids)
    assert cache.used_bytes == 3 * entry


def test_tokens_that_look_around_forbid_cutting() -> None:
    """A tokenizer with a whole-word added token is never cut."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("foo", single_word=True)])
    assert find_cuts(tokenizer) is None
    assert find_cuts(byte_level_tokenizer()) is not None


async def test_long_texts_leave_the_loop_free() -> None:
    """A long text is made and tokenised in a thread while the loop runs on."""
    encoder = PromptEncoder(byte_level_tokenizer())
    text = " ".join(CORPUS) * 300
    ticks = 0
    task = asyncio.create_task(encoder.encode(lambda: text, len(text), special=False, scope=""))
    while not task.done():
        await asyncio.sleep(0)
        ticks += 1
    assert ticks > 2
    assert await task == encoder.encode_now(text)
    encoder.close()


async def test_errors_of_the_text_come_through() -> None:
    """What making the text raises, the caller gets, on either way."""
    encoder = PromptEncoder(byte_level_tokenizer())

    def refuse() -> str:
        raise LookupError("no text")

    for size in (1, 100_000):
        with pytest.raises(LookupError):
            await encoder.encode(refuse, size, special=False, scope="")
    encoder.close()


async def test_far_too_long_text_is_refused_early() -> None:
    """A text far over the limit is refused by a sample of it; one that may be under is encoded."""
    encoder = PromptEncoder(byte_level_tokenizer())
    with pytest.raises(PromptTooLong):
        await encoder.encode(lambda: "word " * 100_000, 500_000, special=False, scope="", limit_tokens=1000)
    for text in ("word " * 1500, "<|im_end|>" * 20_000):
        ids = await encoder.encode(lambda text=text: text, len(text), special=False, scope="", limit_tokens=20_000)  # type: ignore[misc]
        assert ids == encoder.encode_now(text)
    encoder.close()
