"""Log-probabilities by token id to OpenAI's two shapes, by token text."""

from collections.abc import Sequence

from backends.types import TokenLogprob
from gateway.api.wire import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from gateway.text.vocabulary import Vocabulary


def spell_chat(positions: Sequence[TokenLogprob], most: int, vocabulary: Vocabulary) -> ChatLogprobs:
    """Return the chat shape with at most ``most`` alternatives a position; ``bytes`` tells split characters apart."""
    content = []
    for position in positions:
        chosen = vocabulary.token_bytes(position.token_id)
        alternatives = [(vocabulary.token_bytes(token_id), value) for token_id, value in position.top[:most]]
        top = [TopLogprob(text(data), value, list(data)) for data, value in alternatives]
        content.append(ChatLogprob(text(chosen), position.logprob, list(chosen), top))
    return ChatLogprobs(content)


def spell_completion(
    positions: Sequence[TokenLogprob], offsets: Sequence[int], most: int, vocabulary: Vocabulary
) -> CompletionLogprobs:
    """Return the completions shape; the chosen token is always among the alternatives."""
    tokens = [text(vocabulary.token_bytes(position.token_id)) for position in positions]
    tops = []
    for token, position in zip(tokens, positions, strict=True):
        top = {text(vocabulary.token_bytes(token_id)): value for token_id, value in position.top[:most]}
        tops.append({token: position.logprob, **top} if token not in top else top)
    return CompletionLogprobs(tokens, [position.logprob for position in positions], tops, list(offsets))


def text(data: bytes) -> str:
    """Return a token's bytes as text."""
    return data.decode("utf-8", "replace")
