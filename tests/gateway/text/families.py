"""One vocabulary of each family, made once."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gateway.text.vocabulary import Vocabulary
from tests.gateway.model_dir import byte_fallback_tokenizer, byte_level_tokenizer, metaspace_tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer: continuations are marked, words are joined by spaces."""
    names = ["[UNK]", "[SEP]", "hello", "world", "##s", "##ing", ".", ",", "do", "not", "'", "a"]
    tokenizer = Tokenizer(models.WordPiece({name: rank for rank, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    return tokenizer


def end_of_word_tokenizer() -> Tokenizer:
    """A BPE tokenizer whose decoder looks at the next token, so that only the window way is right."""
    names = ["lo", "w</w>", "er</w>", "new</w>", "é</w>", "x"]
    tokenizer = Tokenizer(models.BPE({name: rank for rank, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


def unstripped_tokenizer() -> Tokenizer:
    """A byte-fallback tokenizer that keeps a leading space, as Gemma's does."""
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def bare_tokenizer() -> Tokenizer:
    """A tokenizer without a decoder: tokens are joined by spaces."""
    return Tokenizer(models.WordLevel({"one": 0, "two": 1, "three": 2}, unk_token="one"))


FAMILIES = {
    "byte_level": Vocabulary(byte_level_tokenizer()),
    "byte_fallback": Vocabulary(byte_fallback_tokenizer()),
    "unstripped": Vocabulary(unstripped_tokenizer()),
    "metaspace": Vocabulary(metaspace_tokenizer()),
    "word_piece": Vocabulary(word_piece_tokenizer()),
    "end_of_word": Vocabulary(end_of_word_tokenizer()),
    "bare": Vocabulary(bare_tokenizer()),
}


def token(vocabulary: Vocabulary, name: str) -> int:
    """Return the id of a token that is there."""
    token_id = vocabulary.tokenizer.token_to_id(name)
    assert token_id is not None
    return token_id
