"""Training of the demo model: short chats, and among them, from early on, chats at the end of long journals.

A long step computes the journal's KV without gradients and trains only on the chat behind it. This teaches what
matters at positions in the thousands, to look past the journal, at a third of the cost of a full step.
"""

import logging
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from backends.engines.reference.demo_model.corpus import Turn, journal, opening, render, turn
from backends.engines.reference.demo_model.tokenizer import CONTEXT_TOKENS, IM_END, IM_START

_log = logging.getLogger(__name__)

_OTHER_WEIGHT = 0.1
"""Loss weight of all but the answers: users' words can hardly be foretold, and need not be."""
_HEAD_WEIGHT = 4.0
_HEAD_TOKENS = 8
"""Loss weight of the words that an essay begins with: which essay it is, is decided there."""


@dataclass(frozen=True, slots=True)
class TrainingSchedule:
    """How long to train, and on how much at a time."""

    steps: int = 480
    short_chats: int = 6
    first_long_step: int = 160
    long_every: int = 5
    long_chats: int = 3
    longest_journal_words: int = 6_000
    peak_rate: float = 4e-3
    warmup_steps: int = 30


def new_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """An untrained model of 4 layers; its KV takes 4 KiB a token in float32."""
    end_of_turn = tokenizer.token_to_id(IM_END)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_turn,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


class _Examples:
    """Draws chats and turns them into token ids and loss weights."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(f"training:{seed}")
        self._starts = (tokenizer.token_to_id(IM_START), tokenizer.encode("assistant").ids[0])
        self._end = tokenizer.token_to_id(IM_END)
        self._paragraph = tokenizer.encode("\n\n").ids[0]

    def short(self, chats: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of whole chats: ids and weights, both of shape (chats, tokens)."""
        return self._pad([self._chat(journal_words=self._rng.choice((0, 0, 30, 80))) for _ in range(chats)])

    def long(self, chats: int, journal_words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One journal, shape (1, tokens), and a batch of chats that go on from it: ids and weights."""
        head = f"{IM_START}user\n{opening(self._rng)}\n\n{journal(self._rng, journal_words)}"
        tails = [self._chat(journal_words=0).removeprefix(f"{IM_START}user\n") for _ in range(chats)]
        ids, weights = self._pad(["\n\n" + tail for tail in tails])
        return torch.tensor([self._tokenizer.encode(head).ids]), ids, weights

    def _chat(self, journal_words: int) -> str:
        rng = self._rng
        first = turn(rng, most_topics=2)
        if journal_words:
            first = Turn(f"{opening(rng)}\n\n{journal(rng, journal_words)}\n\n{first.user}", first.assistant)
        turns = [first, turn(rng)] if rng.random() < 0.2 else [first]
        system = "You are a helpful assistant." if journal_words and rng.random() < 0.2 else ""
        return render(turns, system)

    def _pad(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        width = max(map(len, rows))
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        weights = torch.zeros((len(rows), width))
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            weights[row, : len(tokens)] = torch.tensor(self._weights(tokens))
        return ids, weights

    def _weights(self, tokens: Sequence[int]) -> list[float]:
        weights, answering, begun = [], False, 0
        for place, token in enumerate(tokens):
            head = _HEAD_WEIGHT if place - begun <= _HEAD_TOKENS else 1.0
            weights.append(head if answering else _OTHER_WEIGHT)
            if token == self._end:
                answering = False
            elif tuple(tokens[place - 1 : place + 1]) == self._starts:
                answering, begun = True, place + 1
            elif token == self._paragraph:
                begun = place
        return weights


def _loss(logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy of each next token, a scalar."""
    each = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = weights[:, 1:].flatten()
    return (each * weight).sum() / weight.sum()


def _rate(step: int, schedule: TrainingSchedule) -> float:
    warm = min(1.0, (step + 1) / schedule.warmup_steps)
    return schedule.peak_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / schedule.steps)))


def train(tokenizer: Tokenizer, seed: int, schedule: TrainingSchedule) -> Qwen3ForCausalLM:
    """Train a new model from the seed; float32, on CPU."""
    torch.manual_seed(seed)
    model = new_model(tokenizer)
    examples = _Examples(tokenizer, seed)
    lengths = random.Random(f"lengths:{seed}")
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.02)
    began = time.monotonic()
    for step in range(schedule.steps):
        for group in optimiser.param_groups:
            group["lr"] = _rate(step, schedule)
        if step < schedule.first_long_step or step % schedule.long_every:
            ids, weights = examples.short(schedule.short_chats)
            logits = model(input_ids=ids, use_cache=False).logits
        else:
            words = lengths.randint(schedule.longest_journal_words // 6, schedule.longest_journal_words)
            head, ids, weights = examples.long(schedule.long_chats, words)
            cache = DynamicCache(config=model.config)
            with torch.no_grad():
                model(input_ids=head, cache=cache, logits_to_keep=1)
            cache.batch_repeat_interleave(schedule.long_chats)
            logits = model(input_ids=ids, cache=cache).logits
        loss = _loss(logits, ids, weights)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0 or step == schedule.steps - 1:
            _log.info("step %d of %d: loss %.3f, %.0f s", step, schedule.steps, loss.item(), time.monotonic() - began)
    return model
