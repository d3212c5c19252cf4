"""What the second turn of a long conversation costs to tokenise, against the first."""

import statistics
import time

from gateway.text.tokenise import PromptEncoder
from tests.gateway.model_dir import CORPUS, byte_level_tokenizer

PROMPT_TOKENS = 65_536
ROUNDS = 5


def turns(encoder: PromptEncoder) -> tuple[str, str]:
    """Return a first turn of about ``PROMPT_TOKENS`` tokens, and the same conversation with its second question."""
    sentence = " ".join(CORPUS) + "\n"
    times = PROMPT_TOKENS // len(encoder.encode_now(sentence))
    first = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{sentence * times}<|im_end|>\n"
    opening = "<|im_start|>assistant\n"
    answer = f"{CORPUS[0]}<|im_end|>\n<|im_start|>user\n{CORPUS[1]}<|im_end|>\n"
    return first + opening, first + opening + answer + opening


def measure(encoder: PromptEncoder, text: str) -> float:
    """Return the seconds that one encoding takes."""
    started = time.perf_counter()
    encoder.encode_now(text)
    return time.perf_counter() - started


def run() -> dict[str, float]:
    """Return the medians; a fresh cache for each round."""
    tokenizer = byte_level_tokenizer()
    firsts, seconds = [], []
    for _ in range(ROUNDS):
        encoder = PromptEncoder(tokenizer)
        first, second = turns(encoder)
        firsts.append(measure(encoder, first))
        seconds.append(measure(encoder, second))
        encoder.close()
    first_s, second_s = statistics.median(firsts), statistics.median(seconds)
    return {
        "first_turn_tokenise_ms": first_s * 1e3,
        "second_turn_tokenise_ms": second_s * 1e3,
        "second_turn_tokenise_ratio": second_s / first_s,
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:32} {value:.4f}")
